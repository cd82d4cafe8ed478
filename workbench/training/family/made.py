"""Whose texts a draft model learns from: its target's, those of the training text, or its own.

A drafter that has read nothing but good text has never seen what comes behind its own mistakes. So it continues
prompts as it now is, and its target says what it would have said at each place:

    every N steps:  y ~ q_θ(· | prompt), sampled at temperature 1, without a gradient
                    f = features of the target over prompt and y, in one pass
    each step:      make D(p_f(· | y_<t) ‖ q_θ(· | y_<t)) small at every place t

Source: Zhou et al. 2024, DistillSpec, arXiv:2310.08461, §3.1 and table 1 (fixed text, the target's, the drafter's, and
a mixture); Agarwal et al. 2024, arXiv:2306.13649, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache

from workbench.core.errors import ParameterError
from workbench.engine import Models
from workbench.training.family.borrower import Borrower
from workbench.training.family.readings import GIVEN, Readings, batches, read_one
from workbench.training.heads.features import Dialogue

READ = 4
"""Times that a text of the drafter's is read before it writes others."""
ALL, TARGET, TEXT, DRAFTER, MIX = MADE = ("all", "target", "given", "drafter", "mix")
"""All answers that were read; the target's own; those that the training text gives; the drafter's; half of each step
the target's and half the drafter's."""
Lesson = Callable[[int], tuple[list[Dialogue], int]]
"""Of a step: what is read, and how many at its end the drafter wrote."""


def rows_made(readings: Readings, made: str) -> list[int]:
    """Rows to train on whose answers are of this kind; of what the drafter writes the rows whose prompts it answers.

    Raises:
        ParameterError: there is no such kind, or no such row.
    """
    if made not in MADE:
        raise ParameterError(f"There is no text of the kind made={made!r:.40}.", f"Take one of: {', '.join(MADE)}.")
    given = readings.rows[:, 4] == GIVEN
    found = [row for row in readings.part(held=False) if made == ALL or given[row] == (made == TEXT)]
    if not found:
        more = " --set given=true" if made == TEXT else ""
        raise ParameterError(
            f"{readings.folder} holds no answers for made={made}.",
            f"Write some into a folder of their own (workbench train answers{more}), and read these into it "
            "(workbench train readings), too.",
        )
    return found


@dataclass(frozen=True)
class OwnTexts:
    """What a drafter writes as it is, and what its target makes of that.

    Attributes:
        drafter: that learns.
        models: with the target.
        readings: of whose prompts it continues some.
        rows: these.
        kept: tokens that the drafter can propose, int64 [K].
        ends: tokens that end a text.
        seed: of the prompts chosen, and of what is sampled.
    """

    drafter: Borrower
    models: Models
    readings: Readings
    rows: Sequence[int]
    kept: Int[Tensor, " K"]
    ends: Collection[int]
    seed: int

    def write(self, turn: int, n: int) -> list[Dialogue]:
        """As many texts, each no longer than the answer that the target gave to its prompt; `turn` counts up."""
        rng = np.random.default_rng((self.seed, turn))
        rows = rng.choice(self.rows, n, replace=n > len(self.rows)).tolist()
        prompts, most = list[list[int]](), list[int]()
        for ids, n_prompt in map(self.readings.text, rows):
            prompts.append(ids[:n_prompt].tolist())
            most.append(len(ids) - n_prompt)
        chance = torch.from_numpy(rng.random((n, max(most)))).to(self.kept.device)
        texts = continued(self.drafter, self.kept, prompts, most, self.ends, chance)
        return [
            Dialogue(
                torch.tensor(text, device=self.kept.device),
                len(prompt),
                read_one(self.models, text)["features"].to(torch.bfloat16).clone(),
            )
            for text, prompt in zip(texts, prompts, strict=True)
        ]


@torch.no_grad()
def continued(
    drafter: Borrower,
    kept: Int[Tensor, " K"],
    prompts: Sequence[Sequence[int]],
    most: Sequence[int],
    ends: Collection[int],
    chance: Float[Tensor, "B n"],
) -> list[list[int]]:
    """Prompts with what a drafter says behind them, drawn from its law at temperature 1, all side by side.

    Args:
        drafter: the drafter.
        kept: tokens that it can say.
        prompts: token ids.
        most: how many tokens to write behind each, at most.
        ends: what ends a text, and stands in it.
        chance: float64, uniform in [0, 1): the token drawn at place i is the first up to which the law sums to more
            than `chance[:, i]`.
    """
    width, texts, on_device = max(map(len, prompts)), [list(prompt) for prompt in prompts], kept.device
    rows, stops, last = (
        torch.tensor(list(part), dtype=torch.int64, device=on_device) for part in (range(len(prompts)), ends, most)
    )
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=on_device)
    seen = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=on_device)
    table, cache, places = drafter.table(kept), DynamicCache(), (seen.cumsum(1) - 1).clamp_min(0)
    for i in range(max(most)):
        states = drafter.states(ids, attention_mask=seen, position_ids=places, past_key_values=cache, use_cache=True)
        law = F.linear(states[:, -1], table).softmax(-1).double().cumsum(-1)
        drawn = torch.searchsorted(law, law[:, -1:] * chance[rows, i : i + 1], right=True).clamp_max(len(kept) - 1)
        ids = kept[drawn]
        for row, token in zip(rows.tolist(), ids[:, 0].tolist(), strict=True):
            texts[row].append(token)
        on = (~torch.isin(ids[:, 0], stops) & (i + 1 < last[rows])).nonzero().flatten()
        if not len(on):
            break
        if len(on) < len(rows):
            cache.batch_select_indices(on)
            rows, ids, seen, places = (part[on] for part in (rows, ids, seen, places))
        seen, places = F.pad(seen, (0, 1), value=1), places[:, -1:] + 1
    return texts


def lessons(readings: Readings, made: str, size: int, seed: int, anew: int, own: OwnTexts | None) -> Lesson:
    """What is read in each step.

    Args:
        readings: of the target's answers, and of those that were given.
        made: one of `MADE`.
        size: texts a step.
        seed: of their order.
        anew: steps after which the drafter writes its texts anew; each text is read `READ` times before.
        own: the drafter's; not asked for unless `made` is.

    A run that is gone on with begins with texts written anew: they are not in its checkpoint.
    """
    n_own = {DRAFTER: size, MIX: size // 2}.get(made, 0)
    rows = rows_made(readings, made)
    read = batches(readings, rows, size - n_own, seed) if size > n_own else None
    written: dict[int, list[list[Dialogue]]] = {}

    def lesson(step: int) -> tuple[list[Dialogue], int]:
        found = [] if read is None else [readings.dialogue(row) for row in read(step)]
        if not n_own or own is None:
            return found, 0
        turn, place = divmod(step, anew)
        if turn not in written:
            groups = -(-anew // READ)
            texts = sorted(own.write(turn, groups * n_own), key=lambda text: len(text.ids))
            order = np.random.default_rng((seed, turn, 1)).permutation(groups).tolist()
            written.clear()
            written[turn] = [texts[g * n_own : (g + 1) * n_own] for g in order]
        return found + written[turn][place % len(written[turn])], n_own

    return lesson
