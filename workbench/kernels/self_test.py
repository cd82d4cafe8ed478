"""Whether a lean decoder computes what its model computes, found out before anything is decoded with it.

In float64 and float32 the logits of a short text say so. In bfloat16 they cannot: rounding grows from layer to layer,
and a token whose activations are huge (the attention sink that most real models make of the first one) carries little
else. SmolLM2-135M's own logits are off by 0.23 of the largest one there, the lean ones by 0.13. So each layer is judged
alone: both get the input that the model's own layers hand on, the same layer in float32 is the truth, and the lean one
may err, token by token, little more than the model's own does: 1.6 times as much at most (SmolLM2, the bundled text
models, random models of all kinds), and 77 times and more where a layer lacked its sliding window.
"""

from __future__ import annotations

import copy
import logging
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from workbench.kernels.fused import Fused
from workbench.kernels.kv_cache import TreeCache, Window
from workbench.kernels.layers import text_config
from workbench.kernels.lean import LeanDecoder, has_twin
from workbench.kernels.packed import unpacked

log = logging.getLogger(__name__)

PROBE = 12
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-4}
"""Largest difference of logits from the model's own, as a share of their largest magnitude."""
TIMES = 4.0
"""In bfloat16: how many times the error of the model's own layer a lean layer's may be, for each token."""
HEAD = 4.0
"""In bfloat16: largest difference of logits from the same stream, in units of the type's rounding."""


def lean_of(model: PreTrainedModel, capacity: int) -> LeanDecoder | None:
    """The lean twin of a model, or None where there is none: another architecture, dtype or device, or it differs.

    Args:
        model: any model.
        capacity: longest sequence with its scratch, in tokens.
    """
    if not has_twin(model):
        return None
    lean = LeanDecoder(model, capacity)
    if found := difference(lean, model):
        log.warning("%s keeps its own forward: in the lean one %s.", type(model).__name__, found)
        return None
    lean.fused = Fused.of(model, capacity)
    if lean.fused is not None and (found := _compiled_difference(lean, model)):
        log.warning("%s is not compiled: there %s.", type(model).__name__, found)
        lean.fused = None
    return lean


def _compiled_difference(lean: LeanDecoder, model: PreTrainedModel) -> str:
    """The first passes are compiled, and kept on disk, as they are made; a disk that is full is no reason to fail."""
    try:
        return difference(lean, model)
    except Exception as error:  # numba raises many kinds
        return f"its compilation failed ({type(error).__name__}: {error})".split("\n")[0]


def difference(lean: LeanDecoder, model: PreTrainedModel) -> str:
    """How the lean decoder differs from its model by more than rounding, in words; empty where it does not.

    Args:
        lean: idle.
        model: the one it was made from.
    """
    n = min(PROBE, getattr(text_config(model.config), "sliding_window", None) or PROBE)
    ids, places = torch.arange(n).unsqueeze(0) * 7 % lean.table.shape[0], torch.arange(n).unsqueeze(0)
    mask = torch.full((1, 1, n, n), torch.finfo(model.dtype).min, dtype=model.dtype).triu_(1)
    cache = TreeCache(len(lean.layers), 1, n)
    cache.window = Window(slice(0, 1), 0, None, n)
    with torch.no_grad(), unpacked(model):  # copies for a forward that will not be used again would double the memory
        if model.dtype not in TOLERANCE:
            return _by_layers(lean, model, ids, mask, places, cache)
        found = logits_error(lean(ids, mask, places, cache)[0], model(input_ids=ids, use_cache=False).logits)
    return "" if found <= TOLERANCE[model.dtype] else f"logits differ by {found:.1e}"


def _by_layers(
    lean: LeanDecoder, model: PreTrainedModel, ids: Tensor, mask: Tensor, places: Tensor, cache: TreeCache
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
        return "layers are not run in their order, each once"
    stream, eps = torch.embedding(lean.table, ids), torch.finfo(model.dtype).eps
    for number, (layer, args, named, made) in enumerate(calls):
        given = args[0] if args else named["hidden_states"]
        if not torch.equal(given, stream):
            return f"layer {number} reads something else than what comes before it"
        stream = _first(made)
        truth = _first(copy.deepcopy(layer).float()(*_wide(args), **_wide(named)))[0]
        mine = lean.through([number], given[0], mask, places, cache)[0]
        size = truth.square().mean(0).sqrt() + torch.finfo(torch.float32).tiny  # or one huge direction hides the others
        error, own, room = ((some / size).norm(dim=-1) for some in (mine - truth, stream[0] - truth, truth))
        # an own error of nothing, as of a layer of zeros, leaves room for the rounding of the result
        if not bool((error <= TIMES * own + room * eps / 16).all()):
            return f"layer {number} errs by {float(error.max()):.1e}, its own by {float(own.max()):.1e}"
    # compiled layers hand their stream on in float32, and it goes on as it came
    last = stream[0] if lean.fused is None else stream[0].float()
    found = logits_error(lean.read(last)[0], logits[0])
    return "" if found <= HEAD * eps else f"the head differs by {found:.1e}"


ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 1e-1, torch.float16: 2e-2}
"""Largest share of the largest logit that two ways of computing the same forward may differ by."""


def logits_error(mine: Float[Tensor, "*b V"], own: Float[Tensor, "*b V"]) -> float:
    """Largest difference, as a share of the largest magnitude; tokens that neither knows (−∞) are left out."""
    said = (mine > -torch.inf) | (own > -torch.inf) | mine.isnan() | own.isnan()
    mine, own = mine[said].double(), own[said].double()
    return 0.0 if not len(own) else float((mine - own).abs().max() / own.abs().max())


def _first(made: Any) -> Tensor:
    return made[0] if isinstance(made, tuple) else made


def _wide(given: Any) -> Any:
    """The same in float32: tensors, and what holds them."""
    if isinstance(given, Tensor):
        return given.float() if given.is_floating_point() else given
    if isinstance(given, tuple | list):
        return type(given)(map(_wide, given))
    return {name: _wide(value) for name, value in given.items()} if isinstance(given, dict) else given
