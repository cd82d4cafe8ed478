"""Record a round of draft-and-verify decoding for the trace: tree, acceptance tests, accepted path, explanations.

`engine/round_record.py` adds the fields that the rounds of all decoders have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.core.lazy import take
from workbench.core.rejection import expected_accepted
from workbench.core.rules import Rule
from workbench.core.tree import children_of, depths_of
from workbench.decoders.draft_verify.acceptance import Acceptance, VerifiedTree
from workbench.decoders.draft_verify.drafter_vision import changed_vision
from workbench.engine.request import Sequence
from workbench.engine.round_record import common_round_fields
from workbench.engine.round_timing import Timing
from workbench.trace.events import Round
from workbench.trace.metrics import ACCEPTANCE_GAIN, DISTRIBUTION_ERROR, DISTRIBUTION_ERROR_BOUND
from workbench.trace.nodes import ACCEPTED, DISCARDED, REJECTED, Nodes, Probe, TopTokens, TreeExplanationRecord
from workbench.trace.tokens import EmittedToken

if TYPE_CHECKING:
    from workbench.decoders.draft_verify.tentative_tokens import SettledTokens
    from workbench.engine.decoder import EngineContext
    from workbench.engine.detokenise import TokenText


def record_round(
    sequence: Sequence,
    verified_tree: VerifiedTree,
    new: list[EmittedToken],
    results: SettledTokens,
    timing: Timing,
    context: EngineContext,
) -> Round:
    """Return the trace's record of one draft-and-verify round.

    Args:
        sequence: sequence of the round.
        verified_tree: the draft tree with its verification result.
        new: tokens added by this round; later nodes of the accepted path count as discarded.
        results: the new tokens and earlier tentative tokens that are final now.
        timing: timing of the round.
        context: engine context, for the texts of tokens and the option to store top tokens and entropy.
    """
    token_text, is_detailed = context.token_text, context.is_trace_detailed
    result, acceptance = verified_tree.result, verified_tree.acceptance
    walk, figures, explanation = acceptance.walk, acceptance.figures, acceptance.explanation
    n, n_new = len(walk.tokens), len(new)
    path = list(result.path[:n_new])
    bonus_emitted = n_new > len(result.path)
    status = [DISCARDED] * n
    accept: list[float | None] = [None] * n
    uniform: list[float | None] = [None] * n
    reached_parents = {-1, *path[:-1]}
    for node, is_accepted in result.tested:
        # If the text ends on the path, tests after its last token do not count.
        if bonus_emitted or walk.parents[node] in reached_parents:
            status[node] = ACCEPTED if is_accepted else REJECTED
            accept[node] = walk.accept[node]
            uniform[node] = result.uniform.get(node)
    rule, inputs = _why(acceptance, sequence.trace.header.rules, [a is not None for a in accept])
    if figures.distribution_error:
        name = DISTRIBUTION_ERROR_BOUND if acceptance.is_upper_bound else DISTRIBUTION_ERROR
        tested_nodes = [node for node, a in enumerate(accept) if a is not None]
        sequence.report.signals[name] = sum(take(figures.distribution_error, tested_nodes))
    if figures.exact:
        gain = verified_tree.n_accepted - expected_accepted(walk.parents, figures.exact)
        sequence.report.signals[ACCEPTANCE_GAIN] = gain
    base = new[0].position
    depths = depths_of(walk.parents)
    nodes = Nodes(
        tokens=walk.tokens,
        parents=walk.parents,
        depth=depths,
        position=[base - 1 + d for d in depths],
        text=[token_text(t) for t in walk.tokens],
        p=figures.p_node,
        q=list(figures.q) if figures.q else [None] * n,
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
        entropy=figures.entropy if is_detailed else [],
        probes=_probes(verified_tree, base, token_text),
    )
    if is_detailed:
        record.top_p = [
            TopTokens(ids, [token_text(t) for t in ids], probs)
            for ids, probs in zip(figures.top_tokens, figures.top_probs, strict=True)
        ]
        if (growth := verified_tree.tree.explanation) is not None and n:
            grown_rule_of, builder_before, builder_after = growth.to_lists(explanation.columns, walk.parents)
            record.grown = TreeExplanationRecord(
                [rule.to_wire() for rule in growth.rules], grown_rule_of, builder_before, builder_after
            )
        record.top_q = _tops(explanation.top_q, explanation.child_q_rows, token_text)
        record.ranking = _tops(explanation.ranking, explanation.ranking_rows, token_text)
    return record


def _why(
    found: Acceptance, known: dict[str, Rule], tested: list[bool]
) -> tuple[list[str | None], dict[str, list[float | None]]]:
    """Return the name of the acceptance rule that tested each node, and the values of each rule's inputs.

    Both are None at untested nodes. New rules are added to `known`.
    """
    n, rule_explanation = len(tested), found.rules
    if rule_explanation is None:
        return [None] * n, {}
    rules = rule_explanation.rules
    rule_index = found.explanation.rule_index
    rule_of = rule_index or [0] * n
    if not rule_index and len(rules) > 1:
        for siblings in children_of(found.walk.parents):
            for rank, node in enumerate(siblings):
                rule_of[node] = min(rank, len(rules) - 1)
    node_rules = [rules[rule_of[i]] if tested[i] else None for i in range(n)]
    new_rules = {rule.name: rule for rule in node_rules if rule is not None}
    known.update({name: rule for name, rule in new_rules.items() if name not in known})
    input_names = [frozenset[str]() if rule is None else rule.sources for rule in node_rules]
    inputs = {
        name: [value if name in names else None for names, value in zip(input_names, column, strict=True)]
        for name, column in zip(rule_explanation.inputs, found.explanation.inputs, strict=True)
        if name not in ("p", "q") and any(name in names for names in input_names)
    }
    return [None if rule is None else rule.name for rule in node_rules], inputs


def _probes(verified_tree: VerifiedTree, base: int, token_text: TokenText) -> list[Probe]:
    """Return probe positions (never accepted) for the trace. `base`: position of the round's first new token."""
    columns = [*(verified_tree.acceptance.explanation.probes or ([], [], [])), verified_tree.probe_sources]
    return [Probe(token, token_text(token), parent, base - 1 + place, source)
            for token, parent, place, source in zip(*columns, strict=True)]  # fmt: skip


def _tops(most_likely: list[list[list[float]]], rows: list[int], token_text: TokenText) -> list[TopTokens | None]:
    """Return the drafter's most likely tokens at each position, [N+1]; [] if none were recorded.

    Args:
        most_likely: token ids and their probabilities for M distributions, [2, M, 8], or an empty list.
        rows: index in `most_likely` of each position's distribution, [N+1]; −1: none.
        token_text: function that returns the text of a token.
    """
    if not most_likely:
        return []
    ids, probs = most_likely
    tops = [TopTokens([int(t) for t in i], [token_text(int(t)) for t in i], p) for i, p in zip(ids, probs, strict=True)]
    return [tops[m] if m >= 0 else None for m in rows]
