"""The recordings: one for each method, small and readable; statements of pages and tour about them are true."""

from __future__ import annotations

import gzip
import json
import re

import pytest

from workbench.core.errors import UnknownNameError, WorkbenchError
from workbench.methods import registry
from workbench.trace import metrics
from workbench.trace.events import Trace
from workbench.trace.nodes import ACCEPTED, DISCARDED, REJECTED
from workbench.trace.speedup import Baseline
from workbench.views import recorded_runs, tour


def test_every_method_has_a_recording_and_they_are_small() -> None:
    sizes = {
        name: (recorded_runs.folder() / f"{name}{recorded_runs.SUFFIX}").stat().st_size
        for name in recorded_runs.names()
    }
    assert set(registry.names()) <= set(sizes)
    assert max(sizes.values()) < 60_000
    assert sum(sizes.values()) < 32_000 * len(sizes)


@pytest.mark.parametrize("name", recorded_runs.names())
def test_a_recording_contains_everything_that_views_show(name: str) -> None:
    trace = recorded_runs.trace(name)
    if name in registry.names():
        assert {r.method for r in trace.rounds} == {name} == {trace.header.method}
        assert trace.header.promise == registry.get(name).promise.value
    assert trace.header.hardware
    assert trace.header.created
    assert trace.footer.reason in ("length", "eos")
    assert 20 <= len(trace.token_ids) <= 60
    has_drafts = name not in registry.names() or registry.get(name).is_speculative
    for r in trace.rounds:
        assert len(r.top_p) == len(r.entropy) == (len(r.nodes) + 1 if has_drafts else 0)
        for rule, accept in zip(r.nodes.rule, r.nodes.accept, strict=True):
            assert (rule in trace.header.rules) == (accept is not None)
        assert r.phases


def test_the_race_has_the_text_of_plain_decoding_and_the_speed_of_measured_pairs() -> None:
    race = recorded_runs.load("race")
    plain, mine = Trace.from_wire(race["plain"]), recorded_runs.trace("race")
    assert plain.token_ids == mine.token_ids
    assert plain.header.prompt_tokens == mine.header.prompt_tokens
    assert {r.method for r in plain.rounds} == {"autoregressive"}
    baseline = Baseline.from_wire(race["baseline"])
    assert baseline is not None
    assert baseline.estimate is not None
    assert len(baseline.ratios) >= 8
    rates = [metrics.summary(trace)["tokens_per_second"] for trace in (mine, plain)]
    ratio = rates[0] / rates[1]
    assert any(ratio == pytest.approx(each, rel=1e-5) for each in baseline.ratios), "the replayed pair was measured"
    assert baseline.estimate.low is not None
    assert baseline.estimate.low <= ratio <= (baseline.estimate.high or 0), "close to the estimate"


def test_a_recording_without_a_plain_run_has_none() -> None:
    assert {"plain", "baseline"}.isdisjoint(recorded_runs.load("draft-tree"))


def test_the_index_agrees_with_the_traces() -> None:
    for entry in recorded_runs.index():
        trace = recorded_runs.trace(entry["name"])
        assert entry["figures"] == metrics.summary(trace)
        assert trace.text.startswith("".join(text for text, _ in entry["preview"]))
        assert entry["simulation"] == (entry["method"] == "oracle")


@pytest.mark.parametrize("name", ["nobody", "../models/text-target/config", "", "draft-model.json.gz", "a\x00b", "*"])
def test_only_names_of_recordings_are_read(name: str) -> None:
    with pytest.raises(UnknownNameError):
        recorded_runs.load(name)


def test_a_damaged_recording_is_reported(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_RECORDED", str(tmp_path))
    assert recorded_runs.index() == []
    (tmp_path / "bad.json.gz").write_bytes(b"\x1f\x8b nothing")
    with pytest.raises(WorkbenchError, match=r"bad\.json\.gz cannot be read"):
        recorded_runs.load("bad")


def test_a_written_recording_is_read_back(tmp_path) -> None:
    file = recorded_runs.folder() / f"draft-tree{recorded_runs.SUFFIX}"
    trace = Trace.from_wire(json.loads(gzip.decompress(file.read_bytes())))  # other tests may change the cached trace
    assert recorded_runs.write(tmp_path / "a.json.gz", trace) == recorded_runs.write(tmp_path / "b.json.gz", trace)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    assert recorded_runs.read(tmp_path / "a.json.gz") == trace


# -- The tour: statements that a new recording could make false -------------------------------------------------------


def step(name: str) -> tour.Step:
    make, needed = tour.STEPS[name]
    return make(*map(recorded_runs.trace, needed))


def test_the_short_tour_shares_titles_and_sentences_with_the_long_one() -> None:
    steps = tour.live_steps()
    assert len(steps) <= 7
    assert len({each["part"] for each in steps}) == len(steps)
    for each in steps:
        sentences = [text for text in re.split(r"(?<=\.) ", each["text"]) if text]
        assert len(sentences) <= 3
        assert len(each["text"]) <= 220, "a small panel"
        assert each["learn"] == (each["name"] in tour.STEPS)
        if each["learn"]:
            assert step(each["name"]).title == each["title"]
    shared = {
        "round": tour.OUTCOMES, "same-text": tour.GREEDY, "keep-or-refuse": tour.SAMPLED, "trees": tour.SIBLINGS,
        "accepted-of-what": tour.RATIO, "switch": tour.DEPENDS,
    }  # fmt: skip
    texts = " ".join(each["text"] for each in steps).lower()
    for name, sentence in shared.items():
        made = step(name)
        assert sentence in made.see + made.why
        assert sentence.lower() in texts


@pytest.mark.parametrize("name", list(tour.STEPS))
def test_every_step_can_be_completed(name: str) -> None:
    made = step(name)
    assert tour.can_be_done(made), "record again: workbench record"
    assert 0 <= made.right < len(made.choices) == len(set(made.choices))


def test_step_1_a_full_round_gains_one_token_more_than_it_drafted() -> None:
    trace = recorded_runs.trace("draft-model")
    full = [r for r in trace.rounds if len(r.path) == trace.header.params["depth"] == len(r.emitted) - 1]
    assert full
    assert {r.bonus_kind for r in full} == {"bonus"}
    assert f"in {len(full)} round" in step("round").why.replace("happened in", "in")
    assert all(trace.rounds[r].nodes.status[i] == REJECTED for r, i in step("round").places)


def test_step_2_the_text_is_the_same_in_fewer_passes() -> None:
    plain, drafted = recorded_runs.trace("autoregressive"), recorded_runs.trace("draft-model")
    assert drafted.header.params["temperature"] == plain.header.params["temperature"] == 0
    assert drafted.token_ids == plain.token_ids, "float32 can diverge at a tie: record again with another prompt"
    assert len(drafted.rounds) < len(plain.rounds) == len(plain.token_ids)
    assert f"{metrics.tau(drafted.rounds):.2f}" in step("same-text").see


def test_step_3_a_draft_was_accepted_by_its_random_number() -> None:
    trace = recorded_runs.trace("early-exit")
    assert trace.header.params["temperature"] > 0
    for r, i in step("keep-or-refuse").places:
        nodes = trace.rounds[r].nodes
        q, accept, u = nodes.q[i], nodes.accept[i], nodes.u[i]
        assert None not in (q, accept, u)
        assert nodes.p[i] < q
        assert u < accept == pytest.approx(nodes.p[i] / q, rel=1e-3)


def test_step_4_the_ratios_equal_the_metrics() -> None:
    trace, made = recorded_runs.trace("draft-tree"), step("accepted-of-what")
    assert f"{metrics.acceptance_rate(trace.rounds):.0%}" in made.see
    assert f"{metrics.draft_utilisation(trace.rounds):.0%}" in made.see
    assert metrics.count_tested(trace.rounds) < metrics.count_drafted(trace.rounds)
    assert all(trace.rounds[r].nodes.status[i] == DISCARDED for r, i in made.places)


def test_step_5_copying_pays_on_a_text_that_repeats() -> None:
    trace = recorded_runs.trace("prompt-lookup")
    assert trace.header.drafter is None or registry.get("prompt-lookup").needs == ()
    assert metrics.tau(trace.rounds) > 1.5


def test_step_6_a_later_sibling_was_accepted() -> None:
    trace = recorded_runs.trace("draft-tree")
    for r, i in step("trees").places:
        nodes = trace.rounds[r].nodes
        assert nodes.status[i] == ACCEPTED
        assert any(nodes.parents[j] == nodes.parents[i] and nodes.status[j] == REJECTED for j in range(i))
    depth, nodes = trace.header.params["depth"], trace.header.params["nodes"]
    assert max(len(r.emitted) for r in trace.rounds) <= depth + 1
    assert max(len(r.nodes) for r in trace.rounds) <= nodes


def test_step_7_the_rates_before_and_after_the_change() -> None:
    trace, made = recorded_runs.trace("switch"), step("switch")
    (at,) = made.rounds
    before, after = trace.rounds[:at], trace.rounds[at:]
    assert {r.method for r in before} == {"draft-model"}
    assert {r.method for r in after} == {"prompt-lookup"}
    low, high = metrics.acceptance_rate(before), metrics.acceptance_rate(after)
    assert f"{low:.0%}" in made.why
    assert f"{high:.0%}" in made.why
    assert made.choices[made.right] == ("It rose" if high > low else "It fell" if high < low else "It stayed the same")


def test_step_8_the_closed_form() -> None:
    assert tour.expected_tau(0.8, 4) == pytest.approx(sum(0.8**i for i in range(5)))
    assert tour.expected_tau(1.0, 4) == 5
    trace = recorded_runs.trace("oracle")
    assert trace.header.simulation
    params = trace.header.params
    assert metrics.tau(trace.rounds) == pytest.approx(tour.expected_tau(params["acceptance"], params["depth"]), rel=0.4)


@pytest.mark.parametrize("name", ["compare", "sweep"])
def test_an_example_is_complete_and_small_and_names_its_machine(name: str) -> None:
    found = recorded_runs.example(name)
    assert found["complete"]
    assert (recorded_runs.folder() / recorded_runs.EXAMPLES / f"{name}{recorded_runs.SUFFIX}").stat().st_size < 30_000
    if name == "compare":
        assert found["machine"]["cpu"]
        assert found["machine"]["date"]
        assert all(lane["race"][0]["rounds"] and lane["exact"] for lane in found["lanes"])
        assert all(lane["figures"]["speedup"]["n"] >= 10 for lane in found["lanes"])
    else:
        assert found["on"]
        assert found["date"]
        assert {cell["state"] for cell in found["cells"]} == {"done"}
        assert set(found["metrics"]) <= set(found["cells"][0]["figures"])


def test_a_missing_example_is_none(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_RECORDED", str(tmp_path))
    assert recorded_runs.example("compare") == {}
    recorded_runs.write_example("compare", {"a": 1})
    assert recorded_runs.example("compare") == {"a": 1}
    assert recorded_runs.names() == [], "an example does not count as a method's recording"


def test_the_two_recordings_of_the_vision_tab_draft_trees_of_the_same_size() -> None:
    seeing, blind = (recorded_runs.trace(name).header for name in ("specvlm", "vlm-text-only"))
    assert blind.prompt == seeing.prompt
    for name in ("grower", "depth", "width", "nodes", "temperature"):
        assert blind.params[name] == seeing.params[name], name
