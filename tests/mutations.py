"""The list of `python tests/mutate.py`: ways to break the code that users would suffer from, and the tests that notice.

A mutation names the smallest selection of tests that has to fail: of the quick part of the suite, and fast. What is
looked for is a *text* that stands in its file exactly once; `tests/test_mutations.py` says when that is no longer so.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Mutation:
    """One break.

    Attributes:
        name: kebab-case.
        file: path from the repository's root.
        old: text that stands there exactly once.
        new: what it becomes.
        tests: pytest's names of tests, or files of node's.
        why: what a user would see.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    why: str

    def count(self) -> int:
        """How often the text stands in the file."""
        return (ROOT / self.file).read_text(encoding="utf-8").count(self.old)


def _m(name: str, file: str, old: str, new: str, *tests: str, why: str) -> Mutation:
    return Mutation(name, f"workbench/{file}", old, new, tests, why)


DRAFTS = "tests/methods/test_drafts.py::"
BY_ITS_LAW = DRAFTS + "test_a_model_drafts_by_its_law_behind_the_whole_path"
PLAIN_PASS = DRAFTS + "test_a_feature_drafters_nodes_are_a_plain_pass_over_their_path"
DRAFTERS = "tests/methods/test_drafters.py::"
REJECTION = "tests/core/test_rejection.py::"
ANY_TWO_LAWS = REJECTION + "test_the_emitted_law_is_the_targets_for_any_two_laws"
RECORDED = "tests/methods/test_rules.py::test_what_was_recorded_is_what_the_stated_rule_gives"
A_ROUND = "tests/methods/test_enumerated.py::test_a_round_writes_by_the_targets_law"
CACHE = "tests/engine/test_cache.py::"
WHATIF = "tests/trace/test_whatif.py::"
SPEEDUP = "tests/trace/test_speedup.py::"
STALLS = "tests/trace/test_stalls.py::"
TIMING = "tests/engine/test_timing.py::"
JS = "workbench/views/js/"

MUTATIONS: tuple[Mutation, ...] = (
    # -- an audit's mutations that nothing noticed --------------------------------------------------------------------
    _m(
        "draft-tree-rotary-plus-one",
        "methods/drafters/grow.py",
        "torch.full_like(tokens, len(self.tokens) - 1)",
        "torch.full_like(tokens, len(self.tokens))",
        BY_ITS_LAW + "[draft-tree-greedy-alone]",
        why="every draft below the first level is worse than the draft model's own",
    ),
    _m(
        "eagle-rotary-plus-one",
        "methods/drafters/feature.py",
        "places + (self.place - 1)",
        "places + self.place",
        PLAIN_PASS + "[eagle-vlm]",
        why="EAGLE drafts worse than it was trained to, at every level below the first",
    ),
    _m(
        "flash-block-rolled",
        "methods/drafters/flash.py",
        "state.speculate(features, best[1][:, 0]",
        "state.speculate(features.roll(1, 0), best[1][:, 0]",
        PLAIN_PASS + "[flash]",
        why="FLASH's second block goes on from features that belong to other tokens",
    ),
    _m(
        "flash-levels-rolled",
        "methods/drafters/flash.py",
        "return torch.cat([state.unsqueeze(-2), state.unsqueeze(-2) + later], -2)",
        "return torch.cat([state.unsqueeze(-2), state.unsqueeze(-2) + later.roll(1, -2)], -2)",
        "tests/methods/test_feature.py::test_a_feature_ahead_is_its_own_slice_of_the_head",
        why="a trained FLASH drafts the token after next where the next one belongs",
    ),
    _m(
        "medusa-reads-the-root",
        "engine/loop.py",
        "row.slot.last_hidden = hidden[path[-1] + 1 if path else 0]",
        "row.slot.last_hidden = hidden[0]",
        DRAFTS + "test_medusas_heads_read_the_newest_state_the_target_has",
        why="Medusa's heads guess from a state some tokens old",
    ),
    _m(
        "typical-asks-at-the-node",
        "methods/verifiers/typical.py",
        "needed = threshold[tree.parents + 1]",
        "needed = threshold[1:]",
        REJECTION + "test_typical_acceptance_asks_by_the_law_that_the_token_was_drafted_for",
        why="typical acceptance keeps and drops other tokens than the paper's rule",
    ),
    _m(
        "typical-tells-the-nodes-entropy",
        "methods/verifiers/typical.py",
        '{"entropy": entropy[tree.parents + 1], ',
        '{"entropy": entropy[1:], ',
        RECORDED + "[medusa-typical-sampled]",
        why="the node card prints an equation with another place's entropy",
    ),
    _m(
        "drafts-unwarped",
        "methods/drafters/chain.py",
        "pick(q, u[step : step + 1])",
        "pick(logits.softmax(1), u[step : step + 1])",
        DRAFTS + "test_what_is_drawn_is_drawn_from_the_law_that_is_told[draft-model]",
        why="sampled text no longer follows the target's law, and says that it does",
    ),
    _m(
        "confidence-looks-at-the-token",
        "methods/drafters/chain.py",
        "confidence = q.amax() if sampled[i]",
        "confidence = q[0, pick(q, uniforms[i][step : step + 1])] if sampled[i]",
        DRAFTS + "test_a_draft_stops_by_the_law_before_the_draw_and_never_by_the_token",
        why="the stop favours likely tokens: sampled text is biased towards the drafter",
    ),
    _m(
        "without-replacement-declared-independent",
        "methods/drafters/stochastic_beam.py",
        "sampling=Sampling.WITHOUT_REPLACEMENT",
        "sampling=Sampling.SAMPLED",
        RECORDED + "[draft-tree-sampled-sampled]",
        why="later siblings are judged by another law than the one they were drawn from",
    ),
    _m(
        "eagle-children-under-the-wrong-parent",
        "methods/drafters/feature.py",
        "parents.append((first + chosen).repeat_interleave(k))",
        "parents.append((first + chosen.flip(0)).repeat_interleave(k))",
        PLAIN_PASS + "[eagle-vlm]",
        why="EAGLE's tree offers each continuation behind another branch",
    ),
    _m(
        "ratio-with-another-repeat",
        "trace/speedup.py",
        "append(mine[key] / plain[key])",
        "append(mine[key] / plain[min(k for k in plain if k[0] == key[0])])",
        SPEEDUP + "test_a_run_is_divided_by_the_plain_run_of_its_own_repeat",
        why="a slow minute of the machine counts as a speed-up",
    ),
    _m(
        "accept-and-stop-share-a-uniform",
        "engine/judging.py",
        "ruling = row.verifier.rule(tree, logits, p, row.sampling, u_stop)",
        "u_stop = u_stop if row.uniform is None or u_stop is None else u_stop.clone().index_copy_("
        "0, torch.arange(n), torch.tensor(row.uniform, dtype=u_stop.dtype))\n"
        "    ruling = row.verifier.rule(tree, logits, p, row.sampling, u_stop)",
        DRAFTS + "test_no_random_number_serves_twice[draft-model]",
        why="the corrected token depends on how the draft was rejected: sampled text is biased",
    ),
    _m(
        "draft-generator-restarts",
        "methods/drafters/chain.py",
        "row.draw.uniform(len(row.committed), Purpose.DRAFT, row.plan.depth)",
        "row.draw.uniform(0, Purpose.DRAFT, row.plan.depth)",
        DRAFTS + "test_a_drafter_draws_anew_in_every_round",
        why="every round drafts with the same luck",
    ),
    _m(
        "a-number-follows-from-a-count",
        "core/draw.py",
        "self._philox.state = state",
        "pass",
        "tests/core/test_draw.py::test_a_number_depends_on_its_address_and_on_no_order",
        why="a run is another one beside a run that fails, or after a draft that was drawn again",
    ),
    _m(
        "a-change-that-cannot-be-ends-the-run",
        "engine/changing.py",
        "settings.refused.append(as_said(error))",
        "raise",
        "tests/engine/test_changes.py::test_a_layer_that_the_target_lacks_is_refused_and_the_others_asked_for_are_not",
        why="moving a slider too far loses the run",
    ),
    _m(
        "drafts-past-its-positions",
        "methods/drafters/draft_model.py",
        "return row.models.drafter.context - (len(row.committed) - slot.shift) + 1",
        "return row.models.drafter.context - (len(row.committed) - slot.shift) + 3",
        "tests/engine/test_changes.py::test_a_drafter_stops_where_its_positions_end[llama-draft-model]",
        why="a draft model with fewer positions than the target drafts nonsense, and ends the run",
    ),
    _m(
        "slot-leaks-when-a-prefill-fails",
        "methods/drafters/draft_model.py",
        "models.drafter.close(slot)\n        raise",
        "raise",
        "tests/engine/test_changes.py::test_a_prefill_that_fails_gives_its_slot_back[in its first forward-draft-model]",
        why="every failure leaves a row of the draft model's cache taken, until there is no memory",
    ),
    # -- acceptance rules ---------------------------------------------------------------------------------------------
    _m(
        "residual-keeps-all",
        "core/rejection.py",
        "rest = (left - q).clamp_(min=0)",
        "rest = left.clone()",
        ANY_TWO_LAWS,
        why="after a rejection the target's own law is drawn from: tokens that the drafter likes come too often",
    ),
    _m(
        "elder-sibling-stays-possible",
        "core/rejection.py",
        "left = p.scatter(1, torch.where(none, token[:, :1], token), 0.0)",
        "left = p.clone()",
        REJECTION + "test_golden_acceptance",
        why="a chosen draft that was rejected can be written after all",
    ),
    _m(
        "residual-of-another-place",
        "core/rejection.py",
        "return Ruling(accept, pick(left, u_stop), reason=Reason((RATIO, RESIDUAL), inputs))",
        "return Ruling(accept, pick(left.roll(1, 0), u_stop), reason=Reason((RATIO, RESIDUAL), inputs))",
        A_ROUND + "[chain of 2-any-Lossless]",
        why="after a rejection the token is drawn from what another place of the draft left over",
    ),
    _m(
        "without-replacement-judged-as-independent",
        "core/rejection.py",
        "if tree.sampling is Sampling.WITHOUT_REPLACEMENT and k + 1 < tree.fanout:",
        "if False:",
        A_ROUND + "[beam of 2-any-Lossless]",
        why="younger siblings are divided by a probability that they no longer had: sampled text is biased",
    ),
    _m(
        "siblings-judged-from-the-youngest",
        "core/rejection.py",
        "torch.tril(parents.unsqueeze(0) == parents.unsqueeze(1), diagonal=-1)",
        "torch.triu(parents.unsqueeze(0) == parents.unsqueeze(1), diagonal=1)",
        A_ROUND + "[independent siblings-any-Lossless]",
        why="siblings are tested in one order and judged by another: sampled text is biased",
    ),
    _m(
        "p-decides-where-p-over-q-should",
        "core/rejection.py",
        "ratio = (p_x / q_x.clamp_min(torch.finfo(p.dtype).tiny)).clamp(max=1)",
        "ratio = p_x",
        A_ROUND + "[chain of 2-equal-Lossless]",
        why="sampled drafts are kept too seldom, and what replaces them has another law",
    ),
    _m(
        "beam-tells-siblings-by-their-number",
        "methods/drafters/stochastic_beam.py",
        "top = flat.topk(k)  #",
        "top = flat.topk(k)\n            by = top.indices.argsort()\n"
        "            top = type(top)((top.values[by], top.indices[by]))  #",
        DRAFTS + "test_a_stochastic_beam_is_a_race_that_its_tree_tells_in_order",
        why="recursive rejection is told another order than that of the draw: sampled text is biased",
    ),
    _m(
        "siblings-judged-by-the-law-left-elsewhere",
        "core/rejection.py",
        "accept = torch.where(rank == k, ratio.squeeze(1)[parents + 1], accept)",
        "accept = torch.where(rank == k, ratio.squeeze(1)[parents], accept)",
        REJECTION + "test_parents_of_one_tree_do_not_touch_each_other",
        why="nodes deep in a tree are judged by another branch's law",
    ),
    _m(
        "card-shows-the-residual-of-elsewhere",
        "core/rejection.py",
        "r = torch.where(rank == k, p_x.squeeze(1)[parents + 1], r)",
        "r = torch.where(rank == k, p_x.squeeze(1)[parents], r)",
        RECORDED + "[draft-tree-sampled]",
        why="the node card prints an equation that is false",
    ),
    _m(
        "card-shows-the-first-q",
        "core/rejection.py",
        "q_left = torch.where(rank == k, q_x.squeeze(1)[parents + 1], q_left)",
        "q_left = torch.where(rank == k, drawn_from.gather(1, x).squeeze(1)[parents + 1], q_left)",
        RECORDED + "[draft-tree-sampled-sampled]",
        why="the node card divides by a probability that was not the one in force",
    ),
    _m(
        "rejection-not-called-corrected",
        "core/rejection.py",
        "corrected = bool(children[at])",
        "corrected = False",
        REJECTION + "test_rejecting_the_root_emits_one_token",
        why="a corrected token is shown as a bonus",
    ),
    _m(
        "rule-names-another-symbol",
        "core/rules.py",
        '{"r": "residual", "q′": "q_left"}',
        '{"r": "residual", "q′": "q"}',
        RECORDED + "[draft-tree-sampled-sampled]",
        why="the formula in the card is not the one that decided",
    ),
    _m(
        "rule-explains-wrongly",
        "core/rules.py",
        'because={"r": "p / (1 − t)"}',
        'because={"r": "p / (1 + t)"}',
        RECORDED + "[draft-tree-sampled]",
        why="the formula behind a residual does not give it",
    ),
    _m(
        "draw-takes-an-impossible-token",
        "core/sampling.py",
        "torch.searchsorted(cumulative, at, right=True)",
        "torch.searchsorted(cumulative, at, right=False)",
        "tests/core/test_sampling.py::test_inversion_is_the_naive_scan",
        why="once in a long while a token that the filters exclude is written",
    ),
    _m(
        "tree-sees-only-its-parent",
        "core/tree.py",
        "while reach < depth - 1:",
        "while reach < 1:",
        "tests/core/test_tree.py::test_ancestors_are_found_by_walking_up",
        why="deep nodes are verified without their grandparents: wrong text",
    ),
    # -- judging, cache, packed layers --------------------------------------------------------------------------------
    _m(
        "p-and-accept-swapped",
        "engine/judging.py",
        "p_stop, entropy, p_node, ruling.accept, q,",
        "p_stop, entropy, ruling.accept, p_node, q,",
        RECORDED + "[draft-model-sampled]",
        why="drafts are kept with the target's probability instead of p/q",
    ),
    _m(
        "cache-commits-the-first-nodes",
        "engine/cache.py",
        "to_device([length + node for node in path]",
        "to_device([length + i for i, _ in enumerate(path)]",
        CACHE + "test_commits_rewinds_and_moves_leave_each_row_its_own_text",
        why="after a branch was taken the target goes on from the keys of another one: wrong text",
    ),
    _m(
        "cache-moves-one-too-few",
        "engine/runner.py",
        "self.cache.move_row(last.index, slot.index, min(last.length + SCRATCH, self.cache.capacity))",
        "self.cache.move_row(last.index, slot.index, min(last.length - 1, self.cache.capacity))",
        CACHE + "test_commits_rewinds_and_moves_leave_each_row_its_own_text",
        why="a text changes when another one in its batch ends",
    ),
    _m(
        "packed-rows-mixed-up",
        "engine/packed.py",
        "return self._matrix(x.reshape(-1, self.in_features)).view(*x.shape[:-1], self.out_features)",
        "return self._matrix(x.reshape(-1, self.in_features).flip(0)).view(*x.shape[:-1], self.out_features)",
        "tests/engine/test_packed.py::test_packed_products_equal_plain_ones[False-5-288-768-dtype0]",
        why="texts of one batch become each other's",
    ),
    _m(
        "packed-layer-forgets-its-weight-changed",
        "engine/packed.py",
        'if self.__dict__.get("_seen") != seen:',
        'if self.__dict__.get("_seen") is None:',
        "tests/engine/test_packed.py::test_a_changed_weight_and_a_copy_are_packed_anew",
        why="weights that were loaded or trained anew are not the ones that decode",
    ),
    # -- drafters and policies ----------------------------------------------------------------------------------------
    _m(
        "batch-drafts-for-the-neighbour",
        "methods/drafters/chain.py",
        "for b, i in enumerate(order):",
        "for b, i in enumerate(reversed(order)):",
        BY_ITS_LAW + "[draft-model-sampled-together]",
        why="acceptance falls as soon as two users decode at once",
    ),
    _m(
        "early-exit-one-layer-too-many",
        "methods/drafters/early_exit.py",
        "layers=range(exit_layer)",
        "layers=range(exit_layer + 1)",
        BY_ITS_LAW + "[early-exit-greedy-alone]",
        why="exit_layer says one figure and runs another",
    ),
    _m(
        "lookup-continues-at-the-match",
        "methods/drafters/ngram.py",
        "return self.text[start : start + length]",
        "return self.text[start - 1 : start - 1 + length]",
        DRAFTERS + "test_look_ups_by_hand",
        why="prompt lookup proposes the token that has just been written",
    ),
    _m(
        "trie-weighs-outputs-as-prompts",
        "methods/drafters/trie.py",
        "return (1.0 - weight) * self.prompt.get(request, 0.0) + weight * self.output",
        "return weight * self.prompt.get(request, 0.0) + (1.0 - weight) * self.output",
        DRAFTERS + "test_the_prompt_outweighs_what_was_written_unless_told_otherwise",
        why="output_weight does the opposite of what it says",
    ),
    _m(
        "recycling-learns-from-the-neighbour",
        "methods/drafters/token_recycling.py",
        "for token, top in zip(reversed(places), reversed(outcome.top), strict=True):",
        "for token, top in zip(reversed(places), outcome.top, strict=True):",
        DRAFTERS + "test_the_table_holds_the_likeliest_successors_and_the_root_wins",
        why="the table holds successors of other tokens: nothing is accepted",
    ),
    _m(
        "medusa-takes-ranks-for-heads",
        "methods/drafters/medusa.py",
        "tokens=tokens[shape.head, shape.rank]",
        "tokens=tokens[shape.head.flip(0), shape.rank]",
        DRAFTS + "test_medusas_heads_read_the_newest_state_the_target_has",
        why="a head's guess stands at another head's place",
    ),
    _m(
        "beam-forgets-its-parents-value",
        "methods/drafters/stochastic_beam.py",
        "g_parent = value.unsqueeze(1)",
        "g_parent = 0 * value.unsqueeze(1)",
        DRAFTERS + "test_the_largest_child_has_its_parents_value",
        why="the sampled tree is no sample: text is biased",
    ),
    _m(
        "tree-keeps-the-worst",
        "methods/drafters/grow.py",
        "scores.sort(descending=True, stable=True)",
        "scores.sort(descending=False, stable=True)",
        "tests/methods/test_feature.py::test_the_tree_is_the_best_of_what_was_offered",
        why="of all nodes offered the least likely are verified",
    ),
    _m(
        "heuristic-grows-after-a-rejection",
        "methods/policies/heuristic.py",
        "if full else",
        "if not full else",
        DRAFTERS + "test_draft_lengths_follow_the_policy[heuristic]",
        why="drafts become longer the more often they fail",
    ),
    _m(
        "planned-leaves-verification-out",
        "methods/policies/planned.py",
        "state.costs.verify_s(k + 1)",
        "state.costs.verify_s(1)",
        DRAFTERS + "test_the_planned_length_is_the_one_that_pays",
        why="the planned length is longer than what pays",
    ),
    _m(
        "belief-never-forgets",
        "methods/policies/planned.py",
        "state.tested = self.forgetting * state.tested",
        "state.tested = state.tested",
        DRAFTERS + "test_the_belief_follows_what_was_tested_and_forgets",
        why="the believed acceptance falls to 0 in a long text",
    ),
    _m(
        "dynamic-tree-by-the-node-alone",
        "methods/drafters/vlm.py",
        "offered = reached >= policy.path_threshold",
        "offered = best.values >= policy.path_threshold",
        "tests/methods/test_pictures.py::test_a_dynamic_tree_offers_what_its_path_makes_likely",
        why="the tree goes on along paths that are next to impossible",
    ),
    _m(
        "draft-model-forgets-to-read",
        "methods/drafters/draft_model.py",
        "slot.length += behind + min(len(outcome.verdict.path), read)",
        "slot.length += behind + len(outcome.verdict.path)",
        DRAFTS + "test_behind_a_draft_that_was_accepted_whole_a_model_has_read_all_of_it[draft-model]",
        why="after a draft that was accepted whole the draft model goes on over a hole",
    ),
    _m(
        "tree-keeps-entries-of-rejected-drafts",
        "methods/drafters/grow.py",
        "keep.append(state.scratch_of[node])",
        "keep.append(len(keep))",
        BY_ITS_LAW + "[draft-tree-greedy-alone]",
        why="the draft model goes on from the keys of drafts that were rejected",
    ),
    _m(
        "eagle-remembers-its-guesses",
        "methods/drafters/feature.py",
        "        state.entries.forget()\n        keep = most_promising",
        "        state.entries.settle()\n        keep = most_promising",
        PLAIN_PASS + "[eagle-vlm]",
        why="EAGLE goes on from what it guessed instead of what the target then said",
    ),
    # -- figures ------------------------------------------------------------------------------------------------------
    _m(
        "alpha-counts-later-siblings",
        "trace/acceptance.py",
        "if rule is not None and rule.leviathan]",
        "if rule is not None and rule.leaves != ALL]",
        WHATIF + "test_alpha_is_the_mean_over_drafts_judged_against_the_whole_law",
        why="α is no longer Leviathan's",
    ),
    _m(
        "vllms-length-per-pass",
        "trace/acceptance.py",
        '_plus_one("vLLM", "mean acceptance length", "1 + num_accepted_tokens / num_drafts", accepted, drafts, VLLM,',
        '_plus_one("vLLM", "mean acceptance length", "1 + num_accepted_tokens / num_drafts", accepted, passes, VLLM,',
        WHATIF + "test_every_definition_of_acceptance_from_one_trace",
        why="the figure beside vLLM's name is not the one vLLM prints",
    ),
    _m(
        "tested-counts-discarded",
        "trace/metrics.py",
        "return sum(status != DISCARDED for r in rounds for status in r.nodes.status)",
        "return sum(len(r.nodes.status) for r in rounds)",
        WHATIF + "test_every_definition_of_acceptance_from_one_trace",
        why="the acceptance rate has the denominator of another figure",
    ),
    _m(
        "depth-counts-siblings",
        "trace/metrics.py",
        "depths_tested = {d for d, s in zip(r.nodes.depth, r.nodes.status, strict=True) if s != DISCARDED}",
        "depths_tested = [d for d, s in zip(r.nodes.depth, r.nodes.status, strict=True) if s != DISCARDED]",
        "tests/trace/test_acceptance.py::test_a_round_counts_once_at_each_depth_however_many_siblings_it_tested",
        why="the acceptance curve of a tree falls with its width",
    ),
    _m(
        "mean-is-arithmetic",
        "trace/speedup.py",
        "means = [sum(own) / len(own) for own in logs]",
        "means = [math.log(sum(map(math.exp, own)) / len(own)) for own in logs]",
        SPEEDUP + "test_the_interval_is_students_over_prompts",
        why="A over B and B over A can both be above 1",
    ),
    _m(
        "long-prompts-weigh-more",
        "trace/speedup.py",
        "centre = sum(means) / prompts",
        "centre = sum(sum(own) for own in logs) / n",
        SPEEDUP + "test_the_mean_is_geometric_and_prompts_weigh_alike",
        why="a prompt that was repeated more often decides the speed-up",
    ),
    _m(
        "repeats-count-as-prompts",
        "trace/speedup.py",
        "freedom = n - prompts",
        "freedom = n - 1",
        SPEEDUP + "test_two_prompts_cost_a_degree_of_freedom_each",
        why="the interval is narrower than it may be",
    ),
    _m(
        "concludes-from-the-mean",
        "trace/speedup.py",
        "SLOWER if self.high < 1 else OPEN",
        "SLOWER if self.value < 1 else OPEN",
        SPEEDUP + "test_no_verdict_while_the_interval_holds_1",
        why="a method is called slower while its interval holds 1",
    ),
    _m(
        "scatter-called-a-stall",
        "trace/stalls.py",
        "max(TIMES * usual, usual + SCATTER * 1.4826 * median(abs(s - usual) for s in like))",
        "TIMES * usual",
        STALLS + "test_rounds_that_scatter_anyway_are_not_called_stalled",
        why="ordinary rounds are left out of the estimate as if the machine had stalled",
    ),
    _m(
        "stalled-rounds-count",
        "trace/whatif/timing.py",
        "verify = fmean(r.verify_s for r in timed)",
        "verify = fmean(r.verify_s for r in rounds)",
        WHATIF + "test_nothing_is_concluded_from_rounds_that_stalled[verify_s]",
        why="one pause of the machine changes what is advised",
    ),
    _m(
        "shared-forward-counted-whole",
        "engine/timing.py",
        "span.seconds / len(owners)",
        "span.seconds",
        TIMING + "test_a_row_that_drafts_less_counts_fewer_of_the_forwards_it_shared",
        why="rows of a batch add up to more time than passed",
    ),
    # -- service, wire ------------------------------------------------------------------------------------------------
    _m(
        "timed-run-beside-work",
        "service/turns.py",
        "return self._working == 0",
        "return True",
        "tests/service/test_turns.py::test_a_timed_run_waits_for_work_under_way_and_keeps_new_work_out",
        why="a run is timed while a model is being built",
    ),
    _m(
        "timed-runs-overtake-work",
        "service/turns.py",
        "            if not self._timed and self._waiting:\n"
        "                return False  # it has waited for the timed run before this one\n",
        "",
        "tests/service/test_turns.py::test_work_that_waited_is_not_overtaken_by_the_next_timed_run",
        why="a model is never built while others time their runs",
    ),
    _m(
        "queue-serves-one-address",
        "service/fairqueue.py",
        "self._lines[address] = users",
        "self._lines = {address: users, **self._lines}",
        "tests/service/test_fairqueue.py::test_an_address_waits_for_one_of_each_other_address_however_many_names_these_make_up",
        why="who sends a hundred requests is served a hundred times before the next",
    ),
    _m(
        "queue-believes-names",
        "service/fairqueue.py",
        "self._lines.setdefault(address_of(user), {})",
        "self._lines.setdefault(user, {})",
        "tests/service/test_fairqueue.py::test_an_address_waits_for_one_of_each_other_address_however_many_names_these_make_up",
        why="forty made-up names have forty turns before anybody else has one",
    ),
    _m(
        "wire-takes-half-numbers",
        "client/wire.py",
        " or value != int(value):",
        ":",
        "tests/client/test_wire.py::test_what_is_no_whole_number_is_refused",
        why="a request for 2.7 tokens is served with 2, without a word",
    ),
    _m(
        "wire-tells-paths",
        "client/wire.py",
        '_PATH.sub("…", message)',
        "message",
        "tests/client/test_wire.py::test_an_error_tells_no_path_and_no_secret",
        why="an error message tells where the server's files lie",
    ),
    # -- the browser --------------------------------------------------------------------------------------------------
    _m(
        "browser-weighs-runs-not-prompts",
        "views/js/speedup.js",
        "centre = sum(means) / prompts",
        "centre = sum(logs.flat()) / n",
        "tests/views/test_speedup.py::test_browser_and_python_say_the_same_of_a_speed_up",
        why="the page and the command line name two speed-ups for one measurement",
    ),
    _m(
        "browser-concludes-from-the-mean",
        "views/js/speedup.js",
        "found.high < 1 ? SLOWER : OPEN",
        "found.value < 1 ? SLOWER : OPEN",
        "tests/views/test_speedup.py::test_browser_and_python_say_the_same_of_a_speed_up",
        why="the page calls a method slower while its interval holds 1",
    ),
    _m(
        "browser-counts-repeats-as-prompts",
        "views/js/speedup.js",
        "over ? prompts - 1 : n - prompts",
        "over ? prompts - 1 : n - 1",
        "tests/views/test_speedup.py::test_browser_and_python_say_the_same_of_a_speed_up",
        why="the page shows a narrower interval than it may",
    ),
    _m(
        "player-divides-the-wrong-way",
        "views/js/playing.js",
        "(from || 1) / to,",
        "to / (from || 1),",
        "tests/views/test_card.py::test_what_one_plays_with_is_what_python_computes",
        why="what-if in the node card shows another law than the one asked for",
    ),
    _m(
        "player-forgets-the-elders",
        "views/js/playing.js",
        "for (const elder of eldest) {",
        "for (const elder of []) {",
        "tests/views/test_card.py::test_what_one_plays_with_is_what_python_computes",
        why="what-if in the node card leaves out that elder siblings were rejected",
    ),
    _m(
        "card-takes-younger-siblings-for-elders",
        "views/js/ruling.js",
        "(i < node && parent",
        "(i !== node && parent",
        "tests/views/test_card.py::test_every_printed_equation_is_true_to_the_digits_printed",
        why="the residual in the node card is not the one that decided",
    ),
    _m(
        "screen-reader-loses-the-order-of-tests",
        "views/js/treemodel.js",
        "sort((a, b) => depth[a] - depth[b] || a - b)",
        "sort((a, b) => a - b)",
        JS + "treemodel.test.js",
        why="tests are shown in another order than they were made",
    ),
    _m(
        "link-loses-the-query",
        "views/js/address.js",
        'rest.size ? `?${rest}` : ""',
        '""',
        JS + "address.test.js",
        why="a shared link opens without its settings",
    ),
    _m(
        "later-settings-judge-the-run",
        "views/js/recall.js",
        "params: { ...header.params, ...last?.params }",
        "params: { ...last?.params, ...header.params }",
        JS + "recall.test.js",
        why="a run that was changed is recalled with the settings it began with",
    ),
    _m(
        "pairs-of-other-settings",
        "views/js/repeats.js",
        "pairs && pairs.key === keyOf(run) ? m.speedup",
        "pairs ? m.speedup",
        JS + "repeats.test.js",
        why="the speed-up of other settings stands beside a run",
    ),
    _m(
        "browser-advises-from-stalled-rounds",
        "views/js/theory.js",
        "timed = calm(rounds), base",
        "timed = rounds, base",
        "tests/views/test_theory.py::test_browser_and_python_say_the_same_of_a_run[True-draft-model]",
        why="one pause of the machine changes the draft length that the page advises",
    ),
    _m(
        "lean-layers-may-err-as-they-like",
        "engine/leancheck.py",
        "TIMES = 4.0",
        "TIMES = 4000.0",
        "tests/engine/test_lean.py::test_a_wrong_part_is_seen_through_the_rounding_of_bfloat16",
        why="a layer that computes something else is taken for rounding",
    ),
    _m(
        "lean-layers-read-what-they-like",
        "engine/leancheck.py",
        "if not torch.equal(given, stream):",
        "if False:",
        "tests/engine/test_lean.py::test_a_wrong_part_is_seen_through_the_rounding_of_bfloat16",
        why="embeddings, or what lies between layers, go unjudged",
    ),
    _m(
        "copied-heads-stay-as-llama-cpp-turns-them",
        "engine/gguf.py",
        "value = halves(value, config.num_attention_heads)",
        "value = value",
        "tests/engine/test_gguf.py::test_a_model_comes_back_from_gguf_as_it_was_with_its_tokenizer",
        why="a GGUF target writes another model's text",
    ),
    _m(
        "tokens-of-whatever-lies-beside",
        "engine/gguf.py",
        "empty, gguf_file=str(file.resolve())",
        "file.parent, gguf_file=file.name",
        "tests/engine/test_gguf.py::test_a_tokenizer_that_lies_beside_the_file_is_another_models",
        why="a tokenizer.json beside a GGUF file becomes its tokenizer",
    ),
    _m(
        "short-keys-have-cookies-one-can-make",
        "server/keys.py",
        "self.key if self.is_long else _SALT + self.key",
        "self.key",
        "tests/server/test_keys.py::test_who_guesses_a_short_key_cannot_make_its_cookie_and_that_of_a_long_one_outlasts_the_server",
        why="keys are guessed through cookies, which nobody counts",
    ),
)
