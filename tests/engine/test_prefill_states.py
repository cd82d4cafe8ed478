"""Hidden states of a prompt's prefill: drafters get them without a second pass, and they equal those of one."""

from __future__ import annotations

import dataclasses
from typing import Any

import model_helpers
import pytest
import torch

from workbench.decoders.draft_verify.captured_states import states_of
from workbench.decoders.draft_verify.parts import Drafter
from workbench.engine import Engine, Models, Request, prefill
from workbench.engine.request import Sequence
from workbench.kernels.segment import PrefillHiddenStates
from workbench.methods import registry
from workbench.models.runner import Runner

READERS = [
    method.name
    for method in model_helpers.text_methods()
    if method.head is not None and type(method.drafter).captures is not Drafter.captures
]
"""Methods whose drafters read hidden states of the prompt."""
PROMPT = model_helpers.random_prompt(23)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, device: str) -> Models:
    return model_helpers.make_models("llama", noise=None, device=device, heads=tmp_path_factory.mktemp("heads"))


def submit(models: Models, method: str) -> tuple[Engine, Sequence]:
    engine = Engine(models)
    request = Request(PROMPT, registry.get(method).with_params(), max_new_tokens=8, stop_at_eos=False)
    return engine, engine.submit(request)


@pytest.mark.parametrize("lean", [True, False], ids=["lean", "transformers"])
@pytest.mark.parametrize("method", [*READERS, "hydra", "medusa"])
def test_prompt_is_prefilled_once(models: Models, method: str, lean: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    forward = Runner.forward

    def counted(self: Runner, batch: Any, *args: Any, **options: Any) -> Any:
        read.append(sum(len(segment.tokens) for segment in batch))
        return forward(self, batch, *args, **options)

    monkeypatch.setattr(Runner, "forward", counted)
    monkeypatch.setattr(prefill, "PREFILL_CHUNK", 5)
    if not lean:
        monkeypatch.setattr(models.target, "_lean", None)
    engine, row = submit(models, method)
    while not row.is_open and not engine.is_idle:
        engine.step()
    assert row.error is None
    of_prompt = read[: -(-(len(PROMPT) - 1) // 5)]
    assert sum(of_prompt) == len(PROMPT) - 1
    assert all(n < len(PROMPT) - 1 for n in read[len(of_prompt) :]), "nothing as long as the prompt is read after it"
    assert row.slot is not None
    assert row.slot.prefill_states == PrefillHiddenStates(), "states in use are not stored twice"


@pytest.mark.parametrize(
    ("method", "lean"),
    [
        *(pytest.param(name, True, id=f"{name}-lean") for name in READERS),
        *(
            pytest.param(*one.values, False, id=f"{one.id}-transformers", marks=one.marks)
            for one in model_helpers.mark_on_demand_unless(READERS[::4], READERS)
        ),
    ],
)
def test_prefill_states_equal_those_of_a_second_prefill(
    models: Models, method: str, lean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill, "PREFILL_CHUNK", 5)
    if not lean:
        monkeypatch.setattr(models.target, "_lean", None)
    found = []
    drafter = type(registry.get(method).drafter)
    prime = drafter.init_state

    def primed(self: Any, row: Sequence, models: Models) -> Any:
        wanted = self.captures(models)
        kept = states_of(row, models, wanted, 3)
        row.cache_slot.prefill_states, prefill_states = PrefillHiddenStates(), row.cache_slot.prefill_states
        found.append((kept, states_of(row, models, wanted, 3)))
        row.cache_slot.prefill_states = prefill_states
        return prime(self, row, models)

    monkeypatch.setattr(drafter, "init_state", primed)
    engine, row = submit(models, method)
    while not engine.is_idle:
        engine.step()
    assert row.error is None
    ((kept, again),) = found
    assert (kept.features is None) is (again.features is None)
    if kept.features is not None:
        assert again.features is not None
        assert len(kept.features) == len(PROMPT) - 1 - 3
        torch.testing.assert_close(kept.features, again.features, rtol=0, atol=1e-10)
    assert kept.layer_states.keys() == again.layer_states.keys()
    for layer, stream in kept.layer_states.items():
        assert len(stream) == len(PROMPT) - 1 - 3
        torch.testing.assert_close(stream, again.layer_states[layer], rtol=0, atol=1e-10)


def test_missing_layers_are_captured_by_another_forward(models: Models) -> None:
    """A drafter that needs other layers than the captured ones runs its own pass."""
    engine, row = submit(models, "kangaroo")
    asked = []

    def primed(row: Sequence, models: Models) -> None:
        wanted = dataclasses.replace(row.drafter.captures(models), layers=frozenset({1}))
        asked.append(states_of(row, models, wanted))

    object.__setattr__(row.configured_method.drafter, "init_state", primed)
    while not row.is_open and not engine.is_idle:
        engine.step()
    assert [set(states.layer_states) for states in asked] == [{1}]
