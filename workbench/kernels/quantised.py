"""Quantise linear layers to int8 (weights only): signed 8-bit weights, and one scale per 64 inputs of an output.

A forward pass over one token takes as long as reading the weights, and int8 weights have half the bytes of bfloat16.
The rounded weights *are* the model: `quantise` stores them, as bfloat16, in the model's own parameters. So prefill,
trained heads that share the LM head and the model's own forward pass use the rounded weights. Forward passes over few
tokens read the int8 copy (`workbench.kernels.fused`). The two copies differ by the rounding of bfloat16, at most 2⁻⁹ of
a weight. Embeddings that are not tied to the LM head, norms and biases stay unrounded.

So decoding is lossless for the *rounded* model, as it is in bfloat16: with compiled kernels, speculative and plain
decoding give exactly the same text. It is not the text of the unrounded model. Measured with SmolLM2-135M (two cores,
Intel Xeon, AVX-512 with bfloat16, no AMX; context 200, one process, medians of 12; ms for 1 / 2 / 4 / 8 / 16 tokens):
bfloat16 12.3 / 15.0 / 15.7 / 19.1 / 32.0, int8 8.4 / 10.2 / 10.9 / 15.0 / 30.2. Next-token distributions at 1,250
positions of its own answers to 20 questions of MT-bench, greedy, at most 64 tokens each (mean total variation, share of
equal argmax tokens): int8 against bfloat16 0.021, 97.4 %; int8 against float32 0.019, 97.0 %; bfloat16 against float32
0.008, 98.5 %. Computed in float32: one scale per output 0.027, 96.4 %; one scale per 64 inputs 0.018, 97.7 %; weights
in bfloat16 0.003, 99.8 %.
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
"""Number of int8 weights of one output that share a scale. The width of a product's input must be a multiple of this
number."""
STEPS = 127
"""Maximum magnitude of an int8 weight; −128 is unused, so that both signs have the same scale."""


class Int8Weight(NamedTuple):
    """Weights of a linear layer in int8, with their scales.

    Attributes:
        values: weights, in the order that compiled products read: of each 32 inputs first the even ones, then the odd
            ones.
        scale: one scale per 64 inputs of an output.
        seen: version counter and address of the layer's bfloat16 weight after quantisation, to detect later changes.
    """

    values: Int8[Tensor, "o i"]
    scale: Float[Tensor, "o groups"]
    seen: tuple[int, int]


def quantise_weight(weight: Float[Tensor, "o i"]) -> tuple[Int8[Tensor, "o i"], Float[Tensor, "o groups"]]:
    """Round a weight to int8. Return the int8 numbers and their float32 scales.

    A scale maps the largest magnitude of its 64 inputs to 127.

    Args:
        weight: weight [o, i]; i is a multiple of 64.
    """
    groups = weight.detach().float().unflatten(1, (-1, GROUP))
    scale = groups.abs().amax(2, keepdim=True) / STEPS
    numbers = (groups / scale.clamp_min(torch.finfo(torch.float32).tiny)).round_().to(torch.int8)
    return numbers.flatten(1), scale.squeeze(2)


def dequantise_weight(numbers: Int8[Tensor, "o i"], scale: Float[Tensor, "o groups"]) -> Float[Tensor, "o i"]:
    """Return the weight that int8 numbers and scales represent, in float32."""
    return (numbers.unflatten(1, (-1, GROUP)) * scale.unsqueeze(2)).flatten(1)


def to_even_odd_order(numbers: Int8[Tensor, "o i"]) -> Int8[Tensor, "o i"]:
    """Return a weight with its inputs (columns) in even-odd order, the order in which compiled products read them.

    In each 32 columns, those at even indices come first (`compiled.layer_steps.to_even_odd_order`).
    """
    return numbers.unflatten(1, (-1, 16, 2)).transpose(2, 3).flatten(1)


def quantise(model: PreTrainedModel) -> None:
    """Round the weights of a decoder's linear layers and LM head, in place; skip weights that are already rounded.

    A tied embedding is the LM head's weight and is rounded with it.

    Args:
        model: model in bfloat16, on the CPU.

    Raises:
        ModelError: a layer's width is not a multiple of 64; nothing was changed.
    """
    trunk, head = model.get_decoder(), model.get_output_embeddings()
    assert isinstance(trunk, nn.Module)
    parts = [*trunk.get_submodule("layers").modules(), *([] if head is None else [head])]
    linears = [part for part in parts if isinstance(part, nn.Linear)]
    if any(linear.weight.shape[1] % GROUP for linear in linears):
        refuse_int8(model)
    for linear in linears:
        if (int8_weight := int8_weight_of(linear)) is None or int8_weight.seen != _state(linear):
            numbers, scale = quantise_weight(linear.weight)
            with torch.no_grad():
                linear.weight.copy_(dequantise_weight(numbers, scale))
            linear.__dict__["int8"] = Int8Weight(
                to_even_odd_order(numbers), scale, _state(linear)
            )  # casts would change a buffer


def int8_weight_of(linear: nn.Module) -> Int8Weight | None:
    """Return the int8 weights that `quantise` attached to a linear layer; None if the layer is not quantised."""
    return getattr(linear, "int8", None)


def weight_dtype(model: PreTrainedModel) -> torch.dtype:
    """Return the dtype in which a model's weights are read: int8 if quantised, else the dtype of its parameters."""
    head = model.get_output_embeddings()
    return torch.int8 if head is not None and int8_weight_of(head) is not None else model.dtype


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which a model with weights of `dtype` computes and stores keys and values.

    It is bfloat16 for int8 weights, else `dtype`.
    """
    return torch.bfloat16 if dtype == torch.int8 else dtype


def refuse_int8(model: PreTrainedModel) -> NoReturn:
    """Raise an error for a model that cannot run in int8, because the compiled kernels do not support it.

    Raises:
        ModelError: always; the message has the reason.
    """
    name = Path(model.name_or_path or type(model).__name__).name
    why = why_not_compiled() or (
        "these support only Llama-like models with identical layers, head sizes 32, 64, 96 or 128, widths that "
        f"are multiples of 64, and at most {LARGEST_MODEL // 10**6} M parameters"
    )
    raise ModelError(
        f"{name} cannot be run in int8: int8 needs compiled kernels, but {why}.",
        "Use bfloat16 or float32.",
    )


def _state(linear: nn.Linear) -> tuple[int, int]:
    return linear.weight._version, linear.weight.data_ptr()
