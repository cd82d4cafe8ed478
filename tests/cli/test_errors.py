"""Errors are one line with a remedy; the exit status distinguishes failure from wrong use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Command

program = sys.modules["workbench.cli.main"]
FAILED, WRONG_USE = 1, 2


def test_debug_shows_the_traceback(workbench: Command) -> None:
    result = workbench("generate", "Hello", "--method", "nothing", "--debug")
    assert result.status == WRONG_USE
    assert "Traceback" in result.err
    assert result.err.strip().splitlines()[-1].startswith("error: --method: There is no method")


def test_an_unexpected_error_is_one_line_too(workbench: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(**_: object) -> None:
        raise RuntimeError("boom\nand more")

    monkeypatch.setattr(program, "app", explode)
    result = workbench("methods")
    assert (result.status, result.out) == (FAILED, "")
    assert result.err == "error: Unexpected RuntimeError: boom and more. Run again with --debug for the traceback.\n"


def test_ctrl_c_ends_with_its_own_status(workbench: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "app", interrupt)
    result = workbench("methods")
    assert (result.status, result.err) == (130, "error: Interrupted.\n")


def test_ctrl_c_within_a_command_is_reported_as_text_and_as_json(
    workbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["workbench.cli.methods"], "describe_methods", interrupt)
    result = workbench("methods")
    assert (result.status, result.out, result.err) == (130, "", "error: Interrupted.\n")
    result = workbench("methods", "--json")
    assert (result.status, result.err) == (130, "")
    assert (result.json["error"]["message"], result.json["error"]["exit_code"]) == ("Interrupted.", 130)


def test_help_and_version_need_no_model_and_no_torch() -> None:
    code = (
        "import sys; from workbench.cli import main; status = main(['generate', '--help']) or main(['--version']);"
        "sys.exit(status or ('torch' in sys.modules) or ('gradio' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path.cwd(), check=False)
    assert done.returncode == 0, done.stderr
    assert "--temperature" in done.stdout


def test_python_m_workbench_runs_the_command_line() -> None:
    done = subprocess.run([sys.executable, "-m", "workbench", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "0.1.0")


def test_the_engine_runs_without_the_frontends_libraries() -> None:
    """It must import in server images without gradio, plotly, polars, typer and rich."""
    code = """
import sys
for name in ("gradio", "plotly", "polars", "typer", "rich", "pandas"):
    sys.modules[name] = None
import workbench.core, workbench.trace, workbench.trace.metrics, workbench.engine
from workbench.methods import registry
assert "draft-model" in registry.names()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
