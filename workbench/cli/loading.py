"""Models for a command, without the chatter of the libraries that load them."""

from __future__ import annotations

from typing import Any

from workbench.cli.options import drafter_or_none


def quiet() -> None:
    """Keep transformers' progress bars and advice off the terminal; errors still come through."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def open_workbench(connect: str | None, target: str, drafter: str, device: str, dtype: str) -> Any:
    """The backend of a command: a private one, or with `--connect` somebody else's."""
    from workbench.client import Workbench

    if connect is not None:
        return Workbench(connect)
    quiet()
    return Workbench(target=target, drafter=drafter, device=device, dtype=dtype)


def load(target: str, drafter: str, device: str, dtype: str = "auto", drafter_dtype: str = "auto") -> Any:
    """`load_models` for the command line."""
    from workbench.engine import load_models

    quiet()
    return load_models(target, drafter_or_none(drafter), device, dtype, drafter_dtype)
