"""`workbench recommend --kinds`: measure every training-free method on each workload, for the board of workloads."""

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
    """Measure the methods on one workload after another, and print a table.

    The exit status is 130 if the measurement was stopped.

    Args:
        target: name of the target.
        device: device of the target.
        dtype: number format of the target.
        methods: names of methods; empty: all methods that need no model besides the target.
        per_kind: number of prompts per workload.
        max_new_tokens: length limit of every run, in tokens; None: the board's usual limit.
        report: whether to save each workload's results on the board as soon as they are measured, and to reuse results
            of the current commit on the board.
        fresh: whether to measure all workloads again.
        as_json: whether to print JSON.
    """
    pair = check_models(target, "none", device, dtype)
    for name in methods:
        checks.resolve_method(name, {}, pair)
    from workbench.bench import board, workload_board
    from workbench.bench.datasets import first_of_each_group, load_suite
    from workbench.bench.recommend import candidates
    from workbench.bench.workloads import KINDS, WORK

    prompts = first_of_each_group(load_suite(WORK), per_kind)
    suite = {kind: [p for p in prompts if p.group == kind] for kind in KINDS}
    tokens = max_new_tokens or workload_board.TOKENS
    models = load(target, "none", device, dtype)
    chosen = candidates(models, methods or workload_board.training_free())
    board_rows = {}
    if report and not fresh:
        dtype_name = str(models.target.weight_dtype).removeprefix("torch.")
        names = {kind: [p.name for p in group] for kind, group in suite.items()}
        board_rows = workload_board.reusable_rows(
            board.read(workload_board.BOARD), models.target_name, dtype_name, [c.name for c in chosen], names, tokens
        )
        if board_rows:
            typer.echo(
                f"Workloads already on the board (--fresh measures these workloads again): {', '.join(board_rows)}.",
                err=True,
            )
    save_row = workload_board.save if report else lambda key, row: None
    with progress_bar() as bar:
        progress = bar or (lambda *_: None)
        rows, complete = workload_board.measure(models, chosen, suite, tokens, board_rows, save_row, progress)
    results = workload_board.targets(rows)
    print(json.dumps(results, ensure_ascii=False) if as_json else workload_board.markdown(results))
    if not complete:
        raise typer.Exit(130)
