"""Changes during a run: an impossible change is noted and the run continues; drafters stop at their last position."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import model_helpers
import pytest
import torch
from vision_model_helpers import IMAGE, noise_image, tiny_vision_models

from workbench.core.errors import WorkbenchError
from workbench.core.params import params_of
from workbench.core.sampling import SamplingParams
from workbench.decoders import Method
from workbench.decoders.declarations import DRAFTERS
from workbench.decoders.draft_verify import part_changes
from workbench.decoders.draft_verify.parts import Policy
from workbench.engine import Engine, Models, Request, Runner, Sequence
from workbench.engine.image_inputs import create_image_change, process_prompt
from workbench.engine.request import ENDED
from workbench.engine.settings import BOTH, DRAFTER, SAMPLING_NAMES, ImageChange
from workbench.kernels.kv_cache import TreeCache
from workbench.kernels.positions import ForwardInputBuilder
from workbench.methods import registry
from workbench.methods.common import draft_model_cache
from workbench.methods.common.empty_drafter import EmptyDrafter
from workbench.models.runner import SCRATCH

pytestmark = pytest.mark.unchecked
PROMPT = model_helpers.repeating_prompt(11, period=5)
MANY, CASES = 300, 20
"""More tokens than a test has rounds for."""
REFUSED = "A change was refused"
every_method = pytest.mark.parametrize("method", model_helpers.speculative_methods(), ids=lambda method: method.name)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory, device: str) -> Models:
    return model_helpers.make_models("llama", noise=0.15, device=device, heads=tmp_path_factory.mktemp("medusa"))


@pytest.fixture(scope="module")
def vision_models(device: str) -> Models:
    """Vision models for methods that need an image; positions of target and drafter differ."""
    return tiny_vision_models(vocabulary=20, device=device)


def make_request(method: Any, models: Models, n: int, **more: Any) -> Request:
    """Return a request with text, or with an image if the method needs one."""
    needs = getattr(method, "needs", ())
    if "pictures" not in needs:
        return Request(PROMPT, method, max_new_tokens=n, stop_at_eos=False, **more)
    picture = noise_image(3)
    prompt, images = process_prompt(models, f"abc{IMAGE}deab", (picture,))
    return Request(
        prompt, method, image_inputs=images, pil_images=(picture,), max_new_tokens=n, stop_at_eos=False, **more
    )  # fmt: skip


def extremes(method: Method) -> list[dict[str, Any]]:
    """Return each parameter's limits, values beyond them and of wrong types, and an unknown parameter.

    Verifiers that change greedy text are left out, since the output is compared at the end.
    """
    found: list[dict[str, Any]] = [{"no-such": 1}]
    loose = {verifier.name for verifier in method.verifiers if not verifier.keeps_greedy}
    for name, spec in method.params.items():
        values: list[Any] = [None, "x", -1, 10**9, math.nan]
        values += (
            [c for c in spec.choices if c not in loose]
            if spec.kind == "choice"
            else [v for v in (spec.ge, spec.le) if v is not None]
        )
        values += [True, False] if spec.kind == "bool" else []
        found += [{name: value} for value in values]
    return found


def refusals(row: Sequence) -> list[str]:
    """Return the refused changes in the trace, round by round."""
    assert row.trace is not None
    return [note for r in row.trace.rounds for note in r.notes if note.startswith(REFUSED)]


def are_slots_released(models: Models) -> bool:
    return not models.target.slots and (models.drafter is None or not models.drafter.slots)


@pytest.fixture(scope="module")
def plain_text(text: Models, vision_models: Models) -> Callable[[bool], list[int]]:
    """Return the output of plain decoding, for text or after an image."""

    @cache
    def write(pictures: bool) -> list[int]:
        models, like = (vision_models, "vlm-draft") if pictures else (text, "draft-model")
        request = dataclasses.replace(
            make_request(registry.get(like), models, MANY), method=registry.get("autoregressive")
        )
        return Engine(models, record=False).generate(request).token_ids

    return write


@pytest.mark.parametrize(
    "name",
    model_helpers.mark_non_representatives(
        [m.name for m in model_helpers.speculative_methods()],
        [m.with_params() for m in model_helpers.speculative_methods()],
    ),
)
def test_no_value_of_a_parameter_ends_a_run(
    name: str, text: Models, vision_models: Models, plain_text: Callable[[bool], list[int]]
) -> None:
    """Values are set one by one in one run: each takes effect in the next round, or is reported as impossible."""
    method = registry.get(name)
    models, cases = vision_models if "pictures" in method.needs else text, extremes(method)
    for first in range(0, len(cases), CASES):  # one text has rounds for this many values
        run_with_changes(cases[first : first + CASES], method, models, plain_text)


def run_with_changes(
    cases: list[dict[str, Any]], method: Method, models: Models, plain_text: Callable[[bool], list[int]]
) -> None:
    """Run one request and apply one change before each round."""
    engine = Engine(models, record=False)
    row = engine.submit(make_request(method, models, MANY))
    impossible = 0
    for case in cases:
        engine.step()
        while row.status not in ENDED and not (row.trace and row.trace.rounds):
            engine.step()
        assert row.status not in ENDED, (case, row.error)
        try:
            row.configured_method.with_changes(**case)
        except WorkbenchError:
            impossible += 1
        row.change(params=case)
    engine.step()
    assert row.trace is not None
    assert row.status not in ENDED or row.trace.footer.error == "", row.error
    assert row.trace.token_ids == plain_text("pictures" in method.needs)[: len(row.trace.token_ids)]
    assert len(refusals(row)) >= impossible
    assert set(refusals(row)) <= set(row.trace.footer.warnings), "the command line prints a run's warnings"
    row.cancel()
    engine.step()
    assert are_slots_released(models)


@pytest.mark.parametrize("name", SAMPLING_NAMES)
@pytest.mark.parametrize("method", ["draft-model", "draft-tree-sampled", "medusa-typical", "early-exit"])
def test_no_allowed_value_of_the_sampling_ends_a_run(method: str, name: str, text: Models) -> None:
    spec = params_of(SamplingParams())[name]
    engine = Engine(text)
    row = engine.submit(make_request(registry.get(method), text, 40))
    for value in (spec.ge, spec.le):
        engine.step()
        row.change(sampling=SamplingParams(**{"temperature": 1.0, name: value}))
    while row.status not in ENDED:
        engine.step()
    assert row.status == "finished", row.error


def test_only_the_change_to_a_missing_layer_is_refused(text: Models) -> None:
    """Of several changes before one round, only the impossible one is left out."""
    engine = Engine(text)
    row = engine.submit(make_request(registry.get("early-exit"), text, 30))
    while not row.trace or not row.trace.rounds:
        engine.step()
    row.change(params={"depth": 2})
    row.change(params={"exit_layer": 20})
    row.change(sampling=SamplingParams(top_k=5))
    while row.status not in ENDED:
        engine.step()
    changes = [(c.name, c.after) for r in row.trace.rounds for c in r.changes]
    assert row.status == "finished"
    assert changes == [("depth", 2), ("top_k", 5)]
    assert row.trace.rounds[-1].params["exit_layer"] == 2
    assert ["exit_layer=20, but the target has 3 layers" in note for note in refusals(row)] == [True]


@dataclasses.dataclass(frozen=True)
class FailingPrefill(EmptyDrafter):
    """A drafter whose prefill fails."""

    def init_state(self, row: Any, models: Any) -> Any:
        raise ZeroDivisionError("in prime")


@pytest.mark.parametrize("before", ["draft-model", "draft-tree", "token-recycling", "eagle-vlm"])
def test_failing_switch_keeps_the_old_method(before: str, text: Models) -> None:
    broken = dataclasses.replace(registry.get("draft-model"), name="broken", title="Broken", drafter=FailingPrefill())
    alone = Engine(text).generate(make_request(registry.get(before), text, 30))
    engine = Engine(text)
    row = engine.submit(make_request(registry.get(before), text, 30))
    while not row.trace or len(row.trace.rounds) < 2:
        engine.step()
    row.change(broken)
    while row.status not in ENDED:
        engine.step()
    assert row.status == "finished", row.error
    assert ["ZeroDivisionError: in prime" in note for note in refusals(row)] == [True]
    assert row.trace.token_ids == alone.token_ids
    assert [r.path for r in row.trace.rounds] == [r.path for r in alone.rounds], "its state is unchanged"
    assert are_slots_released(text)


@pytest.mark.parametrize("sees", [BOTH, DRAFTER])
def test_images_on_which_a_drafter_fails_are_restored(
    sees: str, vision_models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = registry.get("vlm-draft")
    alone = Engine(vision_models).generate(make_request(method, vision_models, 20))
    engine = Engine(vision_models)
    request = make_request(method, vision_models, 20)
    row = engine.submit(request)
    while not row.trace or len(row.trace.rounds) < 2:
        engine.step()
    prime = type(row.drafter).init_state

    def fail(self: Any, row: Any, models: Any) -> Any:
        monkeypatch.setattr(type(row.drafter), "init_state", prime)
        raise ZeroDivisionError("blind now")

    monkeypatch.setattr(type(row.drafter), "init_state", fail)
    row.change(image_change=create_image_change(vision_models, request, (noise_image(9),), sees))
    while row.status not in ENDED:
        engine.step()
    assert row.status == "finished", row.error
    assert len(refusals(row)) == 1
    assert row.trace.token_ids == alone.token_ids
    assert [r.path for r in row.trace.rounds] == [r.path for r in alone.rounds]
    assert request.image_changes == []
    assert are_slots_released(vision_models)


def run_two_rounds(models: Models, request: Request) -> tuple[Engine, Sequence]:
    """Return a sequence after its second round."""
    engine = Engine(models)
    row = engine.submit(request)
    while not row.trace or len(row.trace.rounds) < 2:
        engine.step()
    return engine, row


@pytest.mark.parametrize("sees", [BOTH, DRAFTER])
def test_images_for_a_run_without_images_are_refused_before_the_cache_changes(sees: str, text: Models) -> None:
    method = registry.get("draft-model")
    alone = Engine(text).generate(make_request(method, text, 20))
    request = make_request(method, text, 20)
    engine, row = run_two_rounds(text, request)
    row.change(
        image_change=ImageChange((), {"input_ids": torch.tensor([[1, 2, 3]]), "pixel_values": torch.zeros(1)}, sees)
    )
    while row.status not in ENDED:
        engine.step()
    assert row.status == "finished", row.error
    assert ["has no images" in note for note in refusals(row)] == [True]
    assert row.trace is not None
    assert row.trace.token_ids == alone.token_ids
    assert request.image_changes == []


@pytest.mark.parametrize("n_asks", [1, 2])
def test_sequence_whose_cache_cannot_be_restored_ends(
    n_asks: int, vision_models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = make_request(registry.get("vlm-draft"), vision_models, 20)
    engine, row = run_two_rounds(vision_models, request)

    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(part_changes, "prefill_images", fail)
    row.change(image_change=create_image_change(vision_models, request, (noise_image(9),), BOTH))
    if n_asks > 1:
        row.change(sampling=SamplingParams(temperature=0.5))
    while row.status not in ENDED:
        engine.step()
    assert row.status == "error"
    assert "Out of memory" in str(row.trace and row.trace.footer.error)
    assert row.trace is not None
    assert len(row.trace.rounds) == 2, "no round runs without its preceding context"
    assert are_slots_released(vision_models)


class PanicException(BaseException):
    """Exception class that a Rust library raises for a panic."""


@dataclasses.dataclass(frozen=True)
class Panics(EmptyDrafter):
    """A drafter that changes the target's cache and then panics."""

    def init_state(self, row: Any, models: Any) -> Any:
        row.cache_slot.length -= 1
        raise PanicException("in Rust")


def test_panic_in_a_drafter_leaves_the_cache_unchanged(text: Models) -> None:
    broken = dataclasses.replace(registry.get("draft-model"), name="panics", title="Panics", drafter=Panics())
    alone = Engine(text).generate(make_request(registry.get("draft-tree"), text, 20))
    engine, row = run_two_rounds(text, make_request(registry.get("draft-tree"), text, 20))
    row.change(broken)
    while row.status not in ENDED:
        engine.step()
    assert row.status == "finished", row.error
    assert len(refusals(row)) == 1
    assert row.trace is not None
    assert row.trace.token_ids == alone.token_ids
    assert are_slots_released(text)


# -- slots ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [m for m in registry.methods() if DRAFTERS & set(m.needs)], ids=lambda m: m.name)
@pytest.mark.parametrize("behind", [False, True], ids=["in its first forward", "behind it"])
def test_failing_prefill_releases_its_slot(
    method: Method, behind: bool, text: Models, vision_models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = vision_models if "pictures" in method.needs else text
    runner = models.drafter
    assert runner is not None

    def failing(act: Callable[..., Any]) -> Callable[..., Any]:
        def fail(*args: Any, **named: Any) -> Any:
            if behind:
                act(*args, **named)
            raise MemoryError

        return fail

    monkeypatch.setattr(runner, "forward", failing(runner.forward))
    monkeypatch.setattr(draft_model_cache, "prefill_images", failing(draft_model_cache.prefill_images))
    engine = Engine(models)
    row = engine.submit(make_request(method, models, 8))
    while row.status not in ENDED:
        engine.step()
    assert row.trace is not None
    assert "Out of memory" in row.trace.footer.error
    assert are_slots_released(models)


@dataclasses.dataclass(frozen=True)
class NoStart(Policy):
    """A policy whose initialisation fails."""

    def init_state(self) -> Any:
        raise ZeroDivisionError("in start")


def test_failing_policy_releases_the_drafters_slot(text: Models) -> None:
    configured = dataclasses.replace(registry.get("draft-model").with_params(), policy=NoStart())
    engine = Engine(text)
    row = engine.submit(make_request(configured, text, 8))
    while row.status not in ENDED:
        engine.step()
    assert "ZeroDivisionError: in start" in str(row.trace and row.trace.footer.error)
    assert are_slots_released(text)


# -- a drafter with fewer positions than the target -------------------------------------------------------------------

SHORT = 24


def with_short_drafter(models: Models, context: int) -> Models:
    """Return the same models with a drafter of fewer positions."""
    assert models.drafter is not None
    drafter = Runner(models.drafter.model, context)
    return dataclasses.replace(models, drafter=drafter, shared={})


@pytest.fixture
def furthest_positions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the furthest position in any forward pass of a runner with `SHORT` positions."""
    furthest, geometry = [0], ForwardInputBuilder.build

    def spy(self: ForwardInputBuilder, rows: Any, slots: Any, lo: int, cache: TreeCache, n: int) -> Any:
        mask, positions = geometry(self, rows, slots, lo, cache, n)
        if cache.capacity == SHORT + SCRATCH:
            asked = [b for b, segment in enumerate(rows) if segment is not None]
            furthest[0] = max(furthest[0], *(int(positions[..., b, : len(rows[b].tokens)].max()) for b in asked))
        return mask, positions

    monkeypatch.setattr(ForwardInputBuilder, "build", spy)
    return furthest


@pytest.mark.parametrize("method", [m for m in registry.methods() if DRAFTERS & set(m.needs)], ids=lambda m: m.name)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_drafter_stops_at_its_last_position(
    method: Method, family: str, vision_models: Models, device: str, furthest_positions: list[int]
) -> None:
    if "pictures" in method.needs:
        if family == "gpt2":
            pytest.skip("the tiny vision models are Llama's")
        models = vision_models
    else:
        models = model_helpers.make_models(family, noise=0.0, device=device)
    wanted = Engine(models).generate(make_request(method, models, 60)).token_ids
    short = with_short_drafter(models, SHORT)
    trace = Engine(short).generate(make_request(method, short, 60))
    assert trace.token_ids == wanted
    assert 0 < furthest_positions[0] < SHORT
    drafting = [len(r.nodes) > 0 for r in trace.rounds]
    stopped = drafting.index(False)
    assert stopped > 0
    assert not any(drafting[stopped:])
    warnings = [w for w in trace.footer.warnings if f"has a context of {SHORT} tokens" in w]
    assert len(warnings) == 1
    assert [r.index for r in trace.rounds if warnings[0] in r.notes] == [stopped]
    assert are_slots_released(short)


@pytest.mark.parametrize("method", ["draft-model", "draft-tree", "draft-tree-sampled"])
def test_prompt_longer_than_the_drafters_context_is_decoded_plainly(method: str, text: Models) -> None:
    short = with_short_drafter(text, 8)
    trace = Engine(short).generate(make_request(registry.get(method), short, 20))
    assert trace.token_ids == model_helpers.hf_greedy(text.target.model, PROMPT, 20)
    assert not any(len(r.nodes) for r in trace.rounds)
    assert any("has a context of 8 tokens" in w for w in trace.footer.warnings)
    engine = Engine(short)
    row = engine.submit(make_request(registry.get(method), short, 20))
    engine.step()
    row.change(registry.get("prompt-lookup"))
    while row.status not in ENDED:
        engine.step()
    assert row.trace is not None
    assert any(len(r.nodes) for r in row.trace.rounds), "another method continues drafting"
    assert are_slots_released(short)


def test_sequence_that_stops_drafting_does_not_stop_others(text: Models) -> None:
    short = with_short_drafter(text, SHORT)
    engine = Engine(short)
    long, brief = (engine.submit(Request(PROMPT[:n], registry.get("draft-model"), max_new_tokens=19)) for n in (11, 2))
    while not engine.is_idle:
        engine.step()
    for row, n in ((long, 11), (brief, 2)):
        assert row.trace is not None
        assert row.trace.token_ids == model_helpers.hf_greedy(text.target.model, PROMPT[:n], 19)
    assert any("which the text has filled" in w for w in long.trace.footer.warnings)  # type: ignore[union-attr]
    assert brief.trace.footer.warnings == []  # type: ignore[union-attr]


def test_change_of_method_keeps_only_parameters_with_the_same_meaning(text: Models) -> None:
    def switched(before: Any, to: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        row = Engine(text, record=False).submit(make_request(before, text, 4))
        row.change(method=registry.get(to))
        return row.requested_settings().active.configured_method.values, registry.get(to).with_params().values

    chosen = registry.get("lookahead").with_params(window=9, ngram=4, depth=3)
    now, usual = switched(chosen, "swift")
    assert now["depth"] == 3, "the draft length has the same meaning in all methods"
    assert now["window"] == usual["window"], "number of columns there, number of tokens here"
    now, usual = switched(registry.get("rest").with_params(nodes=40, longest=7), "suffix")
    assert now["nodes"] == 40, "the tree size has the same meaning in all methods"
    assert now["longest"] == usual["longest"], "one looks up a datastore, the other the text"
    now, _ = switched(registry.get("suffix").with_params(nodes=80), "rest")
    assert now["nodes"] == 16, "out of range: its own default"
