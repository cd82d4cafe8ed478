"""One sequence in one round: its state, and each phase for it. `decoder.py` runs the phases for all sequences."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.core.errors import CapacityError, NumericalError, WorkbenchError
from workbench.core.probes import ProbeOutput, Probes, concat_probes
from workbench.core.transfer import on_host, to_device
from workbench.core.tree import DraftTree, tree_attention_mask
from workbench.decoders.draft_verify.acceptance import Acceptance, VerifiedTree, accept, record_round
from workbench.decoders.draft_verify.drafter_lifetime import (
    init_drafter_state,
    levels_left,
    release_drafter,
    send_feedback,
)
from workbench.decoders.draft_verify.inspectable_state import inspectable_state_of
from workbench.decoders.draft_verify.parts import EarlyExitStates, RoundFeedback
from workbench.decoders.draft_verify.tentative_tokens import (
    SettledTokens,
    find_tentative_end,
    has_tentative,
    settle_tentative,
)
from workbench.decoders.draft_verify.two_part_pass import WholeSegment, forward_entering
from workbench.engine.decoder import EngineContext
from workbench.engine.request import Sequence
from workbench.engine.request_options import TokenLogprob, token_logprobs
from workbench.engine.round_timing import Drafting, Timing
from workbench.engine.stop_conditions import apply_stop_conditions
from workbench.kernels.fused import FUSED_TOKENS
from workbench.kernels.segment import Output, Segment
from workbench.models.loading import Models
from workbench.models.runner import SCRATCH, Runner
from workbench.trace.events import Round
from workbench.trace.tokens import EmittedToken


@dataclass(slots=True, repr=False, eq=False)
class RoundState:
    """One sequence in one round, with the result of each phase.

    `target_input`, `hidden`, `acceptance` and `verified_tree` exist from the end of their phase on.

    Attributes:
        sequence: sequence of the round.
        tree: draft tree; empty after `plan` if nothing is to be drafted.
        drafting: timing of the group of sequences with which it was drafted.
        target_input: the sequence's part of the target's forward pass: the draft, and probe positions after it.
        logits: target logits at the root and after each node, [N+1, V].
        hidden: the LM head's input at the same positions, [N+1, D].
        layer_states: captured hidden states at the same positions, for the layers that the method requested, each [N+1,
            D].
        probe_outputs: results at probe positions, by the part that requested them.
        has_invalid_token: on a GPU, whether the draft or a probe has an invalid token id. Its embedding lookup would
            abort the CUDA context and so end all runs of the process. A valid id replaces it, and the logits are set to
            NaN.
        acceptance: results of the acceptance rule, on the device until `copy_to_host`.
        verified_tree: the draft with its accepted path.
        new_tokens: tokens that the round adds to the text.
        results: which of the new tokens, and of earlier tentative tokens, are final.
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
    acceptance: Acceptance = field(init=False)
    verified_tree: VerifiedTree = field(init=False)
    new_tokens: list[EmittedToken] = field(default_factory=list)
    results: SettledTokens | None = None

    # -- plan and draft ------------------------------------------------------------------------------------------

    def plan(self, batch: abc.Sequence[Sequence]) -> None:
        """Set the draft budget, limited by the remaining tokens, the plan's nodes and the drafter's context."""
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
        """Return the drafter's class and models. Sequences with equal classes and models are drafted together."""
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
        """Record whether any token id is invalid, and clamp all ids in place; does not synchronise.

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
        """Return (number of layers that drafting has already run, layer after which probes enter); 0: none."""
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

    def accept(self, record: bool) -> None:
        """Apply the sequence's acceptance rule on the device."""
        assert self.tree is not None
        assert self.logits is not None
        probes, output = self.target_input.probes, self.probe_outputs.get("verifier")
        self.acceptance = accept(
            self.sequence, self.tree, self.logits, self.hidden, self.layer_states, record, probes, output
        )

    def walk(self) -> None:
        """Find the accepted path and the token after it, from results of the rule on the host."""
        assert self.tree is not None
        sources = [probes.source for probes in self.target_input.probes_by_part.values() for _ in range(len(probes))]
        self.verified_tree = VerifiedTree.of(self.tree, self.acceptance, self.sequence.verifier, sources)

    # -- commit --------------------------------------------------------------------------------------------------

    def commit(self, context: EngineContext) -> None:
        """Commit the accepted path to the KV cache and its tokens to the text; pass feedback to the parts."""
        sequence, verified, hidden, target = self.sequence, self.verified_tree, self.hidden, context.models.target
        self._refuse_nan(verified, target)
        root, n_before, hidden_before = sequence.committed[-1], len(sequence.committed), sequence.cache_slot.last_hidden
        all_tokens, positions = verified.tokens, [0, *(node + 1 for node in verified.result.path)]
        may_be_tentative = has_tentative(sequence)
        find_end = find_tentative_end if may_be_tentative else apply_stop_conditions
        n, reason, spans = find_end(sequence, all_tokens, context.models)
        tokens = all_tokens[:n]
        path = positions[: n + 1]  # root and accepted nodes; the token after them has no entry in the KV cache yet
        target.commit(sequence.cache_slot, path)
        sequence.cache_slot.last_hidden = hidden[path[-1]]
        sequence.committed.extend(tokens)
        logprobs = list[TokenLogprob]()
        if (raw := verified.acceptance.raw_logits) is not None:
            n_top = sequence.request.options.logprobs or 0
            logprobs = token_logprobs(raw[positions[:n]], tokens, n_top, context.token_text)
        if not reason:
            self._observe(root, tokens)
        self.new_tokens = verified.emitted_tokens(n_before, spans)
        if not may_be_tentative:
            sequence.request.logprobs.extend(logprobs)
            self.results = SettledTokens(self.new_tokens, [], reason)
            return
        states_before = chain((hidden_before,), (hidden[position] for position in positions))
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

    def _observe(self, root: int, emitted: list[int]) -> None:
        """Pass the round's feedback to all parts. `root`: last committed token before the round."""
        sequence, verified = self.sequence, self.verified_tree
        acceptance, state, builder = verified.acceptance, sequence.state, sequence.configured_method.tree_builder
        feedback = RoundFeedback(
            acceptance.tokens,
            acceptance.parents,
            verified.result,
            emitted,
            root,
            acceptance.top_tokens,
            state.plan,
            self.hidden,
            self.layer_states,
            self.probe_outputs.get("drafter"),
            acceptance.top_probs,
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
        """Return why the text ends; "" if it continues."""
        return "" if self.results is None else self.results.reason

    def to_record(self, timing: Timing, context: EngineContext) -> Round:
        """Return the record of the round for the trace."""
        assert self.results is not None
        return record_round(self.sequence, self.verified_tree, self.new_tokens, self.results, timing, context)


# -- groups of sequences ----------------------------------------------------------------------------------------------


def groups_of(rounds: Iterable[RoundState], key: Callable[[RoundState], Hashable]) -> list[list[RoundState]]:
    """Return the rounds in groups, each with one value of the function `key`."""
    groups: dict[Hashable, list[RoundState]] = {}
    for r in rounds:
        groups.setdefault(key(r), []).append(r)
    return list(groups.values())


def propose(group: abc.Sequence[RoundState]) -> None:
    """Draft a tree for each sequence of a drafting group."""
    sequences = [r.sequence for r in group]
    # `list` checks the number of trees before any is assigned.
    for r, tree in list(zip(group, sequences[0].drafter.propose(sequences), strict=True)):
        r.tree = tree


def propose_again(group: abc.Sequence[RoundState]) -> None:
    """Create new drafter states and draft again, because after a failed call the old states may be inconsistent."""
    for sequence in [r.sequence for r in group]:
        sequence.cache_slot.scratch = 0
        release_drafter(sequence)
        sequence.state.drafter = init_drafter_state(sequence, sequence.drafter, sequence.models)
    propose(group)


def run_target(models: Models, group: abc.Sequence[RoundState]) -> None:
    """Run one forward pass of the target for rounds with the same `first_layers`."""
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
    """Copy the results of the acceptance rules from the device, with one synchronisation for all sequences."""
    on_device = [r.acceptance for r in rounds]
    for r, acceptance in zip(rounds, Acceptance.to_host(on_device), strict=True):
        r.acceptance = acceptance


# -- input of the target's forward ------------------------------------------------------------------------------------

PROBING_PARTS = ("drafter", "verifier")
"""Parts of a method that may request probe positions, in the order of their probes in a forward pass."""
ROOM = min(SCRATCH, FUSED_TOKENS) - 1
"""Maximum number of nodes and probes of a sequence in a forward pass. Larger inputs could not use the compiled forward
pass, and rounding would change."""


@dataclass(frozen=True, slots=True)
class VerificationInput:
    """One sequence's part of a target forward pass.

    Scratch positions of the KV cache are the root, then nodes 0 … N − 1, then probes 0 … P − 1. Probes come after
    everything that a commit can keep, and are dropped with the rejected nodes.

    Attributes:
        tree: draft, N nodes.
        probes_by_part: probes by the part that requested them, in the order of `PROBING_PARTS`.
        exits: the target's hidden states that drafting computed, from which the forward pass continues.
    """

    tree: DraftTree
    probes_by_part: Mapping[str, Probes] = field(default_factory=dict)
    exits: EarlyExitStates | None = None

    @property
    def probes(self) -> Probes | None:
        """Return all probe positions, in the order in which the target reads them."""
        return concat_probes(self.tree, list(self.probes_by_part.values())) if self.probes_by_part else None

    def segment(self, sequence: Sequence, models: Models) -> Segment:
        """Return the segment of the forward pass: tokens, positions and mask. A chain without probes needs no mask.

        Raises:
            CapacityError: the draft alone exceeds the cache's scratch positions.
        """
        tree, probes = self.tree, self.probes
        sequence.cache_slot.scratch = 0
        root = to_device(sequence.committed[-1:], models.target.device)
        if len(tree) == 0 and probes is None:
            return Segment(sequence.cache_slot, root)
        if len(tree) >= SCRATCH:
            raise CapacityError(
                f"A draft of {len(tree)} nodes is too large.", f"Draft at most {SCRATCH - 1} nodes per round."
            )
        tokens = torch.cat([root, tree.tokens])
        states = None if self.exits is None else self.exits.states
        if probes is None and tree.fanout <= 1:
            return Segment(sequence.cache_slot, tokens, states=states)
        parents = torch.cat([tree.parents.new_full((1,), -1), tree.parents + 1])
        sees = tree_attention_mask(parents, tree.depth + 1)
        positions = sees.sum(1) - 1
        if probes is None:
            return Segment(sequence.cache_slot, tokens, sees, positions, states)
        n, p = len(tree), len(probes)
        mask = sees.new_zeros(1 + n + p, 1 + n + p)
        mask[: 1 + n, : 1 + n] = sees
        mask[1 + n :, 0] = True
        mask[1 + n :, 1:] = probes.attention_mask
        positions, embeddings = torch.cat([positions, probes.depths]), self._input_embeddings(tokens, models)
        return Segment(sequence.cache_slot, torch.cat([tokens, probes.tokens]), mask, positions, embeddings)

    @property
    def probe_entry_layer(self) -> int:
        """Return the number of layers after which some probes enter; 0 if all probes enter at the first layer."""
        return max((p.layer_input.layer for p in self.probes_by_part.values() if p.layer_input is not None), default=0)

    def entering(self, sequence: Sequence, models: Models) -> tuple[Segment, WholeSegment]:
        """Return the segment for layers before `probe_entry_layer`, and a function that builds it for later layers."""

        def whole(stream: Float[Tensor, "n D"]) -> Segment:
            return replace(self.segment(sequence, models), states=self.entry_states(stream))

        return self.below().segment(sequence, models), whole

    def below(self) -> VerificationInput:
        """Return this input without the probes that enter at `probe_entry_layer`, for the target's layers before it."""
        return replace(
            self, probes_by_part={part: p for part, p in self.probes_by_part.items() if p.layer_input is None}
        )

    def entry_states(self, stream: Float[Tensor, "n D"]) -> Float[Tensor, "n_plus_P D"]:
        """Return the residual streams of draft and all probes at `probe_entry_layer`. `stream`: those of `below`."""
        at = 1 + len(self.tree)
        parts, draft_stream = [stream[:at]], stream[:at]
        for probes in self.probes_by_part.values():
            if probes.layer_input is not None:
                parts.append(probes.layer_input.make_states(draft_stream).to(stream.dtype))
            else:
                parts.append(stream[at : at + len(probes)])
                at += len(probes)
        return torch.cat(parts)

    def _input_embeddings(self, drafted: Int[Tensor, " n"], models: Models) -> Float[Tensor, "n_plus_P D"] | None:
        """Return input embeddings of root, draft and probes if some probe has no token; None: all have tokens."""
        all_probes, embed = self.probes_by_part.values(), models.target.embed
        if all(probes.states is None for probes in all_probes):
            return None
        return torch.cat([embed(drafted), *(embed(p.tokens) if p.states is None else p.states for p in all_probes)])

    def probe_outputs(self, logits: Float[Tensor, "n V"], hidden: Float[Tensor, "n D"]) -> dict[str, ProbeOutput]:
        """Return the results of the probes by requesting part, from logits and LM head inputs at all positions."""
        results: dict[str, ProbeOutput] = {}
        at = 1 + len(self.tree)
        for part, probes in self.probes_by_part.items():
            results[part] = ProbeOutput(probes, logits[at : at + len(probes)], hidden[at : at + len(probes)])
            at += len(probes)
        return results


def build_input(sequence: Sequence, tree: DraftTree, models: Models) -> VerificationInput:
    """Return the draft with the probes that the parts request; probes that do not fit are left out and reported.

    With probes, the forward pass starts at the first layer: the states from drafting include no probes.

    Raises:
        WorkbenchError: a probe mask has the wrong shape for its draft (a mistake in the part).
    """
    accepted: dict[str, Probes] = {}
    room, farthest = ROOM - len(tree), models.target.context - sequence.cache_slot.length - 1
    for part in PROBING_PARTS:
        may_probe = part == "verifier" or not sequence.state.no_draft_reason
        probes = getattr(sequence, part).probes(sequence, tree) if may_probe else None
        if probes is None or len(probes) == 0:
            continue
        if probes.attention_mask.shape != (len(probes), len(tree) + len(probes)):
            raise WorkbenchError(
                f"{probes.source or part} gave a probe mask of shape {list(probes.attention_mask.shape)} for a draft "
                f"of {len(tree)} nodes and {len(probes)} probes.",
                "Give a mask over nodes and probes: bool [P, N + P].",
            )
        if len(probes) > room or probes.max_depth > farthest:
            sequence.add_warning(
                f"In some rounds the KV cache had no room for the {len(probes)} probe tokens of "
                f"{probes.source or part}."
            )
            continue
        accepted[part] = probes
        room -= len(probes)
    return VerificationInput(tree, accepted, None if accepted else exit_states(sequence, tree))


def exit_states(sequence: Sequence, tree: DraftTree) -> EarlyExitStates | None:
    """Return the exit states from which verification continues; None if they lack states that a part needs."""
    states = None if sequence.state.no_draft_reason or len(tree) == 0 else sequence.drafter.exit_states(sequence, tree)
    if states is None:
        return None
    lower = {layer for layer in sequence.state.captured_layers if layer < states.layer}
    return states if lower <= set(states.layer_states) else None
