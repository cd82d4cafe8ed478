"""A VocabTrim study: trimmed drafters propose only kept tokens, the text stays the same, the board has the results."""

from __future__ import annotations

import dataclasses
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from answer_readings import quiet, write_readings

from workbench.bench.trimmingboard import claims, page
from workbench.core.errors import ParameterError
from workbench.kernels.reduced_vocabulary import KEY
from workbench.models.bundle import bundled
from workbench.models.loading import HeadInfo
from workbench.models.machine import machine_facts
from workbench.training import recipes
from workbench.training.family import trimming as study
from workbench.training.family.readings import Readings
from workbench.training.family.trimming import TrimmingOptions, run_trimming_study
from workbench.training.family.validation_drafts import decode_greedily
from workbench.training.family.vocabulary import count_tokens, most_frequent_tokens

needs_models = pytest.mark.skipif("text-target" not in bundled(), reason="needs the bundled models")


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> TrimmingOptions:
    """Return readings of the target's and the data set's answers, and a study of two sizes."""
    out = tmp_path_factory.mktemp("trimming")
    made = write_readings(out)
    return TrimmingOptions(
        readings=made.out, answers=made.answers, out=out / "study", sizes=(16, 512), each=1, max_new_tokens=16,
        repeats=2, threads=1,
    )  # fmt: skip


@pytest.fixture(scope="module")
def lanes(options: TrimmingOptions) -> list[study.Lane]:
    """Return the lanes of a study run through `recipes`, as by the command."""
    found = list[study.Lane]()
    make = study._lane

    def noted(*asked: Any) -> study.Lane:
        found.append(make(*asked))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "_lane", noted)
        assert recipes.RECIPES["trimming"].run(options, quiet)["cells"] == 10
    return found


@needs_models
def test_a_trimmed_drafter_proposes_only_kept_tokens_and_the_text_is_unchanged(lanes: list[study.Lane]) -> None:
    """For both kinds, every drafted token is in the kept vocabulary, and all lanes write the same text per prompt."""
    texts = [[[one.token for r in rounds for one in r.emitted] for rounds in lane.rounds] for lane in lanes]
    assert all(text == texts[0] for text in texts)
    for lane in lanes:
        drafted = {token for rounds in lane.rounds for r in rounds for token in r.nodes.tokens}
        assert len(drafted) > 5
        assert drafted <= set(lane.draft_vocabulary)


@needs_models
def test_the_kept_tokens_are_the_most_frequent_ones_of_each_kind_of_text(
    options: TrimmingOptions, lanes: list[study.Lane]
) -> None:
    readings = Readings(options.readings)
    train = readings.split_indices(held_out=False)
    given = [row for row in train if readings.rows[row, 4] == -1]
    own = [row for row in train if readings.rows[row, 4] != -1]
    assert own
    assert given
    eos = lanes[0].models.eos
    wanted = {"target": most_frequent_tokens(count_tokens(readings, own), 16, eos),
              "given": most_frequent_tokens(count_tokens(readings, given), 16, eos)}  # fmt: skip
    assert wanted["target"] != wanted["given"]
    for lane in lanes:
        if len(lane.draft_vocabulary) == 16:
            assert lane.draft_vocabulary == wanted[lane.count_source]
            assert eos <= set(lane.draft_vocabulary), "a drafter can end the text"


def synthetic_report() -> dict[str, Any]:
    """Return a report in which 512 tokens accept as much and are twice as fast, and 16 tokens accept half."""
    plain = {"emitted": [20] * 6, "rounds": [20] * 6, "rates": [[10.0, 11.0]] * 6}

    def cell(counted: str, kept: int, rounds: int, rate: float) -> dict[str, Any]:
        return {
            "kind": "eagle", "counted": counted, "kept": kept, "accepted": [20 - rounds] * 6, "tested": [20] * 6,
            "emitted": [20] * 6, "rounds": [rounds] * 6, "drafted": [40] * 6, "draft_s": [0.02] * 6,
            "outside": [int(kept == 16)] * 6, "rates": [[rate + i / 10, rate + 1] for i in range(6)],
        }  # fmt: skip

    cells = [
        cell("", 4096, 10, 20),
        cell("target", 512, 10, 40),
        cell("target", 16, 20, 15),
        cell("given", 512, 16, 30),
    ]
    return {"target": "t", "form": "chain", "prompts": 6, "max_new_tokens": 20, "counted": {"target": 5, "given": 4},
            "options": {"each": "1"}, "machine": machine_facts(), "plain": plain, "cells": cells}  # fmt: skip


def test_verdicts_follow_from_the_synthetic_report() -> None:
    found = {row["claim"]: row for row in claims(synthetic_report())}
    assert [row["verdict"] for row in found.values()] == ["holds", "holds", "holds"]
    assert "eagle: some size is faster than the whole vocabulary (the best of 2: 512)" in found
    assert next(row for claim, row in found.items() if "ratio of τ" in claim)["found"].startswith("1.60")
    worse = synthetic_report()
    for cell in worse["cells"][1:3]:
        cell["rates"] = [[10.0, 10.0]] * 6
    worse["cells"][1]["rounds"] = [12] * 6
    assert [row["verdict"] for row in claims(worse)][:2] == ["open", "does not hold"]


def test_the_board_has_a_table_for_each_kind_with_the_whole_vocabulary_first() -> None:
    text = page(synthetic_report())
    rows = [line for line in text.splitlines() if line.startswith(("| 4,096", "| 512"))]
    assert rows[0].startswith("| 4,096 | not trimmed | 0.0% | 0.50 [0.50–0.50] | – |")
    assert "2.0" in rows[1]
    assert "| 5.0% |" in text
    assert "--set each=1" in text
    assert "5 tokens of the target's answers and 4 tokens of the text's own answers" in text


@needs_models
def test_invalid_sizes_and_kinds_are_refused(options: TrimmingOptions, tmp_path: Path) -> None:
    for change, words in (({"sizes": (4096,)}, "not below the full"), ({"kinds": ("nobody",)}, "no 'nobody'"),
                          ({"form": "bush"}, "the form 'bush'"), ({"readings": tmp_path}, "no readings")):  # fmt: skip
        with pytest.raises(ParameterError, match=words):
            run_trimming_study(replace(options, out=tmp_path / "none", **change), quiet)
    assert not (tmp_path / "none").exists()


@needs_models
def test_a_head_with_a_reduced_vocabulary_is_first_measured_with_the_whole_one(
    options: TrimmingOptions, lanes: list[study.Lane], tmp_path: Path
) -> None:
    """Like the bundled heads of SmolLM2: they were trained on fewer tokens but can propose all."""
    whole = lanes[0].models
    info = whole.heads["eagle"]
    folder = Path(shutil.copytree(info.folder, tmp_path / "few"))
    few = dict(info.config) | {KEY: [0, 1, 2, 3]}
    (folder / "config.json").write_text(json.dumps(few))
    heads = dict(whole.heads) | {"eagle": HeadInfo("few", folder, few)}
    models = dataclasses.replace(whole, heads=heads, shared={})
    size = models.target.vocab_size
    for counted, kept in (("", list(range(size))), ("target", [5, 6, 7])):
        lane = study._lane(options, models, "eagle", counted, len(kept), kept, tmp_path)
        rounds = decode_greedily(lane.models, [3, 4, 5], lane.method, 12)
        drafted = {token for r in rounds for token in r.nodes.tokens}
        assert drafted
        assert drafted <= set(kept)
        assert drafted - {0, 1, 2, 3}


@needs_models
def test_the_report_counts_each_prompt_and_tokens_outside_the_vocabulary(
    options: TrimmingOptions, lanes: list[study.Lane]
) -> None:
    report = json.loads((options.out / "trimming.json").read_text())
    assert len(report["cells"]) == len(lanes) == 10
    for kind in ("drafter", "eagle"):
        whole = next(c for c in report["cells"] if c["kind"] == kind and not c["counted"])
        assert whole["outside"] == [0] * report["prompts"]
        small = next(c for c in report["cells"] if c["kind"] == kind and c["kept"] == 16 and c["counted"] == "target")
        assert sum(small["outside"]) > 0
        assert sum(small["emitted"]) / sum(small["rounds"]) < sum(whole["emitted"]) / sum(whole["rounds"])
        assert {len(rates) for rates in small["rates"]} == {2}
    assert report["covered"]["target"]["16"] < report["covered"]["target"]["512"] <= 1
    assert "**Results**" in page(report)
    assert page([report, synthetic_report()]).count("## For `") == 2, "a board can show several targets"
