"""Curves as TensorBoard event files: written values can be read, also after a kill."""

from __future__ import annotations

from pathlib import Path

from workbench.trace.curves import NAMES, CurveWriter, read_curves


def test_curves_can_be_read_while_they_are_written(tmp_path: Path) -> None:
    writer = CurveWriter(tmp_path)
    writer.add(1, {"loss/a": 2.0, "on-policy/tau": 1.5})
    writer.add(2, {"loss/a": 1.0})
    assert read_curves(tmp_path) == {"loss/a": [(1, 2.0), (2, 1.0)], "on-policy/tau": [(1, 1.5)]}
    assert read_curves(tmp_path / "nowhere") == {}


def test_resumed_run_replaces_values_after_its_checkpoint(tmp_path: Path) -> None:
    first = CurveWriter(tmp_path)
    for step in range(1, 8):
        first.add(step, {"loss": step, "late": 0} if step > 5 else {"loss": step})
    second = CurveWriter(tmp_path, 5)  # its checkpoint was at step 4
    second.add(5, {"loss": 50})
    assert read_curves(tmp_path) == {"loss": [(1, 1), (2, 2), (3, 3), (4, 4), (5, 50)]}
    CurveWriter(tmp_path).add(1, {"loss": 9})  # it starts again
    assert read_curves(tmp_path) == {"loss": [(1, 9)]}


def test_truncated_record_is_ignored(tmp_path: Path) -> None:
    writer = CurveWriter(tmp_path)
    writer.add(1, {"a": 1})
    writer.add(2, {"a": 2})
    [file] = tmp_path.glob(NAMES)
    whole = file.read_bytes()
    for cut in (1, 5, 20):
        file.write_bytes(whole[:-cut])
        assert read_curves(tmp_path) == {"a": [(1, 1)]}
    file.write_bytes(whole[:60] + b"\xff" * 40)
    read_curves(tmp_path)  # a damaged file gives its readable part, and no error
