"""`workbench train`: train a bundled model, or heads for a model, by a training recipe."""

from __future__ import annotations

import json
import sys
import textwrap
from typing import Annotated, Any

import typer

from workbench.cli import complete
from workbench.cli.options import Debug, Json, Settings, parse_settings
from workbench.core.errors import ParameterError, UnknownNameError
from workbench.methods import method_info
from workbench.service.checks import set_error_option
from workbench.training import known_recipes
from workbench.training.options import KINDS, convert


def train(
    name: Annotated[
        str | None, typer.Argument(help="Name of the training recipe; without a name, all recipes are listed.")
    ] = None,
    settings: Settings = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Model to train heads or drafters for, same as --set target=…: a name, folder or Hub id.",
            autocompletion=complete.targets,
        ),
    ] = None,
    options: Annotated[
        bool, typer.Option("--options", help="List this recipe's options for --set, and train nothing.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train a bundled model, a variant of it, a head for your own model, or a head for your own method.

    `workbench train eagle-3 --target MODEL` does all steps for a head: it generates the model's own answers, trains and
    measures. `workbench train eagle-3 --options` lists the options.

    Progress goes to standard error. Interrupted training resumes from its last checkpoint; --set resume=false starts
    again and renames the old checkpoint.
    """
    recipes = known_recipes.recipes()
    if method_info.has_user_methods() and name not in recipes:
        from workbench.training.recipe import head_recipes

        recipes |= {recipe.name: known_recipes.describe(recipe) for recipe in head_recipes(recipes).values()}
    if name is None:
        listed_recipes = list(recipes.values())
        print(json.dumps(listed_recipes, indent=2) if as_json else "\n".join(map(_describe, listed_recipes)))
        return
    if name not in recipes:
        known_recipes.refuse_finished_study(name)
        raise UnknownNameError.of("recipe", name, recipes)
    if options:
        print(json.dumps(recipes[name], indent=2) if as_json else _explain(recipes[name]))
        return
    values = parse_settings(settings) | ({} if target is None else {"target": target})
    with set_error_option("set"):
        for option in values:
            if option not in recipes[name]["options"]:
                raise UnknownNameError.of(f"option of {name}", option, recipes[name]["options"])
            try:
                convert(option, KINDS[recipes[name]["kinds"][option]], values[option])
            except ValueError as error:
                raise ParameterError(f"{error}.", "`workbench train` lists recipes and options.") from None
    from workbench.training.recipes import run

    result = run(name, dict(values), lambda line: print(line, file=sys.stderr, flush=True))
    if as_json:
        print(json.dumps({"recipe": name, "options": values, "result": result}, indent=2, default=str))
    else:
        print("\n".join(f"{key}: {value}" for key, value in result.items()))


def _explain(recipe: dict[str, Any]) -> str:
    """Return a text with the options of a training recipe: default, type and explanation of each."""
    lines = [f"{recipe['name']}: {recipe['help']}"]
    for name, value in recipe["options"].items():
        doc = textwrap.wrap(recipe["docs"].get(name, ""), 100)
        lines += ["", f"  --set {name}={'' if value is None else value}   ({recipe['kinds'][name]})"]
        lines += [f"      {line}" for line in doc]
    return "\n".join(lines)


def _describe(recipe: dict[str, Any]) -> str:
    options = " ".join(f"{key}={value}" for key, value in recipe["options"].items())
    return f"{recipe['name']:<10} {recipe['help']}\n           {options}"
