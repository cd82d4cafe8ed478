"""`workbench bench --suite answers`: count the correct answers to problems with each approximate verifier."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import typer

from workbench.cli import checks

KINDS = (".json", ".md")


def measure(
    load: Callable[[], Any], scale: Mapping[str, Any], out: list[Path], as_json: bool, resume: Path | None
) -> None:
    """Generate answers to all problems of the suite `answers` with every verifier, and report how many are correct.

    An existing JSON file in `out` keeps its results of other targets.

    Args:
        load: function that loads the models.
        scale: fields of `workbench.bench.answers_suite.Scale`.
        out: files for the results, .json or .md.
        as_json: whether to print JSON.
        resume: file with the answers that an interrupted measurement has saved, from which it continues.

    Raises:
        BadParameter: a file of `out` has a suffix that the suite does not write.
    """
    checks.check_suffixes("answers", out, KINDS)
    from workbench.bench import answers_suite
    from workbench.trace.files import write_atomically

    report = answers_suite.run_suite(
        load(), answers_suite.Scale(**scale), progress=lambda words: typer.echo(words, err=True), resume=resume
    )
    for path in out:
        if path.suffix == ".md":
            write_atomically(path, answers_suite.page([report]).encode())
        else:
            reports = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
            reports = [other for other in reports if other["target"] != report["target"]] + [report]
            write_atomically(path, f"{json.dumps(reports, ensure_ascii=False, indent=1)}\n".encode())
    print(json.dumps(report, ensure_ascii=False) if as_json else answers_suite.page([report]))
