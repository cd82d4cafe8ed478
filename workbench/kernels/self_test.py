"""Compare a lean decoder (few operations per layer) with its model before it is used (self-test).

In float64 and float32 it suffices to compare the logits of a short text. In bfloat16 it does not, because rounding
errors grow from layer to layer. Also, huge activations dominate the hidden state of the attention sink (in most real
models the first token). For SmolLM2-135M in bfloat16, the error of the model's own logits is 0.23 of the largest logit,
and that of the lean decoder's logits is 0.13. So each layer is tested alone. The lean layer and the model's own layer
get the same input, and the same layer in float32 is the reference. For each token the lean layer's error may be little
more than that of the model's own layer. Measured: at most 1.6 times as much (SmolLM2, the bundled text models, random
models of all kinds), but 77 times as much and more if a layer lacked its sliding window.
"""

from __future__ import annotations

import copy
import logging
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from workbench.kernels.few_token_decoder import FewTokenDecoder
from workbench.kernels.fused import FusedDecoder
from workbench.kernels.kv_cache import TreeCache, Window
from workbench.kernels.layers import text_config
from workbench.kernels.lean import LeanDecoder, has_lean_architecture, has_lean_version
from workbench.kernels.packed import unpack_temporarily

log = logging.getLogger(__name__)

PROBE = 12
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-4}
"""Maximum difference between the logits of `LeanDecoder` and those of its model by dtype, as a share of the largest
logit."""
TIMES = 4.0
"""Maximum ratio of a `LeanLayer`'s error to the error of the model's own layer in bfloat16, for each token."""
HEAD = 4.0
"""Maximum difference between the logits of `LeanDecoder`'s LM head and of its model's LM head for the same input, in
bfloat16. The unit is the dtype's relative rounding error."""


def make_lean_decoder(model: PreTrainedModel, capacity: int) -> LeanDecoder | None:
    """Return a decoder with few operations per layer (lean decoder) for a model, after testing it.

    None if architecture, dtype or device are not supported, or if the decoder's results differ from the model's.

    Args:
        model: any model.
        capacity: maximum length of a sequence in tokens, scratch positions included.
    """
    if not has_lean_version(model):
        return None
    lean = LeanDecoder(model, capacity)
    if message := describe_difference(lean, model):
        log.warning(
            "%s runs with transformers' forward pass instead of the workbench's faster decoder, because "
            "in that decoder %s.",
            type(model).__name__,
            message,
        )
        return None
    lean.fused = FusedDecoder.from_model(model, capacity)
    if lean.fused is not None and (message := _compiled_difference(lean, model)):
        log.warning(
            "%s runs without compiled kernels, because in the compiled version %s.", type(model).__name__, message
        )
        lean.fused = None
    return lean


def make_gpu_decoder(model: PreTrainedModel, capacity: int) -> FewTokenDecoder | None:
    """Return the tested Triton decoder of a model; None if the model is not on a GPU, or its decoder fails the test."""
    is_supported = model.device.type == "cuda" and has_lean_architecture(model)
    return tested_gpu_decoder(model, capacity) if is_supported else None


def tested_gpu_decoder(model: PreTrainedModel, capacity: int) -> FewTokenDecoder | None:
    """Return the Triton decoder of a Llama-like model; None if it cannot run the model, or its results differ.

    The reason is logged. Results may differ, for example, because a version of Triton compiles a kernel wrongly.

    Args:
        model: model with layers like `LeanLayer`'s.
        capacity: maximum length of a sequence in tokens, scratch positions included.
    """
    try:
        from workbench.kernels.gpu.decoder import GpuDecoder, why_unsupported  # Triton is not installed everywhere

        message = why_unsupported(model)
        decoder = None if message else GpuDecoder(model, capacity)
        message = message if decoder is None else describe_difference(decoder, model)
    except Exception as error:  # Triton's compiler raises many types
        decoder, message = None, f"{type(error).__name__}: {error}".split("\n")[0]
    if message:
        log.warning("%s runs without Triton kernels: %s.", type(model).__name__, message)
    return None if message else decoder


def _compiled_difference(lean: LeanDecoder, model: PreTrainedModel) -> str:
    """Return text that says how the compiled decoder's results differ from its model's; empty if they do not.

    The first call compiles the kernels and caches them on disk. If this fails, for example because the disk is full,
    the text says so.
    """
    try:
        return describe_difference(lean, model)
    except Exception as error:  # numba raises many types
        return f"its compilation failed ({type(error).__name__}: {error})".split("\n")[0]


def describe_difference(lean: FewTokenDecoder, model: PreTrainedModel) -> str:
    """Return text that says how a decoder's results differ from its model's by more than rounding; empty if equal.

    Args:
        lean: decoder to test, `LeanDecoder` or `GpuDecoder`; no other thread uses it.
        model: model that it was created from.
    """
    n = min(PROBE, getattr(text_config(model.config), "sliding_window", None) or PROBE)
    positions = torch.arange(n, device=model.device).unsqueeze(0)
    ids = positions * 7 % lean.table.shape[0]
    mask = torch.full((1, 1, n, n), torch.finfo(model.dtype).min, dtype=model.dtype, device=model.device).triu_(1)
    cache = TreeCache(len(lean.layers), 1, n)
    cache.window = Window(slice(0, 1), 0, None, n)
    with (
        torch.no_grad(),
        unpack_temporarily(model),
    ):  # packed copies for a forward that runs only once would double the memory
        if model.dtype not in TOLERANCE:
            return _by_layers(lean, model, ids, mask, positions, cache)
        error = logits_error(lean(ids, mask, positions, cache)[0], model(input_ids=ids, use_cache=False).logits)
    return "" if error <= TOLERANCE[model.dtype] else f"logits differ by {error:.1e}"


def _by_layers(
    lean: FewTokenDecoder, model: PreTrainedModel, ids: Tensor, mask: Tensor, places: Tensor, cache: TreeCache
) -> str:
    trunk = model.get_decoder()
    assert isinstance(trunk, nn.Module)
    layers = list(trunk.get_submodule("layers").children())
    calls: list[tuple[nn.Module, tuple[Any, ...], dict[str, Any], Any]] = []
    hooks = [layer.register_forward_hook(lambda *call: calls.append(call), with_kwargs=True) for layer in layers]
    try:
        logits = model(input_ids=ids, use_cache=False).logits
    finally:
        for hook in hooks:
            hook.remove()
    if [call[0] for call in calls] != layers:
        return "the model's forward pass does not run each layer once, in order"
    stream, eps = torch.embedding(lean.table, ids), torch.finfo(model.dtype).eps
    for index, (layer, args, named, output) in enumerate(calls):
        layer_input = args[0] if args else named["hidden_states"]
        if not torch.equal(layer_input, stream):
            return f"the input of layer {index} is not the output of the previous one"
        stream = _first(output)
        reference = _first(copy.deepcopy(layer).float()(*_to_float32(args), **_to_float32(named)))[0]
        lean_output = lean.run_layers([index], layer_input[0], mask, places, cache)[0]
        size = (
            reference.square().mean(0).sqrt() + torch.finfo(torch.float32).tiny
        )  # otherwise one huge dimension would dominate the norm
        lean_error, own_error, magnitude = (
            (tensor / size).norm(dim=-1) for tensor in (lean_output - reference, stream[0] - reference, reference)
        )
        # if the model's own error is 0, as for a layer of zeros, allow the rounding of the result
        if not bool((lean_error <= TIMES * own_error + magnitude * eps / 16).all()):
            return f"layer {index} errs by {float(lean_error.max()):.1e}, the model's by {float(own_error.max()):.1e}"
    # compiled layers pass on their residual stream in float32
    last = stream[0].float() if lean.has_float32_stream else stream[0]
    head_error = logits_error(lean.project_to_logits(last)[0], logits[0])
    return "" if head_error <= HEAD * eps else f"the LM head's logits differ by {head_error:.1e}"


ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 1e-1, torch.float16: 2e-2}
"""Maximum difference between the logits of two computations of the same forward pass by dtype, as a share of the
largest logit."""


def logits_error(mine: Float[Tensor, "*b V"], own: Float[Tensor, "*b V"]) -> float:
    """Return the largest difference between two arrays of logits, as a share of the second array's largest magnitude.

    Entries that are −∞ in both arrays are left out.
    """
    is_finite = (mine > -torch.inf) | (own > -torch.inf) | mine.isnan() | own.isnan()
    mine, own = mine[is_finite].double(), own[is_finite].double()
    return 0.0 if not len(own) else float((mine - own).abs().max() / own.abs().max())


def _first(made: Any) -> Tensor:
    return made[0] if isinstance(made, tuple) else made


def _to_float32(given: Any) -> Any:
    """Convert floating-point tensors in a tensor, list, tuple or dict (possibly nested) to float32."""
    if isinstance(given, Tensor):
        return given.float() if given.is_floating_point() else given
    if isinstance(given, tuple | list):
        return type(given)(map(_to_float32, given))
    return {name: _to_float32(value) for name, value in given.items()} if isinstance(given, dict) else given
