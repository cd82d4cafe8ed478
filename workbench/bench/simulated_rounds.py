"""Simulated rounds without a model: a fixed text replaces the target's output, to measure the cost of drafting.

A draft is accepted up to the first token that differs from the text. At each position, the target's top tokens are the
token of the text and random tokens after it.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch

from workbench.core.probes import ProbeOutput
from workbench.core.rejection import VerificationResult
from workbench.core.tree import DraftTree
from workbench.decoders.draft_verify.parts import RoundFeedback
from workbench.decoders.draft_verify.state import DraftState
from workbench.decoders.method import ConfiguredMethod
from workbench.engine.request import Request, Sequence
from workbench.kernels.distributions import TOP
from workbench.models.loading import Models
from workbench.trace.events import Header, Trace

TOP_PROBS = (np.arange(1, TOP + 1) ** -1.5 / (np.arange(1, TOP + 1) ** -1.5).sum()).tolist()
"""Probabilities of the simulated target's top tokens, the same at every position."""


def stub_models(vocabulary: int, tokenizer: Any = None, name: str = "") -> Models:
    """Return a stub of `Models` without any model, with the attributes that drafters without a model use."""
    target = SimpleNamespace(
        vocab_size=vocabulary, device=torch.device("cpu"), dtype=torch.float32, model=None, config=None, n_layers=2,
        why_no_trees="", context=1 << 30, meter=None,
    )  # fmt: skip
    return Models(cast("Any", target), tokenizer, name)


@dataclass
class SimulatedSequence:
    """One sequence of simulated rounds, whose output is a fixed text.

    Attributes:
        sequence: the sequence with the drafter's state.
        text: text of the sequence, including the prompt.
        position: number of tokens committed so far.
        random: random generator of the target's top tokens other than the first.
    """

    sequence: Sequence
    text: abc.Sequence[int]
    position: int
    random: np.random.Generator

    @classmethod
    def of(
        cls, configured: ConfiguredMethod, models: Models, text: abc.Sequence[int], prompt: int, seed: int = 0
    ) -> SimulatedSequence:
        """Return a simulated sequence whose first `prompt` tokens are committed and have been passed to the drafter."""
        prompt_ids = list(text[:prompt])
        sequence = Sequence(
            Request(prompt_ids, configured, max_new_tokens=1 << 30, seed=seed), list(prompt_ids), models
        )
        sequence.trace = Trace(
            Header(
                target="simulated",
                method=configured.name,
                params=sequence.params,
                promise=configured.promise.value,
                seed=seed,
                prompt="",
                prompt_tokens=prompt_ids,
                prompt_text=[],
                max_new_tokens=sequence.max_new_tokens,
                dtype="",
                device="",
            )
        )
        sequence.state = DraftState()
        sequence.state.drafter = configured.drafter.init_state(sequence, models)
        sequence.state.policy = configured.policy.init_state()
        tree_builder = configured.tree_builder
        sequence.state.tree_builder = (
            None if tree_builder is None else tree_builder.init_state(configured.drafter, models)
        )
        return cls(sequence, text, prompt, np.random.default_rng(seed))

    @property
    def is_over(self) -> bool:
        """Return whether the rest of the fixed text is too short for another simulated round."""
        return self.position + self.sequence.state.plan.depth + 2 >= len(self.text)

    def plan(self) -> None:
        """Set the draft length of the next simulated round by the sequence's draft policy."""
        sequence = self.sequence
        sequence.report.signals = {}
        planned = sequence.policy.plan(sequence, sequence.state.policy, [sequence])
        sequence.state.plan = replace(
            planned, tree_builder=planned.tree_builder or sequence.configured_method.tree_builder
        )

    def propose(self) -> DraftTree:
        """Return the drafter's draft tree for the next simulated round."""
        return self.sequence.drafter.propose([self.sequence])[0]

    def verify(self, tree: DraftTree, min_tokens: int = 1) -> RoundFeedback:
        """Accept draft tokens that equal the fixed text; append these and the next token (at least `min_tokens`)."""
        sequence, tokens, parents = self.sequence, tree.tokens.tolist(), tree.parents.tolist()
        path, parent_node, position = list[int](), -1, self.position
        for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
            if parent == parent_node and token == self.text[position]:
                path.append(node)
                parent_node, position = node, position + 1
        root, emitted = (
            sequence.committed[-1],
            list(self.text[self.position : max(position + 1, self.position + min_tokens)]),
        )
        sequence.committed.extend(emitted)
        probes = sequence.drafter.probes(sequence, tree)
        self.position += len(emitted)
        top = self.random.integers(0, sequence.models.target.vocab_size, (len(tokens) + 1, TOP))
        top[:, 0] = emitted[0]
        probed = (
            None if probes is None else ProbeOutput(probes, torch.zeros(len(probes), 64), torch.zeros(len(probes), 1))
        )
        verification = VerificationResult(tuple(path), emitted[len(path)], bool(tokens), (), {})
        top_probs, top_tokens = [TOP_PROBS] * (len(tokens) + 1), _distinct(top, sequence.models.target.vocab_size)
        return RoundFeedback(
            tokens,
            parents,
            verification,
            emitted,
            root,
            top_tokens,
            sequence.state.plan,
            probe_output=probed,
            top_probs=top_probs,
        )

    def observe(self, feedback: RoundFeedback) -> None:
        """Pass the feedback of the simulated round to the drafter."""
        self.sequence.drafter.observe(self.sequence, feedback)


def _distinct(top: np.ndarray, vocabulary: int) -> list[list[int]]:
    """Return the top tokens of each position as a list without repetitions.

    A repeated token is replaced by the next token id.
    """
    rows = top.tolist()
    for tokens in rows:
        for i in range(1, len(tokens)):
            while tokens[i] in tokens[:i]:
                tokens[i] = (tokens[i] + 1) % vocabulary
    return rows
