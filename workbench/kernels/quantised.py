"""Weight-only int8: a model whose products' weights are signed bytes, with one scale for each 64 inputs of an output.

A lone token's pass takes as long as reading the weights, and bytes are half of bfloat16. The rounded weights *are* the
model: `quantise` puts them, as bfloat16, where the model's own were, so that prompts, heads that share the LM head and
the model's own forward compute with them, and passes over few tokens read the bytes (`workbench.kernels.fused`).
Between the two lies the rounding of bfloat16, 2⁻⁹ of a weight at most. Embeddings that are no product's weight, norms
and biases stay.

So decoding is lossless for *this* model, as it is in bfloat16: within compiled passes drafted text is plain decoding's
bit for bit. It is not the text of the model that was rounded. Measured with SmolLM2-135M (two cores, Intel Xeon,
AVX-512 with bfloat16, no AMX; context 200, one process, medians of 12; ms for 1 / 2 / 4 / 8 / 16 tokens): bfloat16
12.3 / 15.0 / 15.7 / 19.1 / 32.0, int8 8.4 / 10.2 / 10.9 / 15.0 / 30.2. Next-token laws at 1,250 positions of its own
answers to 20 questions of MT-bench, greedy, at most 64 tokens each (total variation in the mean, how often the
likeliest token is the same): int8 against bfloat16 0.021, 97.4 %; int8 against float32 0.019, 97.0 %; bfloat16 against
float32 0.008, 98.5 %. One scale for a whole output instead of 64 inputs, computed in float32: 0.027, 96.4 %, where
groups of 64 have 0.018, 97.7 %, and weights in bfloat16 0.003, 99.8 %.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, NoReturn

import torch
from jaxtyping import Float, Int8
from torch import Tensor, nn
from transformers import PreTrainedModel

from workbench.core.errors import ModelError
from workbench.kernels.devices import why_not_compiled
from workbench.kernels.packed import LARGEST_MODEL

GROUP = 64
"""Inputs of an output that share a scale; the width of a product is a multiple of it."""
STEPS = 127
"""Magnitudes of a byte; −128 is left out, so that a scale is the same for both signs."""


class Bytes(NamedTuple):
    """What a product reads, and the state of the weight that was left in its place.

    `numbers` are in the order in which compiled products take them: of 32 those at even places, then the others.
    """

    numbers: Int8[Tensor, "o i"]
    scale: Float[Tensor, "o groups"]
    seen: tuple[int, int]


def rounded(weight: Float[Tensor, "o i"]) -> tuple[Int8[Tensor, "o i"], Float[Tensor, "o groups"]]:
    """The nearest bytes to a weight, and their scales, float32: the largest magnitude of each 64 becomes 127.

    Args:
        weight: i is a multiple of 64.
    """
    groups = weight.detach().float().unflatten(1, (-1, GROUP))
    scale = groups.abs().amax(2, keepdim=True) / STEPS
    numbers = (groups / scale.clamp_min(torch.finfo(torch.float32).tiny)).round_().to(torch.int8)
    return numbers.flatten(1), scale.squeeze(2)


def restored(numbers: Int8[Tensor, "o i"], scale: Float[Tensor, "o groups"]) -> Float[Tensor, "o i"]:
    """The weight that bytes and scales stand for, in float32."""
    return (numbers.unflatten(1, (-1, GROUP)) * scale.unsqueeze(2)).flatten(1)


def dealt(numbers: Int8[Tensor, "o i"]) -> Int8[Tensor, "o i"]:
    """The inputs in the order in which compiled products take them (`workbench.kernels.compiled.layer_steps.deal`)."""
    return numbers.unflatten(1, (-1, 16, 2)).transpose(2, 3).flatten(1)


def quantise(model: PreTrainedModel) -> None:
    """Round the weights of a decoder's products and of its LM head, in place; those that are as they were left stay.

    A tied embedding is the LM head's weight, and rounded with it.

    Args:
        model: in bfloat16, on the CPU.

    Raises:
        ModelError: a product's width is no multiple of 64; nothing was changed.
    """
    trunk, head = model.get_decoder(), model.get_output_embeddings()
    assert isinstance(trunk, nn.Module)
    parts = [*trunk.get_submodule("layers").modules(), *([] if head is None else [head])]
    linears = [part for part in parts if isinstance(part, nn.Linear)]
    if any(linear.weight.shape[1] % GROUP for linear in linears):
        refuse_int8(model)
    for linear in linears:
        if (found := bytes_of(linear)) is None or found.seen != _state(linear):
            numbers, scale = rounded(linear.weight)
            with torch.no_grad():
                linear.weight.copy_(restored(numbers, scale))
            linear.__dict__["int8"] = Bytes(dealt(numbers), scale, _state(linear))  # no buffer, which casts would touch


def bytes_of(linear: nn.Module) -> Bytes | None:
    """What `quantise` left at a product, or None."""
    return getattr(linear, "int8", None)


def stored(model: PreTrainedModel) -> torch.dtype:
    """In what a model's weights are read: int8 where they were rounded to it, else the type it computes in."""
    head = model.get_output_embeddings()
    return torch.int8 if head is not None and bytes_of(head) is not None else model.dtype


def computing(dtype: torch.dtype) -> torch.dtype:
    """What a model with such weights computes and caches in: bfloat16 for int8."""
    return torch.bfloat16 if dtype == torch.int8 else dtype


def refuse_int8(model: PreTrainedModel) -> NoReturn:
    """Say that a model's bytes are of no use here, as nothing reads them.

    Raises:
        ModelError: always.
    """
    name = Path(model.name_or_path or type(model).__name__).name
    why = why_not_compiled() or (
        "they are for models of the Llama kind whose layers are alike, with heads of 32, 64, 96 or 128 numbers and "
        f"widths that are multiples of 64, up to {LARGEST_MODEL // 10**6} M parameters"
    )
    raise ModelError(
        f"{name} cannot be run in int8: int8 needs compiled passes, but {why}.",
        "Use bfloat16 or float32.",
    )


def _state(linear: nn.Linear) -> tuple[int, int]:
    return linear.weight._version, linear.weight.data_ptr()
