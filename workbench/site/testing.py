"""A plugin of pytest for the notebooks, which nbmake collects: each runs as a copy whose outputs stay for the site."""

from __future__ import annotations

from collections.abc import Generator

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A notebook is a slow test that waits for a process of its own, the kernel."""
    for item in items:
        if getattr(item, "nbmake", False):
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.processes)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run the copy in dist/notebooks instead of the notebook, and keep the outputs there."""
    if not getattr(item, "nbmake", False):
        return (yield)
    from workbench.site import execution  # imports slowly, and most tests are none of its business

    with pytest.MonkeyPatch.context() as patch:
        for name, value in execution.environment().items():
            patch.setenv(name, value)
        patch.setattr(item, "filename", str(execution.copy_to_execute(item.path)))
        patch.setattr(item.config.option, "overwrite", True)
        patch.setattr("nbmake.nb_run.NotebookClient", execution.client)
        return (yield)
