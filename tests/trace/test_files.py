"""Files are written completely or not at all: after a kill, on a full disk, through links and pipes."""

from __future__ import annotations

import os
import random
import resource
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from killable_writers import ROWS, TRACE, WRITERS, forkserver_context, overwrite_in_loop

from workbench.bench.prompts import load_prompts
from workbench.bench.report_files import read_report
from workbench.bench.specbench import read_answers
from workbench.cli import checks
from workbench.cli.generate import read_prompt
from workbench.cli.traces import read_trace
from workbench.client.wire import data_url
from workbench.core.errors import WorkbenchError
from workbench.service.image_decoding import decode
from workbench.trace.files import PART, check_writable, read_regular, replace_atomically, write_atomically
from workbench.trace.store import RunStore

KILLS = 8
"""Kills per writer."""


def parts(folder: Path) -> list[Path]:
    return list(folder.glob(f".*{PART}"))


@pytest.fixture
def full_disk() -> Iterator[Callable[[], None]]:
    """Limit files to 1,000 bytes from now on, so that a write fails in its middle as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(
        signal.SIGXFSZ, signal.SIG_IGN
    )  # as Python sets it: an OSError instead of the end of the process
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("kind", WRITERS)
def test_full_disk_keeps_the_old_file(kind: str, tmp_path: Path, full_disk: Callable[[], None]) -> None:
    path = tmp_path / kind
    WRITERS[kind](path)
    before = path.read_bytes()
    assert len(before) > 1000, "the limit lies within the file"
    path.write_bytes(b"old")
    full_disk()
    with pytest.raises((OSError, WorkbenchError), match=r"(?i)too large|cannot be written"):
        WRITERS[kind](path)
    assert path.read_bytes() == b"old"
    assert not parts(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", WRITERS)
def test_writer_killed_at_any_point_leaves_a_complete_file(kind: str, tmp_path: Path) -> None:
    context = forkserver_context()
    path, dice, cut_short = tmp_path / kind, random.Random(7), 0
    WRITERS[kind](path)
    whole = path.read_bytes()
    for _ in range(KILLS):
        started = context.Event()
        writer = context.Process(target=overwrite_in_loop, args=(kind, str(path), started))
        writer.start()
        assert started.wait(120), "the writer never began"
        time.sleep(dice.uniform(0, 0.1))
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        assert writer.exitcode == -signal.SIGKILL, "it was killed while it wrote"
        assert path.read_bytes() == whole
        cut_short += len(parts(tmp_path))
    assert cut_short, "no kill happened during a write, so that nothing was tested"


def test_file_keeps_its_permissions_and_a_link_its_target(tmp_path: Path) -> None:
    file, link = tmp_path / "kept.txt", tmp_path / "link.txt"
    file.write_bytes(b"old")
    file.chmod(0o600)
    link.symlink_to(file)
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert file.read_bytes() == b"new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_longest_possible_file_name_can_be_written(tmp_path: Path) -> None:
    for name in ("n" * 255, "ö" * 127):
        write_atomically(tmp_path / name, b"whole")
        assert (tmp_path / name).read_bytes() == b"whole"


def test_pipes_and_devices_are_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_atomically(pipe, b"said")
    reader.join(30)
    assert received == [b"said"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    null = tmp_path / "null"
    null.symlink_to("/dev/null")
    write_atomically(null, b"gone")
    assert Path("/dev/null").is_char_device()


def test_failing_block_keeps_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"old")

    def fail() -> None:
        with replace_atomically(file) as part:
            part.write_bytes(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert file.read_bytes() == b"old"
    assert not parts(tmp_path)


def test_check_for_write_access_changes_nothing(tmp_path: Path) -> None:
    file, missing = tmp_path / "there.txt", tmp_path / "not-yet.txt"
    file.write_bytes(b"old")
    for path in (file, missing, Path("/dev/null")):
        check_writable(path)
        checks.check_output_file(path, "out")
    assert [p.name for p in tmp_path.iterdir()] == ["there.txt"]
    assert file.read_bytes() == b"old"
    os.mkfifo(tmp_path / "pipe")
    check_writable(tmp_path / "pipe")  # and does not wait for a reader
    with pytest.raises(WorkbenchError, match="Is a directory"):
        checks.check_output_file(tmp_path, "out")
    with pytest.raises(WorkbenchError, match="No such file"):
        checks.check_output_file(tmp_path / "nowhere" / "x", "out")


READERS: dict[str, Callable[[Path], Any]] = {
    "trace": read_trace,
    "prompt": lambda path: read_prompt(None, path),
    "prompts": load_prompts,
    "report": read_report,
    "answers": read_answers,
    "picture": decode,
    "image for a server": data_url,
}
PIPED = ("prompt", "prompts")
"""File that a shell's `<(command)` may give."""


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("reader", "kind"), [(r, k) for r in READERS for k in ("pipe", "device") if k == "device" or r not in PIPED]
)
def test_pipes_and_devices_are_refused_without_waiting(reader: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "it.jsonl"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(WorkbenchError, match=f"not a file but a {kind}"):
        READERS[reader](path)


@pytest.mark.timeout(60)
def test_prompts_can_be_read_from_a_pipe() -> None:
    output = b'{"prompt": "Once upon a time"}\n' * 4000  # more than the capacity of a pipe
    for name in PIPED:
        end, start = os.pipe()

        def write(start: int = start) -> None:
            with os.fdopen(start, "wb") as pipe:
                pipe.write(output)

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        found = READERS[name](Path(f"/dev/fd/{end}"))
        writer.join()
        os.close(end)
        assert (
            found == output.decode() if name == "prompt" else [p.prompt for p in found] == ["Once upon a time"] * 4000
        )


def test_import_names_a_pipe_and_continues(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").write_bytes(TRACE.read_bytes())
    done = RunStore(tmp_path / "store").import_(tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    assert len(done.added) == 1
    assert "pipe" in done.problems[str(tmp_path / "a.jsonl")]


def test_regular_file_is_read_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "file"
    for data in (b"", b"\x00\r\n\xff" * 1000):
        file.write_bytes(data)
        assert read_regular(file) == data
    with pytest.raises(IsADirectoryError):
        read_regular(tmp_path)
    assert ROWS
