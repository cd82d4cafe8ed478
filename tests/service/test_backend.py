"""The shared backend, with tiny models saved to disk and loaded like any others."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import model_helpers
import pytest

from workbench.client import Workbench
from workbench.core.errors import (
    MethodUnavailableError,
    ModelError,
    ParameterError,
    PromptError,
    UnknownNameError,
)
from workbench.models.local_models import short_name
from workbench.service import Run
from workbench.trace.events import Trace

from .conftest import PROMPT


@pytest.fixture(scope="module")
def bench(folders: tuple[str, str]) -> Iterator[Workbench]:
    target, drafter = folders
    with Workbench(target=target, drafter=drafter, dtype="float64") as workbench:
        workbench.load()
        yield workbench


def wait_for(run: Run, state: str, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while run.state != state:
        assert time.monotonic() < deadline, f"the run is {run.state}, not {state}"
        time.sleep(0.005)


def one_round(run: Run, n: int) -> None:
    """Step, and wait for the n-th round."""
    run.step()
    deadline = time.monotonic() + 30
    while run.trace is None or len(run.trace.rounds) < n:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    wait_for(run, "paused")


def test_polling_from_any_round_gives_the_whole_trace(bench: Workbench) -> None:
    run = bench.start(PROMPT, "draft-model", max_new_tokens=40)
    seen: list[dict] = []
    while True:
        news = run.since(len(seen))
        seen += news["rounds"]
        if news["footer"] is not None and len(seen) == run.since(0)["seq"]:
            break
        time.sleep(0.01)
    trace = run.wait(120)
    assert [r["index"] for r in seen] == list(range(len(trace.rounds)))
    assert Trace.from_wire({"header": news["header"], "rounds": seen, "footer": news["footer"]}) == trace


def test_rounds_arrive_during_the_run(bench: Workbench) -> None:
    run = bench.start(PROMPT, "autoregressive", max_new_tokens=30)
    assert [r.index for r in run] == list(range(30))
    assert run.state == "finished"


def test_a_paused_run_makes_one_round_per_step_and_keeps_its_sequence(bench: Workbench) -> None:
    whole = bench.generate(PROMPT, "autoregressive", max_new_tokens=24).token_ids
    run = bench.start(PROMPT, "draft-model", max_new_tokens=24, paused=True)
    wait_for(run, "paused")
    for n in (1, 2):
        one_round(run, n)
        time.sleep(0.2)
        assert run.trace is not None
        assert len(run.trace.rounds) == n
    run.resume()
    assert run.wait(120).token_ids == whole


def test_a_switch_in_mid_run_is_recorded_and_changes_no_token(bench: Workbench, folders: tuple[str, str]) -> None:
    whole = bench.generate(PROMPT, "autoregressive", max_new_tokens=40).token_ids
    run = bench.start(PROMPT, "prompt-lookup", max_new_tokens=40, paused=True)
    one_round(run, 1)
    run.change(method="draft-tree", params={"nodes": 5, "depth": 2})
    run.change(params={"nodes": 6})  # checked against the requested method, not the current one
    one_round(run, 2)
    run.change(params={"nodes": 9})
    run.change(drafter=folders[0])
    run.resume()
    trace = run.wait(120)
    changes = [(c.name, c.after) for r in trace.rounds for c in r.changes]
    assert ("method", "draft-tree") in changes
    assert ("nodes", 9) in changes
    assert ("drafter", short_name(folders[0])) in changes
    assert trace.rounds[-1].method == "draft-tree"
    assert trace.token_ids == whole


def test_an_invalid_change_is_refused_at_once_and_the_run_continues(bench: Workbench) -> None:
    run = bench.start(PROMPT, "draft-model", max_new_tokens=20, paused=True)
    wait_for(run, "paused")
    with pytest.raises(UnknownNameError, match="depth"):
        run.change(params={"depht": 2})
    with pytest.raises(ParameterError, match="range"):
        run.change(params={"depth": 99})
    with pytest.raises(ParameterError, match="range"):
        run.change(params={"temperature": -1})
    with pytest.raises(UnknownNameError, match="draft-model"):
        run.change(method="draft-modl")
    with pytest.raises(MethodUnavailableError, match="medusa"):
        run.change(method="medusa")
    run.resume()
    assert len(run.wait(120).token_ids) == 20


def test_cancelling_frees_the_sequence_and_keeps_the_trace(bench: Workbench) -> None:
    run = bench.start(PROMPT, "autoregressive", max_new_tokens=100)
    while run.trace is None or len(run.trace.rounds) < 3:
        time.sleep(0.002)
    run.cancel()
    wait_for(run, "cancelled", seconds=2)
    assert len(run.trace.rounds) >= 3
    assert run.trace.footer.reason == "cancelled"
    assert bench.generate(PROMPT, "autoregressive", max_new_tokens=5).footer.reason == "length"


def test_bad_requests_are_answered_before_anything_runs(bench: Workbench) -> None:
    with pytest.raises(PromptError, match="empty"):
        bench.start("")
    with pytest.raises(UnknownNameError, match="draft-model"):
        bench.start(PROMPT, "draft-modle")
    with pytest.raises(ParameterError, match=r"0\.0 to 5\.0"):
        bench.start(PROMPT, params={"temperature": 9})
    with pytest.raises(MethodUnavailableError, match="medusa"):
        bench.start(PROMPT, "medusa")
    with pytest.raises(PromptError, match="Shorten"):
        bench.generate(PROMPT * 100)


def test_a_target_that_does_not_exist_ends_its_run_with_the_reason(bench: Workbench, tmp_path: Path) -> None:
    run = bench.start(PROMPT, "autoregressive", target=str(tmp_path / "nowhere"))
    with pytest.raises(ModelError, match="no model"):
        run.wait(120)
    assert run.state == "error"
    assert run.since(0)["footer"]["error"]


def test_a_refused_request_leaves_no_run_behind(bench: Workbench) -> None:
    before = len(bench._backend._runs)
    with pytest.raises(MethodUnavailableError):
        bench.start(PROMPT, "medusa")
    assert len(bench._backend._runs) == before


def test_a_drafter_with_a_different_vocabulary_works_only_with_a_method_that_translates(
    bench: Workbench, folders: tuple[str, str], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(folders[1], other)
    model_helpers.letter_tokenizer(257).save_pretrained(other)
    bench.load(drafter=str(other))
    plain = bench.generate(PROMPT, "autoregressive", max_new_tokens=12)
    trace = bench.generate(PROMPT, "omnidraft", drafter=str(other), max_new_tokens=12)
    assert trace.token_ids == plain.token_ids
    assert trace.header.drafter == short_name(str(other))
    with pytest.raises(MethodUnavailableError, match="do not share a vocabulary"):
        bench.generate(PROMPT, "draft-model", drafter=str(other), max_new_tokens=12)
    reasons = {method["name"]: method["reason"] for method in bench.methods(drafter=str(other))}
    assert "do not share a vocabulary" in reasons["draft-model"]
    assert not reasons["omnidraft"]
    assert {entry["role"] for entry in bench.loaded_models()} == {"target", "drafter"}


def test_an_invalid_change_while_models_load_is_refused_and_the_run_continues(folders: tuple[str, str]) -> None:
    with Workbench(target=folders[0], drafter=folders[1], dtype="float64") as fresh:
        run = fresh.start(PROMPT, "autoregressive", max_new_tokens=8)
        assert run.state == "loading"
        for wrong in ({"params": {"temperature": 99}}, {"params": {"depth": 2}}, {"method": "nothing"}):
            with pytest.raises((ParameterError, UnknownNameError)):
                run.change(**wrong)
        run.change(method="draft-model")
        run.change(params={"depth": 2})  # valid for the run's method at that time
        assert len(run.wait(60).token_ids) == 8
        assert {r.method for r in run.trace.rounds} == {"draft-model"}
        assert len(fresh.generate(PROMPT, "draft-model", max_new_tokens=8).token_ids) == 8


def test_runs_of_others_cannot_be_guessed_or_listed(bench: Workbench) -> None:
    run = bench.start(PROMPT, "autoregressive", max_new_tokens=2)
    assert len(run.id) >= 16
    assert bench.run(run.id) is run
    with pytest.raises(UnknownNameError) as refused:
        bench.run("1")
    assert run.id not in str(refused.value)
    run.wait(120)


def test_methods_say_why_they_cannot_run(bench: Workbench) -> None:
    methods = {m["name"]: m for m in bench.methods()}
    assert methods["draft-model"]["available"]
    assert not methods["medusa"]["available"]
    assert "medusa heads" in methods["medusa"]["reason"]
    without = {m["name"]: m for m in bench.methods(drafter="none")}
    assert not without["draft-model"]["available"]
    assert without["prompt-lookup"]["available"]


def test_one_seed_gives_one_text_whatever_other_runs_there_are(bench: Workbench) -> None:
    params = {"temperature": 1.0}
    alone = bench.generate(PROMPT, "draft-tree-sampled", params=params, seed=3, max_new_tokens=30).token_ids
    runs = [
        bench.start(PROMPT, "draft-tree-sampled", params=params, seed=seed, max_new_tokens=30) for seed in (1, 3, 5)
    ]
    texts = [run.wait(60).token_ids for run in runs]
    assert texts[1] == alone
    assert texts[0] != alone


def test_a_comparison_gives_a_trace_for_each_method(bench: Workbench) -> None:
    found = bench.compare(PROMPT, ["autoregressive", "draft-model", "prompt-lookup"], max_new_tokens=12, repeats=1)
    traces = {trace.header.method: trace for trace in found.traces.values()}
    assert list(traces) == ["autoregressive", "draft-model", "prompt-lookup"]
    assert {tuple(trace.token_ids) for trace in traces.values()} == {tuple(traces["autoregressive"].token_ids)}
    starts = [trace.header.created for trace in traces.values()]
    assert starts == sorted(starts)


def test_a_comparison_with_an_unknown_method_runs_nothing(bench: Workbench) -> None:
    with pytest.raises(UnknownNameError, match="autoregressive"):
        bench.compare(PROMPT, ["draft-model", "autoregresive"])
    assert bench.health()["rows"] == 0
