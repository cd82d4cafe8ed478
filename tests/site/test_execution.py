"""Executed copies of notebooks: whether one is current, kernel settings, and waiting for messages; without a kernel."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from queue import Empty

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from workbench.site import execution


def write(path: Path, source: str = "1", **cell: object) -> Path:
    nbformat.write(new_notebook(cells=[new_markdown_cell("# T"), new_code_cell(source, **cell)]), path)
    return path


def test_only_a_complete_run_of_the_same_cells_is_current(tmp_path: Path) -> None:
    source, done = write(tmp_path / "a.ipynb"), tmp_path / "b.ipynb"
    assert not execution.is_current(done, source)
    assert not execution.is_current(write(done), source)
    assert execution.is_current(write(done, execution_count=1), source)
    assert not execution.is_current(write(done, "2", execution_count=1), source)
    error = new_output("error", ename="E", evalue="", traceback=[])
    assert not execution.is_current(write(done, execution_count=1, outputs=[error]), source)


def test_kernels_get_one_thread_and_small_sizes_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKBENCH_FAST", raising=False)
    assert execution.environment()["WORKBENCH_FAST"] == "1"
    monkeypatch.setenv("WORKBENCH_FAST", "0")
    assert execution.environment()["WORKBENCH_FAST"] == "0"
    assert execution.environment()["PATH"] == os.environ["PATH"]


class LateSocket:
    """A socket whose waiting message is reported only by a second `poll`, never during the first."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def poll(self, timeout: int) -> int:
        self.asked.append(timeout)
        await asyncio.sleep(min(timeout / 1000, 0.05))
        return int(len(self.asked) > 1)


def channel(monkeypatch: pytest.MonkeyPatch) -> execution._Channel:
    found = object.__new__(execution._Channel)
    found.socket = LateSocket()  # pyright: ignore[reportAttributeAccessIssue]

    async def received() -> dict[str, object]:
        return {"content": "ok"}

    monkeypatch.setattr(found, "_recv", received)
    return found


@pytest.mark.parametrize("timeout", [240.0, None])
def test_a_missed_notification_costs_one_second_not_the_whole_wait(
    monkeypatch: pytest.MonkeyPatch, timeout: float | None
) -> None:
    sleepy = channel(monkeypatch)
    assert asyncio.run(sleepy.get_msg(timeout)) == {"content": "ok"}
    assert sleepy.socket.asked == [1000, 1000]  # pyright: ignore[reportAttributeAccessIssue]


def test_an_empty_channel_times_out_as_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Empty):
        asyncio.run(channel(monkeypatch).get_msg(0.01))


def test_the_source_is_never_written(tmp_path: Path) -> None:
    source = write(tmp_path / "a.ipynb")
    copy = execution.copy_to_execute(source, tmp_path / "out")
    assert copy != source
    assert copy.read_text() == source.read_text()
