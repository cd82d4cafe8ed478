"""Curves as TensorBoard's event files: what is written is read, also behind a kill."""

from __future__ import annotations

from pathlib import Path

from workbench.trace.curves import NAMES, CurveWriter, read_curves


def test_what_is_written_is_read_while_it_is_being_written(tmp_path: Path) -> None:
    writer = CurveWriter(tmp_path)
    writer.add(1, {"loss/a": 2.0, "on-policy/tau": 1.5})
    writer.add(2, {"loss/a": 1.0})
    assert read_curves(tmp_path) == {"loss/a": [(1, 2.0), (2, 1.0)], "on-policy/tau": [(1, 1.5)]}
    assert read_curves(tmp_path / "nowhere") == {}


def test_a_run_that_goes_on_from_an_earlier_step_voids_what_came_behind_it(tmp_path: Path) -> None:
    first = CurveWriter(tmp_path)
    for step in range(1, 8):
        first.add(step, {"loss": step, "late": 0} if step > 5 else {"loss": step})
    second = CurveWriter(tmp_path, 5)  # its checkpoint was that of step 4
    second.add(5, {"loss": 50})
    assert read_curves(tmp_path) == {"loss": [(1, 1), (2, 2), (3, 3), (4, 4), (5, 50)]}
    CurveWriter(tmp_path).add(1, {"loss": 9})  # it starts over
    assert read_curves(tmp_path) == {"loss": [(1, 9)]}


def test_a_record_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    writer = CurveWriter(tmp_path)
    writer.add(1, {"a": 1})
    writer.add(2, {"a": 2})
    [file] = tmp_path.glob(NAMES)
    whole = file.read_bytes()
    for cut in (1, 5, 20):
        file.write_bytes(whole[:-cut])
        assert read_curves(tmp_path) == {"a": [(1, 1)]}
    file.write_bytes(whole[:60] + b"\xff" * 40)
    read_curves(tmp_path)  # damaged: what can be read, and no error
