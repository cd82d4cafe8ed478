"""`workbench bench --suite host`: measure the host overhead of drafters by context length."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from workbench.cli import checks

KINDS = (".json", ".md", ".svg")


def measure(target: str, repeats: int, out: list[Path], as_json: bool) -> None:
    """Measure the host overhead of all drafters (time outside of forward passes), print a table and save it.

    A JSON file in `out` is saved after each measurement. If the file already exists, its measurements are not repeated.

    Raises:
        BadParameter: a file of `out` has a suffix that the suite does not write.
    """
    checks.check_suffixes("host", out, KINDS)
    from workbench.bench import hostcosts
    from workbench.models.pretrained import load_tokenizer
    from workbench.trace.files import write_atomically

    json_file = next((path for path in out if path.suffix == ".json"), None)
    earlier: dict[str, Any] | None = None
    if json_file is not None and json_file.is_file():
        with suppress(OSError, ValueError):
            earlier = json.loads(json_file.read_text(encoding="utf-8"))

    def save(report: dict[str, Any]) -> None:
        if json_file is not None:
            write_atomically(json_file, f"{json.dumps(report, ensure_ascii=False, indent=1)}\n".encode())

    report = hostcosts.run_suite(
        load_tokenizer(target), earlier, save, lambda words: typer.echo(words, err=True), rounds=100 * repeats
    )
    save(report)
    forms = {".md": hostcosts.page(report), ".svg": hostcosts.plot(report)}
    for path in out:
        if path.suffix in forms:
            write_atomically(path, forms[path.suffix].encode())
    print(json.dumps(report, ensure_ascii=False) if as_json else forms[".md"])
