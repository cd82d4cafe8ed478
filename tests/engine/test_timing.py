"""Times in a batch: each sequence counts its own forward passes, and shared times add up to the elapsed time."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import model_helpers
import pytest
import torch

from workbench.core.tree import DraftTree
from workbench.decoders import Method
from workbench.decoders.draft_verify.parts import Drafter, Plan
from workbench.engine import Engine, Models, Request
from workbench.engine.request import ENDED, Sequence
from workbench.engine.round_timing import share_forwards
from workbench.kernels.device_clock import Clock, Mark, Span
from workbench.methods import registry
from workbench.methods.policies.fixed import Fixed
from workbench.service.telemetry import Telemetry
from workbench.trace.events import Round

PROMPT = model_helpers.repeating_prompt(10)


@pytest.fixture(scope="module")
def models() -> Models:
    return model_helpers.make_models("llama", noise=0.15, context=64)


@dataclass(frozen=True)
class Slow(Drafter):
    """Drafts nothing, with one forward pass per sequence."""

    def propose_one(self, row: Sequence, plan: Plan) -> DraftTree:
        clock = row.models.target.clock
        start = clock.mark()
        sum(range(20_000))
        row.models.meter.add(start, clock.mark())
        return DraftTree.empty("slow", row.models.target.device)


def batch(models: Models, *methods: Method | tuple[str, dict[str, Any]], n: int = 8) -> list[list[Round]]:
    """Return the rounds of each sequence; all run together from the first round on."""
    engine = Engine(models)
    chosen = [m if isinstance(m, Method) else registry.get(m[0]).with_params(**m[1]) for m in methods]
    rows = [engine.submit(Request(PROMPT, c, max_new_tokens=n, paused=True)) for c in chosen]
    while not all(row.is_open for row in rows):
        engine.step()
    for row in rows:
        row.resume()
    while any(row.status not in ENDED for row in rows):
        engine.step()
    return [row.trace.rounds for row in rows if row.trace is not None]


def test_sequence_does_not_count_forward_passes_of_another_drafter(models: Models) -> None:
    lookup, model, plain = batch(
        models, ("prompt-lookup", {"depth": 3}), ("draft-model", {"depth": 4}), ("autoregressive", {})
    )
    assert [r.draft_forwards for r in lookup] == [0] * len(lookup)
    assert [r.draft_s for r in lookup + plain] == [0.0] * len(lookup + plain)
    assert model[0].draft_forwards == 4
    assert model[0].waited_s == 0, "it took part in all forward passes of its batch"
    assert lookup[0].waited_s == plain[0].waited_s == pytest.approx(model[0].draft_s)
    assert lookup[0].verify_s == model[0].verify_s == plain[0].verify_s > 0, "they shared one pass of the target"
    assert {r.target_forwards for r in lookup + model + plain} == {1}
    names = [p.name for p in lookup[0].phases]
    assert names[-3:] == ["verify", "judge", "commit"]
    assert "wait" in names, "waiting is a phase of its own"
    for r in lookup + model + plain:
        assert r.draft_s + r.verify_s + r.waited_s + r.overhead_s == pytest.approx(r.seconds)


def test_shorter_draft_counts_fewer_of_the_shared_forward_passes(models: Models) -> None:
    short, long = batch(models, ("draft-model", {"depth": 2}), ("draft-model", {"depth": 5}), n=12)
    assert (short[0].draft_forwards, long[0].draft_forwards) == (2, 5)
    assert 0 < short[0].draft_s < long[0].draft_s
    assert short[0].waited_s == pytest.approx(long[0].draft_s - short[0].draft_s)


def test_drafter_without_batching_is_timed_per_sequence(models: Models) -> None:
    slow = dataclasses.replace(registry.get("draft-model"), name="slow", drafter=Slow(), policies=(Fixed(),))
    first, second = batch(models, slow, slow)
    assert {r.draft_forwards for r in first[:5] + second[:5]} == {1}
    assert first[0].waited_s == pytest.approx(second[0].draft_s)
    assert second[0].waited_s == pytest.approx(first[0].draft_s)


def test_times_of_a_batch_add_up_and_prometheus_counts_shared_passes_once(models: Models) -> None:
    runs = batch(models, ("draft-model", {"depth": 4}), ("draft-model", {"depth": 4}), ("autoregressive", {}))
    first = [rounds[0] for rounds in runs]
    assert [r.shared["rows"] for r in first] == [3, 3, 3]
    assert sum(r.shared["verify_s"] for r in first) == pytest.approx(first[0].verify_s)
    assert sum(r.shared["draft_s"] for r in first) == pytest.approx(first[0].draft_s)
    telemetry = Telemetry(dict)
    for r in first:
        telemetry.round(r)
    tallies = telemetry._tallies
    assert sum(t.verify_seconds for t in tallies.values()) == pytest.approx(first[0].verify_s)
    assert sum(t.draft_seconds for t in tallies.values()) == pytest.approx(first[0].draft_s)
    assert tallies["autoregressive"].draft_seconds == 0
    longest, before = max(r.overhead_s for r in first), sum(r.started_s for r in first) / 3
    assert sum(t.overhead_seconds for t in tallies.values()) - before <= longest, "except the time before the round"


def test_single_sequence_shares_nothing(models: Models) -> None:
    [rounds] = batch(models, ("draft-model", {"depth": 4}))
    assert all(r.shared == {} and r.waited_s == 0 for r in rounds)
    assert [p.name for p in rounds[0].phases] == ["draft", "verify", "judge", "commit"]


def test_forward_passes_without_owners_count_for_all_possible_ones() -> None:
    clock = Clock(torch.device("cpu"))
    at = [Mark(clock, None, float(seconds)) for seconds in (0, 3, 4, 6)]
    both, one, other = Span(at[0], at[1]), Span(at[1], at[2], frozenset({1})), Span(at[2], at[3], frozenset({9}))
    found = share_forwards([both, one, other], [1, 2])
    assert (found[1].seconds, found[1].part_s, found[1].forwards) == (6, 3.5, 3)
    assert (found[2].seconds, found[2].part_s, found[2].forwards) == (5, 2.5, 2)


LEVELS = 4
FORWARDS = {
    "draft-model": LEVELS, "eagle-2": LEVELS, "eagle-vlm": LEVELS, "hydra-plus-plus": LEVELS, "chimera": LEVELS,
    "clover": LEVELS, "kangaroo": LEVELS, "medusa": 1, "pard": 1, "falcon": 2, "flash": 2, "early-exit": LEVELS + 1,
}  # fmt: skip
"""Forward passes for a draft of `LEVELS`; early exit also reads its last token. One method per way of counting."""


def test_drafter_counts_one_forward_pass_per_level_or_block(tmp_path: Path) -> None:
    """EAGLE's family used to count the LM head's product as a separate pass: twice as many in a tree."""
    models, found = model_helpers.make_models("llama", noise=0.15, heads=tmp_path / "heads"), dict[str, int]()
    for name in FORWARDS:
        wanted = {"depth": LEVELS, "policy": "fixed"} | ({"width": 1, "nodes": 8} if name == "flash" else {})
        method = registry.get(name)
        chosen = method.with_params(**{key: value for key, value in wanted.items() if key in method.params})
        request = Request(PROMPT, chosen, max_new_tokens=LEVELS + 6, stop_at_eos=False)
        found[name] = Engine(models).generate(request).rounds[1].draft_forwards  # the first pass reads the text before
    assert found == FORWARDS


def test_part_of_a_forward_pass_only_adds_its_time() -> None:
    clock = Clock(torch.device("cpu"))
    at = [Mark(clock, None, float(seconds)) for seconds in (0, 3, 4)]
    found = share_forwards([Span(at[0], at[1]), Span(at[1], at[2], is_part=True)], [1])
    assert (found[1].seconds, found[1].forwards) == (4, 1)
