"""`python -m workbench.training NAME --option value …`: run a training recipe."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time

from workbench.core.errors import WorkbenchError
from workbench.training.memory import keep_memory
from workbench.training.recipes import RECIPES, run


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m workbench.training", description="Train the bundled models.")
    recipes = parser.add_subparsers(dest="recipe", required=True, metavar="NAME")
    for recipe in RECIPES.values():
        sub = recipes.add_parser(recipe.name, help=recipe.help, description=f"{recipe.name}: {recipe.help}.")
        defaults = recipe.options()
        for option in dataclasses.fields(recipe.options):
            default = getattr(defaults, option.name)
            flag = "--" + option.name.replace("_", "-")
            if isinstance(default, bool):
                sub.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=f"default {default}")
            else:
                default_text = ",".join(map(str, default)) if isinstance(default, tuple) else default
                sub.add_argument(flag, default=None, help=f"default {default_text}")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the recipe named on the command line; return the exit code."""
    if arguments is None:
        keep_memory()
    values = vars(_parser().parse_args(arguments))
    name = values.pop("recipe")

    def report(line: str) -> None:
        sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line}\n")
        sys.stdout.flush()

    try:
        run(name, values, report)
    except (ValueError, WorkbenchError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
