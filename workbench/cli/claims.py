"""`workbench claims`: compare the papers' claims with measurements on this machine."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench.cli import complete, output
from workbench.cli.loading import silence_transformers
from workbench.cli.options import DEFAULT_TARGET, Debug, Json
from workbench.core.errors import UnknownNameError, WorkbenchError
from workbench.methods.method_info import get as get_method
from workbench.models.local_models import short_name
from workbench.service.checks import check_models, set_error_option

if TYPE_CHECKING:
    from workbench.decoders.declarations import Claim

FILE = Path(__file__).resolve().parents[1] / "bench" / "claims.json"
"""File with the keys of all paper claims by method, so that an unknown key is refused without importing PyTorch.

`workbench docs` writes this file.
"""


def claims(
    method: Annotated[
        list[str] | None, typer.Option(help="Measure the papers' claims about this method; repeatable.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="With --method: measure only the claim with this key.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Measure the papers' claims about all methods.")] = False,
    timed: Annotated[
        bool | None,
        typer.Option(
            "--timed/--untimed",
            help="Measure only claims about time (on an otherwise idle machine), or only the other claims.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Target for claims about text, measured with its own draft model and heads: a name from "
            "`workbench models`, a folder or a Hub id. By default the bundled models.",
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
        int | None, typer.Option(min=0, help="Use only the first N prompts of each group; 0: all.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=8, help="Length limit of every generation, in tokens.")
    ] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Number of timed runs per prompt.")] = None,
    draws: Annotated[int | None, typer.Option(min=1, help="Number of sampled runs per prompt.")] = None,
    report: Annotated[bool, typer.Option(help="Save the measurements on the claims board.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the board of the papers' claims; with --method or --all, measure claims and print a line for each.

    The verdict compares the measured value with the paper's. It is "reproduced in direction" if the whole 95 %
    confidence interval lies on the paper's side of "no change", "reproduced in size" if the value also lies within a
    quarter of the paper's range, "contradicted" if the interval lies on the other side, else "inconclusive".

    Example: workbench claims --method token-recycling
    """
    if key is not None and (everything or not method):
        with set_error_option("key"):
            raise WorkbenchError("A key selects one claim of one method.", "Name the method with --method.")
    scale_options = {
        "dtype": dtype,
        "per_group": per_group,
        "tokens": max_new_tokens,
        "repeats": repeats,
        "draws": draws,
    }
    scale_options = {name: value for name, value in scale_options.items() if value is not None}
    if not method and not everything:
        if target or scale_options or report:
            raise WorkbenchError("No claim was selected for measurement.", "Name methods with --method, or give --all.")
        from workbench.bench import claimsboard

        rows = claimsboard.rows()
        print(json.dumps(rows, ensure_ascii=False, indent=2) if as_json else claimsboard.markdown(rows))
        return
    for name in method or ():
        with set_error_option("method"):
            get_method(name)
        if key is not None:
            _check_key(name, key)
    check_models(target or DEFAULT_TARGET, "none", "cpu", dtype or "auto")
    target = target and short_name(target)  # heads record the name of the model that they were trained for
    from workbench.bench import claims as known

    if report and target is not None and target not in (*known.COLUMNS, *known.SCALES):
        with set_error_option("target"):
            raise WorkbenchError(f"The claims board has no column for {target}.", "Leave --report out.")
    silence_transformers()
    chosen = known.claims() if everything else [c for name in method or () for c in known.claims_of(name, key)]
    chosen = [c for c in chosen if timed in (None, c.timed)]
    from workbench.bench import claimsboard
    from workbench.bench.study import BEGIN, END, FAIL

    study, measured, start = claimsboard.measure_claims(chosen, target, scale_options, report), [], 0.0
    for kind, claim, payload in study.run():
        column = known.column_of(claim, target)
        if kind == BEGIN:
            start = time.perf_counter()
            if not claim.missing_requirement(column):
                output.note(f"{claim.name}: measuring {claim.quantity}")
        elif kind == FAIL:
            print(f"{claim.name} was not measured: {payload}", file=sys.stderr, flush=True)
        elif kind == END:
            row = claimsboard.claim_entry(claim, payload, column)
            measured.append(claim.to_wire() | row)
            if not as_json:
                print(_line(claim, row, time.perf_counter() - start), flush=True)
    if as_json:
        print(json.dumps(measured, ensure_ascii=False, indent=2))
    elif report:
        from workbench.bench.board import folder

        print(f"Saved the board in {folder()}.")
    if study.failures:
        raise WorkbenchError(f"Not measured: {', '.join(map(str, study.failures))}.", "Each reason was printed above.")


def _line(claim: Claim, row: dict[str, Any], seconds: float) -> str:
    """Return a line of text with a paper's claim, the measured value and the verdict."""
    from workbench.bench import claimsboard

    figure = claimsboard.format_figure(row["measured"]) if row["measured"] else claim.lacks or row["lacking"]
    paper = claimsboard.format_paper_figure(claim.low, claim.high, claim.neutral)
    words = f"{claim.quantity}: paper {paper}, {row['target']} {figure}: {row['verdict']} [{seconds:.0f} s]"
    return f"{claim.name}: {words}"


def text() -> str:
    """Return the current text of the file with the keys of all paper claims, as JSON by method."""
    from workbench.bench import claims as known

    keys_by_method: dict[str, list[str]] = {}
    for claim in known.claims():
        keys_by_method.setdefault(claim.method, []).append(claim.key)
    return json.dumps(keys_by_method, indent=1) + "\n"


def _check_key(method: str, key: str) -> None:
    """Refuse a key if the method has no claim with this key.

    If the method is missing in the file of keys, the check is made later.
    """
    keys_by_method = json.loads(FILE.read_text(encoding="utf-8"))
    if "workbench.bench.claims" in sys.modules or key in keys_by_method.get(method, [key]):
        return
    with set_error_option("key"):
        raise UnknownNameError.of(f"claim of {method}", key, keys_by_method[method])
