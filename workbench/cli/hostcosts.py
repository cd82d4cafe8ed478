"""`workbench bench --suite host`: what drafting costs the host, by context."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from workbench.cli import checks

KINDS = (".json", ".md", ".svg")


def measure(target: str, repeats: int, out: list[Path], as_json: bool) -> None:
    """Measure all drafters; a file of JSON that is there already is gone on with.

    Raises:
        BadParameter: a file of another kind is asked for.
    """
    checks.kinds_of("host", out, KINDS)
    from workbench.bench import hostcosts
    from workbench.engine.pretrained import load_tokenizer
    from workbench.trace.files import write_whole

    kept = next((path for path in out if path.suffix == ".json"), None)
    known: dict[str, Any] | None = None
    if kept is not None and kept.is_file():
        with suppress(OSError, ValueError):
            known = json.loads(kept.read_text(encoding="utf-8"))

    def keep(report: dict[str, Any]) -> None:
        if kept is not None:
            write_whole(kept, f"{json.dumps(report, ensure_ascii=False, indent=1)}\n".encode())

    report = hostcosts.run_suite(
        load_tokenizer(target), known, keep, lambda words: typer.echo(words, err=True), rounds=100 * repeats
    )
    keep(report)
    forms = {".md": hostcosts.page(report), ".svg": hostcosts.plot(report)}
    for path in out:
        if path.suffix in forms:
            write_whole(path, forms[path.suffix].encode())
    print(json.dumps(report, ensure_ascii=False) if as_json else forms[".md"])
