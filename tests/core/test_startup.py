"""Garbage collection during a start."""

from __future__ import annotations

import ast
import gc
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.core.startup import pause_and_freeze_gc, pause_gc

ROOT = Path(__file__).resolve().parents[2]


def test_garbage_collection_is_paused_inside_the_block_only() -> None:
    before = gc.get_freeze_count()
    with pause_gc():
        assert not gc.isenabled()
        with pause_gc():
            pass
        assert not gc.isenabled(), "the outer block is still active"
    assert gc.isenabled()
    with pytest.raises(KeyError), pause_gc():
        raise KeyError
    assert gc.isenabled(), "after an error it is enabled again"
    assert gc.get_freeze_count() == before


def test_objects_created_during_start_are_frozen() -> None:
    before = gc.get_freeze_count()
    try:
        with pause_and_freeze_gc():
            assert not gc.isenabled()
            kept = [[i] for i in range(1000)]
        assert gc.isenabled()
        assert gc.get_freeze_count() >= before + len(kept)
    finally:
        gc.unfreeze()


def test_app_is_built_with_garbage_collection_paused() -> None:
    [main] = [f for f in ast.parse((ROOT / "app.py").read_text()).body if getattr(f, "name", "") == "main"]
    blocks = [
        block for block in ast.walk(main) if isinstance(block, ast.With) and "pause_and_freeze_gc" in ast.dump(block)
    ]
    made = {call.func.attr for block in blocks for call in ast.walk(block) if isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)}  # fmt: skip
    assert {"launch", "make"} <= made
    assert "block_thread" not in made, "the server does not run inside"


@pytest.mark.slow
@pytest.mark.parametrize(
    "line", ["from workbench.engine import Engine", "from workbench.service import Backend"], ids=["engine", "backend"]
)
def test_no_collection_runs_while_pytorch_is_imported(line: str) -> None:
    code = f"""
import gc, sys
runs = []
gc.callbacks.append(lambda phase, info: runs.append(phase == "start" and "torch" in sys.modules))
{line}
assert "torch" in sys.modules
assert gc.isenabled()
print(runs.count(True))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 1, "one collection may follow at the end"
