"""The vision suite: questions about held-out scenes, rows that agree with the traces, complete tables."""

from __future__ import annotations

import dataclasses
import json

import model_helpers
import pytest
from vision_model_helpers import tiny_vision_models

from workbench.bench import board, claims, vision_suite
from workbench.bench.claims import compute_verdict
from workbench.bench.vision_suite import CAPTION, SHORT
from workbench.decoders.declarations import Setting
from workbench.engine import Models
from workbench.methods import registry
from workbench.scenes.held import held_scenes
from workbench.scenes.tasks import QUESTIONS
from workbench.views import vision_figure


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    found = tiny_vision_models(12)
    found.heads = model_helpers.write_random_heads(tmp_path_factory.mktemp("features"), found)
    return found


@pytest.mark.slow
def test_questions_are_about_held_out_scenes_and_the_same_each_time() -> None:
    asked = vision_suite.questions(6, 2)
    assert {one.kind for one in asked} == set(QUESTIONS)
    assert sum(one.kind == "caption" for one in asked) == 6
    assert all(sum(one.kind == kind for one in asked) == 2 for kind in QUESTIONS if kind != "caption")
    assert all(scene.held_out for scene in held_scenes(6))
    again = vision_suite.questions(6, 2)
    assert [(a.kind, a.question, a.image.tobytes()) for a in asked] == [
        (a.kind, a.question, a.image.tobytes()) for a in again
    ]


@pytest.mark.slow
def test_a_row_agrees_with_its_runs(models: Models) -> None:
    asked = [one for one in vision_suite.questions(2, 1) if one.kind in ("caption", "count")]
    plain = vision_suite.plain_texts(models, asked)
    rows = {}
    pruned_by_four = Setting("SpecVLM, prune 4×", {"compressor": "prune"}, line="prune", method="specvlm")
    for setting in (Setting("SpecVLM, all", {"compressor": "all"}, method="specvlm"), pruned_by_four):
        row = vision_suite.measure(setting, models, asked, plain)
        assert row is not None
        rows[setting.name] = row
    whole, pruned = rows.values()
    assert (whole["vision_tokens"]["value"], pruned["vision_tokens"]["value"], whole["of"]) == (4.0, 1.0, 4)
    assert whole["same_text"] == [3, 3]
    assert whole["groups"]["all"]["tau"]["n"] == 3
    assert whole["groups"][CAPTION]["tau"]["n"] == 2
    assert whole["groups"][SHORT]["tau"]["n"] == 1
    assert all(1 <= row["groups"][CAPTION]["tau"]["value"] <= vision_suite.DEPTH + 1 for row in rows.values())
    text = vision_suite.markdown(rows)
    assert text.index("| SpecVLM, all |") < text.index("| SpecVLM, prune 4× |")  # most tokens first
    shown = vision_figure.figure(rows, CAPTION)
    assert {line.name for line in shown.data} == {"SpecVLM, all", "prune"}
    json.dumps(rows)


def test_a_setting_whose_needs_are_missing_gives_no_row(models: Models) -> None:
    asked = vision_suite.questions(1, 0)
    assert (
        vision_suite.measure(Setting("chain", {}, "no-such-drafter", method="vlm-draft"), models, asked, [[]]) is None
    )
    headless = dataclasses.replace(models, heads={})
    assert vision_suite.measure(Setting("FLASH", method="flash"), headless, asked, [[]]) is None


def test_every_setting_is_valid_for_its_method() -> None:
    names = [s.name for s in vision_suite.settings()]
    assert len(names) == len(set(names))
    for setting in vision_suite.settings():
        registry.get(setting.method).with_params(depth=vision_suite.DEPTH, **setting.params)
    assert {s.method for s in vision_suite.settings()} == {
        m.name for m in registry.methods() if "pictures" in m.needs or m.name in model_helpers.image_head_kinds()
    }
    of_pictures = [claim for claim in claims.claims() if claim.home == vision_suite.TARGET]
    assert {claim.method for claim in of_pictures} == {s.method for s in vision_suite.settings()}
    for claim in of_pictures:
        assert compute_verdict(claim, None) == ("by construction" if claim.by_construction else "not measured yet")


def test_the_committed_board_and_its_markdown_agree() -> None:
    rows = board.read(vision_suite.BOARD)
    assert rows, "run: workbench bench --suite vision"
    assert (board.folder() / "vision.md").read_text(encoding="utf-8") == vision_suite.markdown(rows)
    assert all(row["same_text"][0] == row["same_text"][1] for row in rows.values())
