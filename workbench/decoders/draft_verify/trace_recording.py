"""Convert a verification result to the `Round` in the trace."""

from __future__ import annotations

from collections import abc
from typing import TYPE_CHECKING

from workbench.core.lazy import take
from workbench.core.rejection import expected_accepted
from workbench.core.rules import Rule
from workbench.core.tree import children_of, depths_of
from workbench.decoders.draft_verify.drafter_vision import changed_vision
from workbench.decoders.draft_verify.verification_result import VerifiedTree
from workbench.engine.request import Sequence
from workbench.engine.trace_recording import common_round_fields
from workbench.trace.events import Round
from workbench.trace.metrics import ACCEPTANCE_GAIN, DISTRIBUTION_ERROR, DISTRIBUTION_ERROR_BOUND
from workbench.trace.nodes import ACCEPTED, DISCARDED, REJECTED, Nodes, Probe, TopTokens, TreeExplanationRecord
from workbench.trace.tokens import BONUS, CORRECTED, PLAIN, EmittedToken

if TYPE_CHECKING:
    from workbench.decoders.draft_verify.acceptance import Acceptance
    from workbench.decoders.draft_verify.tentative_tokens import TentativeResults
    from workbench.engine.detokenise import TokenText
    from workbench.engine.round_timing import Timing


def emitted_tokens(
    verified_tree: VerifiedTree, base: int, spans: abc.Sequence[tuple[str, int, int]]
) -> list[EmittedToken]:
    """Return the tokens that a verification result adds to a text of `base` tokens, one for each span of text."""
    result, tokens = verified_tree.result, []
    for i, (text, start, end) in enumerate(spans):
        if i < len(result.path):
            node = result.path[i]
            token, p = verified_tree.acceptance.tokens[node], verified_tree.acceptance.p_node[node]
            tokens.append(EmittedToken(token, text, start, end, ACCEPTED, node, base + i, p))
        else:
            kind = CORRECTED if result.corrected else BONUS if verified_tree.acceptance.tokens else PLAIN
            p = verified_tree.acceptance.p_bonus[result.path[-1] + 1 if result.path else 0]
            tokens.append(EmittedToken(result.bonus, text, start, end, kind, None, base + i, p))
    return tokens


def record_round(
    sequence: Sequence,
    verified_tree: VerifiedTree,
    new: list[EmittedToken],
    results: TentativeResults,
    timing: Timing,
    token_text: TokenText,
    full: bool,
    t_round: float,
) -> Round:
    """Return the trace record of one round.

    Args:
        sequence: the sequence.
        verified_tree: verification result.
        new: tokens added by this round; later nodes of the accepted path count as discarded.
        results: which of these, and of earlier tentative tokens, are final now.
        timing: timing of the round.
        token_text: text of tokens, for display.
        full: store top tokens and entropy.
        t_round: start of the round, in seconds of the host's clock.
    """
    assert sequence.trace is not None
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
        **common_round_fields(sequence, timing, t_round),
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
        record.top_q = _top_q(acceptance, token_text)
    return record


def _why(
    found: Acceptance, known: dict[str, Rule], tested: list[bool]
) -> tuple[list[str | None], dict[str, list[float | None]]]:
    """Return (rule of each node, inputs of the rules), None for untested nodes. New rules are added to `known`."""
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


def _top_q(found: Acceptance, token_text: TokenText) -> list[TopTokens | None]:
    if not found.top_q:
        return []
    ids, probs = found.top_q
    tops = [TopTokens([int(t) for t in i], [token_text(int(t)) for t in i], p) for i, p in zip(ids, probs, strict=True)]
    return [tops[m] if m >= 0 else None for m in found.child_q_rows]
