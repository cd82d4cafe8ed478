"""Device synchronisations per round, counted on a CPU whose memory is treated as another device's."""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from model_helpers import make_models, mark_on_demand_unless, repeating_prompt, representative_names, text_methods
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from workbench.core import transfer
from workbench.core.sampling import SamplingParams
from workbench.decoders import Method
from workbench.engine import Engine, Models, Request
from workbench.engine.request import ENDED
from workbench.methods import registry

FACTORIES = ("tensor", "as_tensor")
READS = ("tolist", "item", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__", "__contains__", "nonzero")


class SyncCounter(TorchFunctionMode):
    """Counts operations that make the host wait for a device, by the workbench's line that calls them.

    A tensor is on the device unless it was made from host numbers without a device, or copied by `cpu`; results from
    host tensors only stay on the host. Synchronisations are: reading values of a device tensor; indexing with a boolean
    mask, whose count decides a shape; and blocking copies to the device (`torch.tensor(…, device=…)`).
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        host = bool(given) and all(getattr(t, "on_host", False) for t in given)
        out = func(*args, **kwargs)
        if not given and name in FACTORIES:
            if kwargs.get("device") is None:
                return self._hosted(out)
            self._count("upload")
        elif given and not host and self._reads(name, args):
            self._count(name)
            return self._hosted(out.clone()) if name == "cpu" else out
        elif (
            host and name == "to" and any(isinstance(a, torch.device | str) for a in [*args[1:], kwargs.get("device")])
        ):
            if not kwargs.get("non_blocking"):
                self._count("upload")
            return out.clone()
        return self._hosted(out) if host else out

    @staticmethod
    def _reads(name: str, args: Any) -> bool:
        if name in READS:
            return True
        if name == "where":
            return len(args) == 1
        masks = [t for t in tree_leaves(args[1:2]) if isinstance(t, torch.Tensor) and t.dtype == torch.bool]
        return bool(masks) and (name == "__getitem__" or (name == "__setitem__" and isinstance(args[2], torch.Tensor)))

    @staticmethod
    def _hosted(out: Any) -> Any:
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor):
                t.on_host = True  # type: ignore[attr-defined]
        return out

    def _count(self, what: str) -> None:
        lines = [f for f in traceback.extract_stack() if "workbench" in f.filename and "tests" not in f.filename]
        at = f"{Path(lines[-1].filename).stem}.{lines[-1].name}" if lines else "elsewhere"
        self.found[f"{what} in {at}"] += 1


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Return a small target with a drafter and untrained heads."""
    return make_models("llama", heads=tmp_path_factory.mktemp("medusa"), context=160)


def treat_memory_as_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all modules use the code paths of a GPU, although tensors are in the host's memory."""
    really = transfer.on_host
    for module in [m for m in sys.modules.values() if vars(m).get("on_host") is really]:
        monkeypatch.setattr(module, "on_host", lambda device: False)
    make = torch.from_numpy  # not passed to `__torch_function__`: its result shares the memory of the host's array
    monkeypatch.setattr(torch, "from_numpy", lambda numbers: SyncCounter._hosted(make(numbers)))


def count_syncs(method: Method, temperature: float, models: Models, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the synchronisations of the costliest of three rounds, after rounds that fill the caches."""
    treat_memory_as_device(monkeypatch)
    engine = Engine(replace(models, shared={}))
    row = engine.submit(Request(repeating_prompt(24), method, SamplingParams(temperature), 120, 3, stop_at_eos=False))
    rounds = []
    while len(rounds) < 9 and row.status not in ENDED:
        assert row.trace is not None
        before = len(row.trace.rounds)
        with SyncCounter() as counted:
            engine.step()
        if len(row.trace.rounds) > before:
            rounds.append(counted.found)
    assert not row.error, row.error
    return max(rounds[6:], key=lambda found: found.total())


MINIMUM_SYNCS = {"cpu in transfer.to_host": 1}
"""The target's results, in one copy."""
LEVELS = 4
EXTRA_SYNCS: dict[str, dict[str, int]] = {
    "draft-tree": {"cpu in transfer.to_host": 2},  # which candidates were kept
    "draft-tree-sampled": {
        "cpu in transfer.to_host": 2,
        "__int__ in stochastic_beam.build": LEVELS,
    },
    "kangaroo": {
        "__float__ in confidence.should_continue": LEVELS
    },  # whether it is still confident: its policy asks per level
    "swift": {"__float__ in confidence.should_continue": LEVELS},  # the same
    "lookahead": {"cpu in transfer.to_host": 2},  # the target's tokens in the window
    "omnidraft": {"__int__ in drafter.continue_text": LEVELS},  # it drafts text, which the host translates
    "online": {"item in online_layers.step": 1, "__bool__ in online_layers.log_probs": 1},  # in a training step
    "tlt": {"item in spot.train_step": 1},  # in a training step
    "lexical-unit": {"tolist in transfer.to_list": 1},  # its confidence at the placeholders
    "del": {"cpu in transfer.to_host": 2},  # the prediction of each exit
    "rasd": {"cpu in transfer.to_host": 3},  # the model's tree, with which the host merges; the kept nodes
    "stand": {  # its table is on the host, where the successors of each level are looked up
        "tolist in tree_building.paths": 6,
        "__getitem__ in sequoia.draw": 11,
        "__bool__ in sequoia.draw": 3,
    },
    "s2d": {  # whether each of the three sizes is confident, for each of five tokens; and the size
        "__int__ in drafter.exit_logits": 15,
        "cpu in transfer.to_host": 2,
    },
    "flash": {"cpu in transfer.to_host": 4},  # each block of levels, whose paths the host selects
}
"""Additional synchronisations of some drafters. The numbers may fall; a higher one is a regression."""


GREEDY = {"draft-model", "draft-tree"}
"""Methods that also have a greedy case: a greedy round differs only in the acceptance rule."""


@pytest.mark.parametrize(
    ("name", "temperature"),
    [
        pytest.param(*one.values, t, id=f"{one.id}-{t}", marks=one.marks)
        for t in (0.0, 0.7)
        for one in mark_on_demand_unless(
            (representative_names() | EXTRA_SYNCS.keys()) if t else GREEDY, [m.name for m in text_methods()]
        )
    ],
)
def test_round_has_the_minimum_of_device_syncs(
    name: str, temperature: float, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = count_syncs(registry.get(name), temperature, models, monkeypatch)
    allowed = MINIMUM_SYNCS | EXTRA_SYNCS.get(name, {})
    assert found["cpu in transfer.to_host"] >= 1, "the round was not counted"
    assert not found - Counter(allowed), f"{dict(found)} where {allowed} was enough"


def test_every_kind_of_device_sync_is_counted() -> None:
    device = torch.zeros(4, device="cpu")
    mask = device < 1
    with SyncCounter() as counted:
        _ = float(device[0]), device.sum().item(), device.tolist(), device.cpu().tolist(), bool(mask.all())
        _ = device[mask], mask.nonzero(), torch.tensor([1], device="cpu")
        device[mask] = torch.ones(4, device="cpu")
        _ = torch.tensor([1]).to("cpu"), torch.tensor([1]).to("cpu", non_blocking=True), device[1:] + 1
    kinds = Counter(what.partition(" in ")[0] for what in counted.found.elements())
    assert kinds == {
        "__float__": 1, "item": 1, "tolist": 1, "cpu": 1, "__bool__": 1, "__getitem__": 1, "nonzero": 1, "upload": 2,
        "__setitem__": 1,
    }  # fmt: skip
