"""Training recipes as data, without PyTorch: names, options, defaults and explanations, cached in the user's folder.

After a change of the training code, the first process that needs the recipes imports the training code and writes the
file again.
"""

from __future__ import annotations

import dataclasses
import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.errors import UnknownNameError
from workbench.kernels import disk_cache
from workbench.methods import method_info
from workbench.training.options import docs_of, kind_name, types_of

if TYPE_CHECKING:
    from workbench.training.recipe import Recipe

CACHE = "recipes.json"
"""Name of the file in the user's cache folder that describes the training recipes."""

FINISHED_STUDIES = ("distilling", "rollouts", "scaling", "trimming")
"""Names of recipes that only earlier versions have: studies whose results are boards of the same name."""


def refuse_finished_study(name: str) -> None:
    """Raise an error if the name of a recipe belongs to a finished study, which can no longer be run.

    Raises:
        UnknownNameError: the study is finished; the error says where its results are.
    """
    if name in FINISHED_STUDIES:
        raise UnknownNameError(
            f"The study {name!r} is finished, and its training recipe was removed.",
            f"Its results are in assets/boards/{name}.md and {name}.json; its code is in earlier versions.",
        )


def recipes() -> dict[str, dict[str, Any]]:
    """Return all training recipes by name as JSON values, without the recipes of user-defined heads.

    Returns:
        For each recipe "name", "help", and by option name "options" (default values), "kinds" (types, see
        `workbench.training.options`) and "docs" (explanations).
    """
    cached = disk_cache.read(CACHE)
    if cached.get("fingerprint") == fingerprint() and isinstance(cached.get("recipes"), list):
        return {recipe["name"]: recipe for recipe in cached["recipes"]}
    from workbench.training.recipes import RECIPES

    described = [describe(recipe) for recipe in RECIPES.values()]
    disk_cache.write(CACHE, {"fingerprint": fingerprint(), "recipes": described})
    return {recipe["name"]: recipe for recipe in described}


@cache
def fingerprint() -> str:
    """Return a hash of the source code of the training package and of the methods' declarations."""
    digest, folder = hashlib.sha256(method_info.fingerprint().encode()), Path(__file__).parent
    for path in sorted(folder.rglob("*.py"), key=lambda path: path.relative_to(folder).as_posix()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def describe(recipe: Recipe) -> dict[str, Any]:
    """Return a training recipe as JSON values: name, help, and default, type and explanation of each option."""
    kinds = {name: kind_name(hint) for name, hint in types_of(recipe.options).items()}
    docs = {name: text for name, text in docs_of(recipe.options).items() if name in kinds}
    return {
        "name": recipe.name,
        "help": recipe.help,
        "options": _defaults(recipe.options),
        "kinds": kinds,
        "docs": docs,
    }


def _defaults(options: type) -> dict[str, Any]:
    defaults = options()
    values = {field.name: getattr(defaults, field.name) for field in dataclasses.fields(options)}
    return {name: value if isinstance(value, (int, float, bool, type(None))) else str(value)
            for name, value in values.items()}  # fmt: skip
