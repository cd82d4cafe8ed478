"""`workbench claims`: what the papers claim, beside what is measured here."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from workbench.cli.loading import quiet
from workbench.cli.options import Debug, Json
from workbench.core.errors import UnknownNameError, WorkbenchError
from workbench.methods.known import get as get_method
from workbench.service.checks import about

FILE = Path(__file__).resolve().parents[1] / "bench" / "claims.json"
"""The keys of each method's claims; `workbench docs` writes it, so that a wrong one is refused without PyTorch."""


def claims(
    method: Annotated[list[str] | None, typer.Option(help="Measure the claims of this method; repeatable.")] = None,
    key: Annotated[str | None, typer.Option(help="Of these only the claim with this key.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Measure the claims of all methods.")] = False,
    timed: Annotated[
        bool | None,
        typer.Option("--timed/--untimed", help="Only claims about time (let the machine be idle), or only the others."),
    ] = None,
    report: Annotated[bool, typer.Option(help="Put what is measured onto the claims board.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the claims board; with --method or --all measure anew, a line a claim.

    A verdict is computed from the paper's figure and the measured one, never written: in size within a quarter of the
    paper's range, in direction if the whole 95 % interval lies on the paper's side.

    Example: workbench claims --method token-recycling
    """
    if key is not None and (everything or not method):
        with about("key"):
            raise WorkbenchError("A key tells the claims of one method apart.", "Name the method with --method.")
    if not method and not everything:
        from workbench.bench import board

        rows = board.claims_board()
        print(json.dumps(rows, ensure_ascii=False, indent=2) if as_json else board.claims_markdown(rows))
        return
    for name in method or ():
        with about("method"):
            get_method(name)
        if key is not None:
            _check_key(name, key)
    from workbench.bench import board
    from workbench.bench import claims as known

    quiet()
    chosen = known.claims() if everything else [c for name in method or () for c in known.of(name, key)]
    measured = []
    for claim in chosen:
        if timed is not None and claim.timed != timed:
            continue
        start = time.perf_counter()
        figure = claim.measure() if claim.measure else None
        verdict = known.judge(claim, figure)
        if report:
            board.save_claim(claim, figure)
        measured.append(board.claim_row(claim, figure))
        if not as_json:
            found = (
                f"{figure.value:.3g} ({figure.low:.3g}–{figure.high:.3g}, n = {figure.n})" if figure else claim.lacks
            )
            paper = board.paper_figure(claim.low, claim.high, claim.neutral)
            seconds = time.perf_counter() - start
            print(
                f"{claim.name}: {claim.quantity}: paper {paper}, here {found}: {verdict} [{seconds:.0f} s]", flush=True
            )
    if as_json:
        print(json.dumps(measured, ensure_ascii=False, indent=2))
    elif report:
        print(f"The board is in {board.folder()}.")


def text() -> str:
    """What the file of keys should hold now."""
    from workbench.bench import claims as known

    found: dict[str, list[str]] = {}
    for claim in known.claims():
        found.setdefault(claim.method, []).append(claim.key)
    return json.dumps(found, indent=1) + "\n"


def _check_key(method: str, key: str) -> None:
    """Refuse a key that no claim of a method has. What the file does not know, the claims say themselves."""
    listed = json.loads(FILE.read_text(encoding="utf-8"))
    if "workbench.bench.claims" in sys.modules or key in listed.get(method, [key]):
        return
    with about("key"):
        raise UnknownNameError.of(f"claim of {method}", key, listed[method])
