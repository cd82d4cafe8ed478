"""Lookahead trie: one look-up in a trie of prompt and output tokens gives several draft branches."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from workbench.core.errors import ModelError
from workbench.core.params import param
from workbench.core.tree import DraftTree, Sampling
from workbench.decoders.draft_verify.inspectable_state import (
    BROKEN,
    Arrays,
    InspectableState,
    StateEntry,
    StateSummary,
    check_array,
    check_token_ids,
)
from workbench.decoders.draft_verify.parts import Drafter, Plan, RoundFeedback
from workbench.engine.request import Sequence
from workbench.methods.common.warm_start import WARM_NOTICE, warm_param
from workbench.methods.tree_builders.shapes import NODES
from workbench.models.loading import Models

MAX_NODES = 65_536
"""Number of nodes above which a trie of token sequences is pruned."""
PROMPT_NODES = MAX_NODES // 2
"""Maximum number of nodes that a prompt adds to a trie. Of a longer prompt, only the last tokens are inserted."""
LONGEST = 16
"""Maximum number of tokens of a branch of the trie after its first token."""
NODE_BYTES = 450
"""Memory of a trie node in bytes: the node, its two dictionaries, and its entry in the parent's dictionary."""


@dataclass(slots=True)
class TrieNode:
    """Trie node: a token after the prefix that leads to it, with counts of its occurrences after this prefix.

    Attributes:
        children: child node for each next token.
        prompt: number of occurrences in the prompt of each running request, by the request's number.
        output: number of occurrences in outputs, halved when the trie is pruned.
    """

    children: dict[int, TrieNode]
    prompt: dict[int, float]
    output: float = 0.0

    def score(self, request: int, weight: float) -> float:
        """Return a trie node's score: (1 − w) · count in the request's prompt + w · count in outputs, w = `weight`."""
        return (1.0 - weight) * self.prompt.get(request, 0.0) + weight * self.output


class Trie:
    """Trie of short token sequences (branches), with counts of occurrences in each request's prompt and in outputs."""

    def __init__(self, most: int = MAX_NODES) -> None:
        self.root = TrieNode({}, {})
        self.n_nodes, self.most = 0, most
        self._squeezed_at = most

    def insert(self, branch: list[int], request: int | None) -> None:
        """Add a token sequence (branch) to the trie, and add 1 to the counts of its nodes.

        Args:
            branch: tokens of the branch.
            request: number of the request whose prompt contains the branch; None: an output contains it.
        """
        node = self.root
        for token in branch:
            child = self.below(node, token)
            if request is None:
                child.output += 1
            else:
                child.prompt[request] = child.prompt.get(request, 0.0) + 1
            node = child

    def below(self, node: TrieNode, token: int) -> TrieNode:
        """Return the child of a trie node for a token, and create it if it is missing."""
        child = node.children.get(token)
        if child is None:
            child = node.children[token] = TrieNode({}, {})
            self.n_nodes += 1
        return child

    def find(self, prefix: list[int]) -> TrieNode | None:
        """Return the trie node to which a prefix leads; None if the prefix is not in the trie."""
        node: TrieNode | None = self.root
        for token in prefix:
            node = node.children.get(token) if node is not None else None
        return node

    def best(
        self, node: TrieNode, request: int, weight: float, n_nodes: int, depth: int
    ) -> tuple[list[int], list[int]]:
        """Return the draft tree of the highest-scoring nodes below a trie node. Nodes of score 0 are left out.

        Args:
            node: node below which the subtree begins.
            request: number that identifies the request whose prompt counts are used.
            weight: weight of counts in outputs.
            n_nodes: maximum number of nodes.
            depth: maximum number of levels.

        Returns:
            Token of each node, parents first; and index of each node's parent, −1 for children of `node`.
        """
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
        """Drop the prompt counts of a request from the trie, and branches that have no other counts."""

        def prune(node: TrieNode) -> None:
            for token, child in list(node.children.items()):
                child.prompt.pop(request, None)
                prune(child)
                if not child.children and not child.prompt and child.output <= 0:
                    del node.children[token]
                    self.n_nodes -= 1

        prune(self.root)

    def squeeze(self) -> None:
        """Halve the output counts above 1, set smaller counts to 0, and drop trie branches that then have no counts."""

        def halve(node: TrieNode) -> None:
            for token, child in list(node.children.items()):
                child.output = child.output / 2 if child.output > 1 else 0.0
                halve(child)
                if not child.children and not child.prompt and child.output <= 0:
                    del node.children[token]
                    self.n_nodes -= 1

        halve(self.root)

    def keep_bound(self) -> None:
        """Prune a full trie to three quarters of its maximum size, or until only running requests' prompts remain."""
        if self.n_nodes > self._squeezed_at:
            while self.n_nodes > self.most * 3 // 4 and any(c.output > 0 for c in self.root.children.values()):
                self.squeeze()
            self._squeezed_at = max(self.most, self.n_nodes * 5 // 4)


@dataclass(eq=False)
class TrieState(InspectableState):
    """Drafting state of the lookahead trie for one request.

    Attributes:
        trie: trie of token sequences.
        request: number that identifies the request in the trie.
        inserted: number of committed tokens whose branches have been inserted.
        shared: whether several runs share the trie.
    """

    title = "Trie of branches"
    unit: ClassVar[str] = "nodes"
    trie: Trie
    request: int
    inserted: int
    shared: bool = False

    def summarise(self, n: int) -> StateSummary:
        pairs = [
            (node.output + node.prompt.get(self.request, 0.0), (first, token))
            for first, parent in self.trie.root.children.items()
            for token, node in parent.children.items()
        ]
        top = [StateEntry([first], [token], count) for count, (first, token) in heapq.nlargest(n, pairs) if count > 0]
        size, most = self.trie.n_nodes, self.trie.most
        return StateSummary(size, most, NODE_BYTES * size, NODE_BYTES * most, "times seen", top)

    def pack(self) -> Arrays:
        """Return token, parent index and count (prompt + output) of each trie node, level by level."""
        rows, queue = list[tuple[int, int, float]](), deque([(self.trie.root, -1)])
        while queue:
            node, parent = queue.popleft()
            for token, child in node.children.items():
                if (count := child.output + child.prompt.get(self.request, 0.0)) > 0:
                    queue.append((child, len(rows)))
                    rows.append((token, parent, count))
        tokens, parents, counts = zip(*rows, strict=True) if rows else ((), (), ())
        return {
            "tokens": np.array(tokens, np.int32),
            "parents": np.array(parents, np.int32),
            "counts": np.array(counts, np.float32),
        }

    def merge(self, arrays: Arrays, vocabulary: int) -> None:
        tokens = check_token_ids(arrays, "tokens", vocabulary, (None,))
        parents = check_array(arrays, "parents", (len(tokens),), -1, max(1, len(tokens)), whole=True)
        counts = check_array(arrays, "counts", (len(tokens),), 0, 1e9)
        if (parents >= np.arange(len(tokens))).any():
            raise ModelError("The file is broken: a node comes before its parent.", BROKEN)
        levels, nodes = list[int](), list[TrieNode]()
        for parent in map(int, parents):
            levels.append(levels[parent] + 1 if parent >= 0 else 0)
        if max(levels, default=0) > LONGEST:  # branches are walked by recursion
            raise ModelError("The file is broken: a branch is longer than the limit.", BROKEN)
        rows: zip[tuple[int, int, float]] = zip(tokens.tolist(), parents.tolist(), counts.tolist(), strict=True)
        for token, parent, count in itertools.islice(rows, PROMPT_NODES):  # nodes are ordered with parents first
            node = self.trie.below(nodes[parent] if parent >= 0 else self.trie.root, token)
            node.output += count
            nodes.append(node)
        self.trie.keep_bound()

    def clear(self) -> None:
        self.trie.root.children.clear()
        self.trie.n_nodes = 0


_numbers = itertools.count()


@dataclass(frozen=True)
class LookaheadTrie(Drafter):
    """Insert prompt and output into a trie, and draft the subtree of the highest scores below the newest tokens.

    The draft continues the longest suffix of the text whose subtree has at least as many nodes as the plan has levels;
    if there is none, the suffix with the largest subtree. By default, counts in outputs only break ties between counts
    in the prompt. A larger `output_weight` gives output counts more weight. Prompt counts are stored per request, and
    dropped when the request ends.

    Source: Zhao et al. 2024, Lookahead (Alipay), arXiv:2312.12728, §4.1–4.3.
    """

    needs: ClassVar[tuple[str, ...]] = ("trees",)
    nodes: int = param(16, **NODES)
    branch_length: int = param(
        8, ge=2, le=LONGEST, doc=("length of stored branches in tokens, and maximum number of draft levels")
    )
    query_length: int = param(2, ge=1, le=8, doc="longest suffix to look up, in tokens")
    output_weight: float = param(
        0.0001, ge=0.0, le=1.0, doc="weight of counts from outputs, relative to counts from prompts"
    )
    warm: bool = warm_param("output branches")

    def siblings(self) -> frozenset[Sampling]:
        """Return how sibling nodes are chosen: deterministically, because tokens are looked up in the trie."""
        return frozenset({Sampling.DETERMINISTIC})

    def notice(self) -> str:
        """Return a note for the user if drafts depend on earlier runs (`warm`), else ""."""
        return WARM_NOTICE if self.warm else ""

    def state_key(self) -> Hashable:
        """Return the cache key under which later drafters find the trie. It contains no parameter of the look-up."""
        return "lookahead-trie", self.branch_length, self.warm

    def init_state(self, sequence: Sequence, models: Models) -> TrieState:
        """Return a drafting state whose trie contains the token sequences of the committed text."""
        trie = models.shared.setdefault("lookahead-trie", Trie()) if self.warm else Trie()
        state = TrieState(trie, next(_numbers), sequence.prompt_length, self.warm)
        prompt = sequence.committed[: sequence.prompt_length][-(PROMPT_NODES // (self.branch_length + 1)) :]
        for i in range(len(prompt)):
            trie.insert(prompt[i : i + self.branch_length + 1], state.request)
        self._insert_output(sequence, state)
        return state

    def propose_one(self, sequence: Sequence, plan: Plan) -> DraftTree:
        """Draft from the trie's subtree below a suffix of the text.

        Suffixes are tried from long to short, until a subtree has as many nodes as the draft may have levels. If none
        has, the largest subtree is drafted.
        """
        state: TrieState = sequence.state.drafter
        best: tuple[list[int], list[int]] = ([], [])
        matched = 0
        depth = min(plan.depth, self.branch_length)
        for n in range(min(self.query_length, len(sequence.committed)), 0, -1):
            node = state.trie.find(sequence.committed[-n:])
            if node is None:
                continue
            subtree = state.trie.best(node, state.request, self.output_weight, self.nodes, depth)
            if len(subtree[0]) > len(best[0]):
                best, matched = subtree, n
            if len(best[0]) >= depth:
                break
        sequence.report.signals["matched tokens"] = matched
        return DraftTree.from_parents(*best, source="lookahead-trie", device=sequence.models.target.device)

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Insert the token sequences of the output that have reached full branch length into the trie."""
        self._insert_output(sequence, sequence.state.drafter)

    def _insert_output(self, sequence: Sequence, state: TrieState) -> None:
        text = sequence.committed
        while state.inserted + self.branch_length < len(text):
            state.trie.insert(text[state.inserted : state.inserted + self.branch_length + 1], None)
            state.inserted += 1
        state.trie.keep_bound()

    def release(self, sequence: Sequence, models: Models) -> None:
        """Drop the prompt counts of the finished request from the trie."""
        if self.warm and sequence.state.drafter is not None:
            sequence.state.drafter.trie.forget(sequence.state.drafter.request)
