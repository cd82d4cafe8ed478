"""`workbench lab`: the command that it starts, and its errors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workbench.cli import lab
from workbench.core.errors import UnknownNameError, WorkbenchError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("01_memory_bound", "02_rejection_sampling"):
        (tmp_path / f"{name}.ipynb").write_text("{}")
    return tmp_path


def test_its_paths_do_not_depend_on_the_current_folder(folder: Path) -> None:
    assert lab.NOTEBOOKS.is_absolute()
    there = os.path.relpath(folder)
    asked = lab.command(Path(there), "02", 8888, browser=False)
    assert f"--ServerApp.root_dir={folder.resolve()}" in asked
    assert "--LabApp.default_url=/lab/tree/02_rejection_sampling.ipynb" in asked
    assert "--no-browser" in asked
    assert "--no-browser" not in lab.command(folder, "", 8888, browser=True)
    assert any("NeverCheckForUpdate" in word for word in asked), "news and updates are disabled"


@pytest.mark.parametrize("name", ["02_rejection_sampling", "02_rejection_sampling.ipynb", "02_rejection_sampling.py"])
def test_a_notebook_has_several_names(folder: Path, name: str) -> None:
    assert "--LabApp.default_url=/lab/tree/02_rejection_sampling.ipynb" in lab.command(folder, name, 1, browser=True)


def test_a_missing_notebook_or_jupyterlab_is_reported(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnknownNameError, match="02_rejection_sampling"):
        lab.command(folder, "07", 1, browser=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(WorkbenchError, match="no notebooks"):
        lab.command(tmp_path / "empty", "", 1, browser=True)
    monkeypatch.setattr(lab, "find_spec", lambda name: None)
    with pytest.raises(WorkbenchError, match=r"pip install .*\[notebooks\]"):
        lab.lab(folder=folder)


def test_the_classes_that_disable_updates_and_news_exist() -> None:
    """JupyterLab drops all of its settings, with a warning only, when it cannot find a class named in one."""
    import_item = pytest.importorskip("traitlets.utils.importstring").import_item
    pytest.importorskip("jupyterlab")
    (asked,) = (word.partition("=")[2] for word in lab.QUIET if "_class=" in word)
    assert import_item(asked)
