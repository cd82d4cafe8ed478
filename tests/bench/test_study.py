"""Studies: order of runs, stored results, failures, stopping, and cells chosen from the results so far."""

from __future__ import annotations

import gc
import json
import time
import weakref
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from workbench.bench.study import BEGIN, END, FAIL, STEP, JsonLines, Rows, Run, Study, in_turn, interleaved_runs
from workbench.core.errors import WorkbenchError

SQUARES = {"version": 1}


def squares(path: Path, settings: dict[str, Any] = SQUARES) -> JsonLines[int]:
    return JsonLines(path, settings, int, int)


def test_every_contender_runs_on_a_prompt_before_the_next_prompt_and_none_is_always_first() -> None:
    runs = interleaved_runs(["plain", "a", "b"], prompts=3, repeats=2, warm_up=1)
    assert [run.contender for run in runs if run.is_warm_up] == ["plain", "a", "b"]
    timed = runs[3:]
    assert not any(run.is_warm_up for run in timed)
    turns = [timed[i : i + 3] for i in range(0, len(timed), 3)]
    assert all({run.contender for run in turn} == {"plain", "a", "b"} for turn in turns)
    assert [(turn[0].prompt, turn[0].repeat) for turn in turns] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert all(len({(run.prompt, run.repeat) for run in turn}) == 1 for turn in turns)
    assert {turn[0].contender for turn in turns} == {"plain", "a", "b"}


def test_a_study_continues_after_its_stored_cells(tmp_path: Path) -> None:
    measured: list[int] = []

    def square(cell: int) -> int:
        measured.append(cell)
        return cell * cell

    first = Study([1, 2, 3], in_turn(square), squares(tmp_path / "s.jsonl"))
    for kind, cell, _ in first.run():
        if (kind, cell) == (END, 2):
            break
    again = Study([1, 2, 3, 3, 4], in_turn(square), squares(tmp_path / "s.jsonl"))
    assert again.load() == [1, 2]
    list(again.run())
    assert measured == [1, 2, 3, 4], "stored cells and equal cells are measured once"
    assert again.results == {1: 1, 2: 4, 3: 9, 4: 16}
    assert (again.done, again.total, again.is_complete) == (2, 2, True)


def test_results_with_other_settings_are_not_used(tmp_path: Path) -> None:
    squares(tmp_path / "s.jsonl").save(2, 4)
    assert squares(tmp_path / "s.jsonl").load(2) == 4
    assert squares(tmp_path / "s.jsonl", {"version": 2}).load(2) is None
    assert squares(tmp_path / "s.jsonl").load(3) is None


def test_a_line_that_a_killed_process_left_incomplete_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    store = squares(path)
    for cell in (2, 3):
        store.save(cell, cell * cell)
    path.write_text(path.read_text()[:-5])
    again = squares(path)
    assert (again.load(2), again.load(3)) == (4, None)
    again.save(3, 9)
    again.save(2, 5)
    last = squares(path)
    assert (last.load(2), last.load(3)) == (5, 9), "the last result of a cell counts"
    assert json.loads(path.read_text().splitlines()[0])["cell"] == 2


def test_a_dataclass_cell_has_the_same_key_in_every_process(tmp_path: Path) -> None:
    squares(tmp_path / "s.jsonl").save(Run("a", 0, 1), 7)
    assert squares(tmp_path / "s.jsonl").load(Run("a", 0, 1)) == 7
    assert squares(tmp_path / "s.jsonl").load(Run("a", 1, 0)) is None


def test_a_store_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkbenchError, match="cannot be written"):
        squares(tmp_path / "file" / "s.jsonl").save(1, 1)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(WorkbenchError, match="cannot be read"):
        squares(tmp_path / "binary")


def test_finished_rows_are_not_measured_again_and_new_ones_are_saved() -> None:
    saved: dict[str, int] = {}
    store = Rows[int](str, {"1": 10}, saved.__setitem__)
    study = Study([1, 2], in_turn(lambda cell: cell * cell), store)
    list(study.run())
    assert (study.results, saved) == ({1: 10, 2: 4}, {"2": 4})
    chosen = Study[int, int](iter([1, 2, 3]), in_turn(lambda cell: cell * cell), store)
    list(chosen.run())
    assert chosen.results == {1: 10, 2: 4, 3: 9}, "an iterator's cells are looked up, too"


def test_a_failed_contender_is_left_out_and_the_others_continue() -> None:
    def measure(run: Run) -> str:
        if run.contender == "b" and run.prompt == 1:
            raise WorkbenchError("It broke.")
        return f"{run.contender}{run.prompt}"

    runs = interleaved_runs("abc", prompts=3, repeats=1)
    study = Study[Run, str](runs, in_turn(measure, WorkbenchError), contender=lambda run: run.contender)
    events = [(kind, run.contender, run.prompt) for kind, run, _ in study.run() if kind in (END, FAIL)]
    assert [event for event in events if event[1] == "b"] == [(END, "b", 0), (FAIL, "b", 1)]
    assert study.failures == {"b": "It broke."}
    assert sorted(study.results.values()) == ["a0", "a1", "a2", "b0", "c0", "c1", "c2"]
    assert study.is_complete
    with pytest.raises(WorkbenchError, match="broke"):
        list(Study(runs, in_turn(measure)).run())


def test_nothing_that_a_failed_cell_held_stays_in_memory() -> None:
    """The next model of a GPU suite needs the memory of the one that failed."""

    class Model:
        """Stand-in for a large model."""

    alive = list[bool]()
    references = list[weakref.ref[Model]]()

    def measure(cell: int) -> None:
        gc.collect()
        alive.extend(reference() is not None for reference in references)
        model = Model()
        references.append(weakref.ref(model))
        raise WorkbenchError("out of memory")

    study = Study[int, None]([1, 2], in_turn(measure, WorkbenchError))
    for kind, _, error in study.run():
        assert kind != FAIL or str(error) == "out of memory"
    assert alive == [False]


def test_a_stop_or_a_time_limit_ends_a_study_between_cells() -> None:
    study = Study([1, 2, 3], in_turn(lambda cell: cell))
    for _ in study.run(stopped=lambda: len(study.results) == 2):
        pass
    assert (list(study.results), study.is_complete) == ([1, 2], False)
    late = Study([1, 2, 3], in_turn(lambda cell: time.sleep(0.05)))
    list(late.run(seconds=0.01))
    assert list(late.results) == [1]


def test_closing_the_events_ends_the_measurement_of_a_cell() -> None:
    ended: list[int] = []

    def measure(cell: int) -> Generator[str, None, int]:
        try:
            yield "half"
            return cell
        finally:
            ended.append(cell)

    events = Study([1, 2], in_turn(measure)).run()
    assert [next(events), next(events)] == [(BEGIN, 1, ""), (STEP, 1, "half")]
    events.close()
    assert ended == [1]


def test_the_next_cell_can_depend_on_the_results_so_far() -> None:
    def double_until_large() -> Iterator[int]:
        cell = 1
        while cell < 20:
            yield cell
            cell = study.results[cell]

    study = Study[int, int](double_until_large(), in_turn(lambda cell: 2 * cell))
    list(study.run())
    assert study.results == {1: 2, 2: 4, 4: 8, 8: 16, 16: 32}
    assert study.total is None
    assert study.is_complete


def test_the_remaining_time_is_estimated_from_the_cells_after_the_warm_up() -> None:
    study = Study([0.1, 0.001, 0.002, 0.003], in_turn(time.sleep))
    estimates: list[float | None] = []
    for kind, cell, _ in study.run():
        if kind == END:
            if cell == 0.1:
                estimates.append(study.left_s)
                study.restart_clock()
            estimates.append(study.left_s)
    assert estimates[0] is not None
    assert estimates[0] >= 0.3
    assert estimates[1] is None
    assert estimates[-1] == 0
