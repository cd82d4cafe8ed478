"""The engine: it runs requests in batches on a target, by scheduler, prefill, rounds and KV cache.

For use in servers, it does not import gradio, plotly or polars.

Public names are imported at first use, so that processes without PyTorch can import modules of this package that do
not need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.core.startup import import_name

if TYPE_CHECKING:
    from workbench.engine.request import Request, Sequence
    from workbench.engine.scheduler import Engine
    from workbench.models.loading import Models, load_models
    from workbench.models.runner import Runner

__all__ = ["Engine", "Models", "Request", "Runner", "Sequence", "load_models"]

_HOMES = {
    "engine.scheduler": ("Engine",),
    "models.loading": ("Models", "load_models"),
    "engine.request": ("Request", "Sequence"),
    "models.runner": ("Runner",),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return import_name(module, name)
    raise AttributeError(f"module 'workbench.engine' has no attribute {name!r}")
