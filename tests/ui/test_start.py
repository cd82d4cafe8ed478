"""What a start leaves behind."""

from __future__ import annotations

import ast
import gc
from pathlib import Path

import pytest

from workbench.ui.start import uncollected

ROOT = Path(__file__).resolve().parents[2]


def test_the_collector_stands_still_and_leaves_alone_what_was_made_meanwhile() -> None:
    before = gc.get_freeze_count()
    try:
        with uncollected():
            assert not gc.isenabled()
            kept = [[i] for i in range(1000)]
        assert gc.isenabled()
        assert gc.get_freeze_count() >= before + len(kept)
        with pytest.raises(KeyError), uncollected():
            raise KeyError
        assert gc.isenabled(), "an error on the way leaves it running"
    finally:
        gc.unfreeze()


def test_the_app_makes_its_page_and_its_backend_inside() -> None:
    [main] = [f for f in ast.parse((ROOT / "app.py").read_text()).body if getattr(f, "name", "") == "main"]
    blocks = [block for block in ast.walk(main) if isinstance(block, ast.With) and "uncollected" in ast.dump(block)]
    made = {call.func.attr for block in blocks for call in ast.walk(block) if isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)}  # fmt: skip
    assert {"launch", "make"} <= made
    assert "block_thread" not in made, "the server does not run inside"
