"""A trie of everything read and written: several branches from one look-up."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from workbench.core.params import param
from workbench.core.tree import DraftTree, Sampling
from workbench.engine.models import Models
from workbench.engine.parts import Drafter
from workbench.engine.plan import Plan
from workbench.engine.request import Row
from workbench.engine.told import Outcome
from workbench.methods.drafters.warmth import WARM, warmth

MAX_NODES = 65_536
"""Nodes after which a warm trie is squeezed."""


@dataclass(slots=True)
class TrieNode:
    """A token after a prefix: how often outputs had it, and each running request's prompt."""

    children: dict[int, TrieNode]
    prompt: dict[int, float]
    output: float = 0.0

    def score(self, request: int, weight: float) -> float:
        """(1 − w)·frequency in this request's prompt + w·frequency in outputs."""
        return (1.0 - weight) * self.prompt.get(request, 0.0) + weight * self.output


class Trie:
    """Branches of bounded length after every token, with counts from prompts (by request) and from outputs."""

    def __init__(self) -> None:
        self.root = TrieNode({}, {})
        self.n_nodes = 0

    def insert(self, branch: list[int], request: int | None) -> None:
        """Count a branch: for a request's prompt, or (None) for outputs."""
        node = self.root
        for token in branch:
            child = node.children.get(token)
            if child is None:
                child = node.children[token] = TrieNode({}, {})
                self.n_nodes += 1
            if request is None:
                child.output += 1
            else:
                child.prompt[request] = child.prompt.get(request, 0.0) + 1
            node = child

    def find(self, prefix: list[int]) -> TrieNode | None:
        """The node a prefix leads to."""
        node: TrieNode | None = self.root
        for token in prefix:
            node = node.children.get(token) if node is not None else None
        return node

    def best(
        self, node: TrieNode, request: int, weight: float, n_nodes: int, depth: int
    ) -> tuple[list[int], list[int]]:
        """The best-scored subtree below a node: (tokens, parents), parents first. Nodes of score 0 are left out."""
        counter = itertools.count()
        heap: list[tuple[float, int, int, int, int, TrieNode]] = []

        def push(at: TrieNode, parent: int, level: int) -> None:
            for token, child in at.children.items():
                score = child.score(request, weight)
                if score > 0:
                    heapq.heappush(heap, (-score, level, next(counter), parent, token, child))

        tokens: list[int] = []
        parents: list[int] = []
        push(node, -1, 1)
        while heap and len(tokens) < n_nodes:
            _, level, _, parent, token, child = heapq.heappop(heap)
            tokens.append(token)
            parents.append(parent)
            if level < depth:
                push(child, len(tokens) - 1, level + 1)
        return tokens, parents

    def forget(self, request: int) -> None:
        """Drop a request's prompt counts, and branches nobody else has."""

        def prune(node: TrieNode) -> None:
            for token, child in list(node.children.items()):
                child.prompt.pop(request, None)
                prune(child)
                if not child.children and not child.prompt and child.output <= 0:
                    del node.children[token]
                    self.n_nodes -= 1

        prune(self.root)

    def squeeze(self) -> None:
        """Halve output counts and drop what falls below one."""

        def halve(node: TrieNode) -> None:
            for token, child in list(node.children.items()):
                child.output = child.output / 2 if child.output > 1 else 0.0
                halve(child)
                if not child.children and not child.prompt and child.output <= 0:
                    del node.children[token]
                    self.n_nodes -= 1

        halve(self.root)


@dataclass(slots=True)
class TrieState:
    """One request's view: the trie, its number in it, and how far the output has been inserted."""

    trie: Trie
    request: int
    inserted: int


_numbers = itertools.count()


@dataclass(frozen=True)
class LookaheadTrie(Drafter):
    """Insert prompt and output into a trie; draft the best-scored subtree below the newest tokens, branches and all.

    The longest suffix whose subtree is large enough wins. What the prompt says outweighs what outputs said, which only
    break ties unless `output_weight` is raised. Prompt counts belong to their request and are dropped at its end.

    Source: Zhao et al. 2024, Lookahead (Alipay), arXiv:2312.12728, §4.1–4.3.
    """

    needs: ClassVar[tuple[str, ...]] = ("trees",)
    nodes: int = param(16, ge=1, le=96, doc="nodes drafted at most")
    branch_length: int = param(8, ge=2, le=16, doc="tokens inserted after each token, and most levels drafted")
    query_length: int = param(2, ge=1, le=8, doc="longest suffix looked up, in tokens")
    output_weight: float = param(0.0001, ge=0.0, le=1.0, doc="weight of output counts against prompt counts")
    warm: bool = warmth("output branches")

    def siblings(self) -> frozenset[Sampling]:
        """Looked up."""
        return frozenset({Sampling.DETERMINISTIC})

    def notice(self) -> str:
        """Warm drafts depend on other runs."""
        return WARM if self.warm else ""

    def memory(self) -> Hashable:
        """The trie, whatever is looked up in it."""
        return "lookahead-trie", self.branch_length, self.warm

    def prime(self, row: Row, models: Models) -> TrieState:
        """Insert everything committed."""
        trie = models.shared.setdefault("lookahead-trie", Trie()) if self.warm else Trie()
        state = TrieState(trie, next(_numbers), row.prompt_length)
        prompt = row.committed[: row.prompt_length]
        for i in range(len(prompt)):
            trie.insert(prompt[i : i + self.branch_length + 1], state.request)
        self._insert_output(row, state)
        return state

    def propose_row(self, row: Row, plan: Plan) -> DraftTree:
        """The subtree below the longest useful suffix."""
        assert row.models is not None
        state: TrieState = row.state
        best: tuple[list[int], list[int]] = ([], [])
        depth = min(plan.depth, self.branch_length)
        for n in range(min(self.query_length, len(row.committed)), 0, -1):
            node = state.trie.find(row.committed[-n:])
            if node is None:
                continue
            found = state.trie.best(node, state.request, self.output_weight, self.nodes, depth)
            if len(found[0]) > len(best[0]):
                best = found
            if len(best[0]) >= depth:
                break
        return DraftTree.of(*best, source="lookahead-trie", device=row.models.target.device)

    def observe(self, row: Row, outcome: Outcome) -> None:
        """Insert output branches that are complete by now."""
        self._insert_output(row, row.state)

    def _insert_output(self, row: Row, state: TrieState) -> None:
        text = row.committed
        while state.inserted + self.branch_length < len(text):
            state.trie.insert(text[state.inserted : state.inserted + self.branch_length + 1], None)
            state.inserted += 1
        if state.trie.n_nodes > MAX_NODES:
            state.trie.squeeze()

    def release(self, row: Row, models: Models) -> None:
        """Forget this request's prompt."""
        if self.warm and row.state is not None:
            row.state.trie.forget(row.state.request)
