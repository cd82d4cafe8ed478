"""`workbench bench --suite whatif`: compare every prediction of `workbench whatif` with the run that it predicts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.cli import output

if TYPE_CHECKING:
    from workbench.bench.prompts import BenchPrompt
    from workbench.engine import Models


def measure(
    load: Callable[[], Models],
    prompts: Sequence[BenchPrompt],
    tokens: int,
    timed: bool | None,
    as_json: bool,
    resume: Path | None,
) -> None:
    """Measure the errors of the predictions by `workbench whatif`, save them to a board, and print it.

    Args:
        load: function that loads the models.
        prompts: prompts of the runs.
        tokens: length limit of every run, in tokens.
        timed: True: measure only predictions of speed; False: only predictions of token counts; None: all.
        as_json: whether to print JSON.
        resume: file with the predictions that an interrupted measurement has saved, from which it continues.
    """
    from workbench.bench import board, boardfiles, whatif_errors, whatif_suite
    from workbench.cli.bench import progress_bar

    with progress_bar() as bar:
        rows = whatif_suite.measure(load(), prompts, tokens, bar or (lambda *_: None), timed, resume)
    for key, row in rows.items():
        board.save(whatif_errors.BOARD, key, row, whatif_errors.markdown)
    output.note(f"saved in {board.folder() / whatif_errors.BOARD}.json")
    print(
        json.dumps(rows, ensure_ascii=False)
        if as_json
        else whatif_errors.markdown(boardfiles.read(whatif_errors.BOARD))
    )
