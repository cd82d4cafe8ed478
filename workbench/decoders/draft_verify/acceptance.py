"""Apply the acceptance rule on the device, copy its results to the host once, and find the accepted path."""

from __future__ import annotations

import itertools
from collections import abc
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from workbench.core.errors import WorkbenchError
from workbench.core.lazy import LazySequence, to_host_lazily
from workbench.core.probes import ProbeOutput, Probes
from workbench.core.random_stream import Purpose
from workbench.core.rejection import RuleExplanation, VerificationResult, expected_accepted
from workbench.core.sampling import apply_logits_processors, largest
from workbench.core.transfer import on_host, to_device, to_host, to_list
from workbench.core.tree import DraftTree
from workbench.decoders.draft_verify.parts import Verification, Verifier, siblings_of, verify_lossless
from workbench.engine.request import Sequence
from workbench.kernels.distributions import TOP, summarise_logits
from workbench.trace.nodes import ACCEPTED
from workbench.trace.tokens import BONUS, CORRECTED, PLAIN, EmittedToken

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class WalkTensors:
    """Data on the device from which the verifier's walk finds the accepted path in a tree of N nodes.

    Attributes:
        tokens: node tokens, [N].
        parents: node parents, [N].
        accept: acceptance probability of each node, [N].
        bonus: token to emit at each position if the accepted path ends there, [N+1].
        score: the rule's score of each node, [N].
    """

    tokens: Int[Tensor, " N"]
    parents: Int[Tensor, " N"]
    accept: Float[Tensor, " N"]
    bonus: Int[Tensor, " N_plus_1"] | LazySequence[int]
    score: Tensor


@dataclass(frozen=True, slots=True)
class FigureTensors:
    """Probabilities, entropies and top tokens on the device, for the trace and for `RoundFeedback`.

    Attributes:
        p_node: target probability of each node, [N].
        q: draft probability of each node, [N].
        p_bonus: target probability of `WalkTensors.bonus`, [N+1].
        entropy: entropy of the target's distribution in nats, [N+1].
        top_tokens: the target's most likely tokens, [N+1, 8].
        top_probs: probabilities of `top_tokens`, [N+1, 8].
        distribution_error: distribution error of testing each node (`AcceptanceDecision.distribution_error`), [N].
        exact: acceptance probability of the exact rule for each node, if the rule used is not exact, [N].
    """

    p_node: Float[Tensor, " N"]
    q: Tensor
    p_bonus: Float[Tensor, " N_plus_1"] | LazySequence[float]
    entropy: Float[Tensor, " N_plus_1"]
    top_tokens: Int[Tensor, "N_plus_1 k"]
    top_probs: Float[Tensor, "N_plus_1 k"]
    distribution_error: Tensor | LazySequence[float]
    exact: Tensor


@dataclass(frozen=True, slots=True)
class ExplanationTensors:
    """Data on the device that explains the acceptance tests and the draft, for the trace.

    Attributes:
        rule_index: index of each node's rule in `AcceptanceTensors.rules`, [N].
        inputs: values of the rules' I inputs at each node, [I, N]; `AcceptanceTensors.rules` has their names.
        top_q: the most likely tokens of each of M draft distributions, and their probabilities, [2, M, 8].
        child_q_rows: index of the draft distribution at each position, [N+1]; −1 if there is none.
        ranking: the same as `top_q` for the drafter's ranking, if the tree has no `q`; see `DraftTree.ranking`,
            [2, M, 8].
        ranking_rows: index of the ranking at each position, [N+1]; −1 if there is none.
        columns: rows of numbers that explain the tree's shape (`TreeExplanation.columns`), at most three, [≤ 3, N].
        probes: tokens, parents and positions of P probes (processed, but never accepted), [3, P].
    """

    rule_index: Tensor
    inputs: Tensor
    top_q: Tensor
    child_q_rows: Tensor
    ranking: Tensor
    ranking_rows: Tensor
    columns: Tensor
    probes: Tensor


@dataclass(frozen=True, slots=True)
class AcceptanceTensors:
    """Results of an acceptance rule for one tree of N nodes, on the device.

    A tensor that a rule or a tree does not provide is empty. Such tensors have no shape in their type.

    Attributes:
        walk: data from which the accepted path is found.
        figures: probabilities, entropies and top tokens for the trace.
        explanation: explanations for the trace.
        uniform: uniform random number of each node's test, float64 [N] where the accepted path is found; None if the
            rule draws none.
        rules: the verifier's rules, and the names of their inputs.
        is_upper_bound: whether `FigureTensors.distribution_error` is an upper bound.
        is_late: whether the device finds the accepted path, and the host reads the results after it has queued later
            rounds.
    """

    walk: WalkTensors
    figures: FigureTensors
    explanation: ExplanationTensors
    uniform: Float64[Tensor, " N"] | None
    rules: RuleExplanation | None
    is_upper_bound: bool
    is_late: bool = False

    def tensors(self) -> list[Tensor | LazySequence[Any]]:
        """Return all tensors on the device, in the order that `with_lists` expects."""
        groups = self.walk, self.figures, self.explanation
        tensors: list[Tensor | LazySequence[Any]] = [
            getattr(group, field.name) for group in groups for field in fields(group)
        ]
        if self.uniform is not None and self.is_late:
            tensors.append(self.uniform)
        return tensors

    def with_lists(self, lists: Iterable[Any]) -> Acceptance:
        """Return the host copy. `lists`: values of `tensors`, as nested lists."""
        columns = iter(lists)
        groups = _take(WalkLists, columns), _take(FigureLists, columns), _take(ExplanationLists, columns)
        uniform = next(columns) if self._copies_uniform else None if self.uniform is None else to_list(self.uniform)
        return Acceptance(*groups, uniform, self.rules, self.is_upper_bound)

    @property
    def _copies_uniform(self) -> bool:
        """Return whether the random numbers must be copied to the host with the other tensors."""
        return self.uniform is not None and self.is_late


@dataclass(frozen=True, slots=True)
class WalkLists:
    """Host copy of `WalkTensors`. A lazy sequence is evaluated only at positions that the walk reaches."""

    tokens: list[int]
    parents: list[int]
    accept: list[float]
    bonus: abc.Sequence[int]
    score: list[float]


@dataclass(frozen=True, slots=True)
class FigureLists:
    """Host copy of `FigureTensors`. A lazy sequence is evaluated only at positions that the walk reaches."""

    p_node: list[float]
    q: list[float]
    p_bonus: abc.Sequence[float]
    entropy: list[float]
    top_tokens: list[list[int]]
    top_probs: list[list[float]]
    distribution_error: abc.Sequence[float]
    exact: list[float]


@dataclass(frozen=True, slots=True)
class ExplanationLists:
    """Host copy of `ExplanationTensors`."""

    rule_index: list[int]
    inputs: list[list[float]]
    top_q: list[list[list[float]]]
    child_q_rows: list[int]
    ranking: list[list[list[float]]]
    ranking_rows: list[int]
    columns: list[list[float]]
    probes: list[list[int]]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Host copy of `AcceptanceTensors`."""

    walk: WalkLists
    figures: FigureLists
    explanation: ExplanationLists
    uniform: list[float] | None
    rules: RuleExplanation | None
    is_upper_bound: bool

    @staticmethod
    def to_host(results: abc.Sequence[AcceptanceTensors]) -> list[Acceptance]:
        """Copy the tensors of the results of several sequences to lists on the host, with a single synchronisation."""
        groups = [r.tensors() for r in results]
        lists = iter(to_host_lazily(list(itertools.chain(*groups))))
        return [r.with_lists(itertools.islice(lists, len(g))) for r, g in zip(results, groups, strict=True)]


L = TypeVar("L", WalkLists, FigureLists, ExplanationLists)


def _take(group: type[L], lists: Iterator[Any]) -> L:
    """Create a `group` from the next lists, one per field, in the order of the fields."""
    return group(**{field.name: next(lists) for field in fields(group)})


def accept(
    sequence: Sequence,
    tree: DraftTree,
    logits: Float[Tensor, "N_plus_1 V"],
    hidden: Float[Tensor, "N_plus_1 D"],
    layer_states: Mapping[int, Float[Tensor, "N_plus_1 D"]],
    is_trace_detailed: bool,
    probes: Probes | None = None,
    probe_output: ProbeOutput | None = None,
) -> AcceptanceTensors:
    """Apply the sequence's acceptance rule to the target's logits over the draft tree. Does not synchronise.

    Draws the round's uniform random numbers.

    Args:
        sequence: sequence whose sampling parameters, verifier and random stream are used.
        tree: draft tree.
        logits: target logits at the root and after each node.
        hidden: the LM head's input at the same positions.
        layer_states: captured hidden states at the same positions, by layer.
        is_trace_detailed: whether to return further data for the trace: the drafter's top tokens, the columns of the
            tree builder's explanation and, if the rule is not exact for this draft, the acceptance probabilities of the
            exact rule.
        probes: probe positions (never accepted) of drafter and verifier.
        probe_output: results at the verifier's own probe positions.

    Raises:
        WorkbenchError: siblings were drawn in a way that drafter and tree builder do not declare.
    """
    n, sampling, verifier = len(tree), sequence.sampling, sequence.verifier
    if (
        n
        and not sampling.greedy
        and tree.sampling not in siblings_of(sequence.drafter, sequence.state.plan.tree_builder)
    ):
        raise WorkbenchError(
            f"{type(sequence.drafter).__name__} drafted sibling tokens with the sampling method "
            f"{tree.sampling.value}, which the drafter does not declare.",
            "Declare the sampling method in `siblings` of the drafter or tree builder, since it determines "
            "which verifiers are exact.",
        )
    raw, histories = logits, list[Tensor]()
    if sampling.needs_history:
        histories = _histories(sequence, tree, logits.device)
        logits = apply_logits_processors(logits, sampling, histories)
    greedy, target = sampling.greedy, summarise_logits(logits, sampling)
    is_late = sequence.is_on_device  # then the device finds the accepted path, and nothing may be evaluated lazily
    needs_uniform = verifier.needs_uniform(sampling) and n > 0
    uniform = sequence.uniforms(Purpose.ACCEPT, n, logits.device if is_late else None) if needs_uniform else None
    u_bonus = None if greedy else sequence.uniforms(Purpose.BONUS, n + 1, logits.device)
    v = Verification(
        tree,
        target.logits,
        target.probs,
        sampling,
        u_bonus,
        hidden,
        layer_states,
        () if is_late else sequence.committed,
        sequence.state.verifier,
        probe_output,
        raw,
        histories,
        target.entropy,
        lazy=on_host(logits.device) and not is_late,
        best=target.best,
    )
    decision = verifier.rule(v)
    rules, bonus = decision.explanation, decision.bonus
    if isinstance(bonus, LazySequence):
        p_bonus = LazySequence[float](n + 1, lambda at: target.token_probs(torch.tensor(bonus.take(at.tolist())), at))
    else:
        p_bonus = target.token_probs(bonus)
    empty = target.p_top.new_zeros(0)
    at = None if tree.fanout <= 1 else tree.parents + 1  # in a chain the parent of node i is at position i
    exact_for = verifier.exact_for
    is_sound = tree.sampling in exact_for or (greedy and bool(exact_for))  # greedy output is then always the target's
    needs_exact = is_trace_detailed and n > 0 and not is_sound
    top_q = q_of = empty
    if is_trace_detailed and tree.q is not None and tree.child_q_rows is not None:
        top_q_probs, top_ids = largest(tree.q, TOP)
        top_q, q_of = _stacked([top_ids, top_q_probs], empty), tree.child_q_rows
    ranking = tree.ranking() if is_trace_detailed and tree.q is None and tree.ranking is not None else None
    columns = tree.explanation.columns if is_trace_detailed and tree.explanation is not None else []
    walk_tensors = WalkTensors(
        tokens=tree.tokens,
        parents=tree.parents,
        accept=decision.accept,
        bonus=bonus,
        score=empty if decision.score is None else decision.score,
    )
    figures = FigureTensors(
        p_node=target.token_probs(tree.tokens, at) if n else empty,
        q=_draft_probs(tree, rules, empty),
        p_bonus=p_bonus,
        entropy=target.entropy,
        top_tokens=target.top,
        top_probs=target.p_top,
        distribution_error=empty if decision.distribution_error is None else decision.distribution_error,
        exact=verify_lossless(v).accept if needs_exact else empty,
    )
    explanation = ExplanationTensors(
        rule_index=empty if rules is None or rules.rule_index is None else rules.rule_index,
        inputs=_stacked(rules.inputs.values(), empty) if rules is not None else empty,
        top_q=top_q,
        child_q_rows=q_of,
        ranking=empty if ranking is None else _stacked([ranking.tokens, ranking.probs], empty),
        ranking_rows=empty if ranking is None else ranking.rows,
        columns=_stacked(columns, empty),
        probes=empty if probes is None else torch.stack([probes.tokens, probes.parents, probes.depths]),
    )
    return AcceptanceTensors(walk_tensors, figures, explanation, uniform, rules, decision.is_upper_bound, is_late)


def _draft_probs(tree: DraftTree, rules: RuleExplanation | None, empty: Tensor) -> Tensor:
    """Return the draft probability of each node of a draft tree, [N].

    It comes from the acceptance rule, the drafter's score, or the draft distribution.
    """
    if rules is not None and "q" in rules.inputs:
        return rules.inputs["q"]
    if tree.score is not None:
        return tree.score.to(empty.dtype)
    return empty if tree.q is None else tree.logq.to(empty.dtype).exp()


def _stacked(rows: Iterable[Tensor], empty: Tensor) -> Tensor:
    """Stack tensors into one with the dtype of `empty`; return `empty` if there are none."""
    tensors = [tensor.to(empty.dtype) for tensor in rows]
    return torch.stack(tensors) if tensors else empty


def _histories(sequence: Sequence, tree: DraftTree, device: torch.device) -> list[Tensor]:
    """Return the tokens from the prompt's start to each position of a draft tree. Synchronises a GPU."""
    committed = to_device(sequence.committed, device)
    histories = [committed]
    tokens, parents = to_host([tree.tokens, tree.parents])
    for token, parent in zip(tokens, parents, strict=True):
        histories.append(torch.cat([histories[parent + 1], to_device([token], device)]))
    return histories


# -- on the host ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VerifiedTree:
    """A draft tree with the results of its verification, on the host.

    Attributes:
        tree: draft tree; its tensors are on the device.
        acceptance: results of the acceptance rule.
        result: accepted path, and the token after it.
        n_accepted: number of accepted nodes; its expected value if the exact rule's probabilities are known and the
            verifier finds the path in the default way (`Verifier.walk`).
        probe_sources: name of the component that requested each probe position.
    """

    tree: DraftTree
    acceptance: Acceptance
    result: VerificationResult
    n_accepted: float
    probe_sources: list[str]

    @classmethod
    def of(cls, tree: DraftTree, acceptance: Acceptance, verifier: Verifier, probe_sources: list[str]) -> VerifiedTree:
        """Find the accepted path and the token after it, from the results of the acceptance rule on the host."""
        walk = acceptance.walk
        scores = [walk.score] if walk.score else []
        parents, accept = walk.parents, walk.accept
        result = verifier.walk(parents, accept, walk.bonus, acceptance.uniform, *scores)
        is_shared = bool(acceptance.figures.exact) and type(verifier).walk is Verifier.walk
        n_accepted = expected_accepted(parents, accept) if is_shared else float(len(result.path))
        return cls(tree, acceptance, result, n_accepted, probe_sources)

    @property
    def tokens(self) -> list[int]:
        """Return the tokens of the accepted path and the token after it."""
        return [*(self.acceptance.walk.tokens[node] for node in self.result.path), self.result.bonus]

    @property
    def is_nan(self) -> bool:
        """Return whether the target's probabilities contain NaN."""
        return any(value != value for value in self.acceptance.figures.entropy)

    @property
    def sources(self) -> list[str]:
        """Return the source of each drafted node: the name of the drafter or datastore that proposed the node."""
        source = self.tree.source
        return [source] * len(self.acceptance.walk.tokens) if isinstance(source, str) else list(source)

    def emitted_tokens(self, base: int, spans: abc.Sequence[tuple[str, int, int]]) -> list[EmittedToken]:
        """Return the tokens that the round adds to a text of `base` tokens.

        `spans` has the text of each token with its start and end in the generated text.
        """
        result, drafted, figures = self.result, self.acceptance.walk.tokens, self.acceptance.figures
        tokens = list[EmittedToken]()
        for i, (text, start, end) in enumerate(spans):
            if i < len(result.path):
                node = result.path[i]
                token, p = drafted[node], figures.p_node[node]
                tokens.append(EmittedToken(token, text, start, end, ACCEPTED, node, base + i, p))
            else:
                kind = CORRECTED if result.corrected else BONUS if drafted else PLAIN
                p = figures.p_bonus[result.path[-1] + 1 if result.path else 0]
                tokens.append(EmittedToken(result.bonus, text, start, end, kind, None, base + i, p))
        return tokens
