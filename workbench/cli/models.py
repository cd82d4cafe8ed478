"""`workbench models`: list the models on this machine, and those that can be downloaded or converted."""

from __future__ import annotations

import json
from typing import Any

from workbench.cli.options import Debug, Json
from workbench.cli.stream import harmless

_SIGNS = {"ready": "✓", "at first use": "○", "to fetch": "–"}


def models(as_json: Json = False, debug: Debug = False) -> None:
    """List the models on this machine and those that you can get: role, size, licence, and how to get each.

    Examples: workbench models; workbench models --json
    """
    from workbench.service.inventory import inventory

    rows = inventory()
    if as_json:
        print(json.dumps(rows, ensure_ascii=False, indent=2))
        return
    for line in lines(rows):
        print(line)


def lines(rows: list[dict[str, Any]]) -> list[str]:
    """Return a line of text per model: sign for its state, name, role, size, licence, folder or how to get it."""
    table = [
        (row["name"], row["role"], f"{row['bytes'] / 1e6:.1f} MB", row["licence"], row["how"] or row["place"] or "")
        for row in rows
    ]
    widths = [max(len(cells[i]) for cells in table) for i in range(4)] if table else []
    text_lines = []
    for row, (name, role, size, licence, location) in zip(rows, table, strict=True):
        cells = f"{name:<{widths[0]}}  {role:<{widths[1]}}  {size:>{widths[2]}}  {licence:<{widths[3]}}"
        text_lines.append(harmless(f"{_SIGNS[row['state']]} {cells}  {location}"))
    signs = (
        "✓ ready · ○ converted at first use · – to be downloaded. A folder, GGUF file or Hub id can also be a target."
    )
    return [*text_lines, "", signs]
