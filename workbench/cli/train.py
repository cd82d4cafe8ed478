"""`workbench train`: the recipes behind the bundled models."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from workbench.cli.options import Debug, Json, Settings, parse_settings


def train(
    name: Annotated[str, typer.Argument(help="Name of the recipe, for example text-target.")],
    settings: Settings = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train a bundled model again, or one like it. Interrupted training goes on from its last checkpoint."""
    from workbench.training import recipes

    def report(event: Any) -> None:
        line = json.dumps(event, ensure_ascii=False) if as_json and not isinstance(event, str) else str(event)
        print(line, file=sys.stdout if as_json else sys.stderr, flush=True)

    result = recipes.run(name, parse_settings(settings), report)
    if as_json:
        print(json.dumps({"recipe": name, "result": result}, ensure_ascii=False, default=str))
