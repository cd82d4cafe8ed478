"""Simulated rounds without a model: a given text takes the place of the target's, to measure the cost of drafting.

Drafts are accepted as far as the text continues them. The target's top tokens are the text's own token and, after it,
random tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch

from workbench.core.probes import Probed
from workbench.core.rejection import VerificationResult
from workbench.core.tree import DraftTree
from workbench.decoders.draft_verify.feedback import RoundFeedback
from workbench.decoders.draft_verify.state import DraftState
from workbench.decoders.method import Configured
from workbench.engine.request import Request, Row
from workbench.kernels.distributions import TOP
from workbench.models.loading import Models

FALLING = (np.arange(1, TOP + 1) ** -1.5 / (np.arange(1, TOP + 1) ** -1.5).sum()).tolist()
"""Probabilities of the top tokens, the same at every position."""


def silent(vocabulary: int, tokenizer: Any = None, name: str = "") -> Models:
    """Return a `Models` without a model, with the attributes that text-only drafters use."""
    target = SimpleNamespace(
        vocab_size=vocabulary, device=torch.device("cpu"), dtype=torch.float32, model=None, config=None, n_layers=2,
        why_no_trees="", context=1 << 30, meter=None,
    )  # fmt: skip
    return Models(cast("Any", target), tokenizer, name)


@dataclass
class Reader:
    """One simulated sequence.

    Attributes:
        row: the sequence with the drafter's state.
        text: its text, including the prompt.
        at: number of tokens committed so far.
        random: generator of the top tokens after the first.
    """

    row: Row
    text: Sequence[int]
    at: int
    random: np.random.Generator

    @classmethod
    def of(cls, configured: Configured, models: Models, text: Sequence[int], prompt: int, seed: int = 0) -> Reader:
        """Return a sequence with `prompt` committed tokens, and a drafter state for them."""
        begin = list(text[:prompt])
        row = Row(Request(begin, configured, max_new_tokens=1 << 30, seed=seed), list(begin), models)
        row.state = DraftState()
        row.state.drafter = configured.drafter.prime(row, models)
        row.state.policy = configured.policy.start()
        grower = configured.grower
        row.state.tree_builder = None if grower is None else grower.prime(configured.drafter, models)
        return cls(row, text, prompt, np.random.default_rng(seed))

    @property
    def is_over(self) -> bool:
        """Whether the text is too short for another round."""
        return self.at + self.row.state.plan.depth + 2 >= len(self.text)

    def plan(self) -> None:
        """Let the policy set the draft length."""
        row = self.row
        row.report.signals = {}
        planned = row.policy.plan(row, row.state.policy, [row])
        row.state.plan = replace(planned, grower=planned.grower or row.configured.grower)

    def propose(self) -> DraftTree:
        """Return the draft tree."""
        return self.row.drafter.propose([self.row])[0]

    def judge(self, tree: DraftTree, least: int = 1) -> RoundFeedback:
        """Return the outcome of a draft against the text; add its tokens, at least `least`, to `row.committed`."""
        row, tokens, parents = self.row, tree.tokens.tolist(), tree.parents.tolist()
        path, below, at = list[int](), -1, self.at
        for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
            if parent == below and token == self.text[at]:
                path.append(node)
                below, at = node, at + 1
        root, emitted = row.committed[-1], list(self.text[self.at : max(at + 1, self.at + least)])
        row.committed.extend(emitted)
        probes = row.drafter.probes(row, tree)
        self.at += len(emitted)
        top = self.random.integers(0, row.models.target.vocab_size, (len(tokens) + 1, TOP))
        top[:, 0] = emitted[0]
        probed = None if probes is None else Probed(probes, torch.zeros(len(probes), 64), torch.zeros(len(probes), 1))
        verdict = VerificationResult(tuple(path), emitted[len(path)], bool(tokens), (), {})
        chances, said = [FALLING] * (len(tokens) + 1), _distinct(top, row.models.target.vocab_size)
        return RoundFeedback(
            tokens, parents, verdict, emitted, root, said, row.state.plan, probed=probed, chances=chances
        )

    def observe(self, outcome: RoundFeedback) -> None:
        """Pass the outcome to the drafter."""
        self.row.drafter.observe(self.row, outcome)


def _distinct(top: np.ndarray, vocabulary: int) -> list[list[int]]:
    """Return rows of tokens without repetitions: a repeated token is replaced by the next number."""
    rows = top.tolist()
    for row in rows:
        for i in range(1, len(row)):
            while row[i] in row[:i]:
                row[i] = (row[i] + 1) % vocabulary
    return rows
