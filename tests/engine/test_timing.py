"""In a batch each row counts the forwards it took part in, and what is shared adds up to the time that passed."""

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
from workbench.decoders.draft_verify.draft_plan import Plan
from workbench.decoders.draft_verify.parts import Drafter
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
    """Drafts nothing, in one forward of a network that knows no rows; the loop asks it for one row at a time."""

    def propose_one(self, row: Sequence, plan: Plan) -> DraftTree:
        clock = row.models.target.clock
        start = clock.mark()
        sum(range(20_000))
        row.models.meter.add(start, clock.mark())
        return DraftTree.empty("slow", row.models.target.device)


def batch(models: Models, *methods: Method | tuple[str, dict[str, Any]], n: int = 8) -> list[list[Round]]:
    """The rounds of each row, all of them run together from the first round on."""
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


def test_a_row_counts_no_forward_of_another_rows_drafter(models: Models) -> None:
    lookup, model, plain = batch(
        models, ("prompt-lookup", {"depth": 3}), ("draft-model", {"depth": 4}), ("autoregressive", {})
    )
    assert [r.draft_forwards for r in lookup] == [0] * len(lookup)
    assert [r.draft_s for r in lookup + plain] == [0.0] * len(lookup + plain)
    assert model[0].draft_forwards == 4
    assert model[0].waited_s == 0, "it took part in all forwards of its batch"
    assert lookup[0].waited_s == plain[0].waited_s == pytest.approx(model[0].draft_s)
    assert lookup[0].verify_s == model[0].verify_s == plain[0].verify_s > 0, "they shared one forward of the target"
    assert {r.target_forwards for r in lookup + model + plain} == {1}
    names = [p.name for p in lookup[0].phases]
    assert names[-3:] == ["verify", "judge", "commit"]
    assert "wait" in names, "the wall clock shows what it waited for as such"
    for r in lookup + model + plain:
        assert r.draft_s + r.verify_s + r.waited_s + r.overhead_s == pytest.approx(r.seconds)


def test_a_row_that_drafts_less_counts_fewer_of_the_forwards_it_shared(models: Models) -> None:
    short, long = batch(models, ("draft-model", {"depth": 2}), ("draft-model", {"depth": 5}), n=12)
    assert (short[0].draft_forwards, long[0].draft_forwards) == (2, 5)
    assert 0 < short[0].draft_s < long[0].draft_s
    assert short[0].waited_s == pytest.approx(long[0].draft_s - short[0].draft_s)


def test_a_drafter_that_takes_one_row_at_a_time_is_timed_one_row_at_a_time(models: Models) -> None:
    slow = dataclasses.replace(registry.get("draft-model"), name="slow", drafter=Slow(), policies=(Fixed(),))
    first, second = batch(models, slow, slow)
    assert {r.draft_forwards for r in first[:5] + second[:5]} == {1}
    assert first[0].waited_s == pytest.approx(second[0].draft_s)
    assert second[0].waited_s == pytest.approx(first[0].draft_s)


def test_parts_of_a_batch_add_up_and_prometheus_counts_a_shared_forward_once(models: Models) -> None:
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
    assert sum(t.overhead_seconds for t in tallies.values()) - before <= longest, "what passed before a round apart"


def test_a_row_on_its_own_shares_nothing(models: Models) -> None:
    [rounds] = batch(models, ("draft-model", {"depth": 4}))
    assert all(r.shared == {} and r.waited_s == 0 for r in rounds)
    assert [p.name for p in rounds[0].phases] == ["draft", "verify", "judge", "commit"]


def test_forwards_without_owners_belong_to_all_who_may_have_asked_for_them() -> None:
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
"""Forwards of a draft of `LEVELS`; early exit reads its last token, too. One method of each way of counting."""


def test_a_drafter_counts_one_forward_for_each_level_or_block(tmp_path: Path) -> None:
    """EAGLE's family counted the product with the LM head as a forward of its own: twice as many in a tree."""
    models, found = model_helpers.make_models("llama", noise=0.15, heads=tmp_path / "heads"), dict[str, int]()
    for name in FORWARDS:
        wanted = {"depth": LEVELS, "policy": "fixed"} | ({"width": 1, "nodes": 8} if name == "flash" else {})
        method = registry.get(name)
        chosen = method.with_params(**{key: value for key, value in wanted.items() if key in method.params})
        request = Request(PROMPT, chosen, max_new_tokens=LEVELS + 6, stop_at_eos=False)
        found[name] = Engine(models).generate(request).rounds[1].draft_forwards  # the first read what came before
    assert found == FORWARDS


def test_a_part_of_a_forward_adds_its_time_alone() -> None:
    clock = Clock(torch.device("cpu"))
    at = [Mark(clock, None, float(seconds)) for seconds in (0, 3, 4)]
    found = share_forwards([Span(at[0], at[1]), Span(at[1], at[2], is_part=True)], [1])
    assert (found[1].seconds, found[1].forwards) == (4, 1)
