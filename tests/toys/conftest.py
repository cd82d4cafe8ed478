"""The register as it was, once the toys of a module have been tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from workbench.engine import Method
from workbench.methods import registry


@pytest.fixture(scope="module")
def load() -> Iterator[Callable[[str], Method]]:
    """Load the method of a file in this folder."""
    registry.names()
    held: list[dict[str, Any]] = [registry._methods, registry._places, registry._of_file]
    before = [dict(kept) for kept in held]
    yield lambda name: registry.get(*registry.load(Path(__file__).parent / f"{name}.py"))
    for mine, kept in zip(held, before, strict=True):
        mine.clear()
        mine.update(kept)
