"""Training recipes, including the recipes that heads define with `Head.train`."""

from __future__ import annotations

import dataclasses
import inspect
import json
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from workbench.core.errors import WorkbenchError
from workbench.decoders.declarations import Head
from workbench.methods import registry
from workbench.models.machine import machine_facts
from workbench.trace.files import write_atomically
from workbench.training.cards import TrainedModel, table, training_runs, write_card
from workbench.training.loop import Report, RunResult
from workbench.training.options import convert, types_of


@dataclass(frozen=True)
class Recipe:
    """A training recipe: its name, its options, and the function that runs it.

    Attributes:
        name: Registry name of the recipe.
        help: One line about the recipe's result.
        options: Dataclass of the recipe's options; every field has a default.
        run: Function that runs the recipe.
        choose_options: For a recipe that trains several kinds of models: function that returns the options class of the
            kind that the given values name; `options` then has the options of all kinds.
    """

    name: str
    help: str
    options: type
    run: Callable[[Any, Report], dict[str, Any]]
    choose_options: Callable[[Mapping[str, Any]], type] | None = None

    def parse(self, values: dict[str, Any]) -> Any:
        """Build the recipe's options from names and values, which may be strings.

        Options that only other kinds of models have are ignored.

        Raises:
            ValueError: an option is unknown, or a value has the wrong type.
        """
        known = types_of(self.options)
        if unknown := sorted(set(values) - set(known)):
            raise ValueError(f"recipe {self.name} has no option {unknown[0]!r}; its options are: {', '.join(known)}")
        options, unused = self._class_for(values), self.unused_options(values)
        kinds = types_of(options)
        return options(
            **{
                name: convert(name, kinds[name], value)
                for name, value in values.items()
                if value is not None and name not in unused
            }
        )

    def unused_options(self, values: Mapping[str, Any]) -> list[str]:
        """Return the names of the given options that the chosen kind of model does not have."""
        return sorted(
            {name for name, value in values.items() if value is not None} - types_of(self._class_for(values)).keys()
        )

    def _class_for(self, values: Mapping[str, Any]) -> Any:
        return self.options if self.choose_options is None else self.choose_options(values)


def finish(
    result: RunResult, out: Path, more: dict[str, Any] | None = None, card: Callable[[TrainedModel], str] | None = None
) -> dict[str, Any]:
    """Write a training run's metrics, the machine's description and a model card to the model's folder.

    Return the metrics.

    Args:
        result: measured metrics of the run.
        out: folder of the model.
        more: further metrics to write.
        card: function that returns the text of the card below its title; None: no card.
    """
    machine = machine_facts()
    figures = dataclasses.asdict(result) | {"machine": {key: machine[key] for key in ("cpu", "cores", "threads")}}
    figures |= more or {}
    write_atomically(out / "training.json", (json.dumps(figures, indent=2) + "\n").encode())
    if card is not None:
        write_card(out, card)
    return figures


def training_recipe(
    name: str,
    summary: str,
    options_class: type,
    train: Callable[[Any, Report], RunResult | tuple[RunResult, dict[str, Any]]],
    card: Callable[[TrainedModel], str] | None = None,
    choose_options: Callable[[Mapping[str, Any]], type] | None = None,
) -> Recipe:
    """Return a recipe that trains a model, and then writes metrics and model card to its folder.

    Args:
        name: name of the recipe.
        summary: one line about the recipe's result.
        options_class: dataclass of the recipe's options, with the model's folder as `folder` or `out`.
        train: function that trains and writes the model, and returns its metrics, and facts for its model card if any.
        card: function that returns the text of the card below its title; None: `workbench train` writes no card.
        choose_options: function as in `Recipe.choose_options`.
    """

    def run(options: Any, report: Report) -> dict[str, Any]:
        earlier_figures = load_start_figures(getattr(options, "begin", None))
        trained = train(options, report)
        result, facts = trained if isinstance(trained, tuple) else (trained, {})
        folder = getattr(options, "folder", options.out)
        return finish(result, folder, {"options": changed_options(options), **facts, **earlier_figures}, card)

    return Recipe(name, summary, options_class, run, choose_options)


def load_start_figures(folder: Path | None) -> dict[str, Any]:
    """Return the training metrics of the finished model from which a run starts; empty if there are none."""
    try:
        return {} if folder is None else {"begun": json.loads((folder / "training.json").read_text())}
    except (OSError, ValueError):
        return {}


def changed_options(options: Any) -> dict[str, str]:
    """Return the option `method` and all options that differ from their defaults, as texts for `--set`.

    Options that are file paths are left out.
    """
    changed = {}
    for entry in dataclasses.fields(options):
        value = getattr(options, entry.name)
        if (value != entry.default or entry.name == "method") and not isinstance(value, Path):
            changed[entry.name] = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return changed


def head_recipes(reserved: Collection[str] = ()) -> dict[str, Recipe]:
    """Return the recipes that heads define, by name: `Head.recipe` is the name, `Head.train` runs it.

    Args:
        reserved: names of other recipes.

    Raises:
        WorkbenchError: a name is already used, or a training function does not declare its options.
    """
    heads = [head for head in registry.heads().values() if head.train is not None]
    for head in heads:
        if head.recipe in reserved:
            raise WorkbenchError(
                f"The head {head.kind!r} declares the training recipe {head.recipe!r}, but another recipe "
                f"already has this name.",
                f"Give the head's declaration another recipe name: Head(recipe={head.kind!r}, …).",
            )
    return {head.recipe: _head_recipe(head, head.train) for head in heads if head.train is not None}


def _head_recipe(head: Head, train: Callable[..., RunResult]) -> Recipe:
    kinds = typing.get_type_hints(train)
    first = next(iter(inspect.signature(train).parameters), "")
    options = kinds.get(first)
    if not dataclasses.is_dataclass(options) or "out" not in {field.name for field in dataclasses.fields(options)}:
        raise WorkbenchError(
            f"The training function of the head {head.kind!r} does not declare its training options.",
            f"Annotate the first parameter of {train.__name__} with a dataclass of options (RunOptions and a folder "
            "`out`), each with a default.",
        )

    summary = (inspect.getdoc(train) or head.idea).split("\n")[0].rstrip(".")
    return training_recipe(head.recipe, summary, typing.cast(type, options), train, partial(_card, head))


def _card(head: Head, model: TrainedModel) -> str:
    held = [(name, f"{value:.3f}") for name, value in model.figures["held"].items()]
    return (
        f"{head.idea.format(**model.config.get('net', {}))}\n\nTrained for `{model.config['target']}` by `workbench "
        f"train {head.recipe}`; the head fits only this target. Drafts never change the output of exact methods.\n"
        + training_runs(model.figures, "an unnamed machine")
        + (f"\n## Measured on held-out text\n\n{table(['figure', 'value'], held)}\n" if held else "")
    )
