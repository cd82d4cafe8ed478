"""How prompt tokens learn: read behind true text, each is to make the target say what it says there itself.

The frozen target reads a batch of texts once. Behind many places of each text stand prompt tokens, all in one further
pass over the entries of the first: those of one place see the text up to it, and not each other's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache

from workbench.engine.packed import unpacked
from workbench.engine.pretrained import load_model
from workbench.methods import registry
from workbench.methods.drafters.medusa import RANKS
from workbench.methods.drafters.ppd import PromptTokens, laid_out
from workbench.training.family.drafter import Curve, Teacher, together
from workbench.training.family.lesson import HELD_ROWS, Course, begun, on, some_of, still
from workbench.training.heads.losses import Places, Weighted
from workbench.training.loop import RunResult
from workbench.training.models import half_precision

CUTS = 24
"""Places of one text behind which prompt tokens stand."""
LATER = 0.8
"""Weight of each prompt token's loss over that of the one before."""


def keeps(options: Any, teacher: Teacher) -> int:
    """The target itself guesses, and keeps all of its tokens."""
    return len(teacher.head)


def train(course: Course) -> tuple[RunResult, Curve]:
    """Train the embeddings, and nothing else: they begin as those of some of the target's tokens.

    Source: Chen et al. 2024, Hardware-aware parallel prompt decoding, arXiv:2405.18628, §3.3 (distillation from the
    target's law, 0.8 to the power of the distance); many places of a text at once instead of one at its end.
    """
    options, teacher = course.options, course.teacher
    model = load_model(options.target, torch.device("cpu"), torch.float32).requires_grad_(False)
    table, loss = teacher.head, Weighted.parse(options.loss)

    def fresh() -> PromptTokens:
        net = registry.heads()[options.method].build(table.shape[1], vars(options))
        with torch.no_grad():
            some = torch.randperm(len(teacher.embedding))[: net.prompts * net.ensemble]
            net.embeds.copy_(teacher.embedding[some].view_as(net.embeds))
        return net

    net = begun(options.seed, fresh)

    def step_losses(rows: list[int], generator: torch.Generator) -> tuple[int, dict[str, Tensor], Tensor]:
        ids, features, _, answer = together(course.readings, rows)
        named: dict[str, Tensor] = {}
        with half_precision(options.half):
            for step, (states, truth) in enumerate(guesses(net, model, ids, features, cuts(answer, CUTS, generator))):
                with torch.no_grad():
                    wanted = F.linear(truth, table)
                logits = net.said(F.linear(states, table))[:, 0]
                guess = states.mean(1).float()
                named[f"token {step + 1}"], _ = loss(Places(guess, truth, logits.float(), wanted.float()))
        shares = [LATER**step / net.prompts for step in range(len(named))]
        return int(answer.sum()), named, torch.stack([a * b for a, b in zip(shares, named.values(), strict=True)]).sum()

    def measure() -> dict[str, float]:
        net.accuracy = tuple(map(tuple, hit_rates(net, model, course)))
        return {f"agreement {step + 1}": row[0] for step, row in enumerate(net.accuracy)}

    with unpacked(model):  # packed products have no gradients
        return course.run(net, step_losses, measure, vocab_size=len(teacher.head))


@dataclass(frozen=True, slots=True)
class Cuts:
    """Places of texts behind which prompt tokens are read, as many of each text.

    Attributes:
        at: the places, int64 [B, c].
        answer: which places decide a token of the answer, bool [B, n].
    """

    at: Int[Tensor, "B c"]
    answer: Bool[Tensor, "B n"]


def cuts(answer: Bool[Tensor, "B n"], n: int, generator: torch.Generator) -> Cuts:
    """At most n places of each text that have a guessed token of the answer behind them, by chance."""
    use = still(answer, 1)
    found = [row.nonzero().flatten() for row in use]
    most = max(1, min(n, max(map(len, found))))
    at = torch.zeros(len(answer), most, dtype=torch.long)
    for b, places in enumerate(found):
        if len(places):
            chosen = places[some_of(len(places), most, generator)]
            at[b] = chosen[torch.arange(most) % len(chosen)]
    return Cuts(at, answer)


def guesses(
    net: PromptTokens, model: Any, ids: Int[Tensor, "B n"], features: Float[Tensor, "B n D"], cuts: Cuts
) -> Iterator[tuple[Float[Tensor, "N v D"], Float[Tensor, "N D"]]]:
    """Of each prompt token what the target's LM head reads at it, and what it would read there of the true text.

    Prompt token j (from 1) behind place s stands at s + j, in the true token's place, and the feature at s + j decides
    the token that it guesses.

    Args:
        net: the prompt tokens.
        model: the target, with frozen weights.
        ids: texts side by side.
        features: the target's.
        cuts: behind which places they stand.
    """
    (rows, n), c = ids.shape, cuts.at.shape[1]
    layout = laid_out((net.prompts,) * c, net.ensemble, ids.device)
    with torch.no_grad():
        cache = DynamicCache()
        model.model(ids, past_key_values=cache, use_cache=True)
    at = cuts.at[:, layout.place]  # [B, P]
    sees = torch.cat([torch.arange(n) <= at[..., None], layout.sees.expand(rows, -1, -1)], -1)
    unseen = torch.finfo(model.dtype).min  # a mask of another type than the model's is misread without a word
    mask = torch.zeros(sees.shape, dtype=model.dtype).masked_fill(~sees, unseen)[:, None]
    states = model.model(
        inputs_embeds=net.embeds.flatten(0, 1)[layout.own].expand(rows, -1, -1), past_key_values=cache,
        attention_mask=mask, position_ids=at + layout.step + 1, use_cache=True,
    )[0].view(rows, c, net.prompts, net.ensemble, -1)  # fmt: skip
    for step in range(net.prompts):
        right = still(cuts.answer, step + 1).gather(1, cuts.at)
        truth = on(features, step + 1).gather(1, cuts.at[..., None].expand(-1, -1, features.shape[2]))
        if right.any():
            yield states[:, :, step][right], truth[right].float()


@torch.inference_mode()
def hit_rates(net: PromptTokens, model: Any, course: Course) -> list[list[float]]:
    """How often the r-th best guess of each prompt token is what the target finds likeliest, r = 1 … 10: [m, 10]."""
    hits, total = torch.zeros(net.prompts, RANKS), torch.zeros(net.prompts)
    generator = torch.Generator().manual_seed(0)
    for start in range(0, len(course.held), HELD_ROWS):
        ids, features, _, answer = together(course.readings, course.held[start : start + HELD_ROWS])
        with half_precision():
            some = cuts(answer, CUTS, generator)
            for step, (states, truth) in enumerate(guesses(net, model, ids, features, some)):
                logits = net.said(F.linear(states, course.teacher.head))[:, 0]
                theirs = course.teacher.logits(truth).argmax(-1)
                hits[step] += (logits.topk(RANKS, dim=-1).indices == theirs[:, None]).float().sum(0)
                total[step] += len(theirs)
    return [[round(float(x), 4) for x in row] for row in hits / total.clamp_min(1)[:, None]]
