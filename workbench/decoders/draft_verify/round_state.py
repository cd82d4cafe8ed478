"""State of one sequence in one draft-and-verify round, with each phase for this sequence.

`decoder.py` runs the phases for all sequences.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from itertools import chain

import torch
from torch import Tensor

from workbench.core.errors import NumericalError, WorkbenchError
from workbench.core.probes import ProbeOutput
from workbench.core.transfer import on_host
from workbench.core.tree import DraftTree
from workbench.decoders.draft_verify.acceptance import Acceptance, AcceptanceTensors, VerifiedTree, accept
from workbench.decoders.draft_verify.device_rounds.device_sequence import DeviceSequence
from workbench.decoders.draft_verify.drafter_lifetime import (
    init_drafter_state,
    levels_left,
    release_drafter,
    send_feedback,
)
from workbench.decoders.draft_verify.inspectable_state import inspectable_state_of
from workbench.decoders.draft_verify.parts import RoundFeedback
from workbench.decoders.draft_verify.tentative_tokens import (
    SettledTokens,
    find_tentative_end,
    has_tentative,
    settle_tentative,
)
from workbench.decoders.draft_verify.tree_record import record_round
from workbench.decoders.draft_verify.two_part_pass import forward_entering
from workbench.decoders.draft_verify.verification_input import VerificationInput, build_input
from workbench.engine.decoder import EngineContext
from workbench.engine.request import Sequence
from workbench.engine.request_options import TokenLogprob, token_logprobs
from workbench.engine.round_timing import Drafting, Timing
from workbench.engine.stop_conditions import apply_stop_conditions
from workbench.kernels.segment import Output
from workbench.models.loading import Models
from workbench.models.runner import Runner
from workbench.trace.events import Round
from workbench.trace.tokens import EmittedToken


@dataclass(slots=True, repr=False, eq=False)
class RoundState:
    """State of one sequence in one draft-and-verify round, with the result of each phase.

    `target_input`, `hidden`, both forms of `acceptance` and `verified_tree` exist from the end of their phase on.

    Attributes:
        sequence: sequence of the round.
        tree: draft tree; empty after `plan` if nothing is to be drafted.
        drafting: timing of the drafting of this sequence and of those drafted with it.
        target_input: the sequence's input of the target's forward pass: the draft, and after it probe positions (never
            accepted).
        logits: target logits at the root and after each node, [N+1, V].
        hidden: the LM head's input at the same positions, [N+1, D].
        layer_states: captured hidden states at the same positions, for the layers that the method requested, each [N+1,
            D].
        probe_outputs: results at probe positions, by the part that requested them.
        has_invalid_token: on a GPU, whether the draft or a probe has an invalid token id. Its embedding lookup would
            abort the CUDA context and so end all runs of the process. A valid id replaces it, and the logits are set to
            NaN.
        acceptance_tensors: results of the acceptance rule, on the device.
        acceptance: host copy of these results, from `copy_to_host`.
        verified_tree: the draft with its accepted path.
        new_tokens: tokens that the round adds to the text.
        results: the new tokens and earlier tentative tokens that are final.
    """

    sequence: Sequence
    tree: DraftTree | None = None
    drafting: Drafting | None = None
    target_input: VerificationInput = field(init=False)
    logits: Tensor | None = None
    hidden: Tensor = field(init=False)
    layer_states: dict[int, Tensor] = field(default_factory=dict)
    probe_outputs: dict[str, ProbeOutput] = field(default_factory=dict)
    has_invalid_token: Tensor | None = None
    acceptance_tensors: AcceptanceTensors = field(init=False)
    acceptance: Acceptance = field(init=False)
    verified_tree: VerifiedTree = field(init=False)
    new_tokens: list[EmittedToken] = field(default_factory=list)
    results: SettledTokens | None = None

    # -- plan and draft ------------------------------------------------------------------------------------------

    def plan(self, batch: abc.Sequence[Sequence]) -> None:
        """Set the sequence's draft budget, limited by remaining tokens, number of nodes and drafter's context."""
        sequence = self.sequence
        planned = sequence.policy.plan(sequence, sequence.state.policy, batch)
        limits = sequence.remaining - 1, levels_left(sequence), planned.limit_nodes(planned.depth)
        depth = max(0, min(planned.depth, *limits))
        builder = planned.tree_builder or sequence.configured_method.tree_builder
        sequence.state.plan = replace(planned, depth=depth, tree_builder=builder)
        if depth == 0:
            self.tree = DraftTree.empty(device=sequence.models.target.device)

    @property
    def drafting_group(self) -> Hashable:
        """Return the class and the models of the sequence's drafter.

        Sequences with equal classes and models are drafted together.
        """
        drafter = self.sequence.drafter
        return type(drafter), id(self.sequence.models), None if drafter.batches() else id(self)

    # -- verify --------------------------------------------------------------------------------------------------

    def build_input(self, models: Models) -> None:
        """Assemble the input of the target's forward pass for this sequence."""
        assert self.tree is not None
        is_on_host = on_host(models.target.device)
        if not is_on_host:
            self._replace_invalid(self.tree.tokens, models.target.vocab_size)
        self.target_input = build_input(self.sequence, self.tree, models)
        for probes in () if is_on_host else self.target_input.probes_by_part.values():
            if probes.states is None:
                self._replace_invalid(probes.tokens, models.target.vocab_size)

    def _replace_invalid(self, tokens: Tensor, size: int) -> None:
        """Record whether any token id of the draft is invalid, and clamp all ids in place. Does not synchronise.

        The tensor itself is changed, because drafters recognise their tree by object identity.
        """
        if len(tokens):
            is_invalid = ((tokens < 0) | (tokens >= size)).any()
            tokens.clamp_(0, size - 1)
            self.has_invalid_token = (
                is_invalid if self.has_invalid_token is None else self.has_invalid_token | is_invalid
            )

    @property
    def first_layers(self) -> tuple[int, int]:
        """Return two numbers of layers: those that drafting has run, and those before probe positions are added.

        0 means none. Probe positions are processed after the draft, but never accepted.
        """
        exits = self.target_input.exits
        return 0 if exits is None else exits.layer, self.target_input.probe_entry_layer

    def take_output(self, out: Output, b: int) -> None:
        """Take the sequence's results, at batch index `b`, from the output of the target's forward pass."""
        n = 1 + len(self.target_input.tree)
        self.hidden, self.logits = out.hidden[b, :n], out.logits[b, :n]
        if self.has_invalid_token is not None:
            self.logits = self.logits.masked_fill(self.has_invalid_token, torch.nan)
        self.probe_outputs = self.target_input.probe_outputs(out.logits[b], out.hidden[b])
        exit_states = {} if self.target_input.exits is None else self.target_input.exits.layer_states
        self.layer_states = {
            i: out.layer_states[i][b, :n] if i in out.layer_states else exit_states[i]
            for i in self.sequence.state.captured_layers
        }

    # -- accept --------------------------------------------------------------------------------------------------

    def accept(self, is_trace_detailed: bool) -> None:
        """Apply the sequence's acceptance rule to its draft tree, on the device."""
        assert self.tree is not None
        assert self.logits is not None
        probes, output = self.target_input.probes, self.probe_outputs.get("verifier")
        self.acceptance_tensors = accept(
            self.sequence, self.tree, self.logits, self.hidden, self.layer_states, is_trace_detailed, probes, output
        )

    def walk(self) -> None:
        """Find the accepted path and the token after it, from the results of the acceptance rule on the host."""
        assert self.tree is not None
        sources = [probes.source for probes in self.target_input.probes_by_part.values() for _ in range(len(probes))]
        self.verified_tree = VerifiedTree.of(self.tree, self.acceptance, self.sequence.verifier, sources)

    # -- commit --------------------------------------------------------------------------------------------------

    def commit(self, context: EngineContext) -> None:
        """Commit the accepted path to the KV cache and its tokens to the text.

        Drafter, tree builder, verifier and policy get feedback on the round.
        """
        sequence, verified, target = self.sequence, self.verified_tree, context.models.target
        self._refuse_nan(verified, target)
        root, n_before, hidden_before = sequence.committed[-1], len(sequence.committed), sequence.cache_slot.last_hidden
        all_tokens, positions = verified.tokens, [0, *(node + 1 for node in verified.result.path)]
        may_be_tentative = has_tentative(sequence)
        find_end = find_tentative_end if may_be_tentative else apply_stop_conditions
        n, reason, spans = find_end(sequence, all_tokens, context.models)
        tokens = all_tokens[:n]
        path = positions[: n + 1]  # root and accepted nodes; the token after them has no entry in the KV cache yet
        self.commit_cache(target, path)
        sequence.committed.extend(tokens)
        logprobs = list[TokenLogprob]()
        if (n_top := sequence.request.options.logprobs) is not None:
            assert self.logits is not None
            logprobs = token_logprobs(self.logits[positions[:n]], tokens, n_top, context.token_text)
        if not reason:
            self.observe(root, tokens)
        self.new_tokens = verified.emitted_tokens(n_before, spans)
        if not may_be_tentative:
            sequence.request.logprobs.extend(logprobs)
            self.results = SettledTokens(self.new_tokens, [], reason)
            return
        states_before = chain((hidden_before,), (self.hidden[position] for position in positions))
        self.results = settle_tentative(sequence, self.new_tokens, states_before, logprobs, bool(reason), context)

    def _refuse_nan(self, verified: VerifiedTree, target: Runner) -> None:
        if not verified.is_nan:
            return
        if self.has_invalid_token is not None and bool(self.has_invalid_token):
            raise WorkbenchError(
                f"The drafter {type(self.sequence.drafter).__name__} used a token id outside the target's "
                f"vocabulary, in a draft or a probe.",
                f"Use token ids from 0 to {target.vocab_size - 1}.",
            )
        raise NumericalError(
            "The target returned NaN instead of probabilities.",
            "Try another dtype; bfloat16 or float32 often helps.",
        )

    def commit_cache(self, target: Runner, path: abc.Sequence[int]) -> None:
        """Commit root and accepted nodes to the target's KV cache. `path`: their positions in the forward pass."""
        target.commit(self.sequence.cache_slot, path)
        self.sequence.cache_slot.last_hidden = self.hidden[path[-1]]

    def observe(self, root: int, emitted: list[int]) -> None:
        """Pass the round's feedback to drafter, tree builder, verifier and policy.

        `root` is the last committed token before the round.
        """
        sequence, verified = self.sequence, self.verified_tree
        state, builder = sequence.state, sequence.configured_method.tree_builder
        walk, figures = verified.acceptance.walk, verified.acceptance.figures
        feedback = RoundFeedback(
            walk.tokens,
            walk.parents,
            verified.result,
            emitted,
            root,
            figures.top_tokens,
            state.plan,
            self.hidden,
            self.layer_states,
            self.probe_outputs.get("drafter"),
            figures.top_probs,
        )
        if state.plan.depth > 0 and (inspectable := inspectable_state_of(state.drafter)) is not None:
            inspectable.count(verified.sources, verified.result.path)
        if not state.no_draft_reason:
            sequence.drafter.observe(sequence, feedback)
        send_feedback(sequence, feedback)
        sequence.verifier.observe(sequence, feedback)
        if builder is not None and state.plan.tree_builder == builder:
            builder.observe(sequence, feedback)
        sequence.policy.observe(sequence, state.policy, feedback)

    # -- after the round -----------------------------------------------------------------------------------------

    @property
    def reason(self) -> str:
        """Return why the sequence's text ends with this round; "" if it continues."""
        return "" if self.results is None else self.results.reason

    def to_record(self, timing: Timing, context: EngineContext) -> Round:
        """Return the record of this sequence's round for its trace."""
        assert self.results is not None
        return record_round(self.sequence, self.verified_tree, self.new_tokens, self.results, timing, context)


# -- groups of sequences ----------------------------------------------------------------------------------------------


def groups_of(rounds: Iterable[RoundState], key: Callable[[RoundState], Hashable]) -> list[list[RoundState]]:
    """Return the rounds in groups with equal values of the function `key`."""
    groups: dict[Hashable, list[RoundState]] = {}
    for r in rounds:
        groups.setdefault(key(r), []).append(r)
    return list(groups.values())


def propose(group: abc.Sequence[RoundState]) -> None:
    """Draft a tree for each of the sequences that are drafted together."""
    sequences = [r.sequence for r in group]
    # `list` checks the number of trees before any is assigned.
    for r, tree in list(zip(group, sequences[0].drafter.propose(sequences), strict=True)):
        r.tree = tree


def propose_again(group: abc.Sequence[RoundState]) -> None:
    """Create new drafter states and draft again, because a failed call may have left the old states inconsistent."""
    for sequence in [r.sequence for r in group]:
        if isinstance(sequence, DeviceSequence):
            sequence.reset_lengths()
            continue
        sequence.cache_slot.scratch = 0
        release_drafter(sequence)
        sequence.state.drafter = init_drafter_state(sequence, sequence.drafter, sequence.models)
    propose(group)


def run_target(models: Models, group: abc.Sequence[RoundState]) -> None:
    """Run one forward pass of the target for rounds with the same start layer and the same `probe_entry_layer`."""
    ordered = sorted(group, key=lambda r: r.sequence.cache_slot.index)
    captured = {layer for r in ordered for layer in r.sequence.state.captured_layers}
    begin, entry_layer = ordered[0].first_layers
    inputs = [(r.sequence, r.target_input) for r in ordered]
    if entry_layer:
        parts = [block.entering(sequence, models) for sequence, block in inputs]
        out = forward_entering(models, parts, entry_layer, captured)
    else:
        segments = [block.segment(sequence, models) for sequence, block in inputs]
        if begin:
            out = models.target.forward_from(segments, begin, captured)
        else:
            out = models.target.forward(segments, capture_layers=captured)
    for b, r in enumerate(ordered):
        r.take_output(out, b)


def copy_to_host(rounds: abc.Sequence[RoundState]) -> None:
    """Copy the results of the acceptance rules from the device, with a single synchronisation for all sequences."""
    on_device = [r.acceptance_tensors for r in rounds]
    for r, acceptance in zip(rounds, Acceptance.to_host(on_device), strict=True):
        r.acceptance = acceptance
