"""SpecDec++'s acceptance head: labels, loss, training, and loading of the saved head."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import model_helpers
import pytest
import torch

from workbench.core.errors import ParameterError
from workbench.core.sampling import SamplingParams, to_probs
from workbench.engine import Models
from workbench.methods.policies.specdec_plus_plus import SpecDecPlusPlus
from workbench.models.bundle import bundled
from workbench.training import acceptance
from workbench.training.acceptance import (
    AcceptanceOptions,
    calibrated_probs,
    compute_logits_and_states,
    read_drafts,
    sample_drafts,
    weighted_loss,
)
from workbench.training.answers import is_held_out
from workbench.training.cards import TrainedModel

PROMPT, ANSWER = [3, 1, 4], [1, 5, 2, 0, 3, 3, 1, 4, 2, 5]


@pytest.fixture(scope="module")
def models() -> Models:
    return model_helpers.make_small_models(6)


def drafts(models: Models, heat: float, drawn: float, seed: int = 0) -> acceptance.Drafts:
    generator = torch.Generator().manual_seed(seed)
    return sample_drafts(models, PROMPT, ANSWER, heat, drawn, generator)


def test_a_label_is_the_acceptance_probability_of_a_sampled_draft(models: Models) -> None:
    """The mean label at each position is Σ min(p, q), computed by enumeration."""
    assert models.drafter is not None
    places = range(len(PROMPT) - 1, len(PROMPT) + len(ANSWER) - 1)
    p, q = (
        to_probs(compute_logits_and_states(runner, PROMPT + ANSWER)[0][list(places)], SamplingParams(temperature=0.8))
        for runner in (models.target, models.drafter)
    )
    wanted = torch.minimum(p, q).sum(1)
    found = torch.stack([drafts(models, 0.8, 1.0, seed).accept_probs for seed in range(400)])
    assert found.mean(0).tolist() == pytest.approx(wanted.tolist(), abs=0.08)  # five standard errors at most
    greedy = drafts(models, 0.0, 1.0)
    assert greedy.accept_probs.tolist() == (p.argmax(1) == q.argmax(1)).float().tolist()


def test_a_state_is_the_drafters_after_its_own_drafts(models: Models) -> None:
    """At temperature 0 the drafts are known, so the states follow from one forward pass over prompt and drafts."""
    assert models.drafter is not None
    best = compute_logits_and_states(models.drafter, PROMPT + ANSWER)[0][len(PROMPT) - 1 : -1].argmax(1).tolist()
    wanted = compute_logits_and_states(models.drafter, PROMPT + best)[1][len(PROMPT) :]
    assert torch.allclose(drafts(models, 0.0, 1.0).states, wanted)
    few = drafts(models, 0.0, 0.5)
    assert 0 < len(few.accept_probs) < len(ANSWER), "tokens that the draft model did not sample have no label"


def test_a_rejection_has_weight_six_and_the_weight_can_be_corrected_for() -> None:
    odds, kept = torch.tensor([0.3, -1.2]), torch.tensor([0.9, 0.25])
    s = odds.sigmoid()
    lost = sum(
        -(y * math.log(x) + 6 * (1 - y) * math.log(1 - x)) for x, y in zip(s.tolist(), kept.tolist(), strict=True)
    )
    assert float(weighted_loss(odds, kept, 6.0)) == pytest.approx(lost / sum(y + 6 * (1 - y) for y in kept.tolist()))
    best = torch.zeros(1, requires_grad=True)
    solver = torch.optim.LBFGS([best], max_iter=50)

    def closure() -> torch.Tensor:
        solver.zero_grad()
        loss = weighted_loss(best, torch.tensor([0.7]), 6.0)
        loss.backward()
        return loss

    solver.step(closure)  # type: ignore[arg-type]
    assert float(calibrated_probs(best.detach(), 6.0)) == pytest.approx(0.7, abs=1e-3)


def test_missing_or_unsuitable_answers_are_refused_with_a_remedy(models: Models, tmp_path: Path) -> None:
    options = AcceptanceOptions(answers=tmp_path)
    with pytest.raises(ParameterError, match="workbench train answers"):
        read_drafts(models, options, False, print)
    lines = [json.dumps({"target": "smollm2"})] + [
        json.dumps({"n": n, "prompt": PROMPT, "answer": ANSWER, "temperature": 0.0}) for n in range(2)
    ]
    (tmp_path / "answers.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(ParameterError, match="contains answers that smollm2 generated, not answers of text-target"):
        read_drafts(models, options, True, print)
    lines[0] = json.dumps({"target": options.target})
    (tmp_path / "answers.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert read_drafts(models, options, True, print).answers == 1, "every tenth prompt, from 0, is held out"
    assert read_drafts(models, options, False, print).answers == 1
    (tmp_path / "answers.jsonl").write_text("\n".join(lines[:2]) + "\n", encoding="utf-8")
    with pytest.raises(ParameterError, match="Generate more answers"):
        read_drafts(models, options, False, print)


def test_tokens_not_sampled_are_left_out_with_their_labels(models: Models) -> None:
    """At temperature 0 a label depends on the other sampled tokens only through the text before it."""
    whole, part = drafts(models, 0.0, 1.0), drafts(models, 0.0, 0.9)
    generator = torch.Generator().manual_seed(0)
    lengths = [len(sample_drafts(models, PROMPT, ANSWER, 0.0, 0.9, generator).accept_probs) for _ in range(60)]
    assert sum(lengths) / 60 == pytest.approx(0.9 * len(ANSWER), abs=0.06 * len(ANSWER))
    assert len(whole.accept_probs) == len(ANSWER) >= len(part.accept_probs)
    assert models.drafter is not None
    q = compute_logits_and_states(models.drafter, PROMPT + ANSWER)[0][len(PROMPT) - 1 : -1]
    p = compute_logits_and_states(models.target, PROMPT + ANSWER)[0][len(PROMPT) - 1 : -1]
    labels = (p.argmax(1) == q.argmax(1)).float()
    for seed in range(8):
        drawn = torch.rand(len(ANSWER), generator=torch.Generator().manual_seed(seed)) < 0.5
        assert drafts(models, 0.0, 0.5, seed).accept_probs.tolist() == labels[drawn].tolist(), (
            "each label belongs to its own draft"
        )


def test_accuracy_uses_the_probability_corrected_for_the_weight_of_rejections() -> None:
    """A logit of −1 learnt with weight 6 is a probability of 0.69: more likely accepted than rejected."""
    held = acceptance.Drafts(torch.zeros(4, 2), torch.tensor([1.0, 1.0, 1.0, 0.0]), 1)

    class Constant(torch.nn.Module):
        def forward(self, states: torch.Tensor) -> torch.Tensor:
            return torch.full((len(states),), -1.0)

    net: Any = Constant()
    assert acceptance.evaluate_head(net, held, 6.0)["accuracy"] == 0.75
    assert acceptance.evaluate_head(net, held, 1.0)["accuracy"] == 0.25


def test_prompts_held_out_of_all_training_are_held_out_here_too(models: Models, tmp_path: Path) -> None:
    options = AcceptanceOptions(answers=tmp_path)
    kept = next(n for n in range(1, 1000) if is_held_out(n) and n % 10)
    lines = [json.dumps({"target": options.target})] + [
        json.dumps({"n": n, "prompt": PROMPT, "answer": ANSWER, "temperature": 0.0}) for n in (1, 2, kept)
    ]
    (tmp_path / "answers.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert read_drafts(models, options, False, print).answers == 2
    assert read_drafts(models, options, True, print).answers == 1


def test_the_pareto_front_has_the_rows_that_no_other_beats_in_both_figures() -> None:
    figures = [(0.1, 0.6), (0.2, 0.5), (0.3, 0.5), (0.2, 0.7), (0.9, 0.3)]
    rows = [{"discarded": a, "passes": b} for a, b in figures]
    assert [acceptance._is_on_front(row, rows) for row in rows] == [True, True, False, False, True]


def test_the_sweep_runs_each_head_at_each_threshold_and_fixed_lengths(models: Models) -> None:
    """A threshold of 1 never stops drafting and so discards most; counts are per generated token."""
    assert models.drafter is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = acceptance.AcceptanceHead(models.drafter.hidden_size, 1)
    config = {"drafter": models.drafter_name, "hidden_size": models.target.hidden_size}
    rows = acceptance.sweep(models, {3.0: net}, [PROMPT, ANSWER], 12, config, print, (0.05, 1.0))
    assert [row.get("depth") or (row["weight"], row["risk"]) for row in rows] == [
        *acceptance.DEPTHS, (3.0, 0.05), (3.0, 1.0),
    ]  # fmt: skip
    assert all(0 < row["passes"] <= 1 for row in rows)
    assert rows[-1]["discarded"] == max(row["discarded"] for row in rows)
    assert any(row["front"] for row in rows)
    text = acceptance._sweep_text(rows, 2)
    assert "weight 3, h = 0.05" in text
    assert "fixed draft length of 4 tokens" in text


@pytest.mark.parametrize("name", [name for name in sorted(bundled()) if name.endswith("-acceptance")])
def test_the_card_of_a_bundled_head_has_the_figures_of_its_training(name: str) -> None:
    written = (bundled()[name] / "README.md").read_text(encoding="utf-8")
    assert written == f"# {name}\n\n{acceptance.card(TrainedModel.load(bundled()[name])).rstrip()}\n"


def test_the_bundled_head_has_a_setting_on_the_front_of_its_sweep() -> None:
    """The policy's default threshold with the weight of a rejection that the bundled head was trained with."""
    model = TrainedModel.load(bundled()["text-acceptance"])
    sweep = model.figures["sweep"]
    assert {row["weight"] for row in sweep if "weight" in row} == set(acceptance.REJECTION_WEIGHTS)
    own = model.config["rejection_weight"]
    assert [row["risk"] for row in sweep if row.get("weight") == own] == [*acceptance.RISKS]
    assert [row["front"] for row in sweep] == [acceptance._is_on_front(row, sweep) for row in sweep]
    used = (own, SpecDecPlusPlus().risk)
    assert used in [(row["weight"], row["risk"]) for row in sweep if row["front"] and "weight" in row]
