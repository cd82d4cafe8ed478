"""The judge's recipe: labels by swapping a token and letting the target finish, its bias, and its card."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import model_helpers
import pytest
import torch

from workbench.core.errors import ParameterError
from workbench.engine import Models
from workbench.models.bundle import bundled
from workbench.models.fingerprint import WEIGHTS
from workbench.training import judge, swaps
from workbench.training.acceptance import compute_logits_and_states
from workbench.training.cards import TrainedModel, write_card
from workbench.training.generators import Instance
from workbench.training.heads.artefact import load_net
from workbench.training.judge import (
    JudgeOptions,
    Tokens,
    balanced_loss,
    calibrate,
    evaluate_judge,
    fold_scaling,
    read_swaps,
    scores,
)
from workbench.training.recipe import finish
from workbench.training.swaps import Swap, final_answer, find_swaps, problems

LETTERS = "abcdef"


def letters(ids: list[int]) -> str:
    """Return tokens as text."""
    return "".join(LETTERS[i] for i in ids)


@pytest.fixture(scope="module")
def models() -> Models:
    return model_helpers.make_small_models(6)


def asked(prompt: str) -> Instance:
    return Instance("story", prompt, "", prompt)


def test_a_swap_is_wrong_if_the_target_then_reaches_another_final_answer(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand: the drafter's first differing token is inserted, the target finishes, final letters are compared."""
    monkeypatch.setattr(swaps, "final_answer", lambda instance, text: text[-1:] or None)
    monkeypatch.setattr(swaps, "is_text", lambda instance: False)
    monkeypatch.setattr(swaps, "_text", lambda models, ids: letters(ids))
    monkeypatch.setattr(swaps, "encode_message", lambda tokenizer, text: [LETTERS.index(letter) for letter in text])
    assert models.drafter is not None
    kinds: set[bool] = set()
    for prompt in ("dbe", "bcf", "eed", "fcb", "ddc"):
        (found,) = find_swaps(models, [asked(prompt)], 8, 4, lambda line: None)
        ids = [LETTERS.index(letter) for letter in prompt]

        def finish(text: list[int], ids: list[int] = ids) -> list[int]:
            while len(text) < 8 and not {*text[-1:]} & models.eos:
                text = [*text, int(compute_logits_and_states(models.target, [*ids, *text])[0][-1].argmax())]
            return text

        def final(text: list[int]) -> str:
            return letters(text)[-1:]

        answer, border, wanted = finish([]), 0, list[Swap]()
        reference = final(answer)
        while border < len(answer):
            token = int(compute_logits_and_states(models.drafter, [*ids, *answer[:border]])[0][-1].argmax())
            if token != answer[border]:
                new = finish([*answer[:border], token])
                wanted.append(Swap("story", (*ids, *answer[:border]), token, final(new) != reference))
                answer = answer if wanted[-1].is_wrong else new
            border += 1
        assert found == wanted
        kinds |= {swap.is_wrong for swap in found}
    assert kinds == {False, True}, "later swaps are searched in the text changed by an accepted one"


def test_final_answers_are_extracted_by_task() -> None:
    number, record = Instance("addition", "", "", ""), Instance("json", "", "", "")
    assert final_answer(number, "Ones: 1 + 2 = 3\nAnswer: 41 + 2 = 43") == final_answer(number, "It is 43.")
    assert final_answer(number, "none") is None
    assert final_answer(record, '{"a": 1, "b": 2}') == final_answer(record, '{"b": 2,"a": 1}')
    assert final_answer(record, '{"a": 1') is None
    copy = Instance("copy", "", "", "")
    assert final_answer(copy, " one two ") == "one two"
    assert swaps.is_text(copy)
    assert not swaps.is_text(number)


def test_unknown_tasks_are_refused_and_held_out_problems_stay_separate() -> None:
    with pytest.raises(ParameterError, match="unknown task 'nonsense'"):
        problems(["nonsense"], 1, 0, held_out=False)
    assert [i.held_out for i in problems(["addition", "copy"], 2, 0, held_out=True)] == [True] * 4


def test_states_of_both_models_are_those_after_the_swapped_token(models: Models) -> None:
    assert models.drafter is not None
    found = read_swaps(models, [[Swap("copy", (3, 1), 4, True)], [Swap("story", (2, 2, 5), 1, False)]])
    for state, ids in zip(found.states, ([3, 1, 4], [2, 2, 5, 1]), strict=True):
        wanted = torch.cat(
            [compute_logits_and_states(runner, ids)[1][-1] for runner in (models.target, models.drafter)]
        )
        assert torch.allclose(state, wanted, atol=1e-6)
    assert found.is_wrong.tolist() == [True, False]
    with pytest.raises(ParameterError, match="1 of 1 token replacements make their answer wrong"):
        read_swaps(models, [[Swap("copy", (3, 1), 4, True)]])


def tokens(states: torch.Tensor, is_wrong: torch.Tensor) -> Tokens:
    return Tokens(states, is_wrong, ("copy",) * len(states), 1)


def random_judge(width: int, draft_width: int, generator: torch.Generator) -> judge.JudgeHead:
    net = judge.JudgeHead(width, draft_width)
    with torch.no_grad():
        for weight in net.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator).half())
    return net


def test_the_judge_on_raw_states_equals_the_one_on_scaled_states() -> None:
    generator = torch.Generator().manual_seed(0)
    states = 3 + 0.5 * torch.randn(50, 12, generator=generator)
    mean, spread = states.mean(0), states.std(0)
    net = random_judge(8, 4, generator)
    for alone in (True, False):
        found = scores(fold_scaling(net, mean, spread), states, alone)
        assert torch.allclose(found, scores(net, (states - mean) / spread, alone), atol=0.05)


@pytest.mark.parametrize(("n", "passing"), [(300, 3), (99, 0), (2, 0)])
def test_at_most_one_in_a_hundred_wrong_tokens_passes_after_calibration(n: int, passing: int) -> None:
    """With the target's states alone and with both models', in the saved half precision; a stricter judge is kept."""
    generator = torch.Generator().manual_seed(n)
    states = torch.randn(n + 1, 12, generator=generator)
    each = tokens(states, torch.arange(n + 1) < n)
    net = random_judge(8, 4, generator)
    with torch.no_grad():
        net.bias.fill_(5.0)
        net.both_bias.fill_(5.0)
    for alone in (True, False):
        odds = scores(calibrate(net, each).half(), each.wrong, alone)
        assert int((odds.sigmoid() > judge.DEFAULT_THRESHOLD).sum()) == passing
    strict = calibrate(net, each)
    assert torch.equal(calibrate(strict, each).both_bias, strict.both_bias)


def test_golden_figures() -> None:
    """By hand: three of four right tokens accepted, one of two wrong ones rejected; 6 of 8 pairs are in order."""
    net = judge.JudgeHead(1, 1)
    with torch.no_grad():
        net.weight.fill_(1.0)
        net.both[1] = 1.0
    values = torch.tensor([[2.0], [1.0], [0.5], [-1.0], [0.7], [-2.0]])
    each = tokens(torch.cat([values, values], 1), torch.tensor([False] * 4 + [True] * 2))
    for alone in (True, False):
        found = evaluate_judge(net, each, 2.0, alone)
        assert found["right kept"] == 0.75
        assert found["wrong refused"] == 0.5
        assert found["balanced accuracy"] == 0.625
        assert found["area under the curve"] == pytest.approx(6 / 8)
    half = balanced_loss(torch.tensor([0.0]), torch.tensor([3.0]), 2.0)
    assert float(half) == pytest.approx((0.6931 + 2 * 3.0486) / 3, abs=1e-3)


def test_a_trained_judge_separates_right_from_wrong_and_has_figures_and_card(models: Models, tmp_path: Path) -> None:
    """Synthetic states of two kinds stand in for real ones: the test covers the fit, the files and the card."""
    generator = torch.Generator().manual_seed(0)
    assert models.drafter is not None
    width = models.target.hidden_size + models.drafter.hidden_size

    def some(n: int) -> Tokens:
        is_wrong = torch.arange(n) % 2 == 0
        return tokens(torch.randn(n, width, generator=generator) + is_wrong[:, None], is_wrong)

    options = JudgeOptions(out=tmp_path, steps=40, target="text-target")
    named = replace(models, target_name="text-target", drafter_name="text-drafter")
    result, facts = judge.fit(named, some(80), some(40), some(40), options, lambda line: None)
    assert result.held["area under the curve"] > 0.9
    net, config = load_net(tmp_path / "text-judge")
    assert config["workbench_head"] == "judge"
    assert config["draft_model"] == "text-drafter"
    assert (net.width, net.draft_width) == (models.target.hidden_size, models.drafter.hidden_size)
    assert len(config[WEIGHTS]) == 64
    finish(result, options.folder, {"options": {}, **facts})
    write_card(options.folder, judge.card)
    text = (options.folder / "README.md").read_text(encoding="utf-8")
    for word in ("text-drafter", "At δ =", "harmless", "| copy |"):
        assert word in text


@pytest.mark.parametrize("name", [name for name in sorted(bundled()) if name.endswith("-judge")])
def test_the_card_of_a_bundled_judge_has_the_figures_of_its_training(name: str) -> None:
    """Judges of earlier versions have other figures: `by_kind` in place of `target_alone`."""
    written = (bundled()[name] / "README.md").read_text(encoding="utf-8")
    assert written == f"# {name}\n\n{judge.card(TrainedModel.load(bundled()[name])).rstrip()}\n"
    figures = json.loads((bundled()[name] / "training.json").read_text())
    assert f"{figures['held']['area under the curve']:.3f}" in written
    assert f"{figures['steps']:,} training steps" in written
