"""Options `-q` and `-v` of every command, which may precede or follow the command's name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from workbench.cli import output
from workbench.core.errors import WorkbenchError

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result: no progress, notes or metrics.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Also print each loading stage and its duration.")]


class InterruptError(WorkbenchError):
    """Raised for Ctrl-C instead of KeyboardInterrupt, on which typer would exit without a message."""


def command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command's function: add the options `--quiet` and `--verbose`, and turn Ctrl-C into an error."""
    signature = inspect.signature(function, eval_str=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    extra = [
        inspect.Parameter(name, kind, default=False, annotation=note)
        for name, note in (("quiet", Quiet), ("verbose", Verbose))
    ]

    @functools.wraps(function)
    def wrapped(*args: Any, quiet: bool = False, verbose: bool = False, **options: Any) -> Any:
        output.set_level(quiet, verbose)
        try:
            return function(*args, **options)
        except KeyboardInterrupt:
            raise InterruptError("Interrupted.") from None

    if function.__doc__:
        from rich.markup import escape

        wrapped.__doc__ = escape(function.__doc__)  # typer shows help as markup: "[defaults]" would be a style
    wrapped.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *extra])  # pyright: ignore[reportAttributeAccessIssue]
    wrapped.__annotations__ = {p.name: p.annotation for p in wrapped.__signature__.parameters.values()}  # pyright: ignore[reportAttributeAccessIssue]
    return wrapped
