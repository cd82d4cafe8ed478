"""Sweeps over the bundled models: cells, saved results, and recovery after a kill."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from math import prod as product
from pathlib import Path
from typing import Any

import pytest
import torch

from workbench import Workbench
from workbench.bench.conditions import fingerprint, measurement_id
from workbench.bench.sweep import (
    DONE,
    END,
    FAILED,
    WAITING,
    Axis,
    Cell,
    Event,
    Result,
    Sweep,
    SweepFolder,
    WorkerGroup,
    backend_workers,
    load_updates,
    run,
)
from workbench.bench.sweepfolder import LOCK, delete_oldest, generations, next_generation
from workbench.bench.tables import as_bytes
from workbench.core.errors import CapacityError, ParameterError, UnknownNameError, WorkbenchError
from workbench.trace.metrics import acceptance_by_depth
from workbench.trace.store import RunStore

SHORT: dict[str, Any] = {"prompts": ["Once upon a time"], "max_new_tokens": 6, "repeats": 1}


@pytest.fixture(scope="module")
def bench() -> Iterator[Workbench]:
    with Workbench(dtype="float64", device="cpu") as made:
        yield made


def idle_workers(bench: Workbench) -> WorkerGroup:
    """Return workers with the bench's conditions that must not get any cell."""

    def work(cells: Iterable[Cell], stopped: Callable[[], bool]) -> Iterator[Event]:
        assert not list(cells), "a finished cell was to be measured again"
        yield from ()

    return WorkerGroup(work, backend_workers(bench).conditions)


def fake_workers(**change: Any) -> WorkerGroup:
    """Return workers that measure nothing and return fixed figures at once, under given conditions."""
    usual = {"measuring": 1, "device": "cpu", "dtype": "float32", "machine": {"cpu": "x"}, "weights": {"t": "0"}}

    def work(cells: Iterable[Cell], stopped: Callable[[], bool]) -> Iterator[Event]:
        for cell in cells:
            facts = {"cpu": "x", "date": "2026-01-01 00:00 UTC"}
            figures = {"tau": {"value": 1.0, "low": None, "high": None, "n": 1}}
            yield END, cell, (Result(cell.id, DONE, figures=figures, machine=facts), None)

    return WorkerGroup(work, lambda cell: usual | change)


# -- what a sweep is --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("depth=1,2, 4", ("1", "2", "4")),
        ("depth=1..3,6", ("1", "2", "3", "6")),
        (
            "method=draft-model:depth=2,policy=fixed;prompt-lookup",
            ("draft-model:depth=2,policy=fixed", "prompt-lookup"),
        ),
    ],
)
def test_an_axis_is_read_from_a_line(text: str, values: tuple[str, ...]) -> None:
    assert Axis.parse(text).values == values


def test_values_have_the_types_of_their_parameters() -> None:
    sweep = Sweep.of(["depth=1,2", "temperature=0,0.7"], **SHORT)
    assert [axis.values for axis in sweep.axes] == [(1, 2), (0.0, 0.7)]
    cells = sweep.cells()
    assert [cell.at for cell in cells] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert str(cells[3].lane) == "draft-model:depth=2"
    assert cells[3].plan.sampling == {"temperature": 0.7}
    assert Sweep.of({"depth": [1, 2], "temperature": [0, 0.7]}, **SHORT) == sweep
    assert Sweep.from_wire(json.loads(json.dumps(sweep.to_wire()))) == sweep


def test_method_names_can_be_an_axis_and_each_method_gets_only_its_parameters() -> None:
    axes = {"method": ["draft-model", "prompt-lookup", "autoregressive"], "prompts": ["stories", "copy"]}
    cells = Sweep.of(axes, params={"ngram": 2}, limit=1, repeats=1).cells()
    assert [str(cell.lane) for cell in cells[::2]] == ["draft-model", "prompt-lookup:ngram=2", "autoregressive"]
    assert [cell.prompts[0].group for cell in cells[:2]] == ["stories", "copy"]


def test_a_cell_is_the_same_in_any_sweep_and_differs_with_any_setting() -> None:
    few, more = (Sweep.of({"depth": depths}, **SHORT).cells() for depths in ([1, 2], [4, 2, 1]))
    assert [cell.id for cell in few] == [more[2].id, more[1].id]
    changed = [SHORT | change for change in ({"repeats": 2}, {"seed": 1}, {"max_new_tokens": 7}, {"drafter": "x"})]
    ids = {Sweep.of({"depth": [1]}, **settings).cells()[0].id for settings in [SHORT, *changed]}
    assert len(ids) == 5


@pytest.mark.parametrize(
    ("axes", "settings", "error"),
    [
        (["dept=1"], {}, UnknownNameError),
        (["depth=1,99"], {}, ParameterError),
        (["depth=1,1"], {}, ParameterError),
        (["depth=1", "depth=2"], {}, ParameterError),
        (["depth=1", "seed=1", "temperature=0"], {}, ParameterError),
        (["depth"], {}, ParameterError),
        ([], {}, ParameterError),
        (["depth=1..12", "seed=0..40"], {}, CapacityError),
        (["prompts=nonsense"], {}, UnknownNameError),
        (["method=draft-model,nonsense"], {}, UnknownNameError),
        (["depth=1"], {"params": {"nonsense": 1}}, UnknownNameError),
        (["depth=1"], {"repeats": 0}, ParameterError),
    ],
)
def test_invalid_sweeps_are_refused_before_anything_runs(
    axes: list[str], settings: dict[str, Any], error: type[WorkbenchError]
) -> None:
    with pytest.raises(error):
        Sweep.of(axes, **SHORT | settings)


def test_exported_code_and_command_describe_the_same_sweep() -> None:
    axes = {"method": ["draft-model:depth=2,policy=fixed", "prompt-lookup"], "temperature": [0.0, 0.5]}
    sweep = Sweep.of(axes, params={"top_k": 5}, **SHORT | {"prompts": ["It's a 'test'"]})
    line = next(line for line in sweep.code().splitlines() if line.startswith("sweep ="))
    assert eval(line.removeprefix("sweep = "), {"Sweep": Sweep}) == sweep
    exec("\n".join(line for line in sweep.code().splitlines() if "import " in line), {})  # the names exist
    words = shlex.split(sweep.command())
    assert words[:2] == ["workbench", "sweep"]
    pairs = list(zip(words[2::2], words[3::2], strict=True))
    assert Sweep.of([v for n, v in pairs if n == "--axis"], params={"top_k": 5}, **SHORT | {
        "prompts": [v for n, v in pairs if n == "--prompt"]}) == sweep  # fmt: skip
    assert ("--set", "top_k=5") in pairs
    assert ("--repeats", "1") in pairs


# -- measuring --------------------------------------------------------------------------------------------------------


def test_a_sweep_saves_its_cells_and_resumes(bench: Workbench, tmp_path: Path) -> None:
    sweep = Sweep.of({"method": ["draft-model", "autoregressive", "eagle-vlm"]}, **SHORT)
    [*_, last] = run(sweep, backend_workers(bench), tmp_path)
    assert last.complete
    good, plain, bad = (last.at(value) for value in ("draft-model", "autoregressive", "eagle-vlm"))
    assert (good.state, plain.state, bad.state) == (DONE, DONE, FAILED)
    assert "cannot run" in bad.error
    assert good.figures["speedup"]["n"] == 1
    assert plain.figures["speedup"]["value"] == 1.0
    assert plain.figures["tau"]["value"] == 1.0
    trace = SweepFolder(tmp_path).trace(good)
    assert trace is not None
    rate, rates = good.figures["acceptance_rate"]["value"], [k / t for _, t, k in acceptance_by_depth(trace.rounds)]
    depths = [max(r.nodes.depth, default=0) for r in trace.rounds]
    alike, placed = ([sum(product(law[:n]) for n in range(d + 1)) for d in depths] for law in ([rate] * 9, rates))
    assert good.figures["tau_iid"]["value"] == pytest.approx(sum(alike) / len(depths))
    assert good.figures["tau_by_position"]["value"] == pytest.approx(sum(placed) / len(depths))
    assert plain.figures["tau_iid"] is None, "nothing was drafted"
    assert good.figures["speedup_iid"]["value"] > 0
    assert trace.header.method == "draft-model"
    assert len(trace.token_ids) == 6
    assert RunStore(tmp_path).find(tags=["sweep"]).collect().height == 2
    rows = last.rows()
    assert [row["state"] for row in rows] == [DONE, DONE, FAILED]
    assert as_bytes(rows, "csv").decode().splitlines()[0].startswith("method,setting,state")
    again = [
        update.done
        for update in run(
            Sweep.of({"method": ["draft-model", "autoregressive"]}, **SHORT), idle_workers(bench), tmp_path
        )
    ]
    assert again == [2, 2]


def test_stopping_keeps_finished_cells_and_leaves_the_others_waiting(bench: Workbench, tmp_path: Path) -> None:
    sweep = Sweep.of({"depth": [1, 2, 3]}, **SHORT)
    updates: list[int] = []
    last = None
    for last in run(sweep, backend_workers(bench), tmp_path, stopped=lambda: 1 in updates):
        updates.append(last.done)
    assert last is not None
    assert last.last
    assert last.done == 1
    assert not last.complete
    assert [result.state for result in last.results.values()] == [DONE, WAITING, WAITING]
    assert len(bench._backend._runs.active()) == 0


def test_a_damaged_cell_is_measured_again(bench: Workbench, tmp_path: Path) -> None:
    sweep = Sweep.of({"depth": [1]}, **SHORT)
    [*_, first] = run(sweep, backend_workers(bench), tmp_path)
    [cell] = (tmp_path / "cells").iterdir()
    cell.write_text(cell.read_text()[:40])
    [*_, last] = run(sweep, backend_workers(bench), tmp_path)
    assert last.kept == 0
    assert last.complete
    assert last.at(1).figures["tau"] == first.at(1).figures["tau"]


# -- comparable conditions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dtype": "bfloat16"}, "dtype float32, not bfloat16"),
        ({"device": "cuda:0"}, "device cpu, not cuda:0"),
        ({"machine": {"cpu": "y"}}, "processor x, not y"),
        ({"weights": {"t": "1"}}, "other weights of t"),
        ({"measuring": 2}, "way of measuring 1, not 2"),
        ({"versions": {"torch": "3"}}, "torch –, not 3"),
    ],
)
def test_cells_measured_under_other_conditions_are_kept_reported_and_never_mixed(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    sweep = Sweep.of({"depth": [1, 2]}, **SHORT)
    [*_, first] = run(sweep, fake_workers(), tmp_path)
    assert (first.kept, first.note) == (0, "")
    [*_, other] = run(sweep, fake_workers(**change), tmp_path)
    assert other.kept == 0, "a figure measured under other conditions was reused"
    assert other.complete
    assert other.note == f"2 saved cells were measured under other conditions ({said}) and are not used in this sweep."
    [*_, again] = run(sweep, fake_workers(), tmp_path)
    assert again.kept == 2


def test_cells_under_two_conditions_are_opened_separately(tmp_path: Path) -> None:
    sweep = Sweep.of({"depth": [1, 2]}, **SHORT)
    for crew in (fake_workers(), fake_workers(dtype="bfloat16")):
        list(run(sweep, crew, tmp_path))
    found = load_updates(SweepFolder(tmp_path))
    assert {update.latest_measurement["on"] for update in found} == {"CPU · float32 · x", "CPU · bfloat16 · x"}
    assert [update.complete for update in found] == [True, True]


def test_a_cell_of_an_older_version_can_be_opened_but_is_not_reused(tmp_path: Path) -> None:
    sweep = Sweep.of({"depth": [1]}, **SHORT)
    [*_, made] = run(sweep, fake_workers(), tmp_path)
    [path] = (tmp_path / "cells").glob("*.json")
    old = {name: value for name, value in json.loads(path.read_text()).items() if name != "conditions"}
    path.unlink()
    (tmp_path / "cells" / f"{made.at(1).id}.json").write_text(json.dumps(old))
    [found] = load_updates(SweepFolder(tmp_path))
    assert found.at(1).figures == made.at(1).figures
    assert found.latest_measurement["on"] == "dtype not noted · x"
    [*_, again] = run(sweep, fake_workers(), tmp_path)
    assert again.kept == 0
    assert "measuring conditions of the saved cell were not recorded" in again.note


def test_the_conditions_of_a_backend_include_dtype_machine_and_the_weights_used(bench: Workbench) -> None:
    draft, plain, medusa = (bench.conditions(method) for method in ("draft-model", "autoregressive", "medusa"))
    assert draft
    assert plain
    assert medusa
    assert (draft["dtype"], draft["drafter_dtype"], draft["device"]) == ("float64", "float64", "cpu")
    assert set(draft["weights"]) == {"text-target", "text-drafter"}
    assert set(plain["weights"]) == {"text-target"}
    assert set(medusa["weights"]) == {"text-target", "text-target-medusa"}
    assert draft["machine"]["cpu"]
    assert bench.conditions("draft-model:depth=2") == draft, "settings are not part of the conditions"


def test_different_weights_under_the_same_name_are_distinguished(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"1" * 100)
    before = fingerprint(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"1" * 99 + b"2")
    assert fingerprint(str(tmp_path)) != before
    assert before is not None


def test_a_sweep_started_twice_is_measured_once(bench: Workbench, tmp_path: Path) -> None:
    sweep = Sweep.of({"depth": [1, 2]}, **SHORT)
    first, second = run(sweep, backend_workers(bench), tmp_path), run(sweep, idle_workers(bench), tmp_path)
    next(first)  # from here on it has locked the folder
    assert next(second).follows
    last, counts = None, list[int]()
    for _ in first:
        last = next(second, last)
        counts.append(last.done if last else -1)
    assert 0 in counts
    assert 1 in counts, "the first cell appears while the second is measured"
    assert last
    assert last.complete
    assert last.kept == 2
    assert not last.follows


def test_a_reader_continues_the_sweep_if_its_writer_stops(bench: Workbench, tmp_path: Path) -> None:
    sweep = Sweep.of({"depth": [1, 2]}, **SHORT)
    first, second = run(sweep, backend_workers(bench), tmp_path), run(sweep, backend_workers(bench), tmp_path)
    while next(first).done < 1:
        pass
    assert next(second).done == 1
    getattr(first, "close")()  # noqa: B009
    [*_, last] = second
    assert last.complete
    assert last.kept == 1


def test_a_new_measurement_gets_its_own_folder_and_a_folder_in_use_is_not_deleted(tmp_path: Path) -> None:
    place, sweep = tmp_path / "abc", Sweep.of({"depth": [1]}, **SHORT)
    list(run(sweep, fake_workers(), next_generation(place)))
    writer = run(sweep, fake_workers(dtype="bfloat16"), place)
    next(writer)
    again = next_generation(place)
    assert again.name == "abc.2"
    list(run(sweep, fake_workers(), again))
    os.utime(place / "sweep.json", (1, 1))
    delete_oldest(tmp_path, 1)
    assert generations(place) == [place, again], "the oldest is being written to"
    assert list(writer)[-1].complete
    delete_oldest(tmp_path, 1)
    assert generations(place) == [again]
    assert (again / LOCK).exists()
    assert not SweepFolder(again).is_locked


@pytest.mark.slow
def test_a_killed_sweep_resumes_without_measuring_a_finished_cell_again(bench: Workbench, tmp_path: Path) -> None:
    """First a worker is killed, and another one measures its cell; then the sweep itself is killed."""
    words = ["--axis", "depth=1..4", "--prompt", "Once upon a time", "--max-new-tokens", "6", "--repeats", "1"]
    code = "import sys; from workbench.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "sweep", *words, "--dtype", "float64", "--out", str(tmp_path)]
    env = {
        **os.environ,
        "OMP_NUM_THREADS": str(torch.get_num_threads()),
    }  # the number of threads is part of the conditions
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as process:
        first = wait_for_cells(tmp_path, 1, process)
        worker = int(json.loads(next(iter(first.values())))["worker"].removeprefix("process "))
        os.kill(worker, signal.SIGKILL)
        before = wait_for_cells(tmp_path, 2, process)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    before = cells_in(tmp_path)
    done = {said["id"] for said in read(before).values()}
    workers = {json.loads(text)["worker"] for text in before.values()}
    assert len(workers) == 2, "another worker took over"
    assert 2 <= len(before) <= 4
    sweep = SweepFolder(tmp_path).sweep
    measured: list[str] = []
    last = None
    for last in run(sweep, backend_workers(bench), tmp_path):
        measured += [i for i in last.changed if last.results[i].state == DONE and i not in done and i not in measured]
    assert last is not None
    assert last.complete
    assert last.kept == len(before)
    assert len(measured) == 4 - len(before)
    after = cells_in(tmp_path)
    assert {name: after[name] for name in before} == before, "a finished cell was touched"
    assert all(SweepFolder(tmp_path).trace(result) is not None for result in last.results.values())


def cells_in(folder: Path) -> dict[str, str]:
    """Return the finished cells by id. Each of them must be readable after any kill."""
    found = {path.stem: path.read_text() for path in (folder / "cells").glob("*.json")}
    assert all(measurement_id(said["id"], said["conditions"]) == name for name, said in read(found).items())
    return found


def read(found: dict[str, str]) -> dict[str, Any]:
    return {name: json.loads(text) for name, text in found.items()}


def wait_for_cells(folder: Path, n: int, process: subprocess.Popen[bytes]) -> dict[str, str]:
    deadline = time.monotonic() + 240
    while len(found := cells_in(folder)) < n:
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


@pytest.mark.slow
@pytest.mark.on_demand
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_a_sweep_on_a_ray_cluster_ends_complete_though_one_of_two_machines_is_killed() -> None:
    """In processes of their own: Ray changes signal handlers and starts servers."""
    pytest.importorskip("ray", reason="needs Ray: pip install 'speculative-decoding-workbench[ray]'")
    command = [sys.executable, str(Path(__file__).with_name("ray_cluster.py"))]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=840)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, err[-3000:]
    said = json.loads(out.splitlines()[-1])
    assert said["nodes"] == [2, 1], "one of the two nodes is gone"
    [lost] = said["in_hand"]
    assert said["states"] == [DONE] * 3, "the killed node's cell was measured again"
    assert said["workers"], "each cell says who measured it"
    assert lost not in said["workers"]
