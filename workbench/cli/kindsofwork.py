"""`workbench recommend --kinds`: every training-free method on each kind of work, for the board that tells which."""

from __future__ import annotations

import json
from collections.abc import Sequence

import typer

from workbench.cli import checks
from workbench.cli.bench import progress_bar
from workbench.cli.loading import load
from workbench.service.checks import check_models


def measure(
    target: str,
    device: str,
    dtype: str,
    methods: Sequence[str],
    per_kind: int,
    max_new_tokens: int | None,
    report: bool,
    fresh: bool,
    as_json: bool,
) -> None:
    """Measure kind by kind and print the table; a run that was stopped ends with 130.

    Args:
        target: name of the target.
        device: of the target.
        dtype: of the target.
        methods: names; empty: all that draft with nothing but the target.
        per_kind: prompts of each kind.
        max_new_tokens: length limit of every run; None: the board's.
        report: save each kind on the board as soon as it is measured, and take those that it has at this commit.
        fresh: take none.
        as_json: print JSON.
    """
    pair = check_models(target, "none", device, dtype)
    for name in methods:
        checks.method(name, {}, pair)
    from workbench.bench import board, workboard
    from workbench.bench.datasets import first_of_each_group, load_suite
    from workbench.bench.kinds import KINDS, WORK
    from workbench.bench.recommend import candidates

    prompts = first_of_each_group(load_suite(WORK), per_kind)
    suite = {kind: [p for p in prompts if p.group == kind] for kind in KINDS}
    tokens = max_new_tokens or workboard.TOKENS
    models = load(target, "none", device, dtype)
    chosen = candidates(models, methods or workboard.training_free())
    done = {}
    if report and not fresh:
        stored = str(models.target.stored).removeprefix("torch.")
        names = {kind: [p.name for p in each] for kind, each in suite.items()}
        done = workboard.still_holds(
            board.read(workboard.BOARD), models.target_name, stored, [c.name for c in chosen], names, tokens
        )
        if done:
            typer.echo(f"On the board already (--fresh measures them anew): {', '.join(done)}.", err=True)
    saved = workboard.save if report else lambda key, row: None
    with progress_bar() as bar:
        told = bar or (lambda *_: None)
        found, complete = workboard.measure(models, chosen, suite, tokens, done, saved, told)
    made = workboard.targets(found)
    print(json.dumps(made, ensure_ascii=False) if as_json else workboard.markdown(made))
    if not complete:
        raise typer.Exit(130)
