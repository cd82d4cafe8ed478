"""The judge's recipe: which tokens are right and wrong, that it learns them, and what it says of itself."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import worlds

from workbench.core.errors import ParameterError
from workbench.engine import Models
from workbench.engine.fingerprint import WEIGHTS
from workbench.engine.pretrained import load_tokenizer
from workbench.training import judge
from workbench.training.acceptance import said
from workbench.training.generators import TASKS
from workbench.training.heads.artefact import load_saved
from workbench.training.judge import JudgeOptions, balanced_loss, folded, measured, train_judge
from workbench.training.marked import Tokens, drafted, read_one, spoilt
from workbench.training.mistakes import CUT, DRAFTED, KINDS, NUMBER, Mistake, another_number, another_word, cut_off
from workbench.training.mistakes import graded as graded_answers


def test_every_mistake_of_a_task_is_one_that_its_checker_sees() -> None:
    found = graded_answers(("addition", "sort_words", "code", "story"), Path("nowhere"), 12, 3, 0, held_out=False)
    for group, answers in found.items():
        for each, instance in zip(answers, TASKS[group].stream(0, held_out=False), strict=False):
            assert each.answer == instance.answer
            assert not instance.held_out
            for mistake in each.mistakes:
                assert not TASKS[group].check(instance, mistake.text)
                assert mistake.text[: mistake.begin] == each.answer[: mistake.begin]
                if mistake.kind != CUT:
                    tail = len(mistake.text) - mistake.end
                    assert mistake.text[mistake.end :] == each.answer[len(each.answer) - tail :]
    kinds = {mistake.kind for answers in found.values() for each in answers for mistake in each.mistakes}
    assert kinds == set(KINDS) - {DRAFTED}
    assert all(
        instance.held_out for instance, _ in zip(TASKS["addition"].stream(0, held_out=True), range(5), strict=False)
    )


def test_mistakes_keep_the_form_of_what_they_replace() -> None:
    rng = random.Random(0)
    for _ in range(200):
        number, word = another_number("a 7, b 45", rng), another_word("The cat", ["Dog", "cats"], rng)
        assert number is not None
        assert word is not None
        assert len(number.text) == len("a 7, b 45")
        assert number.text != "a 7, b 45"
        assert word.text in ("Dog cat", "Cats cat", "The dog", "The cats")
    assert another_number("none", rng) is None
    assert cut_off("One sentence. Two.", rng) in [Mistake(CUT, "One", 3, 3)]


def test_the_first_wrong_token_is_where_the_answers_part_and_the_last_one_ends_the_mistake() -> None:
    tokenizer = load_tokenizer("text-target")
    text = "Ones: 7 + 8 = 15, write 5, carry 1."
    own = tokenizer(text, add_special_tokens=False)["input_ids"]
    at = text.index("15")
    tokens, first = spoilt(tokenizer, own, Mistake(NUMBER, text.replace("15", "12"), at, at + 2))
    assert tokens[:first] == own[:first]
    assert tokens[first] != own[first]
    assert tokenizer.decode(tokens) == text[:at] + "12"
    tokens, first = spoilt(tokenizer, own, Mistake(CUT, text[:at].rstrip(), at - 1, at - 1))
    assert tokens[first:] == [tokenizer.eos_token_id]
    assert tokenizer.decode(tokens[:first]) == text[:at].rstrip()


@pytest.fixture(scope="module")
def models() -> Models:
    return worlds.small_world(6)


def test_states_are_those_of_a_plain_reading_of_each_answer(models: Models) -> None:
    asked, own = [3, 1, 4], [1, 5, 2, 0]
    wrong = [([1, 5, 3, 3], 2), ([4], 0), ([1, 5, 2, 1], 3)]
    logits, states, spans = read_one(models, asked, own, wrong)
    plain_logits, plain = said(models.target, asked + own)
    assert torch.allclose(logits, plain_logits[2:-1], atol=1e-6)
    assert torch.allclose(states, plain[3:], atol=1e-6)
    for span, (tokens, first) in zip(spans, wrong, strict=True):
        assert torch.allclose(span, said(models.target, asked + tokens)[1][3 + first :], atol=1e-6)
    assert not models.target.slots, "the row is given back"


def test_a_drafted_mistake_is_another_token_where_there_can_be_no_other(models: Models) -> None:
    """Of a task that is answered in one way; of open text digits alone count."""
    assert models.drafter is not None
    asked, own = [3, 1, 4], [1, 5, 2, 5, 3, 0]
    best = said(models.drafter, asked + own)[0][2:-1].argmax(1).tolist()

    class Letters:
        eos_token_id = 0

        def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
            return "".join("abcdef"[i] for i in ids if i or not skip_special_tokens)

    lettered = replace(models, tokenizer=Letters())
    wanted = [i for i, (b, o) in enumerate(zip(best, own, strict=True)) if b != o and o]
    assert wanted
    assert [first for _, first in drafted(lettered, "addition", asked, own, 9)] == wanted
    for tokens, first in drafted(lettered, "addition", asked, own, 9):
        assert tokens == [*own[:first], best[first]]
    ends = [i for i in wanted if best[i] == 0]
    assert [first for _, first in drafted(lettered, "maths", asked, own, 9)] == ends
    assert len(drafted(lettered, "addition", asked, own, 1)) == 1
    assert drafted(replace(lettered, drafter=None), "addition", asked, own, 9) == []


def test_the_judge_of_raw_states_is_that_of_the_scaled_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    states = 3 + 0.5 * torch.randn(50, 8, generator=generator)
    mean, spread = states.mean(0), states.std(0)
    net = judge.JudgeHead(8)
    with torch.no_grad():
        net.weight.copy_(torch.randn(8, generator=generator))
        net.bias.fill_(0.3)
    assert torch.allclose(folded(net, mean, spread)(states), net((states - mean) / spread), atol=0.02)


def test_golden_figures() -> None:
    """By hand: three of four right tokens kept, one of two wrong ones refused; 6 of 8 pairs are in order."""
    net = judge.JudgeHead(1)
    with torch.no_grad():
        net.weight.fill_(1.0)
    right, wrong = torch.tensor([[2.0], [1.0], [0.5], [-1.0]]), torch.tensor([[0.7], [-2.0]])
    found = measured(net, Tokens(right, torch.ones(4, dtype=torch.bool), wrong, torch.tensor([0, 1]), 1, 2, 9), 2.0)
    assert found["right kept"] == 0.75
    assert found["wrong refused"] == 0.5
    assert found["balanced accuracy"] == 0.625
    assert found["area under the curve"] == pytest.approx(6 / 8)
    half = balanced_loss(torch.tensor([0.0]), torch.tensor([3.0]), 2.0)
    assert float(half) == pytest.approx((0.6931 + 2 * 3.0486) / 3, abs=1e-3)


def test_a_trained_judge_tells_them_apart_and_has_figures_and_card(tmp_path: Path) -> None:
    lines: list[str] = []
    options = JudgeOptions(out=tmp_path, groups=("addition", "copy"), count=10, held=4, steps=60)
    result, facts = train_judge(options, lines.append)
    assert result.held["area under the curve"] > 0.75, "half of it by chance"
    assert facts["learnt"]["answers"] == 20
    assert facts["held_out"]["answers"] == 8
    net, config = load_saved(tmp_path / "text-judge")
    assert config["workbench_head"] == "judge"
    assert config["hidden_size"] == net.width == 288
    assert len(config[WEIGHTS]) == 64
    from workbench.training.recipe import finish

    finish(result, options.folder, {"options": {}, **facts})
    judge.finish_card(options.folder)
    text = (options.folder / "README.md").read_text(encoding="utf-8")
    for word in ("balanced accuracy", "addition, copy", "wrong tokens", "| drafted |"):
        assert word in text


def test_unknown_groups_and_missing_text_are_named(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="no group 'nonsense'"):
        graded_answers(("nonsense",), tmp_path, 1, 1, 0, held_out=False)
    with pytest.raises(ParameterError, match="no text of the group maths"):
        graded_answers(("maths",), tmp_path, 1, 1, 0, held_out=False)
