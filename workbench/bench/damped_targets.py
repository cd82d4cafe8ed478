"""Model pairs of chosen acceptance and size: a random target with damped upper layers, and its first layers as drafter.

A random target's text is meaningless, but its speed is that of any model of its shape. The drafter is a separate model
of the target's first layers, its norm and its LM head, with shared weights. The gains of the norms damp the layers
above, until drafter and target agree at the desired rate. A damped layer has the same cost as any other.
`early-exit` can draft with the same layers. (`forced_acceptance` builds drafters for an existing target; each is a
whole additional model.)
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
from workbench.bench.forced_acceptance import agreement
from workbench.bench.lanes import BASELINE
from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Models, Runner
from workbench.kernels.layers import decoder_layers
from workbench.methods import registry

LOGIT_STD = 8.0
"""Standard deviation of the logits. The largest of 128,256 normal ones then has a probability of about 0.6, as in real
text; with deviation 1 it would have 0.0004, and confidence-based drafting would never draft."""
SEARCH_STEPS, SEARCH_PROMPTS, SEARCH_TOKENS, PROMPT_TOKENS = 8, 2, 64, 100
"""Bisection steps per desired agreement, and size of the texts on which drafter and target are compared in each step:
number of prompts, new tokens and tokens per prompt."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """Shape of a target, in the layout of Llama 3, with an LM head of its own.

    Attributes:
        name: name of the shape in tables.
        hidden: width of the residual stream.
        inner: width of the MLP.
        layers: number of decoder layers.
        heads: number of query heads.
        kv_heads: number of key–value heads.
        vocabulary: number of tokens in the vocabulary.
        draft_layers: number of first layers that form the drafter.
    """

    name: str
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    draft_layers: int

    def config(self, layers: int | None = None) -> LlamaConfig:
        """Return the Llama configuration of a model of this shape, with all layers or with only the first `layers`."""
        return LlamaConfig(
            vocab_size=self.vocabulary, hidden_size=self.hidden, intermediate_size=self.inner,
            num_hidden_layers=layers or self.layers, num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads, max_position_embeddings=8192, bos_token_id=None, eos_token_id=None,
            pad_token_id=None, tie_word_embeddings=False,
        )  # fmt: skip


SHAPES = (
    Shape("1B", 2048, 8192, 16, 32, 8, 128_256, draft_layers=1),
    Shape("8B", 4096, 14336, 32, 32, 8, 128_256, draft_layers=2),
)
"""Shapes of the smallest models of Llama 3.2 and 3.1.

Source: Grattafiori et al. 2024, arXiv:2407.21783, table 3, and model cards.
"""


def random_pair(shape: Shape, device: torch.device, dtype: torch.dtype, context: int) -> Models:
    """Return a random target whose upper layers are not damped yet, and its first layers as its drafter.

    Args:
        shape: shape of the target.
        device: device of both models.
        dtype: dtype of the weights of both models.
        context: longest sequence, in tokens.
    """
    target, context = random_target(shape, device, dtype), max(context, PROMPT_TOKENS + SEARCH_TOKENS)
    models = Models(Runner(target, context), tokenizer(shape.vocabulary), shape.name)
    models.drafter, models.drafter_name = Runner(first_layers(target, shape), context), "its first layers"
    models.drafter_problem = ""
    return models


@torch.no_grad()
def random_target(shape: Shape, device: torch.device | str, dtype: torch.dtype, seed: int = 0) -> LlamaForCausalLM:
    """Return a random Llama, sampled on its device: no weight is ever on the host.

    Matrix products preserve the magnitude of their inputs (standard deviation 1 / √inputs), embeddings have deviation
    1, logits `LOGIT_STD`.

    Args:
        shape: shape of the target.
        device: device of the target.
        dtype: dtype of the target's weights.
        seed: seed of the device's generator. The weights differ between kinds of devices.
    """
    with torch.device("meta"):
        model: Any = LlamaForCausalLM(shape.config())
    model = model.to(dtype).to_empty(device=device)
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config).to(device)  # its table is not a parameter
    generator = torch.Generator(device).manual_seed(seed)
    for name, weight in model.named_parameters():
        if weight.dim() < 2:
            weight.fill_(1.0)
        elif "embed_tokens" in name:
            weight.normal_(generator=generator)
        else:
            size = LOGIT_STD if "lm_head" in name else 1.0
            weight.normal_(0.0, size * weight.shape[1] ** -0.5, generator=generator)
    return model.eval().requires_grad_(False)


def first_layers(target: LlamaForCausalLM, shape: Shape) -> LlamaForCausalLM:
    """Return a separate model of the target's first layers, norm and LM head, which shares the target's weights."""
    with torch.device("meta"):
        drafter: Any = LlamaForCausalLM(shape.config(shape.draft_layers))
    names = set(drafter.state_dict())
    drafter.load_state_dict({n: w for n, w in target.state_dict().items() if n in names}, assign=True)
    drafter.model.rotary_emb = copy.deepcopy(target.model.rotary_emb)
    return drafter.eval().requires_grad_(False)


@torch.no_grad()
def damp(target: LlamaForCausalLM, first: int, gain: float) -> None:
    """Damp the layers from `first` on: they add little to the residual stream (nothing at gain 0), at the same cost.

    The gains of both norms scale a layer's inputs, and thereby its outputs.
    """
    for layer in decoder_layers(target)[1][first:]:
        for norm in ("input_layernorm", "post_attention_layernorm"):
            layer.get_submodule(norm).get_parameter("weight").fill_(gain)


def damp_to(models: Models, first: int, desired_agreement: float) -> float:
    """Damp a target, by bisection, to a drafter agreement of about `desired_agreement` (share of positions).

    The text is the target's own greedy text after random prompts, generated again for each gain.

    Args:
        models: models with the target and its drafter.
        first: the target's first damped layer.
        desired_agreement: share of positions, 0 to 1. At 1 the damped layers add nothing; near 0 no layer is damped.

    Returns:
        The agreement reached on that text.
    """
    target: Any = models.target.model
    low, high, best, reached = 0.0, 1.0, 0.0, 1.0
    for _ in range(SEARCH_STEPS if desired_agreement < 1 else 0):
        gain = (low + high) / 2
        share = _agreement(models, first, gain)
        if abs(share - desired_agreement) < abs(reached - desired_agreement):
            best, reached = gain, share
        low, high = (gain, high) if share > desired_agreement else (low, gain)
    damp(target, first, best)
    return reached


def _agreement(models: Models, first: int, gain: float) -> float:
    target: Any = models.target.model
    damp(target, first, gain)
    plain = EngineContender(Engine(models), registry.get(BASELINE).with_params(), SamplingParams(), SEARCH_TOKENS)
    prompts = [random_ids(models.target.vocab_size, PROMPT_TOKENS, seed) for seed in range(SEARCH_PROMPTS)]
    assert models.drafter is not None
    return agreement(models.drafter.model, [(ids, plain.run(ids).token_ids) for ids in prompts])


def tokenizer(size: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer whose token i is the word "i": a prompt is its token ids, separated by spaces."""
    word_level = Tokenizer(WordLevel(vocab={str(i): i for i in range(size)}, unk_token="0"))
    word_level.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=word_level)


def random_ids(vocabulary: int, length: int, seed: int = 0) -> list[int]:
    """Return a prompt of random tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocabulary, (length,), generator=generator).tolist()


def weights_bytes(shape: Shape, dtype: torch.dtype) -> int:
    """Return the bytes of the weights of a target of this shape, without creating it."""
    with torch.device("meta"):
        model = LlamaForCausalLM(shape.config())
    return sum(p.numel() for p in model.parameters()) * dtype.itemsize
