"""Tiny worlds for tests: random float64 models, tokenizers made in code, drafters of chosen quality, no downloads."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers import models as tokenizer_models
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedTokenizerFast

from workbench.core.tree import ancestors
from workbench.engine import Models, Runner
from workbench.engine.models import HeadInfo
from workbench.engine.runner import Segment, Slot

# -- tokenizers -------------------------------------------------------------------------------------------------------


def byte_alphabet() -> list[str]:
    """The 256 printable characters that byte-level tokenizers write bytes with, in the order of the bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


@lru_cache
def byte_tokenizer(size: int = 257) -> PreTrainedTokenizerFast:
    """A tokenizer whose token 0 ends the text and whose token b + 1 is the byte b; cut to `size` entries."""
    vocabulary = {"<e>": 0} | {c: i + 1 for i, c in enumerate(byte_alphabet()) if i + 1 < size}
    tokenizer = Tokenizer(tokenizer_models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<e>")


@lru_cache
def letter_tokenizer(size: int) -> PreTrainedTokenizerFast:
    """Token i is the i-th letter of the alphabet, twice from the 27th on: texts are readable, no token is special."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = {letters[i % 26] * (i // 26 + 1): i for i in range(size)}
    tokenizer = Tokenizer(tokenizer_models.WordLevel(vocab=vocabulary, unk_token="a"))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


# -- models -----------------------------------------------------------------------------------------------------------

VOCABULARY = 64
hf: Any = transformers  # configurations take more than their stubs know

_BASE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_GROUPED = _BASE | {"num_key_value_heads": 2}
_SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]

FAMILIES: dict[str, Callable[..., PreTrainedConfig]] = {
    "llama": lambda **kw: hf.LlamaConfig(**_GROUPED | kw),
    "mistral": lambda **kw: hf.MistralConfig(**_GROUPED | {"sliding_window": 6} | kw),
    "qwen2": lambda **kw: hf.Qwen2Config(**_GROUPED | kw),
    "qwen3": lambda **kw: hf.Qwen3Config(**_GROUPED | {"head_dim": 8} | kw),
    "qwen3_moe": lambda **kw: hf.Qwen3MoeConfig(
        **_GROUPED | {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16} | kw
    ),
    "phi3": lambda **kw: hf.Phi3Config(**_GROUPED | {"sliding_window": None} | kw),
    "gpt2": lambda **kw: hf.GPT2Config(
        **{
            "vocab_size": VOCABULARY,
            "n_embd": 32,
            "n_layer": 3,
            "n_head": 4,
            "n_positions": 128,
            "bos_token_id": None,
            "eos_token_id": None,
        }
        | _named(kw, num_hidden_layers="n_layer")
    ),
    "gpt_neox": lambda **kw: hf.GPTNeoXConfig(**_BASE | kw),
    "opt": lambda **kw: hf.OPTConfig(
        **{k: v for k, v in _BASE.items() if k != "intermediate_size"} | {"ffn_dim": 48, "word_embed_proj_dim": 32} | kw
    ),
    "olmo2": lambda **kw: hf.Olmo2Config(**_GROUPED | kw),
    "smollm3": lambda **kw: hf.SmolLM3Config(**_GROUPED | kw),
    "granite": lambda **kw: hf.GraniteConfig(**_GROUPED | kw),
    "gemma3_text": lambda **kw: hf.Gemma3TextConfig(
        **_GROUPED | {"head_dim": 8, "sliding_window": 6, "layer_types": _SLIDING} | kw
    ),
    "gpt_oss": lambda **kw: hf.GptOssConfig(
        **_GROUPED
        | {
            "head_dim": 8,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 6,
            "layer_types": _SLIDING,
        }
        | kw
    ),
    "llama4_text": lambda **kw: hf.Llama4TextConfig(
        **_GROUPED
        | {
            "head_dim": 8,
            "intermediate_size_mlp": 48,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "attention_chunk_size": 8,
        }
        | kw
    ),
}
"""Tiny configurations by family. Sliding windows and chunks are shorter than the prompts of the tests."""


def _named(values: dict[str, Any], **other: str) -> dict[str, Any]:
    return {other.get(name, name): value for name, value in values.items()}


def random_model(
    config: PreTrainedConfig, seed: int = 0, scale: float = 12.0, device: str = "cpu", auto: Any = AutoModelForCausalLM
) -> Any:
    """A randomly initialised model in float64.

    Args:
        config: of the model.
        seed: of the weights.
        scale: factor on the usual initial weights, which are so small that all laws would be nearly flat.
        device: where it goes.
        auto: class whose `from_config` builds it.
    """
    config = copy.deepcopy(config)
    config._experts_implementation = "eager"  # grouped matrix products know no float64
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = auto.from_config(config, dtype=torch.float64)
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.data.mul_(scale)
    return model.to(device).eval().requires_grad_(False)


def family(name: str, seed: int = 0, device: str = "cpu", **overrides: Any) -> Any:
    """A tiny random model of a family."""
    return random_model(FAMILIES[name](**overrides), seed, device=device)


def noisy(model: Any, amount: float, seed: int = 0) -> Any:
    """A copy with noise of `amount` standard deviations mixed into every weight matrix: a middling drafter."""
    twin = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    for weight in twin.parameters():
        if weight.dim() > 1:
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64).to(weight.device)
            weight.data.add_(amount * weight.std() * noise)
    return twin


def world(
    name: str = "llama",
    seed: int = 0,
    noise: float | None = 0.25,
    device: str = "cpu",
    heads: Path | None = None,
    context: int | None = None,
    **overrides: Any,
) -> Models:
    """A target of a family with a noisy copy as drafter (`noise=None`: none), and random Medusa heads in a folder."""
    target = family(name, seed, device, **overrides)
    size = target.get_output_embeddings().weight.shape[0]
    tokenizer = byte_tokenizer() if size == 257 else letter_tokenizer(size)
    models = Models(Runner(target, context), tokenizer, f"tiny-{name}")
    if noise is not None:
        models.drafter = Runner(noisy(target, noise, seed + 1), models.target.context)
        models.drafter_name, models.drafter_problem = f"tiny-{name}-noisy", ""
    if heads is not None:
        models.heads = {"medusa": random_medusa(heads, models)}
    return models


def small_world(
    vocabulary: int = 6, seed: int = 3, noise: float = 0.35, device: str = "cpu", **overrides: Any
) -> Models:
    """A world whose joint law of the first tokens can be enumerated: a handful of tokens, a law far from flat."""
    overrides = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2} | overrides
    return world("llama", seed, noise, device, vocab_size=vocabulary, **overrides)


def random_medusa(folder: Path, models: Models, n_heads: int = 3, seed: int = 0) -> HeadInfo:
    """Write untrained Medusa heads as `workbench train medusa` would, and describe them."""
    width = models.target.hidden_size
    generator = torch.Generator().manual_seed(seed)
    weights = {
        f"heads.{i}.{part}": 0.3 * torch.randn(shape, generator=generator)
        for i in range(n_heads)
        for part, shape in (("weight", (width, width)), ("bias", (width,)))
    }
    folder.mkdir(parents=True, exist_ok=True)
    ranks = min(10, models.target.vocab_size)
    config = {
        "workbench_head": "medusa", "target": models.target_name, "hidden_size": width, "n_heads": n_heads,
        "head_accuracy": [[0.4 / (r + 1) for r in range(ranks)] for _ in range(n_heads)],
    }  # fmt: skip
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return HeadInfo(folder.name, folder, config)


# -- references -------------------------------------------------------------------------------------------------------


def random_prompt(length: int, vocabulary: int = VOCABULARY, seed: int = 0) -> list[int]:
    """Token ids, never 0."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, vocabulary, (length,), generator=generator).tolist()


def repeating_prompt(length: int, vocabulary: int = VOCABULARY, seed: int = 0, period: int = 4) -> list[int]:
    """A prompt that repeats itself, so that methods that copy have something to propose."""
    return (random_prompt(period, vocabulary, seed) * length)[:length]


def hf_greedy(model: Any, prompt: Sequence[int], n: int, eos: int | None = None, **options: Any) -> list[int]:
    """What Hugging Face's own greedy `generate` writes after a prompt."""
    ids = torch.tensor([list(prompt)], device=model.device)
    config = hf.GenerationConfig(max_new_tokens=n, do_sample=False, eos_token_id=eos, pad_token_id=eos or 0)
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config, **options)
    return out[0, len(prompt) :].tolist()


def path_to(parents: Sequence[int], node: int) -> list[int]:
    """Nodes from the first level down to `node`, by walking up."""
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def tree_segment(slot: Slot, root: int, tokens: Sequence[int], parents: Sequence[int], device: str = "cpu") -> Segment:
    """The last committed token and a tree behind it, as the engine hands them to the target."""
    shifted = torch.tensor([-1, *(p + 1 for p in parents)], device=device)
    sees = ancestors(shifted, len(shifted))
    return Segment(slot, torch.tensor([root, *tokens], device=device), sees, sees.sum(1) - 1)


def tree_error(
    logits: Tensor, beginning: Sequence[int], tokens: Sequence[int], parents: Sequence[int], ask: Any
) -> float:
    """Largest difference between tree logits [N+1, V] and those of a separate full forward of each path.

    Args:
        logits: at the root and after each node.
        beginning: committed tokens, the root last.
        tokens: of the nodes.
        parents: of the nodes.
        ask: ids (list) → logits [V] after the last one.
    """
    worst = 0.0
    for node in range(-1, len(tokens)):
        wanted = ask([*beginning, *(tokens[i] for i in path_to(parents, node))])
        worst = max(worst, float((logits[node + 1] - wanted).abs().max()))
    return worst


def ask_model(model: Any, **extra: Any) -> Callable[[Sequence[int]], Tensor]:
    """ids → logits after the last one, by a plain forward without a cache."""

    def ask(ids: Sequence[int]) -> Tensor:
        with torch.inference_mode():
            return model(torch.tensor([list(ids)], device=model.device), use_cache=False, **extra).logits[0, -1]

    return ask
