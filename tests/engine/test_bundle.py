"""Names and configurations of bundled models, from their files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workbench.models import bundle
from workbench.models.bundle import bundled, config_of, is_bundled


def save(folder: Path, **config: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_bundled_models_are_the_folders_with_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_MODELS", str(tmp_path))
    folders = {name: save(tmp_path / name) for name in ("b", "a")}
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "c" / "config.json").mkdir(parents=True)
    assert list(bundled().items()) == sorted(folders.items())
    assert all(map(is_bundled, folders))
    names = ("", ".", "..", "empty", "file", "c", "d", "./a", "a/../b", str(tmp_path / "a"), "a\0")
    assert not any(map(is_bundled, names))
    monkeypatch.setenv("WORKBENCH_MODELS", str(tmp_path / "nowhere"))
    assert not bundled()


def test_a_configuration_is_parsed_again_only_if_its_file_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, parsed, loads = save(tmp_path / "model", size=1), [], json.loads
    monkeypatch.setattr(bundle.json, "loads", lambda text: parsed.append(text) or loads(text))
    first = config_of(folder)
    first["another"] = 1
    assert [config_of(folder), config_of(folder)] == [{"size": 1}] * 2
    assert len(parsed) == 1
    save(folder, size=23)
    assert config_of(folder) == {"size": 23}
    (folder / "config.json").unlink()
    assert config_of(folder) == {}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"workbench_head": 3}', "[" * 100_000, "\udc80"], ids=range(6))
def test_a_damaged_configuration_is_empty(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8", errors="surrogateescape")
    assert config_of(tmp_path) == {}
