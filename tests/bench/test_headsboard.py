"""The heads board: every kind with a row is measured in turn, and the page follows from saved runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import model_helpers
import pytest

from workbench.bench import headsboard
from workbench.bench.contenders import EngineContender
from workbench.bench.sample import Sample
from workbench.methods import registry
from workbench.models.machine import machine_facts
from workbench.training.family.heads import ChatHeadOptions

PROMPTS = {"a": [1, 2, 3], "b": [4, 5]}


def test_all_heads_are_measured_in_turn_and_figures_follow_from_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = model_helpers.make_small_models(6, noise=None, heads=tmp_path / "heads")
    trained = {"steps": 600, "tokens": 700_000, "options": {"rows": "32"}, "curve": []}
    (models.heads["hydra-plus-plus"].folder / "training.json").write_text(json.dumps(trained))
    (models.heads["eagle"].folder / "training.json").write_text(json.dumps(trained | {"options": {}}))
    ran: list[tuple[str, int]] = []

    def write(self: EngineContender, ids: Any, prompt: int = 0, repeat: int = 0) -> Sample:
        ran.append((self.name, prompt))
        n, fast = self.max_new_tokens, self.name == "hydra-plus-plus"
        seconds = (0.5 if fast else 1.0) * (1 + prompt)
        drafted = {"draft_s": 0.012, "drafted": 6.0}
        return Sample(self.name, prompt, repeat, [5] * n, seconds, seconds, n // 2 if fast else n, drafted,
                      depths=[(1, 4, 3), (2, 3, prompt)])  # fmt: skip

    monkeypatch.setattr(EngineContender, "run", write)
    row = headsboard.measure(models, PROMPTS, 8)
    assert row is not None
    kinds = {kind for kind, head in registry.heads().items() if head.recipe == "chat-heads"}
    assert set(row["heads"]) == kinds == {name for name, _ in ran} - {"autoregressive"}
    assert len(ran) == 3 * (len(kinds) + 1), "a warm-up each, then every prompt"
    assert {prompt for _, prompt in ran[len(kinds) + 1 : 2 * len(kinds) + 2]} == {0}, (
        "all heads run on a prompt before the next prompt"
    )
    first, *others = headsboard.figures(row)
    assert (first["kind"], first["steps"], first["trained_on"]) == ("hydra-plus-plus", 600, 700_000)
    assert first["answers"] == 600 * 32
    net = registry.heads()["hydra-plus-plus"].net.of(models.heads["hydra-plus-plus"].config)
    assert first["parameters"] == sum(p.numel() for p in net.parameters())
    assert first["speedup"]["value"] == pytest.approx(2)
    assert first["tau"]["value"] == pytest.approx(2)
    assert first["ms"] == pytest.approx(2)
    assert first["places"] == [pytest.approx(6 / 8), pytest.approx(1 / 6)]
    assert all(other["speedup"]["value"] == pytest.approx(1) for other in others)
    read = {other["kind"]: (other["steps"], other["answers"]) for other in others}
    default = registry.heads()["eagle"].recipe, ChatHeadOptions.rows
    assert default == ("chat-heads", 16)
    assert read.pop("eagle") == (600, 600 * 16), "the recipe's default, because the options do not set it"
    assert set(read.values()) == {(None, None)}
    more = {"commit": "abc", "machine": machine_facts() | {"instructions": "ABC-9"}, "per_group": 4}
    text = headsboard.markdown({"tiny": row | more})
    assert "`workbench heads table --report --target tiny-llama --per-group 4`" in text
    assert "cores, ABC-9; torch" in text
    assert "| `hydra-plus-plus` | `hydra-plus-plus` nodes=16 |" in text
    assert "| 19,200 | 700,000 in 600 steps | 2.00 | 75% · 17% | 2.00" in text


def test_a_stop_saves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = model_helpers.make_small_models(6, noise=None, heads=tmp_path / "heads")

    def stop(*_: Any, **__: Any) -> Sample:
        raise KeyboardInterrupt

    monkeypatch.setattr(EngineContender, "run", stop)
    assert headsboard.measure(models, PROMPTS, 8) is None
