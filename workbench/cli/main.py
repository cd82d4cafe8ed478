"""The program: its commands, and what becomes of an error."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer

import workbench
from workbench.cli.bench import bench
from workbench.cli.check import check
from workbench.cli.claims import claims
from workbench.cli.compare import compare
from workbench.cli.docs import docs
from workbench.cli.doctor import doctor
from workbench.cli.generate import generate
from workbench.cli.lab import lab
from workbench.cli.methods import methods
from workbench.cli.notebooks import notebooks
from workbench.cli.record import record
from workbench.cli.runs import app as runs
from workbench.cli.serve import serve
from workbench.cli.site import site
from workbench.cli.sweep import sweep
from workbench.cli.train import train
from workbench.cli.whatif import whatif
from workbench.core.errors import WorkbenchError

FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130

app = typer.Typer(
    name="workbench",
    help="See, compare and build speculative decoding. `workbench COMMAND --help` explains a command.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (
    methods,
    generate,
    compare,
    sweep,
    serve,
    bench,
    check,
    doctor,
    claims,
    whatif,
    train,
    record,
    docs,
    notebooks,
    lab,
    site,
):
    app.command()(command)
app.add_typer(runs)


def _version(wanted: bool) -> None:
    if wanted:
        print(workbench.__version__)
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """See, compare and build speculative decoding. `workbench COMMAND --help` explains a command."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments without the program's name; None: those of the process.

    Returns:
        Exit status: 0 well, 1 failed, 2 wrong use, 130 interrupted.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args
    try:
        status = app(args=args, prog_name="workbench", standalone_mode=False)
    except WorkbenchError as error:
        return _report(str(error), FAILED, debug)
    except (KeyboardInterrupt, typer.Abort):
        return _report("Interrupted.", INTERRUPTED, debug=False)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if _is_usage_error(error):
            return _report(_usage_message(error), WRONG_USE, debug)
        hint = "" if debug else " Run again with --debug for the traceback."
        return _report(f"Unexpected {type(error).__name__}: {_one_line(error)}.{hint}", FAILED, debug)
    return status if isinstance(status, int) else 0


def _report(message: str, status: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"error: {message}", file=sys.stderr)
    return status


def _is_usage_error(error: Any) -> bool:
    """Typer's usage errors, told by their shape: the module they come from differs between its versions."""
    return hasattr(error, "format_message") and hasattr(error, "exit_code")


def _usage_message(error: Any) -> str:
    command = getattr(getattr(error, "ctx", None), "command_path", "workbench")
    message = " ".join(error.format_message().split())
    return f"{message.rstrip('.')}. See `{command} --help`." if message else f"See `{command} --help`."


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")[:300]
