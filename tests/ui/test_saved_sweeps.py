"""Saved sweeps in the Sweep tab: after a restart, under other conditions, and while another reader measures."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import serving
from ui.fake_client import FakeWorkbench

from workbench.bench.grid import Cell, Sweep
from workbench.bench.sweep import END, Event, WorkerGroup, run
from workbench.bench.sweepfolder import DONE, Result
from workbench.core.errors import UnknownNameError
from workbench.server.access_control import AccessControl
from workbench.ui import build, space
from workbench.ui import sweep as tab

SWEEP: dict[str, Any] = {"target": "text-target", "group": ("copy",), "repeats": 1, "max_new_tokens": 6}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of this app's sweeps."""
    monkeypatch.setattr(tab, "folder", lambda: tmp_path)
    return tmp_path


def fake_workers(dtype: str, date: str) -> WorkerGroup:
    """Return workers that return fixed figures at once."""

    def work(cells: Iterable[Cell], stopped: Callable[[], bool]) -> Iterator[Event]:
        for cell in cells:
            figures = {"speedup": {"value": 1.5, "low": None, "high": None, "n": 1}}
            yield END, cell, (Result(cell.id, DONE, figures=figures, machine={"cpu": "X", "date": date}), None)

    return WorkerGroup(work, lambda cell: {"device": "cpu", "dtype": dtype, "weights": {}})


def test_a_parameter_on_an_axis_is_not_listed_for_the_whole_sweep(folder: Path) -> None:
    for axes in ({"method": ["prompt-lookup", "autoregressive"]}, {"depth": [1, 2]}):
        sweep = Sweep.of(axes, **SWEEP)
        list(run(sweep, fake_workers("float32", "2026-11-21 10:00 UTC"), tab.sweep_folder(sweep, anew=False)))
    lines = tab.SweepView(FakeWorkbench()).kept({})["kept"]
    assert {(x["title"], x["method"], x["target"]) for x in lines} == {
        ("method", "", "text-target"),
        ("depth", "draft-model", "text-target"),
    }


@pytest.mark.parametrize("anew", [False, True])
def test_a_sweep_whose_reader_leaves_at_once_leaves_no_folder(folder: Path, anew: bool) -> None:
    axes = [{"name": "depth", "values": [1, 2]}]
    request: dict[str, Any] = {"axes": axes, "group": ["copy"], "repeats": 1, "max_new_tokens": 6, "anew": anew}
    view = tab.SweepView(FakeWorkbench())
    sweep = view._parse_sweep(request)
    list(run(sweep, fake_workers("float32", "2026-11-21 10:00 UTC"), tab.sweep_folder(sweep, anew=False)))
    before = sorted(folder.iterdir())

    async def leave() -> dict[str, Any]:
        messages = view.decode(request)
        head = await anext(messages)
        await messages.aclose()
        return head

    assert set(asyncio.run(leave())) == {"channel", "job"}
    assert sorted(folder.iterdir()) == before


def test_sweeps_on_disk_are_listed_after_a_restart_and_opened_with_their_settings(folder: Path) -> None:
    sweep = Sweep.of({"depth": [1, 2]}, **SWEEP)
    list(run(sweep, fake_workers("float32", "2026-11-21 10:00 UTC"), tab.sweep_folder(sweep, anew=False)))
    list(run(sweep, fake_workers("bfloat16", "2026-11-22 10:00 UTC"), tab.sweep_folder(sweep, anew=False)))
    view = tab.SweepView(FakeWorkbench())  # a new process has only the folder
    lines = view.kept({})["kept"]
    assert [(line["title"], line["done"], line["total"], line["on"]) for line in lines] == [
        ("depth", 2, 2, "CPU · bfloat16 · X"),
        ("depth", 2, 2, "CPU · float32 · X"),
    ]
    assert not lines[0]["writing"]
    opened = view.open({"id": lines[1]["id"]})
    assert opened["sweep"]["sweep"] == sweep.to_wire() | {"axes": {"depth": [1, 2]}}
    assert {cell["figures"]["speedup"]["value"] for cell in opened["sweep"]["cells"]} == {1.5}
    assert opened["sweep"]["date"] == "2026-11-21 10:00 UTC"
    table = base64.b64decode(view.table({"job": opened["job"], "kind": "csv"})["data"]).decode()
    assert len(table.splitlines()) == 1 + 2


def test_a_sweep_that_is_being_measured_is_marked_and_anew_is_another_folder(folder: Path) -> None:
    sweep = Sweep.of({"depth": [1, 2]}, **SWEEP)
    first = run(sweep, fake_workers("float32", "2026-11-21 10:00 UTC"), tab.sweep_folder(sweep, anew=False))
    while next(first).done < 1:
        pass
    view = tab.SweepView(FakeWorkbench())
    [line] = view.kept({})["kept"]
    assert (line["writing"], line["done"]) == (True, 1)
    again = tab.sweep_folder(sweep, anew=True)
    list(run(sweep, fake_workers("float32", "2026-11-22 10:00 UTC"), again))
    assert list(first)[-1].complete, "the running measurement was not disturbed"
    assert len(view.kept({})["kept"]) == 2
    assert tab.sweep_folder(sweep, anew=False) == again, "Measure continues the newest sweep"


@pytest.mark.parametrize("name", ["", "nobody/0", "../x/0", "/etc/0"])
def test_only_saved_sweeps_are_opened(folder: Path, name: str) -> None:
    with pytest.raises(UnknownNameError):
        tab.SweepView(FakeWorkbench()).open({"id": name})


def test_the_examples_need_no_backend() -> None:
    """The page shows the examples while PyTorch is being imported."""
    assert tab.SweepView(None).example({})["made"]["complete"]
    from workbench.ui.compare import CompareView

    assert CompareView(None).example({})["made"]["complete"]


def test_the_exported_python_of_a_sweep_names_modules_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Sweep] = []
    update = SimpleNamespace(done=1, total=1, text="", rows=list)
    monkeypatch.setattr("workbench.bench.sweep.run", lambda sweep, crew, folder: ran.append(sweep) or [update])
    made = tab.SweepView(None).example({})["made"]
    for code in (made["code"], Sweep.of({"depth": [1, 2]}, group=["stories"], limit=4).code()):
        exec(compile(code, "sweep.py", "exec"), {"__name__": "__main__"})
    assert [sweep.to_wire()["axes"] for sweep in ran] == [made["sweep"]["axes"], {"depth": [1, 2]}]
    exec(made["code"], {"__name__": "__mp_main__"})
    assert len(ran) == 2, "a worker process imports the file without starting a sweep"


def test_visitors_sweeps_are_stored_apart_from_the_users(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests go through Gradio's queue as from the page; its tasks have only the context passed with them."""
    theirs = tmp_path_factory.mktemp("theirs")
    monkeypatch.setattr(tab, "visitors_folder", lambda: theirs)
    monkeypatch.setattr(tab, "FOLDERS", 1)
    monkeypatch.setattr(
        "workbench.bench.sweep.backend_workers", lambda *_: fake_workers("float32", "2026-11-22 10:00 UTC")
    )
    demo, port = build(FakeWorkbench()), serving.free_port()
    demo.launch(server_port=port, quiet=True, **space.launch_options(FakeWorkbench(), AccessControl(open=True)))

    def measure(depth: int, **headers: str) -> None:
        index = next(i for i, f in demo.fns.items() if f.api_name == "view_sweep")
        asked = {"axes": [{"name": "depth", "values": [depth]}], "group": ["copy"], "channel": "x"}
        body = {"data": [], "fn_index": index, "session_hash": f"s{depth}", "event_data": asked}
        with httpx.Client(base_url=f"http://localhost:{port}/gradio_api", headers=headers, timeout=30) as http:
            http.post("/queue/join", json=body).raise_for_status()
            said = http.get("/queue/data", params={"session_hash": f"s{depth}"}).text
        assert json.dumps('"done":1')[1:-1] in said, said[-500:]

    try:
        measure(1)
        assert (len(list(folder.glob("*/sweep.json"))), list(theirs.iterdir())) == (1, [])
        measure(2, **{"x-forwarded-for": "203.0.113.7"})
        measure(3, **{"x-forwarded-for": "203.0.113.7"})
    finally:
        demo.close()
    [mine] = folder.glob("*/sweep.json")
    assert json.loads(mine.read_text())["axes"]["depth"] == [1], "visitors' sweeps must not displace the user's"
    assert list(theirs.glob("*/sweep.json"))


def test_folders_of_killed_apps_are_deleted_and_those_of_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tab.tempfile, "tempdir", str(tmp_path))
    gone, running, other = (tmp_path / f"{tab.VISITORS}{name}" for name in (f"{2**30}-a", f"{os.getpid()}-b", "c-d"))
    for place in (gone, running, other):
        place.mkdir()
    mine = tab.visitors_folder.__wrapped__()
    assert {path.name for path in tmp_path.iterdir()} == {running.name, other.name, mine.name}
