"""Shell completion of option values. It reads only files: a key press must not import PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import typer

from workbench.core.params import ParamSpec
from workbench.kernels import devices
from workbench.methods import method_info
from workbench.models.local_models import trained_for
from workbench.models.model_index import MODEL_INDEX
from workbench.models.names import known_targets


def methods(incomplete: str) -> Iterator[tuple[str, str]]:
    """Yield the methods whose names complete the typed text, with their titles."""
    return ((m.name, m.title) for m in method_info.methods() if m.name.startswith(incomplete))


def targets(incomplete: str) -> Iterator[str]:
    """Yield bundled and published targets whose names complete the typed text. The shell completes folders."""
    return _beginning(
        incomplete, (*(name for name, _, config in known_targets() if not trained_for(config)), *MODEL_INDEX)
    )


def drafters(incomplete: str) -> Iterator[str]:
    """Yield the bundled draft models whose names complete the typed text."""
    return _beginning(
        incomplete, ("auto", "none", *(name for name, _, config in known_targets() if trained_for(config)))
    )


def dtypes(incomplete: str) -> Iterator[str]:
    """Yield the number formats whose names complete the typed text."""
    return _beginning(incomplete, ("auto", *devices.DTYPES))


def device_names(incomplete: str) -> Iterator[str]:
    """Yield the devices whose names complete the typed text."""
    return _beginning(incomplete, ("auto", *devices.available_device_types()))


def settings(context: typer.Context, incomplete: str) -> Iterator[tuple[str, str]]:
    """Yield completions of a value of `--set`: first `NAME=` of a parameter of the method, then its choices."""
    for spec in _specs(context.params.get("method")):
        name, equals, prefix = incomplete.partition("=")
        if equals and name == spec.name:
            values = spec.choices or ({"bool": ("true", "false")}.get(spec.kind, (str(spec.default),)))
            yield from ((f"{name}={value}", spec.doc) for value in values if value.startswith(prefix))
        elif not equals and spec.name.startswith(name):
            yield f"{spec.name}=", spec.doc


def _specs(method: Any) -> list[ParamSpec]:
    names = [method] if isinstance(method, str) else method or ["draft-model"]
    methods_named = [m for m in method_info.methods() if m.name in names]
    return list({**{n: s for m in methods_named for n, s in m.params.items()}, **method_info.sampling()}.values())


def groups(incomplete: str) -> Iterator[str]:
    """Yield the groups of bundled prompts whose names complete the typed text."""
    from workbench.bench.prompts import groups_of, load_prompts

    return _beginning(incomplete, groups_of(load_prompts()))


def recordings(incomplete: str) -> Iterator[str]:
    """Yield the bundled recordings of runs whose names complete the typed text."""
    from workbench.views import recorded_runs

    return _beginning(incomplete, recorded_runs.names())


def _beginning(incomplete: str, names: Iterable[str]) -> Iterator[str]:
    return (name for name in names if name.startswith(incomplete))
