"""Comparisons of the bundled models in Python: interleaved runs, paired figures, and texts compared."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from workbench import Workbench
from workbench.bench.backend_run import n_emitted
from workbench.bench.compare import Comparison
from workbench.bench.lanes import Lane
from workbench.bench.statistics import mean
from workbench.bench.text_comparison import divergence, evidence
from workbench.core.errors import ParameterError, PromptError, UnknownNameError, WorkbenchError
from workbench.engine import load_models
from workbench.trace.metrics import summary

PROMPTS = ["Once upon a time there was a fox", "The fox and the hare, the fox and the"]
TYPICAL = "medusa-typical:epsilon=0.0"
CHOICES = {"lossless": {}, "independent": {"grower": "rsd-c"}, "k-seq": {"grower": "specinfer"}}


@pytest.fixture(scope="module")
def bench() -> Iterator[Workbench]:
    with Workbench(dtype="float64", device="cpu") as made:
        yield made


@pytest.fixture(scope="module")
def made(bench: Workbench) -> Comparison:
    """Three lanes, one of which cannot run here, on two prompts, twice."""
    lanes = ["draft-model:depth=3", "prompt-lookup", "eagle-vlm"]
    return bench.compare(PROMPTS, lanes, max_new_tokens=20, repeats=2)


def test_lanes_run_one_at_a_time_in_rotating_order(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[tuple[str, str]] = []
    backend = bench._backend
    whole = backend.record_round

    def record_round(run: Any, record: Any) -> None:
        if not order or order[-1] != (run.id, run.method):
            order.append((run.id, run.method))
        whole(run, record)

    monkeypatch.setattr(backend, "record_round", record_round)
    bench.compare(PROMPTS[0], ["draft-model", "prompt-lookup"], max_new_tokens=4, repeats=2)
    assert len({run for run, _ in order}) == len(order), "no run was interrupted by another"
    plain, draft, lookup = "autoregressive", "draft-model", "prompt-lookup"
    assert [method for _, method in order] == [plain, draft, lookup] * 2 + [draft, lookup, plain]
    assert len(backend._runs) == 0, "the backend keeps no run"


def test_figures_follow_from_the_runs_and_ratios_are_paired(made: Comparison) -> None:
    draft, plain = made["draft-model"], made.reference
    assert plain is not None
    assert plain.added
    figures = made.figures[draft.name]
    assert sorted(draft.samples) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    found = [summary(trace) for trace in draft.traces.values()]
    taus = [f["tokens"] / f["rounds"] for f in found]
    assert figures["tau"] == pytest.approx(math.prod(taus) ** 0.5), "one kind of average in a row: geometric means"
    assert figures["acceptance_rate"] == pytest.approx(sum(f["acceptance_rate"] for f in found) / 2)
    assert figures["accepted"] == 2 * sum(f["accepted"] for f in found)
    ratios = [s.decode_rate / plain.samples[key].decode_rate for key, s in draft.samples.items()]
    assert figures["speedup"]["value"] == pytest.approx(math.prod(ratios) ** 0.25)
    assert (figures["speedup"]["n"], figures["speedup"]["prompts"]) == (4, 2)
    rates = [made.figures[lane.name]["tokens_per_second"]["value"] for lane in (draft, plain)]
    assert rates[0] / rates[1] == pytest.approx(figures["speedup"]["value"]), "the columns of the table agree"
    parts = figures["ms_per_token"]
    assert 0 < parts["draft"] < parts["decode"] == pytest.approx(1e3 / rates[0])
    assert made.figures[plain.name]["speedup"]["value"] == 1.0


def test_a_lane_that_fails_says_why_and_the_others_go_on(made: Comparison) -> None:
    failed = made["eagle-vlm"]
    assert "cannot run" in failed.error
    assert not failed.samples
    assert made.complete
    wire = made.to_wire()["lanes"][3]
    assert wire["error"] == failed.error
    assert wire["figures"]["speedup"] is None


def test_greedy_texts_of_exact_lanes_are_identical(made: Comparison) -> None:
    lanes = made.to_wire()["lanes"]
    assert [lane["exact"]["kind"] for lane in lanes[:3]] == ["reference", "identical", "identical"]
    assert [lane["exact"]["identical"] for lane in lanes[:3]] == [4, 4, 4]
    assert [piece[0] for piece in lanes[1]["differences"][0]] == ["same"]


def test_evidence_is_that_of_the_lanes_choices() -> None:
    """The exactness board tests a method's default verifier and tree builder, not the others."""
    of = {v: evidence(Lane("draft-tree-sampled", {"verifier": v} | g).configured) for v, g in CHOICES.items()}
    assert "χ² = " in of["lossless"]
    assert of["independent"].startswith("The verifier independent is not exact with ")
    assert "its output differs from p by TV 0." in of["independent"]
    assert of["k-seq"] == ""  # this setting has no row on the board
    of_itself = evidence(Lane("draft-model", {"grower": "specinfer", "verifier": "k-seq"}).configured)
    assert of_itself.startswith("shown: ")
    assert of_itself != evidence(Lane("draft-model", {}).configured)


def test_the_race_ends_with_the_recorded_text_at_the_recorded_time(made: Comparison) -> None:
    lane, wire = made["draft-model"], made.to_wire()["lanes"][1]
    race, trace = wire["race"][1], lane.traces[1]
    assert "".join(text for _, emitted in race["rounds"] for text, _ in emitted) == trace.text
    ends = [end for end, _ in race["rounds"]]
    assert ends == sorted(ends)
    assert ends[-1] <= trace.footer.seconds <= ends[-1] + 0.5


def test_break_even_follows_from_the_measured_costs(made: Comparison) -> None:
    pays = made.to_wire()["lanes"][1]["pays"]
    cost = pays["plain_ms"] / pays["round_ms"]
    curve = dict(pays["curve"])
    assert curve[0.0] == pytest.approx(cost)
    assert curve[1.0] == pytest.approx((1 + pays["depth"]) * cost)
    prompts = [trace.rounds for trace in made["draft-model"].traces.values()]
    taus = [
        sum(sum(0.5**i for i in range(max(r.nodes.depth, default=0) + 1)) for r in own) / len(own) for own in prompts
    ]
    assert curve[0.5] == pytest.approx(math.prod(taus) ** (1 / len(taus)) * cost)
    figures = made.figures[made["draft-model"].name]
    assert figures["tau"] * cost == pytest.approx(figures["speedup"]["value"]), "the measured point is on the curve"
    assert curve[0.0] <= figures["speedup"]["value"] <= curve[1.0]
    if pays["break_even"] is not None:
        below, above = (curve[round(math.floor(20 * pays["break_even"] + k) / 20, 2)] for k in (0, 1))
        assert below <= 1 <= above
    else:
        assert pays["always"] == (cost >= 1)


def test_an_approximate_method_diverges_and_the_margin_is_the_targets(bench: Workbench) -> None:
    """The margin is checked against a plain forward of the model."""
    found = bench.compare(PROMPTS[0], [TYPICAL], max_new_tokens=24, repeats=1, sampling={"temperature": 0.4}, seed=3)
    wire = found.to_wire()["lanes"][1]
    exact = wire["exact"]
    assert (exact["kind"], exact["promise"], exact["identical"]) == ("distribution", "approximate", 0)
    first, plain = exact["first"], found.reference
    assert plain is not None
    ids = plain.traces[0].header.prompt_tokens + plain.traces[0].token_ids[: first["at"]]
    models = load_models("text-target", None, "cpu", "float64")
    with torch.inference_mode():
        logits = models.target.model(torch.tensor([ids])).logits[0, -1]
    x, y = first["plain"]["token"], first["other"]["token"]
    assert first["margin"] == pytest.approx(float(logits[x] - logits[y]) / 0.4, abs=1e-5)
    kinds = {piece[0] for piece in wire["differences"][0]}
    assert kinds >= {"plain", "lane"}
    assert divergence(plain.traces[0], plain.traces[0]) is None


def test_a_comparison_survives_serialisation(made: Comparison) -> None:
    back = Comparison.from_wire(json.loads(json.dumps(made.to_wire(traces=True))))
    assert json.loads(json.dumps(back.to_wire())) == json.loads(json.dumps(made.to_wire()))
    assert back.rows() == made.rows()


def test_a_comparison_is_updated_after_each_run_with_token_counts(bench: Workbench) -> None:
    """The race appears as soon as plain decoding and another lane have a run; then every figure has its n."""
    reported_steps, runs = [], list[tuple[int, int]]()
    for step in bench.stream_comparison(PROMPTS, ["draft-model"], max_new_tokens=40, repeats=2):
        wire = step.to_wire()
        reported_steps.append((step.lane, step.tokens, step.limit))
        made = wire["comparison"]
        if made is not None and not step.last:
            runs.append((made["lanes"][0]["figures"]["n"], made["lanes"][1]["figures"]["n"]))
            raced = [str(step.prompt) in lane["race"] for lane in made["lanes"]]
            assert raced == [any(p == step.prompt for p, _ in lane.samples) for lane in step.comparison.lanes]
    assert runs == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 2), (2, 3), (3, 3), (4, 3), (4, 4)]
    assert {(lane, limit) for lane, _, limit in reported_steps} >= {("Autoregressive", 40), ("Draft model", 40)}
    assert all(tokens <= limit for _, tokens, limit in reported_steps)


def test_a_run_in_progress_reports_its_number_of_tokens(bench: Workbench) -> None:
    run = bench.start(PROMPTS[0], "draft-model", max_new_tokens=40, paused=True)
    run.step()
    while run.trace is None or not run.trace.rounds:
        time.sleep(0.01)
    assert n_emitted(run) == len(run.trace.rounds[0].emitted)
    run.cancel()


def test_stopping_keeps_the_measurements(bench: Workbench) -> None:
    enough, last = threading.Event(), None
    for last in bench.stream_comparison(PROMPTS, ["draft-model"], max_new_tokens=8, repeats=3, stopped=enough.is_set):
        if last.comparison is not None and last.comparison.lanes[-1].samples:
            enough.set()
    assert last is not None
    assert last.last
    assert not last.comparison.complete
    assert sorted(last.comparison["draft-model"].samples) == [(0, 0)]
    assert last.comparison.figures["Draft model"]["speedup"]["n"] == 1


def test_closing_the_iterator_ends_the_run(bench: Workbench) -> None:
    steps = bench.stream_comparison(PROMPTS, ["draft-model"], max_new_tokens=4000)
    next(steps)
    steps.close()
    assert len(bench._backend._runs.active()) == 0


@pytest.mark.parametrize(
    ("lanes", "settings", "error"),
    [
        (["draft-model", "draft-model:depth=4"], {}, ParameterError),  # 4 is the default
        (["draft-model:dept=3"], {}, UnknownNameError),
        (["draft-model:depth=99"], {}, ParameterError),
        (["draft-model:depth"], {}, ParameterError),
        (["autoregresive"], {}, UnknownNameError),
        ([f"draft-model:depth={i}" for i in range(1, 6)], {}, ParameterError),
        (["draft-model"], {"sampling": {"depth": 3}}, ParameterError),
        (["draft-model"], {"sampling": {"temperature": -1}}, ParameterError),
        (["draft-model"], {"repeats": 0}, ParameterError),
        (["draft-model"], {"images": [b"no picture"]}, PromptError),
        ([{"params": {}}], {}, ParameterError),
    ],
)
def test_invalid_comparisons_are_refused_before_anything_runs(
    bench: Workbench, lanes: list[Any], settings: dict[str, Any], error: type[WorkbenchError]
) -> None:
    with pytest.raises(error):
        bench.stream_comparison(PROMPTS[0], lanes, **settings)
    with pytest.raises(PromptError):
        bench.stream_comparison([" "], ["draft-model"])


def test_a_lane_is_parsed_from_and_written_as_text() -> None:
    for text in ("autoregressive", "draft-model:depth=3,drafter=owner/name", "draft-model:policy=confidence"):
        assert str(Lane.parse(text)) == text
    assert Lane.parse("draft-model:depth=4") == Lane.parse("draft-model"), "default values are left out"


def test_an_interval_contains_the_mean_and_one_value_has_none() -> None:
    found = mean([1.0, 2.0, 3.0, 4.0])
    assert found is not None
    assert found["low"] < found["value"] == 2.5 < found["high"]
    assert mean([2.0]) == {"value": 2.0, "low": None, "high": None, "n": 1}
    assert mean([]) is None
