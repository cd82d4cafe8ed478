"""`workbench models`: what is on this machine, and what could be had, how."""

from __future__ import annotations

import json
from typing import Any

from workbench.cli.options import Debug, Json
from workbench.cli.stream import harmless

_SIGNS = {"ready": "✓", "at first use": "○", "to fetch": "–"}


def models(as_json: Json = False, debug: Debug = False) -> None:
    """List the models that are here or could be had: role, size, licence, and how one comes here.

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
    """A line each: a sign for its state, name, role, size, licence, and where it is or how it comes here."""
    told = [
        (row["name"], row["role"], f"{row['bytes'] / 1e6:.1f} MB", row["licence"], row["how"] or row["place"] or "")
        for row in rows
    ]
    widths = [max(len(cells[i]) for cells in told) for i in range(4)] if told else []
    found = []
    for row, (name, role, size, licence, where) in zip(rows, told, strict=True):
        cells = f"{name:<{widths[0]}}  {role:<{widths[1]}}  {size:>{widths[2]}}  {licence:<{widths[3]}}"
        found.append(harmless(f"{_SIGNS[row['state']]} {cells}  {where}"))
    signs = "✓ ready · ○ made at first use · – to be fetched. A folder, a GGUF file or a Hub id can be a target, too."
    return [*found, "", signs]
