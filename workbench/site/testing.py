"""Pytest plugin for notebooks that nbmake collects: run a copy of each notebook, and save its outputs for the site.

The checker of every exercise is tested with the answers in `tests/notebooks/answers`. This happens in the notebook's
kernel, after the solution of the exercise, and does not change the copy.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

ANSWERS = Path("tests") / "notebooks" / "answers"
MIN_RIGHT, MIN_WRONG = 2, 3
"""Minimum numbers of right and of wrong answers with which the checker of each exercise is tested."""

TRIAL = f"""
def _try_checker(check, source):
    counts = {{"right": 0, "wrong": 0}}

    def answer(expected, *answers):
        counts["right" if expected else "wrong"] += 1
        verdict = check(*answers)
        assert verdict.right is expected, f"{{check.__name__}}: {{answers}} should be {{expected}}, but: {{verdict}}"

    names = dict(globals())
    exec(source, names)
    names["try_" + check.__name__](lambda *a: answer(True, *a), lambda *a: answer(False, *a))
    assert counts["right"] >= {MIN_RIGHT} and counts["wrong"] >= {MIN_WRONG}, f"{{check.__name__}}: too few: {{counts}}"
"""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each notebook as a slow test that waits for another process (its kernel)."""
    for item in items:
        if getattr(item, "nbmake", False):
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.processes)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Execute a copy of the notebook in dist/notebooks instead of the original, so that the copy has the outputs."""
    if not getattr(item, "nbmake", False):
        return (yield)
    from workbench.site import execution  # slow to import, and most tests do not need it

    answers = item.config.rootpath / ANSWERS / f"{item.path.stem}.py"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in execution.environment().items():
            patch.setenv(name, value)
        patch.setattr(item, "filename", str(execution.copy_to_execute(item.path)))
        patch.setattr(item.config.option, "overwrite", True)
        patch.setattr("nbmake.nb_run.NotebookClient", partial(client_with_trials, answers))
        return (yield)


def client_with_trials(answers: Path, notebook: Any, **options: Any) -> Any:
    """Return a client that executes a notebook and tests the checkers of its exercises.

    Args:
        answers: file with Python source that has a function `try_CHECKER(right, wrong)` for each checker. The function
            calls `right` and `wrong` with answers and may use the notebook's names. If the file does not exist, no
            checker is tested.
        notebook: the notebook to execute.
        options: traits of `nbclient.NotebookClient`.
    """
    from workbench.site import execution

    client: Any = execution.client(notebook, **options)
    if not answers.is_file():
        return client
    source, execute_cell = answers.read_text(encoding="utf-8"), client.async_execute_cell

    async def execute_and_try(cell: Any, cell_index: int, **more: Any) -> Any:
        executed_cell = await execute_cell(cell, cell_index, **more)
        if "solution" in cell.metadata.get("tags", []) and (check := checker_before(notebook, cell_index)):
            code = f"{TRIAL}\n_try_checker({check}, {source!r})\ndel _try_checker"
            reply = await client.kc.execute_interactive(code, store_history=False, output_hook=lambda message: None)
            if reply["content"]["status"] != "ok":
                raise AssertionError(f"{reply['content']['ename']}: {reply['content']['evalue']}")
        return executed_cell

    client.async_execute_cell = execute_and_try
    return client


def checker_before(notebook: Any, index: int) -> str | None:
    """Return the name of the exercise's checker in the cell before a solution; None if that cell has no checker."""
    earlier_cells = [cell for cell in notebook.cells[:index] if cell.cell_type == "code"]
    if not earlier_cells or "check" not in earlier_cells[-1].metadata.get("tags", []):
        return None
    match = re.search(r"^@w\.check\ndef (\w+)", earlier_cells[-1].source, re.MULTILINE)
    return match[1] if match else None
