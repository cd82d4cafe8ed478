"""Errors of what-ifs: computed from saved pairs of predicted and measured figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import model_helpers
import pytest

from workbench.bench import board, boardfiles, whatif_errors, whatif_suite
from workbench.bench.prompts import BenchPrompt, load_prompts
from workbench.cli import main
from workbench.engine import Engine, load_models
from workbench.trace import metrics, whatif


def row(*pairs: tuple[str, float, float]) -> dict[str, Any]:
    return {"target": "t", "pairs": [{"prompt": p, "of": "", "predicted": a, "measured": b} for p, a, b in pairs]}


def test_an_error_has_a_mean_over_prompts_and_the_median_of_single_errors() -> None:
    found = whatif_errors.error_of("lengths", row(("a", 1.1, 1.0), ("a", 1.1, 1.0), ("b", 1.1, 1.0), ("c", 2.2, 2.0)))
    assert found is not None
    assert (found.bias, found.low, found.high) == tuple(pytest.approx(1.1) for _ in range(3))
    assert (found.typical, found.prompts, found.pairs) == (pytest.approx(0.1), 3, 4)
    said = "Compared with 4 real runs on 3 prompts (t): predicted / measured 1.10 [1.10–1.10]; typical error ±10 %."
    assert found.sentence == said
    assert whatif_errors.error_of("lengths", row(("a", 1.0, 1.0))) is None, "one prompt gives no interval"


def test_every_prediction_of_counts_was_compared_with_real_runs_on_enough_prompts() -> None:
    """Predictions of speeds need an idle machine and may be missing."""
    rows = boardfiles.read(whatif_errors.BOARD)
    counted = [key for key in whatif_errors.PREDICTIONS if key not in whatif_errors.TIMED]
    found = {key: whatif_errors.error_of(key, rows[key]) for key in {*counted, *rows}}
    assert all(error is not None and error.prompts >= 20 for error in found.values()), found
    lengths = found["lengths"]
    assert lengths is not None
    assert 0.97 < lengths.low < lengths.high < 1.03, "the prediction of at most K tokens is unbiased"
    assert whatif_errors.errors() == {key: error.sentence for key, error in found.items() if error is not None}


@pytest.mark.slow
def test_the_saved_pairs_equal_those_that_the_command_measures() -> None:
    """One of them is measured again: counts of greedy runs are the same on every machine."""
    saved = boardfiles.read(whatif_errors.BOARD)["lengths"]
    models, prompt = load_models(saved["target"], saved["drafter"], "cpu"), load_prompts(None)[0]
    runs = whatif_suite.PromptRuns(Engine(models), prompt.encode(models.tokenizer), saved["tokens"])
    recorded, real = (runs.run("draft-model", depth=k, policy="fixed") for k in (whatif_suite.DEPTH, 2))
    pair = next(p for p in saved["pairs"] if p["prompt"] == prompt.name and p["of"] == "draft-model, K = 2")
    assert pair["predicted"] == pytest.approx(whatif.predict_draft_lengths(recorded).fixed[2].tau)
    assert pair["measured"] == pytest.approx(metrics.tau(real.rounds))


def test_the_suite_measures_and_the_command_line_prints_the_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORKBENCH_BOARDS", str(tmp_path / "boards"))
    models = model_helpers.make_models("llama", noise=0.15, heads=tmp_path / "heads", context=128)
    prompts = [BenchPrompt(name, text) for name, text in (("a", "abcabcabc"), ("b", "adadad"), ("c", "cdcdcd"))]
    counted, rows = (whatif_suite.measure(models, prompts, tokens=12, timed=timed) for timed in (False, True))
    assert {key in whatif_errors.TIMED for key in rows} == {True}
    stored = tmp_path / "whatif.jsonl"
    assert whatif_suite.measure(models, prompts, 12, timed=False, resume=stored) == counted
    reported: list[str] = []
    stored.write_text("".join(stored.read_text().splitlines(keepends=True)[1:]))
    again = whatif_suite.measure(models, prompts, 12, lambda *words: reported.append(words[2]), False, stored)
    assert (again, reported) == (counted, ["a"]), "only the missing prompt is measured"
    rows |= counted
    assert {key: len(row["pairs"]) > 0 for key, row in rows.items()} == dict.fromkeys(whatif_errors.PREDICTIONS, True)
    for key, saved in rows.items():
        board.save(whatif_errors.BOARD, key, saved, whatif_errors.markdown)
    assert main(["whatif", "draft-model", "autoregressive"]) == 0
    out = capsys.readouterr().out
    assert "τ: Compared with 24 real runs on 3 prompts (tiny-llama): predicted / measured" in out
    assert "with an acceptance rate per position: Compared with" in out
    assert "| τ with drafts of at most K tokens |" in (tmp_path / "boards" / "whatif.md").read_text(encoding="utf-8")
