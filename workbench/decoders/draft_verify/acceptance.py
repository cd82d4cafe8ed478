"""Apply the acceptance rule on the device, copy its results to the host once, find the accepted path, and record it."""

from __future__ import annotations

from collections import abc
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.errors import WorkbenchError
from workbench.core.lazy import LazySequence, take, to_host_lazily
from workbench.core.probes import ProbeOutput, Probes
from workbench.core.random_stream import Purpose
from workbench.core.rejection import Reason, VerificationResult, expected_accepted
from workbench.core.rules import Rule
from workbench.core.sampling import apply_logits_processors, largest
from workbench.core.transfer import on_host, to_device, to_host
from workbench.core.tree import DraftTree, children_of, depths_of
from workbench.decoders.draft_verify.drafter_vision import changed_vision
from workbench.decoders.draft_verify.parts import Verification, Verifier, siblings_of, verify_lossless
from workbench.engine.request import Sequence
from workbench.engine.round_record import common_round_fields
from workbench.engine.round_timing import Timing
from workbench.kernels.distributions import TOP, summarise_logits
from workbench.trace.events import Round
from workbench.trace.metrics import ACCEPTANCE_GAIN, DISTRIBUTION_ERROR, DISTRIBUTION_ERROR_BOUND
from workbench.trace.nodes import ACCEPTED, DISCARDED, REJECTED, Nodes, Probe, TopTokens, TreeExplanationRecord
from workbench.trace.tokens import BONUS, CORRECTED, PLAIN, EmittedToken

if TYPE_CHECKING:
    from workbench.decoders.draft_verify.tentative_tokens import SettledTokens
    from workbench.engine.decoder import EngineContext
    from workbench.engine.detokenise import TokenText


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Results of an acceptance rule for one tree of N nodes, before and after the copy to the host.

    The fields up to `exact` are tensors, or lists after `to_host`; a field that a rule or a tree does not provide is
    empty. On the host, `bonus`, `p_bonus` and `distribution_error` may be lazy (`LazySequence`): they are computed only
    for positions that the verifier's walk reaches.

    Attributes:
        tokens: node tokens, [N].
        parents: node parents, [N].
        bonus: token to emit at each position if the accepted path ends there, [N+1].
        p_bonus: target probability of `bonus`, [N+1].
        entropy: entropy of the target's distribution in nats, [N+1].
        p_node: target probability of each node, [N].
        accept: acceptance probability of each node, [N].
        q: draft probability of each node, [N].
        top_tokens: the target's most likely tokens, [N+1, 8].
        top_probs: probabilities of `top_tokens`, [N+1, 8].
        top_q: the most likely tokens of each of M draft distributions, and their probabilities, [2, M, 8].
        ranking: the same for the drafter's ranking, if the tree has no `q`; see `DraftTree.ranking`, [2, M, 8].
        score: the rule's score of each node, [N].
        inputs: values of the rules' I inputs at each node, [I, N]; `reason` has their names.
        rule_index: index of each node's rule in `reason`, [N].
        child_q_rows: index of the draft distribution at each position, [N+1]; −1 if there is none.
        ranking_rows: index of the ranking at each position, [N+1]; −1 if there is none.
        distribution_error: distribution error of testing each node (`AcceptanceDecision.distribution_error`), [N].
        probes: tokens, parents and positions of the probes, [3, P].
        columns: rows of numbers that explain the tree's shape (`TreeExplanation.columns`), at most three, [≤ 3, N].
        exact: acceptance probability of the exact rule for each node, if the rule used is not exact, [N].
        uniform: uniform random number of each node's test; None if the rule draws none.
        reason: the verifier's rules, and the names of their inputs.
        is_upper_bound: whether `distribution_error` is an upper bound.
        raw_logits: the target's unprocessed logits, [N+1, V], if log-probabilities are requested. They stay on the
            device.
    """

    tokens: Any
    parents: Any
    bonus: Any
    p_bonus: Any
    entropy: Any
    p_node: Any
    accept: Any
    q: Any
    top_tokens: Any
    top_probs: Any
    top_q: Any
    ranking: Any
    score: Any
    inputs: Any
    rule_index: Any
    child_q_rows: Any
    ranking_rows: Any
    distribution_error: Any
    probes: Any
    columns: Any
    exact: Any
    uniform: list[float] | None
    reason: Reason | None
    is_upper_bound: bool
    raw_logits: Tensor | None

    @staticmethod
    def to_host(results: abc.Sequence[Acceptance]) -> list[Acceptance]:
        """Copy the tensors of several results to lists, with one synchronisation for all."""
        columns = iter(to_host_lazily([getattr(acceptance, name) for acceptance in results for name in _ON_DEVICE]))
        return [replace(acceptance, **{name: next(columns) for name in _ON_DEVICE}) for acceptance in results]


_NOT_COPIED = ("uniform", "reason", "is_upper_bound", "raw_logits")
_ON_DEVICE = tuple(field.name for field in fields(Acceptance) if field.name not in _NOT_COPIED)


def accept(
    sequence: Sequence,
    tree: DraftTree,
    logits: Float[Tensor, "N_plus_1 V"],
    hidden: Float[Tensor, "N_plus_1 D"],
    layer_states: Mapping[int, Float[Tensor, "N_plus_1 D"]],
    record: bool,
    probes: Probes | None = None,
    probe_output: ProbeOutput | None = None,
) -> Acceptance:
    """Apply the sequence's acceptance rule to the target's logits over the draft tree. Does not synchronise.

    Draws the round's uniform random numbers.

    Args:
        sequence: sequence; its sampling, verifier and random stream are used.
        tree: draft tree.
        logits: target logits at the root and after each node.
        hidden: the LM head's input at the same positions.
        layer_states: captured hidden states at the same positions, by layer.
        record: whether to return further data for the trace: the drafter's top tokens, the tree builder's columns and,
            if the rule is not exact for this draft, the acceptance probabilities of the exact rule.
        probes: probe positions of all parts.
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
    position = len(sequence.committed)
    needs_uniform = verifier.needs_uniform(sampling) and n > 0
    uniform = sequence.random_stream.uniform(position, Purpose.ACCEPT, n).tolist() if needs_uniform else None
    u_bonus = None
    if not greedy:
        u_bonus = torch.from_numpy(sequence.random_stream.uniform(position, Purpose.BONUS, n + 1)).to(
            logits.device, non_blocking=True
        )
    v = Verification(
        tree,
        target.logits,
        target.probs,
        sampling,
        u_bonus,
        hidden,
        layer_states,
        sequence.committed,
        sequence.state.verifier,
        probe_output,
        raw,
        histories,
        target.entropy,
        lazy=on_host(logits.device),
        best=target.best,
    )
    decision = verifier.rule(v)
    reason, bonus = decision.reason, decision.bonus
    if isinstance(bonus, LazySequence):
        p_bonus = LazySequence[float](n + 1, lambda at: target.token_probs(torch.tensor(bonus.take(at.tolist())), at))
    else:
        p_bonus = target.token_probs(bonus)
    empty = target.p_top.new_zeros(0)
    at = None if tree.fanout <= 1 else tree.parents + 1  # in a chain the parent of node i is at position i
    exact_for = verifier.exact_for
    is_sound = tree.sampling in exact_for or (greedy and bool(exact_for))  # greedy output is then always the target's
    needs_exact = record and n > 0 and not is_sound
    top_q = q_of = empty
    if record and tree.q is not None and tree.child_q_rows is not None:
        top_q_probs, top_ids = largest(tree.q, TOP)
        top_q, q_of = _stacked([top_ids, top_q_probs], empty), tree.child_q_rows
    ranking = tree.ranking() if record and tree.q is None and tree.ranking is not None else None
    columns = tree.explanation.columns if record and tree.explanation is not None else []
    return Acceptance(
        tokens=tree.tokens,
        parents=tree.parents,
        bonus=bonus,
        p_bonus=p_bonus,
        entropy=target.entropy,
        p_node=target.token_probs(tree.tokens, at) if n else empty,
        accept=decision.accept,
        q=_draft_probs(tree, reason, empty),
        top_tokens=target.top,
        top_probs=target.p_top,
        top_q=top_q,
        ranking=empty if ranking is None else _stacked([ranking.tokens, ranking.probs], empty),
        score=empty if decision.score is None else decision.score,
        inputs=_stacked(reason.inputs.values(), empty) if reason is not None else empty,
        rule_index=empty if reason is None or reason.rule_index is None else reason.rule_index,
        child_q_rows=q_of,
        ranking_rows=empty if ranking is None else ranking.rows,
        distribution_error=empty if decision.distribution_error is None else decision.distribution_error,
        probes=empty if probes is None else torch.stack([probes.tokens, probes.parents, probes.depths]),
        columns=_stacked(columns, empty),
        exact=verify_lossless(v).accept if needs_exact else empty,
        uniform=uniform,
        reason=reason,
        is_upper_bound=decision.is_upper_bound,
        raw_logits=raw if sequence.request.options.logprobs is not None else None,
    )


def _draft_probs(tree: DraftTree, reason: Reason | None, empty: Tensor) -> Tensor:
    """Return the draft probability of each node, [N]: from the rule, the drafter's score, or the draft distribution."""
    if reason is not None and "q" in reason.inputs:
        return reason.inputs["q"]
    if tree.score is not None:
        return tree.score.to(empty.dtype)
    return empty if tree.q is None else tree.logq.to(empty.dtype).exp()


def _stacked(rows: Iterable[Tensor], empty: Tensor) -> Tensor:
    """Stack tensors into one with the dtype of `empty`; return `empty` if there are none."""
    tensors = [tensor.to(empty.dtype) for tensor in rows]
    return torch.stack(tensors) if tensors else empty


def _histories(sequence: Sequence, tree: DraftTree, device: torch.device) -> list[Tensor]:
    """Return the tokens up to and including each position of the tree (needs a synchronisation on a GPU)."""
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
            verifier finds the path by the default walk.
        probe_sources: source of each probe position.
    """

    tree: DraftTree
    acceptance: Acceptance
    result: VerificationResult
    n_accepted: float
    probe_sources: list[str]

    @classmethod
    def of(cls, tree: DraftTree, acceptance: Acceptance, verifier: Verifier, probe_sources: list[str]) -> VerifiedTree:
        """Find the accepted path and the token after it, from results of the rule on the host."""
        scores = [acceptance.score] if acceptance.score else []
        parents, accept = acceptance.parents, acceptance.accept
        result = verifier.walk(parents, accept, acceptance.bonus, acceptance.uniform, *scores)
        is_shared = bool(acceptance.exact) and type(verifier).walk is Verifier.walk
        n_accepted = expected_accepted(parents, accept) if is_shared else float(len(result.path))
        return cls(tree, acceptance, result, n_accepted, probe_sources)

    @property
    def tokens(self) -> list[int]:
        """Return the tokens of the accepted path and the token after it."""
        return [*(self.acceptance.tokens[node] for node in self.result.path), self.result.bonus]

    @property
    def is_nan(self) -> bool:
        """Return whether the target's probabilities contain NaN."""
        return any(value != value for value in self.acceptance.entropy)

    @property
    def sources(self) -> list[str]:
        """Return the source of each drafted node: the name of the drafter or datastore that proposed the node."""
        source = self.tree.source
        return [source] * len(self.acceptance.tokens) if isinstance(source, str) else list(source)

    def emitted_tokens(self, base: int, spans: abc.Sequence[tuple[str, int, int]]) -> list[EmittedToken]:
        """Return the tokens that the round adds to a text of `base` tokens. `spans`: text, start and end of each."""
        result, acceptance, tokens = self.result, self.acceptance, list[EmittedToken]()
        for i, (text, start, end) in enumerate(spans):
            if i < len(result.path):
                node = result.path[i]
                token, p = acceptance.tokens[node], acceptance.p_node[node]
                tokens.append(EmittedToken(token, text, start, end, ACCEPTED, node, base + i, p))
            else:
                kind = CORRECTED if result.corrected else BONUS if acceptance.tokens else PLAIN
                p = acceptance.p_bonus[result.path[-1] + 1 if result.path else 0]
                tokens.append(EmittedToken(result.bonus, text, start, end, kind, None, base + i, p))
        return tokens


def record_round(
    sequence: Sequence,
    verified_tree: VerifiedTree,
    new: list[EmittedToken],
    results: SettledTokens,
    timing: Timing,
    context: EngineContext,
) -> Round:
    """Return the trace record of one round.

    Args:
        sequence: sequence of the round.
        verified_tree: the draft with its verification result.
        new: tokens added by this round; later nodes of the accepted path count as discarded.
        results: which of the new tokens, and of earlier tentative tokens, are final now.
        timing: timing of the round.
        context: engine context, for the texts of tokens and the option to store top tokens and entropy.
    """
    token_text, full = context.token_text, context.record
    result, acceptance = verified_tree.result, verified_tree.acceptance
    n, n_new = len(acceptance.tokens), len(new)
    path = list(result.path[:n_new])
    bonus_emitted = n_new > len(result.path)
    status = [DISCARDED] * n
    accept: list[float | None] = [None] * n
    uniform: list[float | None] = [None] * n
    reached_parents = {-1, *path[:-1]}
    for node, is_accepted in result.tested:
        # If the text ends on the path, tests after its last token do not count.
        if bonus_emitted or acceptance.parents[node] in reached_parents:
            status[node] = ACCEPTED if is_accepted else REJECTED
            accept[node] = acceptance.accept[node]
            uniform[node] = result.uniform.get(node)
    rule, inputs = _why(acceptance, sequence.trace.header.rules, [a is not None for a in accept])
    if acceptance.distribution_error:
        name = DISTRIBUTION_ERROR_BOUND if acceptance.is_upper_bound else DISTRIBUTION_ERROR
        tested_nodes = [node for node, a in enumerate(accept) if a is not None]
        sequence.report.signals[name] = sum(take(acceptance.distribution_error, tested_nodes))
    if acceptance.exact:
        sequence.report.signals[ACCEPTANCE_GAIN] = verified_tree.n_accepted - expected_accepted(
            acceptance.parents, acceptance.exact
        )
    base = new[0].position
    depths = depths_of(acceptance.parents)
    nodes = Nodes(
        tokens=acceptance.tokens,
        parents=acceptance.parents,
        depth=depths,
        position=[base - 1 + d for d in depths],
        text=[token_text(t) for t in acceptance.tokens],
        p=acceptance.p_node,
        q=list(acceptance.q) if acceptance.q else [None] * n,
        accept=accept,
        u=uniform,
        status=status,
        source=verified_tree.sources,
        rule=rule,
        inputs=inputs,
    )
    last = results.emitted[-1] if results.emitted else None
    bonus_token = last if last is not None and bonus_emitted and last.position == new[-1].position else None
    record = Round(
        **common_round_fields(sequence, timing),
        vision={} if sequence.image_inputs is None else changed_vision(sequence),
        nodes=nodes,
        path=path,
        bonus=bonus_token.token if bonus_token else None,
        bonus_kind=bonus_token.kind if bonus_token else None,
        emitted=results.emitted,
        placed=results.placed,
        entropy=acceptance.entropy if full else [],
        probes=_probes(verified_tree, base, token_text),
    )
    if full:
        record.top_p = [
            TopTokens(ids, [token_text(t) for t in ids], probs)
            for ids, probs in zip(acceptance.top_tokens, acceptance.top_probs, strict=True)
        ]
        if (growth := verified_tree.tree.explanation) is not None and n:
            grown_rule_of, builder_before, builder_after = growth.to_lists(acceptance.columns, acceptance.parents)
            record.grown = TreeExplanationRecord(
                [rule.to_wire() for rule in growth.rules], grown_rule_of, builder_before, builder_after
            )
        record.top_q = _tops(acceptance.top_q, acceptance.child_q_rows, token_text)
        record.ranking = _tops(acceptance.ranking, acceptance.ranking_rows, token_text)
    return record


def _why(
    found: Acceptance, known: dict[str, Rule], tested: list[bool]
) -> tuple[list[str | None], dict[str, list[float | None]]]:
    """Return the rule name of each node and the values of each rule input, None at untested nodes; update `known`."""
    n, reason = len(tested), found.reason
    if reason is None:
        return [None] * n, {}
    rules = reason.rules
    rule_of = found.rule_index or [0] * n
    if not found.rule_index and len(rules) > 1:
        for siblings in children_of(found.parents):
            for rank, node in enumerate(siblings):
                rule_of[node] = min(rank, len(rules) - 1)
    node_rules = [rules[rule_of[i]] if tested[i] else None for i in range(n)]
    new_rules = {rule.name: rule for rule in node_rules if rule is not None}
    known.update({name: rule for name, rule in new_rules.items() if name not in known})
    input_names = [frozenset[str]() if rule is None else rule.sources for rule in node_rules]
    inputs = {
        name: [value if name in names else None for names, value in zip(input_names, column, strict=True)]
        for name, column in zip(reason.inputs, found.inputs, strict=True)
        if name not in ("p", "q") and any(name in names for names in input_names)
    }
    return [None if rule is None else rule.name for rule in node_rules], inputs


def _probes(verified_tree: VerifiedTree, base: int, token_text: TokenText) -> list[Probe]:
    """Return the probe positions of a round. `base`: position of the first token that the round emits."""
    columns = [*(verified_tree.acceptance.probes or ([], [], [])), verified_tree.probe_sources]
    return [Probe(token, token_text(token), parent, base - 1 + place, source)
            for token, parent, place, source in zip(*columns, strict=True)]  # fmt: skip


def _tops(most_likely: Any, rows: Any, token_text: TokenText) -> list[TopTokens | None]:
    """Return the drafter's most likely tokens at each position, [N+1]; [] if none were recorded.

    Args:
        most_likely: token ids and their probabilities, [2, M, 8], or an empty list.
        rows: row of each position, [N+1]; −1: none.
        token_text: function that returns the text of a token.
    """
    if not most_likely:
        return []
    ids, probs = most_likely
    tops = [TopTokens([int(t) for t in i], [token_text(int(t)) for t in i], p) for i, p in zip(ids, probs, strict=True)]
    return [tops[m] if m >= 0 else None for m in rows]
