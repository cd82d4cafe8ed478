"""How what a target guesses by in its own pass learns: read behind true text, it is to say what it says there itself.

The frozen target reads a batch of texts once. Behind many places of each text stand probes, all in one further pass
over the entries of the first: those of one place see the text up to it, and not each other's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from workbench.kernels.packed import unpacked
from workbench.methods import registry
from workbench.methods.drafters.in_pass import Layout, ProbeNet, laid_out
from workbench.methods.drafters.medusa import RANKS
from workbench.models.pretrained import load_model
from workbench.training.family.drafter import Curve, Teacher, together
from workbench.training.family.lesson import HELD_ROWS, Course, begun, on, some_of, still, summed
from workbench.training.heads.losses import Places, Weighted
from workbench.training.loop import RunResult
from workbench.training.models import half_precision

CUTS = 24
"""Places of one text behind which probes stand."""


@dataclass(frozen=True, slots=True)
class Read:
    """Texts with probes behind some places of each, as probes are read.

    Attributes:
        ids: texts side by side, int64 [B, n].
        at: behind which place of its text each probe stands, int64 [B, P].
        layout: of the P probes behind c places, the same for all texts.
        mask: additive, [B, 1, P, n + P]: of the text and of the probes what each sees.
        places: in the sequence, int64 [B, P].
    """

    ids: Int[Tensor, "B n"]
    at: Int[Tensor, "B P"]
    layout: Layout
    mask: Float[Tensor, "B 1 P n_plus_P"]

    @property
    def places(self) -> Int[Tensor, "B P"]:
        return self.at + self.layout.step + 1


Reads = Callable[[Any, Any, Read], Tensor]
"""(net, target, what is read) → what the target's LM head reads at the probes, [B, P, D]."""


def keeps(options: Any, teacher: Teacher) -> int:
    """The target itself guesses, and keeps all of its tokens."""
    return len(teacher.head)


def teach(
    course: Course, reads: Reads, later: float, start: Callable[[Any, Any], None] = lambda net, model: None
) -> tuple[RunResult, Curve]:
    """Train what makes the probes; the target stays as it is.

    Args:
        course: see there.
        reads: what the target says at them.
        later: weight of each probe's loss over that of the one before.
        start: gives a fresh net its first weights.
    """
    options, teacher = course.options, course.teacher
    model = load_model(options.target, course.device, torch.float32).requires_grad_(False)
    table, loss = teacher.head, Weighted.parse(options.loss)

    def fresh() -> ProbeNet:
        net = registry.heads()[options.method].build(table.shape[1], vars(options))
        with torch.no_grad():
            start(net, model)
        return net

    net = begun(options.seed, fresh)

    def step_losses(rows: list[int], generator: torch.Generator) -> tuple[int, dict[str, Tensor], Tensor]:
        ids, features, _, answer = together(course.readings, rows)
        named: dict[str, Tensor] = {}
        with half_precision(options.half):
            some = cuts(answer, CUTS, generator)
            for step, (states, truth) in enumerate(guesses(net, model, reads, ids, features, some)):
                with torch.no_grad():
                    wanted = F.linear(truth, table)
                logits = net.said(F.linear(states, table))[:, 0]
                guess = states.mean(1).float()
                named[f"token {step + 1}"], _ = loss(Places(guess, truth, logits.float(), wanted.float()))
        shares = [later**step / net.levels for step in range(len(named))]
        return int(answer.sum()), named, summed([a * b for a, b in zip(shares, named.values(), strict=True)])

    def measure() -> dict[str, float]:
        net.accuracy = tuple(map(tuple, hit_rates(net, model, reads, course)))
        return {f"agreement {step + 1}": row[0] for step, row in enumerate(net.accuracy)}

    with unpacked(model):  # packed products have no gradients
        return course.run(net, step_losses, measure, vocab_size=len(teacher.head))


@dataclass(frozen=True, slots=True)
class Cuts:
    """Places of texts behind which probes are read, as many of each text.

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
    at = torch.zeros(len(answer), most, dtype=torch.long, device=answer.device)
    for b, places in enumerate(found):
        if len(places):
            chosen = places[some_of(len(places), most, generator)]
            at[b] = chosen[torch.arange(most) % len(chosen)]
    return Cuts(at, answer)


def guesses(
    net: ProbeNet, model: Any, reads: Reads, ids: Int[Tensor, "B n"], features: Float[Tensor, "B n D"], cuts: Cuts
) -> Iterator[tuple[Float[Tensor, "N v D"], Float[Tensor, "N D"]]]:
    """Of each probe what the target's LM head reads at it, and what it would read there of the true text.

    Probe j (from 1) behind place s stands at s + j, in the true token's place, and the feature at s + j decides the
    token that it guesses.

    Args:
        net: what makes the probes.
        model: the target, with frozen weights.
        reads: what it says at them.
        ids: texts side by side.
        features: the target's.
        cuts: behind which places they stand.
    """
    (rows, n), c = ids.shape, cuts.at.shape[1]
    layout = laid_out((net.levels,) * c, net.ensemble, ids.device)
    at = cuts.at[:, layout.place]  # [B, P]
    sees = torch.cat([torch.arange(n, device=at.device) <= at[..., None], layout.sees.expand(rows, -1, -1)], -1)
    unseen = torch.finfo(model.dtype).min  # a mask of another type than the model's is misread without a word
    mask = torch.zeros(sees.shape, dtype=model.dtype, device=at.device).masked_fill(~sees, unseen)[:, None]
    states = reads(net, model, Read(ids, at, layout, mask)).view(rows, c, net.levels, net.ensemble, -1)
    for step in range(net.levels):
        right = still(cuts.answer, step + 1).gather(1, cuts.at)
        truth = on(features, step + 1).gather(1, cuts.at[..., None].expand(-1, -1, features.shape[2]))
        if right.any():
            yield states[:, :, step][right], truth[right].float()


@torch.inference_mode()
def hit_rates(net: ProbeNet, model: Any, reads: Reads, course: Course) -> list[list[float]]:
    """How often the r-th best guess of each probe is what the target finds likeliest, r = 1 … 10: [m, 10]."""
    hits = torch.zeros(net.levels, RANKS, device=course.device)
    total = hits.new_zeros(net.levels)
    generator = torch.Generator().manual_seed(0)
    for start in range(0, len(course.held), HELD_ROWS):
        ids, features, _, answer = together(course.readings, course.held[start : start + HELD_ROWS])
        with half_precision():
            some = cuts(answer, CUTS, generator)
            for step, (states, truth) in enumerate(guesses(net, model, reads, ids, features, some)):
                logits = net.said(F.linear(states, course.teacher.head))[:, 0]
                theirs = course.teacher.likeliest(truth)
                hits[step] += (logits.topk(RANKS, dim=-1).indices == theirs[:, None]).float().sum(0)
                total[step] += len(theirs)
    return [[round(float(x), 4) for x in row] for row in hits / total.clamp_min(1)[:, None]]
