"""Distillation: the drafter samples its own text, and the target scores it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from answer_readings import quiet, write_readings
from torch import Tensor

from workbench.core.errors import ParameterError
from workbench.models.bundle import bundled
from workbench.models.loading import load_models
from workbench.training.distill import distillation_loss
from workbench.training.family import drafter as lesson
from workbench.training.family.drafter import (
    ChatDrafterOptions,
    build_drafter,
    config_of,
    load_teacher,
    train_chat_drafter,
)
from workbench.training.family.readings import TEXT_ANSWER, Readings
from workbench.training.family.shared_embedding_drafter import DrafterInTraining
from workbench.training.family.training_texts import OwnTexts, make_next_batch, sample_continuations, select_readings

pytestmark = pytest.mark.skipif("text-target" not in bundled(), reason="needs the bundled models")
KEPT = torch.arange(0, 4096, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return readings of the target's answers and of the data set's."""
    return write_readings(tmp_path_factory.mktemp("distilling")).out


@pytest.fixture(scope="module")
def drafter(folder: Path) -> DrafterInTraining:
    """Return a drafter with large random weights, whose distribution differs at each position."""
    asked = ChatDrafterOptions(target="text-target", readings=folder, hidden=32, layers=2, inner=48)
    teacher = load_teacher(asked)
    found = build_drafter(config_of(asked, teacher), teacher, 0)
    with torch.no_grad():
        for name, weight in found.named_parameters():
            if "norm" not in name and "enter" not in name:
                weight.mul_(6)
    return found


@torch.no_grad()
def distributions_of(drafter: DrafterInTraining, text: list[int]) -> Tensor:
    """Return q at each position of one text, from one forward pass, [n, K]."""
    return (drafter.states(torch.tensor([text]))[0] @ drafter.lm_head_rows(KEPT).T).double().softmax(-1)


def test_sampled_continuations_follow_the_drafters_distribution(drafter: DrafterInTraining) -> None:
    """In a batch and with a cache, each text follows from its uniforms and its distributions computed alone."""
    prompts, most = [[5, 9, 300, 41, 7, 8, 1000], [77], [12, 13, 14]], [12, 9, 12]
    chance = torch.rand(3, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    texts = sample_continuations(drafter, KEPT, prompts, most, [], chance)
    for text, prompt, n, u in zip(texts, prompts, most, chance, strict=True):
        assert text[: len(prompt)] == prompt
        assert len(text) == len(prompt) + n
        sums = distributions_of(drafter, text).cumsum(-1)
        for i, token in enumerate(text[len(prompt) :]):
            below = sums[len(prompt) + i - 1]
            place = token // 2
            assert (below[place - 1] if place else 0) - 1e-5 <= u[i] * below[-1] <= below[place] + 1e-5
    end = texts[0][len(prompts[0]) + 4]
    first = texts[0].index(end, len(prompts[0]))
    ended = sample_continuations(drafter, KEPT, prompts, most, [end], chance)
    assert ended[0] == texts[0][: first + 1], "EOS ends the text and is part of it"
    for row in (1, 2):
        stop = texts[row].index(end, len(prompts[row])) + 1 if end in texts[row][len(prompts[row]) :] else None
        assert ended[row] == texts[row][:stop], "EOS ends no other text"


def test_the_loss_compares_target_and_drafter_at_each_position_of_a_sampled_text(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each position the loss compares the target's and the drafter's distribution of the next token."""
    seen = list[tuple[Tensor, Tensor, Tensor]]()

    def heard(said: Tensor, wanted: Tensor, labels: Tensor, weight: float, losses: Any) -> Tensor:
        seen.append((said.detach(), wanted, labels))
        return distillation_loss(said, wanted, labels, weight, losses)

    read = list[Tensor]()

    class Watched(DrafterInTraining):
        def states(self, ids: Tensor, **more: Any) -> Tensor:
            found = super().states(ids, **more)
            if not more:
                read.append(ids)
            return found

    monkeypatch.setattr(lesson, "distillation_loss", heard)
    monkeypatch.setattr(lesson, "DrafterInTraining", Watched)
    out = tmp_path / "scored"
    asked = ChatDrafterOptions(
        target="text-target", readings=folder, out=out, checkpoint=None, vocabulary=4096, hidden=32, layers=1,
        inner=48, steps=1, minutes=None, rows=4, positions=1 << 20, made="drafter", anew=4, held=2, threads=1,
        text_weight=0.5,
    )  # fmt: skip
    train_chat_drafter(asked, quiet)
    (_, wanted, labels), ids = seen[0], read[0]
    target = load_models("text-target", None, "cpu", "float32").target.model
    with torch.inference_mode():
        distributions = target(ids).logits.softmax(-1)
    assert (labels < 0).all(), "sampled text has no labels, only distributions"
    texts = [row[: int(row.nonzero()[-1]) + 1] for row in ids]
    n_places = sum(len(text) - 1 for text in texts)
    assert n_places <= len(wanted) <= n_places + 4, "the last token may be EOS, which has id 0 like padding"
    theirs = wanted.float().softmax(-1)
    at = torch.cat([distributions[b, : len(text) - 1] for b, text in enumerate(texts)])
    apart = torch.cdist(at.float(), theirs, p=1)  # positions were shuffled
    nearest = apart.min(1)
    assert nearest.values.max() < 0.08, (
        "each of the target's distributions is among those compared, up to bfloat16 rounding"
    )
    said = seen[0][0].float().softmax(-1)
    again = build_drafter(config_of(asked, teacher := load_teacher(asked)), teacher, asked.seed)
    with torch.no_grad():
        own = (again.states(ids) @ again.lm_head_rows(torch.arange(4096)).T).softmax(-1)
    mine = torch.cat([own[b, : len(text) - 1] for b, text in enumerate(texts)])
    assert (mine - said[nearest.indices]).abs().sum(-1).max() < 0.05, (
        "paired with the drafter's distribution of the same position"
    )


def test_texts_are_sampled_anew_with_the_drafters_current_weights(folder: Path) -> None:
    readings, written = Readings(folder), list[tuple[int, int]]()

    class Counting(OwnTexts):
        def write(self, turn: int, n: int) -> list[Any]:
            written.append((turn, n))
            return [readings.dialogue(row) for row in self.rows[:n]]

    rows = select_readings(readings, "drafter")
    assert rows
    assert all(readings.rows[row, 4] != TEXT_ANSWER for row in rows)
    assert {int(readings.rows[row, 4]) for row in select_readings(readings, "given")} == {TEXT_ANSWER}
    assert (
        sorted(rows + select_readings(readings, "given"))
        == select_readings(readings, "all")
        == readings.split_indices(held_out=False)
    )
    nobody: Any = None
    own = Counting(nobody, nobody, readings, rows, KEPT, (), 0)
    for made, n_own in (("drafter", 4), ("mix", 2)):
        written.clear()
        lesson = make_next_batch(readings, made, 4, 0, 8, own)
        found = [lesson(step) for step in range(17)]
        assert written == [(turn, 2 * n_own) for turn in range(3)]
        assert all(len(dialogues) == 4 and n == n_own for dialogues, n in found)
    read = [tuple(d.ids.tolist()) for dialogues, _ in found[:8] for d in dialogues[-2:]]
    assert {read.count(text) for text in read} <= {4, 8}, "each text is used four times, or more if two texts are equal"
    written.clear()
    assert all(n == 0 for _, n in (make_next_batch(readings, "target", 4, 0, 8, None)(step) for step in range(3)))
    assert not written
    with pytest.raises(ParameterError, match="made='elephant' names no source of training answers"):
        select_readings(readings, "elephant")


def test_a_loss_without_text_is_a_number() -> None:
    said, wanted = torch.randn(2, 3, 5).unbind()
    nothing, some = torch.full((3,), -100), torch.tensor([-100, 2, 4])
    alone = distillation_loss(said, wanted, nothing, 0.0)
    assert torch.isfinite(alone)
    assert distillation_loss(said, wanted, nothing, 0.7) == alone
    text = torch.nn.functional.cross_entropy(said[1:], some[1:])
    assert distillation_loss(said, wanted, some, 0.7) == pytest.approx(float(alone + 0.7 * text))
