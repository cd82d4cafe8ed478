"""The program `workbench`: its commands, error messages and exit statuses."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer

import workbench
from workbench.cli import common, config, output
from workbench.cli.bench import bench
from workbench.cli.check import check
from workbench.cli.claims import claims
from workbench.cli.compare import compare
from workbench.cli.datastore import app as datastore
from workbench.cli.docs import docs
from workbench.cli.doctor import doctor
from workbench.cli.generate import generate
from workbench.cli.heads import app as heads
from workbench.cli.lab import lab
from workbench.cli.methods import methods
from workbench.cli.models import models
from workbench.cli.notebooks import notebooks
from workbench.cli.recommend import recommend
from workbench.cli.record import record
from workbench.cli.runs import app as runs
from workbench.cli.serve import serve
from workbench.cli.site import site
from workbench.cli.sweep import sweep
from workbench.cli.train import train
from workbench.cli.whatif import whatif
from workbench.core.errors import ParameterError, PromptError, UnknownNameError, WorkbenchError
from workbench.core.panics import convert_panics
from workbench.models.local_models import with_paths

FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130

app = typer.Typer(
    name="workbench",
    help="Watch, compare and build speculative decoding methods. `workbench COMMAND --help` explains a command.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in (
    methods,
    models,
    generate,
    compare,
    recommend,
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
    config.config,
):
    app.command()(common.command(command))
for group in (runs, datastore, heads):
    for registered in group.registered_commands:
        if registered.callback is not None:
            registered.callback = common.command(registered.callback)
    app.add_typer(group)


def _version(wanted: bool) -> None:
    if wanted:
        print(workbench.__version__)
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
    quiet: common.Quiet = False,
    verbose: common.Verbose = False,
) -> None:
    """Watch, compare and build speculative decoding methods. `workbench COMMAND --help` explains a command.

    Exit status: 0 success, 1 failure, 2 wrong usage (nothing was run), 130 interrupted. `workbench config` shows your
    own defaults of options.
    """
    output.set_level(quiet, verbose)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command of the program `workbench`.

    Args:
        argv: arguments without the program's name; None: the arguments of the process.

    Returns:
        Exit status: 0 success, 1 failure, 2 wrong usage, 130 interrupted.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    debug, as_json = "--debug" in args, "--json" in args
    output.reset()
    if argv is None and args[:1] == ["train"]:  # training never shares this process with other work
        from workbench.training.memory import keep_memory

        keep_memory()
    try:
        with convert_panics():
            status = app(args=args, prog_name="workbench", standalone_mode=False, default_map=_own_defaults(args))
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort, common.InterruptError):
        return _report(common.InterruptError("Interrupted."), INTERRUPTED, False, as_json)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        return _report(*_classify(error, debug), debug, as_json)
    return status if isinstance(status, int) else 0


def _own_defaults(args: Sequence[str]) -> dict[str, Any] | None:
    """Return the user's own defaults of options by command; None for `workbench config`, which reads them itself."""
    if not args or args[0] == "config" or "_WORKBENCH_COMPLETE" in os.environ:
        return None
    tables, text = config.read()
    return config.default_map(typer.main.get_command(app), tables, text) if tables else None


def _classify(error: Exception, debug: bool) -> tuple[WorkbenchError, int]:
    """Convert an exception to a `WorkbenchError`, and return this error with the exit status of the program."""
    if isinstance(error, WorkbenchError):
        is_wrong_use = error.option or isinstance(error, (UnknownNameError, ParameterError, PromptError))
        return error, WRONG_USE if is_wrong_use else FAILED
    if _is_usage_error(error):
        command = getattr(getattr(error, "ctx", None), "command_path", "workbench")
        message = " ".join(error.format_message().split()).rstrip(".")  # pyright: ignore[reportAttributeAccessIssue]
        return UsageError(
            f"{message}." if message else "An argument is missing.", f"See `{command} --help`."
        ), WRONG_USE
    hint = "" if debug else "Run again with --debug for the traceback."
    return WorkbenchError(f"Unexpected {type(error).__name__}: {_one_line(error)}.", hint), FAILED


class UsageError(WorkbenchError):
    """Raised for options or arguments that the command does not accept."""


def _report(error: WorkbenchError, status: int, debug: bool, as_json: bool) -> int:
    if debug:
        traceback.print_exc()
    option = f"--{error.option}" if error.option else ""
    if as_json:
        entry = {"type": type(error).__name__, "message": error.message, "remedy": with_paths(error.remedy)}
        print(json.dumps({"error": entry | {"option": option or None, "exit_code": status}}, ensure_ascii=False))
        return status
    prefix = f"{option}: " if option and option not in str(error) else ""
    print(f"error: {prefix}{with_paths(str(error))}", file=sys.stderr)
    return status


def _is_usage_error(error: Any) -> bool:
    """Return whether an error has the attributes of Typer's usage errors, whose module differs between versions."""
    return hasattr(error, "format_message") and hasattr(error, "exit_code")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")[:300]
