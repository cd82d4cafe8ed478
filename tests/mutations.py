"""Mutations of `python tests/mutate.py`: code changes that break a promise to users, and the tests that must then fail.

A mutation is defined by a function and an operator of `mutation_operators.py`. So it is independent of local names and
line numbers, and if the function moves to another module, only one string changes. The named tests are the smallest and
fastest selection that has to fail.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from mutation_operators import (
    Argument,
    BinOp,
    BoolOp,
    Bypass,
    Callee,
    Change,
    Compare,
    DropStatement,
    DropUnary,
    Force,
    Function,
    MutationError,
    Return,
)

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Mutation:
    """A code change with which some tests must fail.

    Attributes:
        name: name in kebab-case.
        function: module and qualified name, for example `workbench.core.rejection:walk`.
        change: operator that is applied to the function.
        tests: names of the pytest tests that must fail.
        why: consequence for users.
    """

    name: str
    function: str
    change: Change
    tests: tuple[str, ...]
    why: str

    def problem(self) -> str:
        """Return the reason why it cannot be applied: a missing function, expression or test; "" if it can."""
        try:
            self.change.apply(Function.find(self.function, ROOT))
        except MutationError as error:
            return str(error)
        return next((f"no test is called {test}" for test in self.tests if not _is_there(test)), "")


def _is_there(test: str) -> bool:
    path, _, name = test.partition("::")
    if not (ROOT / path).is_file():
        return False
    text = (ROOT / path).read_text(encoding="utf-8")
    return not name or bool(re.search(rf"^def {re.escape(name.partition('[')[0])}\(", text, re.MULTILINE))


DRAFTS = "tests/methods/test_drafts.py::"
REJECTION = "tests/core/test_rejection.py::"
SAMPLING = "tests/core/test_sampling.py::"
WARPERS = SAMPLING + "test_probs_equal_those_of_hugging_faces_warpers"
ROUND_DISTRIBUTION = "tests/methods/test_round_enumeration.py::test_round_distribution_is_the_targets"
CONTRACT = "tests/methods/test_contract.py::"
EVERY_SETTING = CONTRACT + "test_greedy_text_is_hugging_faces_in_every_setting"
CACHE = "tests/engine/test_cache.py::"
GPU_KERNELS = "tests/kernels/test_gpu_kernels.py::"
CHANGES = "tests/engine/test_changes.py::"
GGUF = "tests/engine/test_gguf_tokenizer.py::"
WHATIF = "tests/trace/test_whatif.py::"
SPEEDUP = "tests/trace/test_speedup.py::"
VERDICT = "tests/bench/test_claims.py::test_the_verdict_follows_from_the_figures"


def _m(name: str, function: str, change: Change, *tests: str, why: str) -> Mutation:
    return Mutation(name, f"workbench.{function}", change, tests, why)


MUTATIONS: tuple[Mutation, ...] = (
    # -- acceptance rules and residual distributions -----------------------------------------------------------------
    _m(
        "residual-is-the-target-distribution",
        "core.rejection:_tested",
        Argument(0, "addcmul", "value", "0"),
        REJECTION + "test_emitted_distribution_is_the_targets_for_any_p_and_q",
        why="after a rejection the corrected token is sampled from p: tokens that are likely under q come too often",
    ),
    _m(
        "acceptance-multiplies-by-q",
        "core.rejection:_tested",
        BinOp(4, "/", "*"),
        ROUND_DISTRIBUTION + "[chain of 2-equal-Lossless]",
        why="sampled drafts are accepted too rarely, and the text has another distribution",
    ),
    _m(
        "siblings-without-replacement-tested-as-independent",
        "core.rejection:_tested",
        Force(5, "if", new=False),
        ROUND_DISTRIBUTION + "[beam of 2-any-Lossless]",
        why="later siblings are divided by a probability that they no longer had: sampled text is biased",
    ),
    _m(
        "siblings-tested-in-another-order",
        "core.sibling_groups:ranks",
        Argument(0, "tril", "diagonal", "1"),
        ROUND_DISTRIBUTION + "[independent siblings-any-Lossless]",
        why="siblings are sampled in one order and tested in another: sampled text is biased",
    ),
    _m(
        "nodes-tested-at-another-branch",
        "core.sibling_groups:verify_positions",
        BinOp(0, "+", "-"),
        REJECTION + "test_parents_of_one_tree_do_not_affect_each_other",
        why="deep nodes of a tree are tested against the distribution of another branch",
    ),
    _m(
        "corrected-token-from-the-target-distribution",
        "core.sibling_groups:verify_positions",
        Bypass(0, "index_copy"),
        ROUND_DISTRIBUTION + "[chain of 2-any-Lossless]",
        why="the token after a rejection ignores the residual distribution",
    ),
    _m(
        "rejected-draft-stays-possible",
        "core.sample_matching:match_sampled_token",
        Bypass(0, "scatter"),
        REJECTION + "test_golden_acceptance_rates",
        why="a deterministic draft token that was rejected can be emitted after all",
    ),
    _m(
        "walk-accepts-above-the-probability",
        "core.rejection:walk",
        Compare(2, "<", ">"),
        ROUND_DISTRIBUTION + "[chain of 2-any-Lossless]",
        why="likely draft tokens are rejected and unlikely ones accepted",
    ),
    _m(
        "greedy-nodes-compared-at-another-place",
        "core.rejection:greedy_match",
        BinOp(0, "+", "-"),
        EVERY_SETTING + "[draft-tree]",
        why="greedy text of trees is no longer the target's",
    ),
    _m(
        "typical-acceptance-reads-another-threshold",
        "methods.verifiers.typical:TypicalAcceptance.rule",
        BinOp(2, "+", "-"),
        REJECTION + "test_typical_acceptance_uses_the_distribution_at_the_parent",
        why="typical acceptance accepts and rejects other tokens than the paper's rule",
    ),
    # -- sampling and random numbers ---------------------------------------------------------------------------------
    _m(
        "temperature-multiplies-logits",
        "core.sampling:_scores",
        BinOp(0, "/", "*"),
        WARPERS,
        why="a low temperature makes text more random",
    ),
    _m(
        "top-k-drops-one-too-many",
        "core.sampling:_scores",
        Compare(3, "<", "<="),
        WARPERS,
        why="top_k=1 leaves no token, and others keep k − 1",
    ),
    _m(
        "top-p-without-cumulated-probabilities",
        "core.sampling:_scores",
        Bypass(0, "cumsum"),
        WARPERS,
        why="top-p drops each token that is less likely than 1 − p",
    ),
    _m(
        "min-p-relative-to-the-least-likely",
        "core.sampling:_scores",
        Callee(0, "amax", "amin"),
        WARPERS,
        why="min-p drops nothing",
    ),
    _m(
        "tiny-temperature-overflows",
        "core.sampling:SamplingParams.effective_temperature",
        Bypass(0, "max"),
        SAMPLING + "test_tiny_temperature_is_a_point_mass_without_nan",
        why="temperature 1e-300 ends a run: the target returned NaN",
    ),
    _m(
        "repetition-penalty-rewards-negative-logits",
        "core.sampling:penalise_repetition",
        BinOp(0, "*", "/"),
        SAMPLING + "test_repetition_penalty_equals_hugging_faces",
        why="the penalty makes repeated tokens with a negative logit more likely",
    ),
    _m(
        "penalty-counts-other-branches",
        "decoders.draft_verify.acceptance:_histories",
        BinOp(0, "+", "-"),
        EVERY_SETTING + "[draft-tree]",
        why="a repetition penalty counts tokens of other branches of the tree",
    ),
    _m(
        "draw-takes-a-token-of-probability-0",
        "core.sampling:_invert",
        Argument(0, "searchsorted", "right", "False"),
        SAMPLING + "test_inversion_equals_a_naive_scan",
        why="now and then a token that a filter excludes is emitted",
    ),
    _m(
        "random-number-depends-on-the-order-of-draws",
        "core.random_stream:RandomStream.uniform",
        DropStatement(3, "assign"),
        "tests/core/test_random_stream.py::test_a_number_depends_on_its_address_and_not_on_the_order",
        why="one seed gives another text in a batch, or after a draft was sampled again",
    ),
    _m(
        "acceptance-and-corrected-token-share-random-numbers",
        "decoders.draft_verify.acceptance:accept",
        Argument(1, "uniforms", 0, "Purpose.ACCEPT"),
        DRAFTS + "test_no_random_number_is_used_twice[draft-model]",
        why="the corrected token depends on how the draft was rejected: sampled text is biased",
    ),
    _m(
        "acceptance-tests-draw-the-numbers-of-the-corrected-token",
        "decoders.draft_verify.acceptance:accept",
        Argument(0, "uniforms", 0, "Purpose.BONUS"),
        DRAFTS + "test_no_random_number_is_used_twice[draft-model]",
        why="the corrected token depends on how the draft was rejected: sampled text is biased",
    ),
    _m(
        "each-round-drafts-with-the-same-random-numbers",
        "engine.request:Sequence.uniforms",
        Argument(0, "uniform", 0, "0"),
        DRAFTS + "test_drafter_uses_new_random_numbers_in_every_round",
        why="drafts of different rounds are not independent: sampled text is biased",
    ),
    _m(
        "drafts-drawn-from-another-distribution-than-q",
        "methods.tree_builders.chain:draft_chain",
        Argument(0, "pick", 0, "{}.sqrt()"),
        DRAFTS + "test_drafts_are_sampled_from_the_declared_distribution[draft-model]",
        why="the acceptance test divides by a q that drafts do not follow: sampled text is biased",
    ),
    # -- trees, positions, KV cache, batches -------------------------------------------------------------------------
    _m(
        "tree-mask-without-grandparents",
        "core.tree:tree_attention_mask",
        Force(0, "while", new=False),
        "tests/core/test_tree.py::test_ancestors_are_found_by_walking_up",
        why="deep nodes are verified without their context: wrong text",
    ),
    _m(
        "tree-positions-begin-at-0",
        "kernels.positions:ForwardInputBuilder.build",
        BinOp(8, "+", "-"),
        EVERY_SETTING + "[draft-tree]",
        why="nodes of a tree are rotated by wrong positions: wrong text",
    ),
    _m(
        "committed-tokens-masked",
        "kernels.masks:MaskMaker.tree",
        DropStatement(2, "assign"),
        CACHE + "test_masks_allow_committed_tokens_and_ancestors_only",
        why="drafted tokens do not attend to the text before them",
    ),
    _m(
        "sliding-window-one-key-too-long",
        "kernels.masks:MaskMaker.by_layer_type",
        Compare(2, "<", "<="),
        CACHE + "test_masks_allow_committed_tokens_and_ancestors_only",
        why="targets with sliding windows generate other text than in Hugging Face Transformers",
    ),
    _m(
        "attention-span-measured-one-short",
        "kernels.attention_span:_Measurement._span",
        BinOp(5, "+", "-"),
        CACHE + "test_attention_spans_equal_the_models_own_masks",
        why="a model's sliding window is taken to be shorter than it is: wrong text",
    ),
    _m(
        "cache-commits-neighbours-of-the-path",
        "kernels.kv_cache:TreeCache.commit",
        Argument(0, "move_single_threaded", 1, "[place - 1 for place in {}]"),
        CACHE + "test_commits_rewinds_and_moves_keep_each_sequences_text",
        why="after a branch was accepted the target reads keys and values of another one: wrong text",
    ),
    _m(
        "pass-beside-the-rounds-stays-in-the-cache",
        "kernels.kv_cache:TreeCache.restore_on_exit",
        DropStatement(1, "assign"),
        CACHE + "test_positions_are_zeroed_if_buffers_were_allocated_meanwhile",
        why="KV cache entries of a drafter's additional pass are taken for those of the text",
    ),
    _m(
        "round-commits-the-first-nodes",
        "decoders.draft_verify.round_state:RoundState.commit_cache",
        Argument(0, "commit", 1, "range(len({}))"),
        EVERY_SETTING + "[draft-tree]",
        why="after an accepted path of a tree the target continues a text that was not emitted",
    ),
    _m(
        "hidden-state-of-the-root-after-each-round",
        "decoders.draft_verify.round_state:RoundState.commit_cache",
        DropStatement(0, "assign"),
        DRAFTS + "test_medusa_heads_read_the_newest_hidden_state",
        why="heads draft from a hidden state some tokens old: almost nothing is accepted",
    ),
    _m(
        "batch-writes-at-one-position",
        "kernels.positions:ForwardInputBuilder.build",
        Force(6, "if", new=True),
        CACHE + "test_commits_rewinds_and_moves_keep_each_sequences_text",
        why="requests of different lengths overwrite each other's KV cache",
    ),
    _m(
        "batch-drafts-for-the-neighbour",
        "methods.tree_builders.chain:draft_chain",
        Argument(0, "enumerate", 0, "reversed({})"),
        DRAFTS + "test_draft_model_nodes_follow_its_distribution_after_the_path[draft-model-sampled-together]",
        why="acceptance falls as soon as two requests decode at once",
    ),
    # -- Triton kernels ----------------------------------------------------------------------------------------------
    _m(
        "split-product-keeps-its-arrivals",
        "kernels.gpu.products:_product",
        Argument(2, "store", 1, "{} + SPLIT"),
        GPU_KERNELS + "test_products_equal_float64[5-gated-4-dtype0]",
        why="on a GPU the second launch of a kernel writes no result",
    ),
    _m(
        "norm-of-one-part-of-the-input",
        "kernels.gpu.products:_product",
        Argument(0, "rsqrt", 0, "SPLIT * square / n_inputs + eps"),
        GPU_KERNELS + "test_products_equal_float64[1-norm-4-dtype0]",
        why="on a GPU the self-test fails, and every model runs on its own, slower layers",
    ),
    _m(
        "gpu-decoder-is-not-compared",
        "kernels.self_test:tested_gpu_decoder",
        Callee(0, "describe_difference", "(lambda *_: '')"),
        GPU_KERNELS + "test_a_model_whose_results_differ_keeps_its_own_forward_pass",
        why="a kernel that a version of Triton compiles wrongly gives wrong text",
    ),
    _m(
        "kernel-multiplies-values-nobody-attends-to",
        "kernels.gpu.attention:_attend_to_chunk",
        Argument(3, "load", "mask", "is_key[:, None]"),
        GPU_KERNELS + "test_attention_over_trees_equals_float64[7-130-300-dtype0]",
        why="on a GPU one stale NaN in the KV cache makes all probabilities NaN",
    ),
    _m(
        "merged-tiles-keep-their-own-scale",
        "kernels.gpu.summaries:_merge_tiles",
        Argument(0, "exp", 0, "0.0 * {}"),
        GPU_KERNELS + "test_summaries_equal_float64[4-5000-dtype0]",
        why="on a GPU the trace shows wrong probabilities and entropies",
    ),
    # -- end of a text, changes during a run -------------------------------------------------------------------------
    _m(
        "text-goes-on-after-eos",
        "engine.stop_conditions:_reason",
        Force(0, "if", new=False),
        CONTRACT + "test_nothing_follows_the_end_of_text_inside_a_tree[draft-tree]",
        why="a text continues after its EOS token",
    ),
    _m(
        "last-stop-string-cuts",
        "engine.stop_conditions:apply_stop_conditions",
        Callee(0, "min", "max"),
        "tests/engine/test_stop_conditions.py::test_earliest_of_several_stop_strings_completed_by_one_token_counts",
        why="text after a stop string is returned",
    ),
    _m(
        "impossible-change-ends-the-run",
        "engine.changes:_apply_each",
        Force(0, "if", new=True),
        CHANGES + "test_only_the_change_to_a_missing_layer_is_refused",
        why="moving a slider too far loses the run",
    ),
    _m(
        "tentative-tokens-stay-when-the-decoder-changes",
        "engine.changes:_hand_over",
        DropStatement(0, "call"),
        "tests/toys/test_step_judge.py::test_change_to_another_decoder_revokes_tentative_tokens",
        why="tokens that the verifier had not accepted become part of the text",
    ),
    _m(
        "a-decoder-that-cannot-open-leaves-its-settings",
        "engine.changes:_hand_over",
        DropStatement(2, "assign"),
        "tests/toys/test_broken.py::test_decoder_that_cannot_open_keeps_the_run_unchanged",
        why="a refused change of method changes the method",
    ),
    _m(
        "parameters-kept-by-name-alone",
        "engine.settings:_carried_over_params",
        Compare(1, "==", "!="),
        CHANGES + "test_change_of_method_keeps_only_parameters_with_the_same_meaning",
        why="after a switch of methods a parameter has the value of another parameter of that name",
    ),
    _m(
        "warning-from-the-opening-is-in-no-round",
        "engine.request:Sequence.add_warning",
        DropStatement(0, "call"),
        "tests/decoders/test_beam_search.py::test_a_warning_from_the_opening_is_in_the_first_round_and_the_run",
        why="the page does not show warnings that a decoder gives before the first round",
    ),
    _m(
        "round-is-published-without-its-warning",
        "engine.decoder:append_round",
        DropStatement(1, "call"),
        "tests/engine/test_errors.py::test_a_round_has_its_warning_when_it_is_published",
        why="a viewer reads each round once, and never sees the warning",
    ),
    # -- chat templates, tokenizers, vocabularies --------------------------------------------------------------------
    _m(
        "message-writes-special-tokens",
        "service.special_ids:_own",
        Force(0, "if-else", new=False),
        "tests/service/test_chat_templates.py::test_a_role_is_part_of_the_template_unless_it_spells_a_special_token",
        why="a user message that contains <|im_start|>system is processed as a system message",
    ),
    _m(
        "gguf-space-before-each-text",
        "models.gguf_tokenizer:_spaces",
        BoolOp(0, "and", "or"),
        GGUF + "test_sentencepiece_adds_a_space_prefix_unless_the_file_disables_it",
        why="a GGUF target gets a leading space that its file excludes",
    ),
    _m(
        "gguf-no-bos-by-default",
        "models.gguf_tokenizer:_ends",
        Argument(0, "get", 1, "False"),
        GGUF + "test_pre_tokeniser_name_decides_bos_and_whole_words_by_default",
        why="GGUF targets of the Llama kind get prompts without BOS token",
    ),
    _m(
        "padded-ids-reach-the-draft-model",
        "models.runner:Runner.set_unknown_token",
        Force(0, "if-else", new=True),
        "tests/engine/test_padded_vocabulary.py::test_text_is_the_targets_if_the_draft_model_lacks_ids",
        why="a draft model whose embedding has fewer rows ends the run with an IndexError",
    ),
    # -- figures and conclusions from them ---------------------------------------------------------------------------
    _m(
        "undecided-claim-gets-a-verdict",
        "bench.claims:_compare_figures",
        Force(4, "if", new=False),
        VERDICT,
        why="a claim whose interval contains both outcomes is called contradicted",
    ),
    _m(
        "equivalence-claimed-from-half-an-interval",
        "bench.claims:_compare_figures",
        BoolOp(2, "and", "or"),
        VERDICT,
        why="the claim that answers do not change is called reproduced after a few prompts",
    ),
    _m(
        "slower-while-the-interval-holds-1",
        "trace.speedup:Estimate.verdict",
        Compare(3, "<", ">"),
        SPEEDUP + "test_no_verdict_while_the_interval_contains_1",
        why="a method is called slower although its interval contains 1",
    ),
    _m(
        "repeats-count-as-prompts",
        "trace.speedup:estimate",
        Force(2, "if", new=False),
        SPEEDUP + "test_interval_is_students_over_prompts",
        why="the confidence interval of a speed-up is too narrow",
    ),
    _m(
        "acceptance-rate-over-all-drafts",
        "trace.metrics:count_tested",
        Return("count_drafted(rounds)"),
        WHATIF + "test_every_definition_of_acceptance_from_one_trace",
        why="the acceptance rate counts drafts that were never tested",
    ),
    _m(
        "tau-without-the-bonus-token",
        "trace.metrics:tau",
        Return("_ratio(count_accepted(rounds), len(rounds))"),
        "tests/trace/test_events.py::test_figures_by_hand",
        why="τ is too small by one token per round",
    ),
    _m(
        "alpha-counts-later-siblings",
        "trace.acceptance:_leviathan",
        BoolOp(1, "and", "or"),
        WHATIF + "test_alpha_is_the_mean_over_drafts_tested_against_the_whole_distribution",
        why="α no longer follows Leviathan et al.'s definition",
    ),
    _m(
        "what-if-ends-at-the-recorded-draft",
        "trace.whatif.shorter_drafts:_chances.chance",
        Force(4, "if-else", new=False),
        WHATIF + "test_drafts_of_at_most_k_are_predicted_without_bias",
        why="shorter drafts are predicted to be worse than they are",
    ),
    _m(
        "stalled-rounds-count-in-the-time-budget",
        "trace.whatif.timing:time_breakdown",
        Bypass(0, "exclude_stalled"),
        WHATIF + "test_nothing_is_concluded_from_rounds_that_stalled[verify_s]",
        why="one pause of the machine changes the advice",
    ),
    # -- other users, keys, files, markup ----------------------------------------------------------------------------
    _m(
        "kept-runs-change-without-a-lock",
        "trace.store:RunStore._lock",
        DropStatement(1, "call"),
        "tests/trace/test_store.py::test_tags_added_at_the_same_time_are_all_saved",
        why="tags that two people add at once are lost, and a deleted run comes back",
    ),
    _m(
        "queue-serves-one-address",
        "service.fairqueue:FairQueue.pop",
        Callee(0, "pop", "get"),
        "tests/service/test_fairqueue.py::"
        "test_an_address_waits_for_one_request_of_each_other_address_whatever_their_user_names",
        why="an address that sends a hundred requests is served a hundred times before the next",
    ),
    _m(
        "one-run-more-than-allowed",
        "service.limits:Limits.check_room",
        Compare(2, ">=", ">"),
        "tests/service/test_limits.py::test_runs_are_limited_per_user_and_in_total",
        why="a user runs more sequences than the limit allows",
    ),
    _m(
        "text-of-one-user-drafts-for-others",
        "methods.adaptive_trigram.drafter:AdaptiveTrigram.init_state",
        Force(0, "if-else", new=True),
        "tests/methods/test_trigram.py::test_requests_share_the_table_only_if_warm",
        why="one user's text appears in another user's drafts",
    ),
    _m(
        "a-beam-reads-another-beams-tokens",
        "decoders.beam_search.beams:Search.shorten",
        Argument(0, "Beam", 0, "tuple(new_index.values())[: len(beam.nodes) - n]"),
        "tests/decoders/test_beam_search.py::test_its_text_is_that_of_hugging_face",
        why="beam search returns a text that is not the best one",
    ),
    _m(
        "a-draft-made-ahead-is-used-for-another-text",
        "decoders.overlapped.decoder:OverlappedDecoder.draft",
        BoolOp(0, "and", "or"),
        "tests/decoders/test_overlapped.py::test_greedy_text_is_the_targets_own_and_both_lanes_are_in_the_trace",
        why="the target verifies drafts of a text that was not chosen",
    ),
    _m(
        "a-sequence-is-closed-while-its-draft-is-made",
        "decoders.overlapped.decoder:OverlappedDecoder.close",
        DropStatement(0, "call"),
        "tests/decoders/test_overlapped.py::test_a_sequence_that_fails_keeps_its_cache_until_its_draft_is_made",
        why="the drafter writes into the KV cache of another sequence",
    ),
    _m(
        "decoders-of-other-kinds-sample-from-the-plain-softmax",
        "core.sampling:choose_tokens",
        Bypass(0, "to_probs"),
        "tests/decoders/test_streaming.py::test_until_the_window_is_full_the_text_is_the_targets[0.8]",
        why="temperature, top-k and top-p have no effect on decoders that do not draft",
    ),
    _m(
        "a-moved-sequence-loses-its-scratch-nodes",
        "models.runner:Runner.close",
        Argument(0, "max", 0, "0"),
        "tests/decoders/test_beam_search.py::test_beams_move_with_their_sequence_when_another_one_ends",
        why="when a run ends, a beam search next to it reads keys and values of other tokens",
    ),
    _m(
        "a-bounded-method-continues-beyond-the-context",
        "engine.request:Sequence.max_new_tokens",
        Return("self.request.max_new_tokens"),
        "tests/decoders/test_streaming.py::test_a_bounded_method_ends_at_the_context",
        why="after a change of method a run ends with an error, and the promised length is not reached",
    ),
    _m(
        "moved-keys-keep-their-old-positions",
        "kernels.streaming:KeyRotation.__call__",
        Return("keys"),
        "tests/decoders/test_streaming.py::test_its_text_is_that_of_the_papers_cache",
        why="the streaming cache attends to tokens at wrong positions",
    ),
    _m(
        "diffusion-fills-the-least-certain-positions",
        "decoders.masked_diffusion.decoder:MaskedDiffusionDecoder.advance",
        DropUnary(1, "-"),
        "tests/decoders/test_masked_diffusion.py::test_its_text_is_that_of_lladas_loop",
        why="a masked-diffusion model writes worse text than LLaDA's rule",
    ),
    _m(
        "chain-rule-draws-from-the-target-after-a-rejection",
        "core.rejection:accept_chain",
        Force(0, "if-else", new=True),
        "tests/core/test_rejection.py::test_tree_rule_is_the_chain_rule_for_chains",
        why="the chain rule that readers study does not keep the target's distribution",
    ),
    _m(
        "int8-models-without-scales",
        "models.int8_checkpoint:dequantise_weights",
        Bypass(0, "_times"),
        "tests/engine/test_int8_checkpoint.py::test_matrix_is_restored_within_half_a_step_of_its_group",
        why="models stored as int8 compute nonsense",
    ),
    _m(
        "untested-drafts-count-in-the-calibration",
        "trace.acceptance_statistics:calibration",
        BinOp(5, "-", "+"),
        "tests/trace/test_acceptance_statistics.py::"
        "test_a_bin_has_the_mean_p_of_all_its_drafts_and_the_acceptance_of_its_tested_ones",
        why="the acceptance rate of a bin has a wrong denominator",
    ),
    _m(
        "entropy-of-the-draft-itself",
        "trace.acceptance_statistics:acceptance_by_entropy.group",
        BinOp(0, "+", "-"),
        "tests/trace/test_acceptance_statistics.py::test_a_test_counts_at_the_entropy_after_its_parent",
        why="acceptance is shown at the entropy of another position",
    ),
    _m(
        "kv-cache-is-free-on-the-roofline",
        "bench.roofline:TargetSize.n_bytes",
        BinOp(4, "+", "-"),
        "tests/bench/test_roofline.py::test_flops_and_bytes_of_a_pass",
        why="a pass seems closer to the machine's limit than it is",
    ),
    _m(
        "ranking-of-another-node",
        "decoders.draft_verify.tree_building:drafter_ranking",
        Callee(0, "argmax", "argmin"),
        "tests/methods/test_ranking.py::test_children_have_the_first_ranks_of_their_position",
        why="hindsight names a rank of another position",
    ),
    _m(
        "late-rounds-repeat-random-numbers",
        "decoders.draft_verify.device_rounds.device_sequence:DeviceSequence.uniforms",
        BinOp(0, "+", "-"),
        "tests/decoders/test_device_rounds.py::test_late_rounds_equal_the_normal_loop[chain-0.8-1]",
        why="a round that is read late samples another text",
    ),
    _m(
        "late-trees-keep-rejected-entries",
        "decoders.draft_verify.device_rounds.device_sequence:DeviceSequence.commit",
        Force(0, "if", new=False),
        "tests/decoders/test_device_rounds.py::test_late_rounds_equal_the_normal_loop[tree-0.0-1]",
        why="later tokens attend to rejected ones after a tree that is read late",
    ),
    _m(
        "queued-rounds-hide-how-far-the-cache-is-written",
        "decoders.draft_verify.device_rounds.device_sequence:DeviceSequence.limit_length",
        DropStatement(0, "call"),
        "tests/decoders/test_device_rounds.py::test_a_replayed_sequence_keeps_its_text_when_another_joins",
        why="a text that is read late changes when another request joins",
    ),
    _m(
        "row-of-a-queued-sequence-moves-without-its-end",
        "models.runner:Runner.close",
        Force(2, "if-else", new=True),
        "tests/decoders/test_device_rounds.py::test_a_long_queued_sequence_moves_with_all_entries_of_the_draft_model",
        why="a sampled text depends on when other requests end",
    ),
    _m(
        "recorded-round-counts-twice",
        "decoders.draft_verify.device_rounds.round_replay:RoundReplays._record",
        DropStatement(0, "for"),
        "tests/decoders/test_device_rounds.py::test_replayed_rounds_equal_the_normal_loop[plain-0.8]",
        why="a text that is read late lacks a token",
    ),
    _m(
        "late-rounds-beyond-the-budget",
        "decoders.draft_verify.device_rounds.round_queue:RoundQueue.accepts",
        Compare(1, ">=", "<="),
        "tests/decoders/test_device_rounds.py::test_late_rounds_equal_the_normal_loop[plain-0.0-1]",
        why="rounds are not queued, or their drafts exceed the tokens that remain",
    ),
    _m(
        "any-key-opens-the-server",
        "server.keys:Keys._is",
        Return("True"),
        "tests/server/test_keys.py::test_wrong_keys_are_delayed_and_the_right_one_never_is",
        why="a public server answers without its key",
    ),
    _m(
        "cookies-of-short-keys-can-be-made",
        "server.keys:Keys.__init__",
        Force(0, "if-else", new=True),
        "tests/server/test_keys.py::"
        "test_the_cookie_of_a_short_key_cannot_be_derived_from_it_and_that_of_a_long_key_survives_a_restart",
        why="short keys can be guessed through cookies, whose attempts are not counted",
    ),
    _m(
        "token-text-as-html-on-the-page",
        "ui.hosting:as_text",
        Bypass(0, "replace"),
        "tests/security/test_hostile_text.py::test_hostile_text_survives_serialisation_unchanged_and_inert",
        why="a model's text can run scripts in the page",
    ),
    _m(
        "token-text-as-html-in-a-replay",
        "views.replay:embed",
        Return("json.dumps(value, ensure_ascii=False)"),
        "tests/security/test_hostile_text.py::test_the_replay_file_contains_no_markup_from_the_model",
        why="a model's text can run scripts in a saved replay",
    ),
)
