"""ADED: draft by a search in a table of tri-grams, which the text and the target's distributions update."""

from __future__ import annotations

from collections import abc
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from workbench.core.params import param
from workbench.core.random_stream import Purpose
from workbench.core.transfer import to_device, to_list
from workbench.core.tree import DraftTree, Sampling
from workbench.core.tree_explanation import TreeBuilderRule, TreeExplanation
from workbench.decoders.draft_verify.parts import Drafter, Plan, RoundFeedback
from workbench.engine.request import Sequence
from workbench.methods.adaptive_trigram.table import Trigrams, best_first, most_visited, search
from workbench.methods.common.warm_start import WARM_NOTICE, warm_param
from workbench.methods.tree_builders.shapes import NODES
from workbench.models.loading import Models

SEARCHED = TreeBuilderRule(
    "tri-grams",
    "Found in the tri-gram table",
    "The tree search visited this node among the most often. The tri-gram of its token and the two tokens before it "
    "is in the table.",
    "number of visits by the tree search",
    "weight of this node's tri-gram in the table",
)


@dataclass(frozen=True)
class AdaptiveTrigram(Drafter):
    """Draft by a search over token sequences, in a table of tri-gram weights that the text and the target update.

    Each occurrence of a tri-gram in the text adds `increment` to the weight of the tri-gram. If `rate` > 0, the
    target's distribution at every verified node, accepted or not, also changes the weights of the tri-grams that begin
    with the last two tokens of the node's path: they move towards the distribution. The search begins after the newest
    two tokens of the text. Monte Carlo tree search ("mcts") balances likely and untried tokens, and its most visited
    sequences are the draft. "best-first" drafts the sequences with the largest products of weights.

    Attributes:
        nodes: maximum number of drafted nodes.
        search: algorithm that chooses sequences.
        iterations: number of iterations of the Monte Carlo tree search.
        increment: weight that a tri-gram gains at each occurrence in the text.
        rate: step size towards the target's distribution at each verified node; 0: no such step, as in the released
            code.
        warm: whether later runs continue with the table of tri-grams.

    Source: Liu et al. 2024, Adaptive draft-verification for efficient large language model decoding, arXiv:2407.12021.
    """

    needs: ClassVar[tuple[str, ...]] = ("trees",)
    nodes: int = param(12, **NODES)
    search: str = param("mcts", choices=("mcts", "best-first"), doc="search algorithm for draft sequences")
    iterations: int = param(
        30, ge=1, le=150, doc="number of search iterations; each tries one draft sequence", when="search = mcts"
    )
    increment: float = param(0.04, ge=0.0, le=1.0, doc="weight added to a tri-gram each time it is generated")
    rate: float = param(
        0.2,
        ge=0.0,
        le=1.0,
        doc=("step size of the weights towards the target's distribution at verified nodes; 0: no step"),
    )
    warm: bool = warm_param("the table")

    def siblings(self) -> frozenset[Sampling]:
        """Return how sibling nodes are chosen: deterministically, not as samples from a draft distribution."""
        return frozenset({Sampling.DETERMINISTIC})

    def notice(self) -> str:
        """Return a note for the user if drafts depend on earlier runs (`warm`), else ""."""
        return WARM_NOTICE if self.warm else ""

    def state_key(self) -> Hashable:
        """Return the cache key under which later drafters find the tri-gram table.

        It contains the parameters of the table, but not those of the search.
        """
        return "adaptive-trigram", self.increment, self.rate, self.warm

    def init_state(self, sequence: Sequence, models: Models) -> Trigrams:
        """Return a table with the tri-grams of the committed text.

        If `warm`, they are added to the table of earlier runs.
        """
        table = models.shared.setdefault("adaptive-trigram", Trigrams(shared=True)) if self.warm else Trigrams()
        self._read(table, sequence.committed, 0)
        return table

    def _read(self, table: Trigrams, text: abc.Sequence[int], begin: int) -> None:
        """Raise the weight of every tri-gram in the text whose last token is at or after index `begin`."""
        for end in range(max(2, begin), len(text)) if self.increment else ():
            table.write((text[end - 2], text[end - 1]), text[end], self.increment)

    def propose_one(self, sequence: Sequence, plan: Plan) -> DraftTree:
        """Search for token sequences after the newest two tokens, and return them as a draft tree."""
        table: Trigrams = sequence.state.drafter
        pair = (sequence.committed[-2] if len(sequence.committed) > 1 else -1, sequence.committed[-1])
        successors = table.successors(pair)
        sequence.report.signals |= {"known pairs": len(table), "known successors": len(successors)}
        sequence.report.signals["matched tokens"] = 2.0 if successors else 0.0
        nodes, device = plan.limit_nodes(self.nodes), sequence.models.target.device
        if not successors:
            return DraftTree.empty("adaptive-trigram", device)
        if self.search == "mcts":
            uniforms = to_list(
                sequence.random_stream.uniform(len(sequence.committed), Purpose.GUESS, self.iterations * plan.depth)
            )
            batches = [uniforms[i * plan.depth : (i + 1) * plan.depth] for i in range(self.iterations)]
            sequences = most_visited(search(table, pair, plan.depth, batches), nodes, plan.depth)
        else:
            sequences = best_first(table, pair, nodes, plan.depth)
        tree = DraftTree.from_parents(sequences.tokens, sequences.parents, source="adaptive-trigram", device=device)
        visits, weights = (to_device(values, device, torch.float32) for values in (sequences.visits, sequences.weights))
        return replace(tree, explanation=TreeExplanation((SEARCHED,), before=visits, after=weights))

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Update the tri-gram table: move weights towards the target's distributions, and add new tri-grams."""
        table: Trigrams = sequence.state.drafter
        first = len(sequence.committed) - len(feedback.emitted)
        if self.rate:
            before = [sequence.committed[first - 2] if first > 1 else -1, feedback.root, *feedback.tokens]
            pairs = [(before[0], feedback.root)]
            pairs += [
                (before[parent + 2], token) for parent, token in zip(feedback.parents, feedback.tokens, strict=True)
            ]
            for pair, top, probs in zip(pairs, feedback.top_tokens, feedback.top_probs, strict=True):
                table.approach(pair, top, probs, self.rate)
        self._read(table, sequence.committed, first)
