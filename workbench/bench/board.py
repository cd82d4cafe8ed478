"""Storage of boards (published tables of results), and the exactness board: each method's promise with its evidence.

A board is a JSON file and the Markdown generated from it, in `assets/boards`. A row is saved as soon as it is measured,
so that a stopped run loses no results. Each row has its date, commit and machine. The claims board, which compares
papers' claims with measurements, is in `claimsboard`.
"""

from __future__ import annotations

import datetime
import json
import re
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import FileLock

from workbench.bench.boardfiles import folder, read
from workbench.bench.finding import FAIL, MEASURED, PASS, SKIPPED, Finding
from workbench.bench.markdown import markdown_table as table
from workbench.core.promise import Promise
from workbench.decoders.method import ConfiguredMethod, Method
from workbench.methods import combinations
from workbench.models.machine import machine_facts
from workbench.trace.files import write_atomically

SHOWN, BROKEN, UNPROVEN, NO_PROMISE = "shown", "broken", "unproven", "no promise"
_ROOT = Path(__file__).resolve().parents[2]


def save(name: str, key: str, row: dict[str, Any], markdown: Any) -> None:
    """Save one row of a board, with date, commit and machine, and write the board's Markdown again.

    Args:
        name: name of the board.
        key: key of the row.
        row: content of the row, as plain JSON.
        markdown: function that returns the text of the whole board from its saved rows.
    """
    row |= {"date": _now(), "commit": commit(), "machine": machine_facts()}
    folder().mkdir(parents=True, exist_ok=True)
    with FileLock(folder() / f".{name}.lock"):  # rows that another process saves meanwhile are not lost
        rows = read(name) | {key: row}
        data = json.dumps({"board": name, "rows": rows}, ensure_ascii=False, indent=1)
        write_atomically(folder() / f"{name}.json", f"{data}\n".encode())
        write_atomically(folder() / f"{name}.md", markdown(rows).encode())


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def commit() -> str:
    """Return the short commit hash of the checkout, with "+" if the package's code was changed; empty outside git."""
    run = lambda *args: subprocess.run(  # noqa: E731
        ["git", "-C", str(_ROOT), *args], capture_output=True, text=True, check=True, timeout=10
    ).stdout.strip()
    try:
        return run("rev-parse", "--short", "HEAD") + ("+" if run("status", "--porcelain", "--", "workbench") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def commit_of(row: dict[str, Any]) -> str:
    """Return the commit of a board's saved row as text, with a note if this repository does not contain the commit.

    A few rows were measured before the repository's history begins, or on a branch that was rewritten.
    """
    revision = row.get("commit", "")
    return (
        f"{revision} (a commit that is not in this repository's history)"
        if row.get("history") == "earlier"
        else revision
    )


# -- Exactness ---------------------------------------------------------------------------------------------------------


def standing(promise: str, findings: Sequence[dict[str, Any]]) -> str:
    """Return whether a method's tests confirm its promise (exact, greedy-exact, …), as one of four standings.

    - broken: a test of the method failed; a method that never ran has failed its tests.
    - shown: every kind of test that the promise requires passed: greedy text, and for "exact" also the distribution.
    - no promise: the method is approximate or a simulation; the tests that apply to its greedy text passed, or it has
      no reference to compare with.
    - unproven: the evidence is incomplete.
    """
    if any(f["verdict"] == FAIL for f in findings):
        return BROKEN
    if promise not in (Promise.EXACT.value, Promise.GREEDY_EXACT.value):
        tested = any(f["verdict"] != SKIPPED or f["kind"] == "reference" for f in findings)
        return NO_PROMISE if tested else UNPROVEN
    passed = {f["kind"] for f in findings if f["verdict"] == PASS}
    required = {"greedy", "distribution"} if promise == Promise.EXACT.value else {"greedy"}
    return SHOWN if required <= passed else UNPROVEN


def save_exactness(method: Method, target: str, findings: Sequence[Finding]) -> None:
    """Save the results of a method's tests as the method's row of the exactness board (test results of all methods)."""
    row = {"promise": method.promise.value, "target": target, "findings": [asdict(f) for f in findings]}
    save("exactness", method.name, row, lambda rows: exactness_markdown(exactness_rows(registered_methods(), rows)))


def save_choice(configured: ConfiguredMethod, target: str, dtype: str, findings: Sequence[Finding]) -> None:
    """Save the test results of one setting of a method on one target as a row of the exactness board."""
    promise, key = configured.promise.value, choice_key(configured)
    row = {
        "promise": promise,
        "target": target,
        "dtype": dtype,
        "choice": key,
        "findings": [asdict(f) for f in findings],
    }
    save(
        "exactness",
        f"{key} on {target}",
        row,
        lambda rows: exactness_markdown(exactness_rows(registered_methods(), rows), choice_rows(rows)),
    )


def choice_key(configured: ConfiguredMethod) -> str:
    """Return a setting's key on the exactness board: method and non-default parameters.

    An example is "draft-model, verifier=k-seq".
    """
    return combinations.setting_name(configured)


def choice_rows(rows: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return the rows of the exactness board (saved tests) that test one setting of a method, in the order of saving.

    Args:
        rows: saved rows; by default those of the repository.
    """
    saved = (read("exactness") if rows is None else rows).values()
    return [
        {"choice": row["choice"], "dtype": row["dtype"], **_evidence(row, row["promise"])}
        for row in saved
        if "choice" in row
    ]


def choice_standings() -> dict[tuple[str, str], str]:
    """Return the standing ("shown", "broken", …) of each (setting of a method, promise) over the tests on all targets.

    A promise that is broken on one target counts as broken.
    """
    standings: dict[tuple[str, str], str] = {}
    for row in choice_rows():
        key = row["choice"], row["promise"]
        if standings.get(key) != BROKEN:
            standings[key] = row["standing"]
    return standings


def registered_methods() -> list[tuple[str, str, str]]:
    """Return (name, title, promise) of every registered method; promises are "exact", "greedy-exact" and others."""
    from workbench.methods import registry

    return [(m.name, m.title, m.promise.value) for m in registry.methods()]


def exactness_rows(
    methods: Iterable[tuple[str, str, str]] | None = None, rows: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return the exactness board's row (test results) for every method, in the order of the catalogue.

    The standing ("shown", "broken", …) of a method without evidence is "unproven".

    Args:
        methods: (name, title, promise); by default the registered ones.
        rows: saved rows; by default those of the repository.
    """
    saved = read("exactness") if rows is None else rows
    entries = []
    for name, title, promise in registered_methods() if methods is None else methods:
        row = saved.get(name, {})
        entry = _evidence(row, promise)
        command = f"workbench check --report --fresh {name}"
        entries.append({"method": name, "title": title, **entry, "command": command})
    return entries


def _evidence(row: dict[str, Any], promise: str) -> dict[str, Any]:
    """Return the test results in a saved row of the exactness board; tests of another promise do not count."""
    evidence = row.get("findings", []) if row.get("promise") == promise else []
    return {
        "promise": promise,
        "standing": standing(promise, evidence),
        "target": row.get("target", ""),
        "greedy": _greedy(evidence),
        "distributions": [_sampling_test(f) for f in evidence if f["kind"] == "distribution" and f["figures"]],
        "lacks": next((f["detail"] for f in evidence if f["kind"] in ("availability", "reference")), ""),
        "date": row.get("date", "") if evidence else "",
        "commit": commit_of(row) if evidence else "",
    }


def _greedy(findings: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return sums over a method's greedy tests: texts equal to the reference, compared texts, prompts, families."""
    texts = [f for f in findings if f["kind"] in ("greedy", "families")]
    if not texts:
        return None
    families = sum(len(f["figures"].get("families", [])) for f in texts)
    on_target = [f for f in texts if f["kind"] == "greedy"]
    return {
        "equal": sum(f["figures"]["equal"] for f in texts),
        "tried": sum(f["figures"]["tried"] for f in texts),
        "prompts": sum(f["figures"]["prompts"] for f in on_target),
        "families": families + len(on_target),
        "left_out": sum(f["figures"].get("settings_left_out", 0) for f in texts),
        "detail": "; ".join(f["detail"] for f in texts),
    }


def _sampling_test(finding: dict[str, Any]) -> dict[str, Any]:
    # "law" in rows of earlier versions
    name = re.sub(r"^sampling (?:distribution|law) \(", "", finding["claim"]).removesuffix(")")
    return {"name": name, "verdict": finding["verdict"], **finding["figures"]}


def exactness_markdown(rows: Sequence[dict[str, Any]], chosen: Sequence[dict[str, Any]] | None = None) -> str:
    """Return the exactness board as Markdown: a table of methods, and a table of settings.

    Args:
        rows: rows of the methods, as `exactness_rows` returns them.
        chosen: rows of the settings; None: all saved ones.
    """
    lines = [
        "# Exactness board",
        "",
        "Every registered method, its promise, and two kinds of evidence. Greedy text is compared with Hugging "
        "Face's own `generate`, token for token in float64: for the defaults and at both ends of every "
        "parameter, on the target named and on tiny random models of other families. Sampled tokens are "
        "compared with the target's exact joint distribution by Pearson's χ², with one test for each choice of "
        "a parameter and p-values corrected for the number of tests (Holm). A correct method fails this test "
        "once in 10,000. A method without evidence is *unproven*. "
        "Generated by `workbench check --report`.",
        "",
        table(COLUMNS, rows, left=WORDS),
        "",
        "## Choices",
        "",
        "Verifiers, tree builders and policies, each with one row per target; other parameters are at their "
        "defaults. For a target in float64, samples of tiny random models are compared with the enumerated "
        "distribution, in fewer runs than for a method. For another target, each token of a few sampled texts "
        "has a position in the target's cumulative distribution given the preceding tokens; these positions are "
        "uniform if the samples follow the distribution (n: tokens). For an approximate verifier the table "
        "gives its distance from the target's distribution: the total variation from the enumerated "
        "distribution, with the value expected by chance for this number of runs, or the deviation per token. "
        "Generated by `workbench check --choices --report`.",
        "",
        table(CHOICE_COLUMNS, choice_rows() if chosen is None else chosen, left=(*WORDS, "target")),
    ]
    return "\n".join(lines) + "\n"


COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "method": lambda r: f"`{r['method']}`",
    "promise": lambda r: r["promise"],
    "standing": lambda r: f"**{r['standing']}**",
    "greedy texts equal": lambda r: (
        f"{r['greedy']['equal']} / {r['greedy']['tried']}{_left_out(r['greedy']['left_out'])}" if r["greedy"] else "–"
    ),
    "prompts · families": lambda r: f"{r['greedy']['prompts']} · {r['greedy']['families']}" if r["greedy"] else "–",
    "sampling: χ² (degrees), p": lambda r: "<br>".join(map(describe_fit, r["distributions"])) or r["lacks"] or "–",
    "date, commit": lambda r: f"{r['date']}, {r['commit']}" if r["date"] else "–",
}


WORDS = ("promise", "standing", "sampling: χ² (degrees), p", "date, commit")
CHOICE_COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "choice": lambda r: f"`{r['choice']}`",
    "target": lambda r: f"{r['target']}, {r['dtype']}",
    **{title: COLUMNS[title] for title in ("promise", "standing", "greedy texts equal", *WORDS[2:])},
}


def _left_out(n: int) -> str:
    """Return a note that `n` settings of a method were not tested for lack of time; empty if `n` is 0."""
    return f" (the time limit left {n} settings untested)" if n else ""


def describe_fit(sampling_test: dict[str, Any]) -> str:
    """Return the result of a goodness-of-fit test as one line of text."""
    distance = (
        f", total variation {sampling_test['total_variation']:.3f}"
        if sampling_test["verdict"] == MEASURED and "total_variation" in sampling_test
        else ""
    )
    distance += (
        f" ({sampling_test['by_chance']:.3f} expected by chance)" if distance and "by_chance" in sampling_test else ""
    )
    tests = f", worst fit of {sampling_test['tests']} settings" if sampling_test.get("tests", 1) > 1 else ""
    tests += _left_out(sampling_test.get("settings_left_out", 0))
    return (
        f"{sampling_test['statistic']:.1f} ({sampling_test['freedom']}), p = {sampling_test['p_value']:.2g}{tests}, "
        f"n = {sampling_test['runs']}{distance}"
    )
