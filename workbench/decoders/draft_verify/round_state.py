"""Phases of one sequence in one round. `decoder.py` runs them for all sequences and isolates their errors."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from workbench.core.errors import NumericalError, WorkbenchError
from workbench.core.probes import ProbeOutput
from workbench.core.transfer import on_host
from workbench.core.tree import DraftTree
from workbench.decoders.draft_verify.acceptance import Acceptance, accept
from workbench.decoders.draft_verify.drafter_setup import init_drafter_state, levels_left
from workbench.decoders.draft_verify.inactive_drafters import release_drafter, send_feedback
from workbench.decoders.draft_verify.inspectable_state import inspectable_state_of
from workbench.decoders.draft_verify.parts import RoundFeedback
from workbench.decoders.draft_verify.tentative_tokens import TentativeResults, TentativeToken, decide
from workbench.decoders.draft_verify.trace_recording import emitted_tokens, record_round
from workbench.decoders.draft_verify.verification_input import VerificationInput, build_input
from workbench.decoders.draft_verify.verification_result import VerifiedTree
from workbench.engine.decoder import EngineContext
from workbench.engine.request import FINISHED, Sequence
from workbench.engine.request_options import TokenLogprob, token_logprobs
from workbench.engine.round_timing import Drafting, Timing
from workbench.engine.stop_conditions import apply_stop_conditions, find_end
from workbench.engine.trace_recording import append_round
from workbench.kernels.segment import Output, Segment
from workbench.models.loading import Models
from workbench.trace.tokens import EmittedToken


@dataclass(slots=True)
class RoundState:
    """One sequence in one round, with the result of each phase.

    Attributes:
        sequence: the sequence.
        tree: draft tree.
        drafting: timing of its drafting group.
        verification_input: the sequence's part of the target's forward: the draft, and probe positions after it.
        logits: target logits at the root and after each node, [N+1, V].
        hidden: the LM head's input there, [N+1, D].
        layer_states: captured hidden states there, for the layers that the sequence's method requested, each [N+1, D].
        probe_outputs: results at probe positions, by the part that requested them.
        has_invalid_token: on a GPU, whether the draft or a probe has an invalid token id. Looking it up would abort the
            CUDA context and so end all runs of the process. A valid id replaces it, and the logits are set to NaN.
        verified_tree: verification result.
    """

    sequence: Sequence
    tree: DraftTree | None = None
    drafting: Drafting | None = None
    verification_input: VerificationInput | None = None
    logits: Tensor | None = None
    hidden: Tensor | None = None
    layer_states: dict[int, Tensor] = field(default_factory=dict)
    probe_outputs: dict[str, ProbeOutput] = field(default_factory=dict)
    has_invalid_token: Tensor | None = None
    verified_tree: VerifiedTree | None = None

    def plan(self, batch: abc.Sequence[Sequence]) -> None:
        """Set the draft budget, limited by the remaining tokens, the plan's nodes and the drafter's context."""
        row = self.sequence
        planned = row.policy.plan(row, row.state.policy, batch)
        depth = max(0, min(planned.depth, row.remaining - 1, levels_left(row), planned.limit_nodes(planned.depth)))
        row.state.plan = replace(
            planned, depth=depth, tree_builder=planned.tree_builder or row.configured_method.tree_builder
        )

    def draft_again(self) -> None:
        """Draft for this sequence alone from a new state: after a failed batch the old one may be inconsistent."""
        row = self.sequence
        row.cache_slot.scratch = 0
        release_drafter(row)
        row.state.drafter = init_drafter_state(row, row.drafter, row.models)
        self.tree = row.drafter.propose([row])[0]

    def build_input(self, models: Models) -> None:
        """Assemble the input of the target's forward."""
        assert self.tree is not None
        size, guarded = models.target.vocab_size, not on_host(models.target.device)
        self.has_invalid_token = _clamp_token_ids(self.tree.tokens, size) if guarded and len(self.tree) else None
        self.verification_input = build_input(self.sequence, self.tree, models)
        for probes in self.verification_input.probes_by_part.values() if guarded else ():
            if probes.states is None:
                invalid = _clamp_token_ids(probes.tokens, size)
                self.has_invalid_token = invalid if self.has_invalid_token is None else self.has_invalid_token | invalid

    def segment(self, models: Models) -> Segment:
        """Return the segment of the last committed token, the draft after it, and the probe positions."""
        assert self.verification_input is not None
        return self.verification_input.segment(self.sequence, models)

    def take_output(self, out: Output, b: int) -> None:
        """Take the sequence's results, at batch index `b`, from the output of the target's forward."""
        assert self.verification_input is not None
        n = 1 + len(self.verification_input.tree)
        self.logits, self.hidden = out.logits[b, :n], out.hidden[b, :n]
        if self.has_invalid_token is not None:
            self.logits = self.logits.masked_fill(self.has_invalid_token, torch.nan)
        self.probe_outputs = self.verification_input.probe_outputs(out.logits[b], out.hidden[b])
        exit_taps = {} if self.verification_input.exits is None else self.verification_input.exits.layer_states
        self.layer_states = {
            i: out.layer_states[i][b, :n] if i in out.layer_states else exit_taps[i]
            for i in self.sequence.state.captured_layers
        }

    def accept(self, record: bool) -> Acceptance:
        """Return the results of the sequence's acceptance rule, on the device."""
        assert self.tree is not None
        assert self.logits is not None
        assert self.hidden is not None
        assert self.verification_input is not None
        probes, probed = self.verification_input.probes, self.probe_outputs.get("verifier")
        return accept(self.sequence, self.tree, self.logits, self.hidden, self.layer_states, record, probes, probed)

    def walk(self, acceptance: Acceptance) -> None:
        """Find the accepted path and the token after it, from results of the rule on the host."""
        assert self.tree is not None
        assert self.verification_input is not None
        sources = [
            probes.source for probes in self.verification_input.probes_by_part.values() for _ in range(len(probes))
        ]
        self.verified_tree = VerifiedTree.of(self.tree, acceptance, self.sequence.verifier, sources)

    def commit(self, timing: Timing, t_round: float, context: EngineContext) -> None:
        """Commit the accepted path to the cache, emit its tokens, pass feedback to the parts, record the round."""
        row, verified_tree, hidden = self.sequence, self.verified_tree, self.hidden
        assert verified_tree is not None
        assert hidden is not None
        if verified_tree.is_nan:
            if self.has_invalid_token is not None and bool(self.has_invalid_token):
                raise WorkbenchError(
                    f"{type(row.drafter).__name__} drafted or probed a token id that the target does not have.",
                    f"Use numbers from 0 to {context.models.target.vocab_size - 1}.",
                )
            raise NumericalError(
                "The target returned NaN instead of probabilities.",
                "Try another dtype; bfloat16 or float32 often helps.",
            )
        result, n_before = verified_tree.result, len(row.committed)
        tokens = [*(verified_tree.acceptance.tokens[i] for i in result.path), result.bonus]
        is_tentative = bool(row.state.tentative) or row.verifier.max_tentative() > 0
        if is_tentative:
            n_emitted, reason = find_end(row, tokens, context.models, n_before)
            spans = [("", 0, 0)] * n_emitted
        else:
            n_emitted, reason, spans = apply_stop_conditions(row, tokens, context.models)
        root, previous_hidden = row.committed[-1], row.cache_slot.last_hidden
        path = result.path[:n_emitted]
        context.models.target.commit(row.cache_slot, [0, *(node + 1 for node in path)])
        row.cache_slot.last_hidden = hidden[path[-1] + 1 if path else 0]
        row.committed.extend(tokens[:n_emitted])
        scores = list[TokenLogprob]()
        if (raw := verified_tree.acceptance.raw_logits) is not None:
            positions = [0, *(node + 1 for node in result.path)][:n_emitted]
            n_top = row.request.options.logprobs or 0
            scores = token_logprobs(raw[positions], tokens[:n_emitted], n_top, context.token_text)
        if not reason:
            self._send_feedback(root, tokens[:n_emitted])
        new_tokens = emitted_tokens(verified_tree, n_before, spans)
        if is_tentative:
            results = decide(
                row, self._tentative_tokens(new_tokens, previous_hidden, scores, context), bool(reason), context.models
            )
        else:
            results = TentativeResults(new_tokens, [], reason)
            row.request.logprobs.extend(scores)
        record = record_round(
            row, verified_tree, new_tokens, results, timing, context.token_text, context.record, t_round
        )
        append_round(row, record)
        if results.reason:
            context.end(row, FINISHED, results.reason)

    def _tentative_tokens(
        self, new: list[EmittedToken], before: Tensor | None, scores: list[TokenLogprob], context: EngineContext
    ) -> list[TentativeToken]:
        """Return the round's tokens as tentative ones. `before`: LM head input from which the root was drawn."""
        assert self.verified_tree is not None
        assert self.hidden is not None
        places = [0, *(node + 1 for node in self.verified_tree.result.path)]
        inputs_before = [before, *(self.hidden[place] for place in places)]
        texts = [context.token_text(token.token) for token in new]
        return [
            TentativeToken(*values)
            for values in zip(new, inputs_before, texts, scores or [None] * len(new), strict=False)
        ]

    def _send_feedback(self, root: int, emitted: list[int]) -> None:
        """Pass the round's feedback to all parts. `root`: last committed token before the round."""
        row, verified_tree = self.sequence, self.verified_tree
        assert verified_tree is not None
        outcome = RoundFeedback(
            verified_tree.acceptance.tokens,
            verified_tree.acceptance.parents,
            verified_tree.result,
            emitted,
            root,
            verified_tree.acceptance.top_tokens,
            row.state.plan,
            self.hidden,
            self.layer_states,
            self.probe_outputs.get("drafter"),
            verified_tree.acceptance.top_probs,
        )
        if row.state.plan.depth > 0 and (owned := inspectable_state_of(row.state.drafter)) is not None:
            owned.count(verified_tree.sources, verified_tree.result.path)
        if not row.state.no_draft_reason:
            row.drafter.observe(row, outcome)
        send_feedback(row, outcome)
        row.verifier.observe(row, outcome)
        if (
            row.configured_method.tree_builder is not None
            and row.state.plan.tree_builder == row.configured_method.tree_builder
        ):
            row.configured_method.tree_builder.observe(row, outcome)
        row.policy.observe(row, row.state.policy, outcome)


def _clamp_token_ids(tokens: Tensor, size: int) -> Tensor:
    """Return whether some token id is invalid, and clamp all ids in place; does not synchronise.

    The tensor itself is changed, because drafters recognise their tree by object identity.
    """
    invalid = ((tokens < 0) | (tokens >= size)).any()
    tokens.clamp_(0, size - 1)
    return invalid
