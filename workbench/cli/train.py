"""`workbench train`: the recipes behind the bundled models."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Annotated, Any

import typer

from workbench.cli.options import Debug, Json, Settings, parse_settings
from workbench.core.errors import ParameterError, UnknownNameError


def train(
    name: Annotated[str | None, typer.Argument(help="The recipe; the recipes are listed when none is named.")] = None,
    settings: Settings = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train a bundled model again, or one like it: tokenizer, corpus, target, drafter, medusa, evaluate.

    Progress goes to standard error. Interrupted training goes on from its last checkpoint.
    """
    from workbench.training.recipes import RECIPES, run

    if name is None:
        recipes = [{"name": r.name, "help": r.help, "options": _options(r.options)} for r in RECIPES.values()]
        print(json.dumps(recipes, indent=2) if as_json else "\n".join(map(_describe, recipes)))
        return
    if name not in RECIPES:
        raise UnknownNameError.of("recipe", name, RECIPES)
    values = parse_settings(settings)
    try:
        RECIPES[name].parse(dict(values))
    except ValueError as error:
        raise ParameterError(f"{error}.", "`workbench train` lists recipes and options.") from None
    result = run(name, dict(values), lambda line: print(line, file=sys.stderr, flush=True))
    if as_json:
        print(json.dumps({"recipe": name, "options": values, "result": result}, indent=2, default=str))
    else:
        print("\n".join(f"{key}: {value}" for key, value in result.items()))


def _options(kind: Any) -> dict[str, Any]:
    defaults = kind()
    found = {f.name: getattr(defaults, f.name) for f in dataclasses.fields(kind)}
    return {
        key: value if isinstance(value, (int, float, bool, type(None))) else str(value) for key, value in found.items()
    }


def _describe(recipe: dict[str, Any]) -> str:
    options = " ".join(f"{key}={value}" for key, value in recipe["options"].items())
    return f"{recipe['name']:<10} {recipe['help']}\n           {options}"
