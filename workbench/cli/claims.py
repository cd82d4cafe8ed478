"""`workbench claims`: what the papers claim, beside what is measured here."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench.cli import complete, say
from workbench.cli.loading import quiet
from workbench.cli.options import DEFAULT_TARGET, Debug, Json
from workbench.core.errors import UnknownNameError, WorkbenchError
from workbench.engine.placed import named
from workbench.methods.known import get as get_method
from workbench.service.checks import about, check_models

if TYPE_CHECKING:
    from workbench.engine.declared import Claim

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
    target: Annotated[
        str | None,
        typer.Option(
            help="Measure claims about text on this target, with its own draft model and heads: a name of `workbench "
            "models`, a folder, a Hub id. By default the bundled ones.",
            autocompletion=complete.targets,
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Number format of the target; by default float32, for smollm2 bfloat16.",
            autocompletion=complete.dtypes,
        ),
    ] = None,
    per_group: Annotated[
        int | None, typer.Option(min=0, help="Only the first so many prompts of each kind; 0: all of them.")
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=8, help="Length limit of every generation.")] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Timed runs of every prompt.")] = None,
    draws: Annotated[int | None, typer.Option(min=1, help="Sampled runs of every prompt.")] = None,
    report: Annotated[bool, typer.Option(help="Put what is measured onto the claims board.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the claims board; with --method or --all measure anew, a line a claim.

    The verdict is computed from the paper's figure and the measured one: reproduced in size within a quarter of the
    paper's range, reproduced in direction if the whole 95 % interval lies on the paper's side, contradicted if it lies
    on the other, else inconclusive.

    Example: workbench claims --method token-recycling
    """
    if key is not None and (everything or not method):
        with about("key"):
            raise WorkbenchError("A key tells the claims of one method apart.", "Name the method with --method.")
    asked = {"dtype": dtype, "per_group": per_group, "tokens": max_new_tokens, "repeats": repeats, "draws": draws}
    asked = {name: value for name, value in asked.items() if value is not None}
    if not method and not everything:
        if target or asked or report:
            raise WorkbenchError("Nothing is measured without a claim.", "Name methods with --method, or give --all.")
        from workbench.bench import claimsboard

        rows = claimsboard.rows()
        print(json.dumps(rows, ensure_ascii=False, indent=2) if as_json else claimsboard.markdown(rows))
        return
    for name in method or ():
        with about("method"):
            get_method(name)
        if key is not None:
            _check_key(name, key)
    check_models(target or DEFAULT_TARGET, "none", "cpu", dtype or "auto")
    target = target and named(target)  # heads say for which model they were trained by its name
    from workbench.bench import claims as known

    if report and target is not None and target not in (*known.COLUMNS, *known.SCALES):
        with about("target"):
            raise WorkbenchError(f"The board has no column for {target}.", "Leave --report out.")
    quiet()
    chosen = known.claims() if everything else [c for name in method or () for c in known.of(name, key)]
    chosen = [c for c in chosen if timed in (None, c.timed)]
    measured, failed = [], []
    for claim in chosen:
        row = (_tried if len(chosen) > 1 else _measure)(claim, target, asked, report, as_json)
        measured += [row] if row else []
        failed += [] if row else [claim.name]
    if as_json:
        print(json.dumps(measured, ensure_ascii=False, indent=2))
    elif report:
        from workbench.bench.board import folder

        print(f"The board is in {folder()}.")
    if failed:
        raise WorkbenchError(f"Not measured: {', '.join(failed)}.", "The reasons are above.")


def _tried(
    claim: Claim, target: str | None, asked: dict[str, Any], report: bool, as_json: bool
) -> dict[str, Any] | None:
    """`_measure`; None where it ends in an error, which is said: the figures of other claims must not be lost by it."""
    try:
        return _measure(claim, target, asked, report, as_json)
    except WorkbenchError as error:
        print(f"{claim.name} was not measured: {error}", file=sys.stderr, flush=True)
        return None


def _measure(claim: Claim, target: str | None, asked: dict[str, Any], report: bool, as_json: bool) -> dict[str, Any]:
    """Measure one claim where it can be, say so, and give its row."""
    from workbench.bench import claims as known
    from workbench.bench import claimsboard
    from workbench.bench.labs import measure

    column = known.column_of(claim, target)
    start = time.perf_counter()
    lacking = claim.lacking(column)
    scale = dataclasses.replace(known.scale_of(claim.target(column)), **asked)
    if not lacking:
        say.note(f"{claim.name}: measuring {claim.quantity}")
    figure = None if lacking else measure(claim, scale)
    row = claimsboard.of(claim, figure, column)
    if report and figure:
        claimsboard.save(claim, figure, column)
    if not as_json:
        found = claimsboard.figure_words(row["measured"]) if figure else claim.lacks or lacking
        paper = claimsboard.paper_figure(claim.low, claim.high, claim.neutral)
        seconds = time.perf_counter() - start
        words = f"{claim.quantity}: paper {paper}, {row['target']} {found}: {row['verdict']} [{seconds:.0f} s]"
        print(f"{claim.name}: {words}", flush=True)
    return claim.to_wire() | row


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
