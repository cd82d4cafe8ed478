"""Pairs of a chosen acceptance of any size: a random target whose upper layers are damped, and its first layers.

What a random target writes means nothing; how quickly it writes is that of any model of its shape. The drafter is the
target's own first layers under its norm and its head, as a model of its own that shares their weights; the layers above
are damped by the gains of their norms, until drafter and target say the same word as often as is wanted. A damped layer
computes and reads as much as any other. `early-exit` can draft with the same layers. (`forced` makes drafters for a
given target, and each is a whole model beside it.)
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from workbench.bench.contenders import EngineContender
from workbench.bench.forced import agreement
from workbench.bench.lanes import BASELINE
from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Models, Runner
from workbench.kernels.layers import decoder_layers
from workbench.methods import registry

SURE = 8.0
"""Standard deviation of the logits. Of 128,256 normal ones the likeliest has then some 0.6 of the probability, as in
real text; at 1 it would have 0.0004, and whatever drafts while it is sure would never draft."""
SEARCH_STEPS, SEARCH_PROMPTS, SEARCH_TOKENS, PROMPT_TOKENS = 8, 2, 64, 100
"""Gains that are tried for a level, and the text that each is judged by."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """Of a target, in the layout of Llama 3, with an LM head of its own.

    Attributes:
        name: in tables.
        hidden: width of the residual stream.
        inner: width of the feed-forward.
        layers: decoder layers.
        heads: query heads.
        kv_heads: key–value heads.
        vocabulary: tokens.
        drafts: first layers that draft.
    """

    name: str
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    drafts: int

    def config(self, layers: int | None = None) -> LlamaConfig:
        """Of the whole model, or of its first layers alone."""
        return LlamaConfig(
            vocab_size=self.vocabulary, hidden_size=self.hidden, intermediate_size=self.inner,
            num_hidden_layers=layers or self.layers, num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads, max_position_embeddings=8192, bos_token_id=None, eos_token_id=None,
            pad_token_id=None, tie_word_embeddings=False,
        )  # fmt: skip


SHAPES = (
    Shape("1B", 2048, 8192, 16, 32, 8, 128_256, drafts=1),
    Shape("8B", 4096, 14336, 32, 32, 8, 128_256, drafts=2),
)
"""Llama 3.2's smallest and Llama 3.1's: Grattafiori et al. 2024, arXiv:2407.21783, table 3, and the models' cards."""


def made_pair(shape: Shape, device: torch.device, dtype: torch.dtype, context: int) -> Models:
    """A random target with its first layers as the drafter, undamped.

    Args:
        shape: of the target.
        device: where both live.
        dtype: of their weights.
        context: longest sequence, in tokens.
    """
    target, context = random_target(shape, device, dtype), max(context, PROMPT_TOKENS + SEARCH_TOKENS)
    models = Models(Runner(target, context), tokenizer(shape.vocabulary), shape.name)
    models.drafter, models.drafter_name = Runner(first_layers(target, shape), context), "its first layers"
    models.drafter_problem = ""
    return models


@torch.no_grad()
def random_target(shape: Shape, device: torch.device | str, dtype: torch.dtype, seed: int = 0) -> LlamaForCausalLM:
    """A random Llama, drawn where it runs: no weight is ever on the host.

    Products keep the size of what they are given (standard deviation 1 / √inputs), embeddings have deviation 1, logits
    `SURE`.

    Args:
        shape: of the target.
        device: where it lives.
        dtype: of its weights.
        seed: of the generator there. The weights differ from one kind of device to another.
    """
    with torch.device("meta"):
        model: Any = LlamaForCausalLM(shape.config())
    model = model.to(dtype).to_empty(device=device)
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config).to(device)  # its table is no weight
    generator = torch.Generator(device).manual_seed(seed)
    for name, weight in model.named_parameters():
        if weight.dim() < 2:
            weight.fill_(1.0)
        elif "embed_tokens" in name:
            weight.normal_(generator=generator)
        else:
            size = SURE if "lm_head" in name else 1.0
            weight.normal_(0.0, size * weight.shape[1] ** -0.5, generator=generator)
    return model.eval().requires_grad_(False)


def first_layers(target: LlamaForCausalLM, shape: Shape) -> LlamaForCausalLM:
    """The target's first layers under its norm and its head: a model of its own, which shares all their weights."""
    with torch.device("meta"):
        drafter: Any = LlamaForCausalLM(shape.config(shape.drafts))
    wanted = set(drafter.state_dict())
    drafter.load_state_dict({n: w for n, w in target.state_dict().items() if n in wanted}, assign=True)
    drafter.model.rotary_emb = copy.deepcopy(target.model.rotary_emb)
    return drafter.eval().requires_grad_(False)


@torch.no_grad()
def damp(target: LlamaForCausalLM, first: int, gain: float) -> None:
    """Let the layers from `first` on add little to the stream, or nothing at gain 0, at the same cost.

    What a layer reads is scaled by the gains of its two norms, and so is what it adds.
    """
    for layer in decoder_layers(target)[1][first:]:
        for norm in ("input_layernorm", "post_attention_layernorm"):
            layer.get_submodule(norm).get_parameter("weight").fill_(gain)


def damp_to(models: Models, first: int, wanted: float) -> float:
    """Damp a target so far that its drafter says its next word in about the `wanted` share of places; by bisection.

    The target's words are its own greedy text behind random prompts, written anew for each gain.

    Args:
        models: the pair.
        first: the target's layer from which on it is damped.
        wanted: share of places, 0 to 1. At 1 the layers add nothing, and at 0 they are as they were drawn.

    Returns:
        The agreement that it reaches on that text.
    """
    target: Any = models.target.model
    low, high, best, reached = 0.0, 1.0, 0.0, 1.0
    for _ in range(SEARCH_STEPS if wanted < 1 else 0):
        gain = (low + high) / 2
        share = _agreement(models, first, gain)
        if abs(share - wanted) < abs(reached - wanted):
            best, reached = gain, share
        low, high = (gain, high) if share > wanted else (low, gain)
    damp(target, first, best)
    return reached


def _agreement(models: Models, first: int, gain: float) -> float:
    target: Any = models.target.model
    damp(target, first, gain)
    plain = EngineContender(Engine(models), registry.get(BASELINE).with_params(), SamplingParams(), SEARCH_TOKENS)
    asked = [random_ids(models.target.vocab_size, PROMPT_TOKENS, seed) for seed in range(SEARCH_PROMPTS)]
    assert models.drafter is not None
    return agreement(models.drafter.model, [(ids, plain.run(ids).token_ids) for ids in asked])


def tokenizer(size: int) -> PreTrainedTokenizerFast:
    """Token i is the word "i": a prompt is its token ids, written with spaces between."""
    made = Tokenizer(WordLevel(vocab={str(i): i for i in range(size)}, unk_token="0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=made)


def random_ids(vocabulary: int, length: int, seed: int = 0) -> list[int]:
    """A prompt of random tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocabulary, (length,), generator=generator).tolist()


def weights_bytes(shape: Shape, dtype: torch.dtype) -> int:
    """Of a target of this shape, without making it."""
    with torch.device("meta"):
        model = LlamaForCausalLM(shape.config())
    return sum(p.numel() for p in model.parameters()) * dtype.itemsize
