"""Sources of a draft model's training texts: answers of the target, of the training text, or of the drafter itself.

A drafter that is trained only on correct text does not learn to continue its own mistakes. So it generates texts with
its current weights, and the target's distribution at each position is the label:

    every N steps:  y ~ q_θ(· | prompt), sampled at temperature 1, without a gradient
                    f = features of the target over prompt and y, in one pass
    each step:      minimise D(p_f(· | y_<t) ‖ q_θ(· | y_<t)) at every position t

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
from workbench.training.family.readings import TEXT_ANSWER, Readings, batches, compute_hidden_states
from workbench.training.family.shared_embedding_drafter import DrafterInTraining
from workbench.training.heads.features import Dialogue

USES_PER_TEXT = 4
"""Number of times that each text from the drafter is used before new texts are generated."""
ALL, TARGET, TEXT, DRAFTER, MIX = SOURCES = ("all", "target", "given", "drafter", "mix")
"""Sources of training answers: all stored answers; only the target's; those of the training text; answers that the
drafter generates; a mix, in which half of each batch comes from the target and half from the drafter."""
NextBatch = Callable[[int], tuple[list[Dialogue], int]]
"""Function from a step's number to its dialogues, and the number of dialogues at the end that the drafter generated."""


def select_readings(readings: Readings, source: str) -> list[int]:
    """Return the indices of the training readings whose answers come from a source of training texts.

    Args:
        readings: the stored hidden states.
        source: one of `SOURCES`; if the drafter generates the texts, readings are selected for their prompts.

    Raises:
        ParameterError: the source does not exist, or no answer comes from it.
    """
    if source not in SOURCES:
        raise ParameterError(
            f"The option made={source!r:.40} names no source of training answers.", f"Use one of: {', '.join(SOURCES)}."
        )
    is_given = readings.rows[:, 4] == TEXT_ANSWER
    rows = [row for row in readings.split_indices(held_out=False) if source == ALL or is_given[row] == (source == TEXT)]
    if not rows:
        flag = " --set given=true" if source == TEXT else ""
        raise ParameterError(
            f"The readings in {readings.folder} contain no answers from the source made={source}.",
            f"Create answers in a separate folder (workbench train answers{flag}), and add their readings to it "
            "(workbench train readings).",
        )
    return rows


@dataclass(frozen=True)
class OwnTexts:
    """Texts that a drafter generates with its current weights, and the target's features over them.

    Attributes:
        drafter: the drafter being trained.
        models: models with the target.
        readings: outputs of the target on the training texts, from which the prompts are taken.
        rows: indices of the entries of `readings` whose prompts may be used.
        draft_vocabulary: tokens that the drafter can propose, int64 [K].
        end_tokens: tokens that end a text.
        seed: seed of the choice of prompts, and of sampling.
    """

    drafter: DrafterInTraining
    models: Models
    readings: Readings
    rows: Sequence[int]
    draft_vocabulary: Int[Tensor, " K"]
    end_tokens: Collection[int]
    seed: int

    def write(self, epoch: int, n: int) -> list[Dialogue]:
        """Generate `n` texts, each at most as long as the target's answer to its prompt; `epoch` counts the calls."""
        rng = np.random.default_rng((self.seed, epoch))
        rows = rng.choice(self.rows, n, replace=n > len(self.rows)).tolist()
        prompts, limits = list[list[int]](), list[int]()
        for ids, n_prompt in map(self.readings.text, rows):
            prompts.append(ids[:n_prompt].tolist())
            limits.append(len(ids) - n_prompt)
        uniforms = torch.from_numpy(rng.random((n, max(limits)))).to(self.draft_vocabulary.device)
        texts = sample_continuations(self.drafter, self.draft_vocabulary, prompts, limits, self.end_tokens, uniforms)
        return [
            Dialogue(
                torch.tensor(text, device=self.draft_vocabulary.device),
                len(prompt),
                compute_hidden_states(self.models, text)["features"].to(torch.bfloat16).clone(),
            )
            for text, prompt in zip(texts, prompts, strict=True)
        ]


@torch.no_grad()
def sample_continuations(
    drafter: DrafterInTraining,
    draft_vocabulary: Int[Tensor, " K"],
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    end_tokens: Collection[int],
    uniforms: Float[Tensor, "B n"],
) -> list[list[int]]:
    """Return prompts with continuations sampled from a drafter at temperature 1, as one batch.

    Args:
        drafter: drafter that generates the texts.
        draft_vocabulary: draft vocabulary of the drafter.
        prompts: token ids of each prompt.
        limits: length limit of each continuation, in tokens.
        end_tokens: tokens that end a text, and are part of it.
        uniforms: float64, uniform in [0, 1): the token sampled at step i is the first at which the cumulative
            distribution exceeds `uniforms[:, i]`.
    """
    width, texts, device = max(map(len, prompts)), [list(prompt) for prompt in prompts], draft_vocabulary.device
    rows, stops, last = (
        torch.tensor(list(part), dtype=torch.int64, device=device) for part in (range(len(prompts)), end_tokens, limits)
    )
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    attention_mask = torch.tensor(
        [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device
    )
    table, cache, position_ids = (
        drafter.lm_head_rows(draft_vocabulary),
        DynamicCache(),
        (attention_mask.cumsum(1) - 1).clamp_min(0),
    )
    for i in range(max(limits)):
        states = drafter.states(
            ids, attention_mask=attention_mask, position_ids=position_ids, past_key_values=cache, use_cache=True
        )
        probs = F.linear(states[:, -1], table).softmax(-1).double().cumsum(-1)
        index = torch.searchsorted(probs, probs[:, -1:] * uniforms[rows, i : i + 1], right=True).clamp_max(
            len(draft_vocabulary) - 1
        )
        ids = draft_vocabulary[index]
        for row, token in zip(rows.tolist(), ids[:, 0].tolist(), strict=True):
            texts[row].append(token)
        running = (~torch.isin(ids[:, 0], stops) & (i + 1 < last[rows])).nonzero().flatten()
        if not len(running):
            break
        if len(running) < len(rows):
            cache.batch_select_indices(running)
            rows, ids, attention_mask, position_ids = (
                part[running] for part in (rows, ids, attention_mask, position_ids)
            )
        attention_mask, position_ids = F.pad(attention_mask, (0, 1), value=1), position_ids[:, -1:] + 1
    return texts


def make_next_batch(
    readings: Readings, source: str, size: int, seed: int, regenerate_every: int, own: OwnTexts | None
) -> NextBatch:
    """Return the function that selects each step's training texts.

    Args:
        readings: the target's outputs on its own answers and on the training text.
        source: source of the texts, one of `SOURCES`.
        size: number of texts per step.
        seed: seed of the order of the texts.
        regenerate_every: number of steps between two generations of new texts by the drafter. Each text is used
            `USES_PER_TEXT` times.
        own: the drafter's texts; used only if `source` requires them.

    A resumed run begins with newly generated texts, because a checkpoint does not contain them.
    """
    n_own = {DRAFTER: size, MIX: size // 2}.get(source, 0)
    rows = select_readings(readings, source)
    batch_rows = batches(readings, rows, size - n_own, seed) if size > n_own else None
    own_groups: dict[int, list[list[Dialogue]]] = {}

    def next_batch(step: int) -> tuple[list[Dialogue], int]:
        dialogues = [] if batch_rows is None else [readings.dialogue(row) for row in batch_rows(step)]
        if not n_own or own is None:
            return dialogues, 0
        epoch, position = divmod(step, regenerate_every)
        if epoch not in own_groups:
            groups = -(-regenerate_every // USES_PER_TEXT)
            texts = sorted(own.write(epoch, groups * n_own), key=lambda text: len(text.ids))
            order = np.random.default_rng((seed, epoch, 1)).permutation(groups).tolist()
            own_groups.clear()
            own_groups[epoch] = [texts[g * n_own : (g + 1) * n_own] for g in order]
        return dialogues + own_groups[epoch][position % len(own_groups[epoch])], n_own

    return next_batch
