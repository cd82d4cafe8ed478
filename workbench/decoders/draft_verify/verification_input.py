"""Input of the target's forward pass for one sequence: its draft, and after it probe positions (never accepted)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.core.errors import CapacityError, WorkbenchError
from workbench.core.probes import ProbeOutput, Probes, concat_probes
from workbench.core.tree import DraftTree, tree_attention_mask
from workbench.decoders.draft_verify.parts import EarlyExitStates
from workbench.decoders.draft_verify.two_part_pass import WholeSegment
from workbench.engine.request import Sequence
from workbench.kernels.fused import FUSED_TOKENS
from workbench.kernels.segment import Segment
from workbench.models.loading import Models
from workbench.models.runner import SCRATCH

PROBING_PARTS = ("drafter", "verifier")
"""Components that may request probe positions (never accepted), in the order in which these are processed."""
ROOM = min(SCRATCH, FUSED_TOKENS) - 1
"""Maximum number of nodes and probe positions (never accepted) of a sequence in a forward pass.

Larger inputs could not use the compiled forward pass, and rounding would change.
"""


@dataclass(frozen=True, slots=True)
class VerificationInput:
    """Input of the target's forward pass for one sequence: draft nodes and probe positions (never accepted).

    Scratch positions of the KV cache are the root, then nodes 0 … N − 1, then probes 0 … P − 1. Probes come after all
    nodes that can be committed, and are dropped with the rejected nodes.

    Attributes:
        tree: draft tree of N nodes.
        probes_by_part: probe positions by the component that requested them, in the order of `PROBING_PARTS`.
        exits: the target's hidden states that drafting computed, from which the forward pass continues.
    """

    tree: DraftTree
    probes_by_part: Mapping[str, Probes] = field(default_factory=dict)
    exits: EarlyExitStates | None = None

    @property
    def probes(self) -> Probes | None:
        """Return all probe positions of the sequence, in the order of the forward pass; they are never accepted."""
        return concat_probes(self.tree, list(self.probes_by_part.values())) if self.probes_by_part else None

    def segment(self, sequence: Sequence, models: Models) -> Segment:
        """Return the input of the forward pass for the sequence: tokens, positions and attention mask.

        A chain without probe positions needs no mask.

        Raises:
            CapacityError: the draft alone exceeds the cache's scratch positions (room for uncommitted tokens).
        """
        tree, probes = self.tree, self.probes
        sequence.cache_slot.scratch = 0
        root = sequence.uncached_tokens(sequence.cache_slot, models.target.device)
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
        """Return the number of layers after which some probe positions are added; 0: all start at layer 1."""
        return max((p.layer_input.layer for p in self.probes_by_part.values() if p.layer_input is not None), default=0)

    def entering(self, sequence: Sequence, models: Models) -> tuple[Segment, WholeSegment]:
        """Return the input up to layer `probe_entry_layer`, and a function that builds the input of later layers."""

        def whole(stream: Float[Tensor, "n D"]) -> Segment:
            return replace(self.segment(sequence, models), states=self.entry_states(stream))

        return self.below().segment(sequence, models), whole

    def below(self) -> VerificationInput:
        """Return this input for the layers up to `probe_entry_layer`, without the probe positions added after it."""
        return replace(
            self, probes_by_part={part: p for part, p in self.probes_by_part.items() if p.layer_input is None}
        )

    def entry_states(self, stream: Float[Tensor, "n D"]) -> Float[Tensor, "n_plus_P D"]:
        """Return the residual streams of draft and all probe positions after layer `probe_entry_layer`.

        `stream` has the residual streams of the tokens that the layers up to there have processed.
        """
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
        """Return input embeddings of root, draft and probe positions; None if their tokens are enough."""
        all_probes, embed = self.probes_by_part.values(), models.target.embed
        if all(probes.states is None for probes in all_probes):
            return None
        return torch.cat([embed(drafted), *(embed(p.tokens) if p.states is None else p.states for p in all_probes)])

    def probe_outputs(self, logits: Float[Tensor, "n V"], hidden: Float[Tensor, "n D"]) -> dict[str, ProbeOutput]:
        """Return the results at probe positions (never accepted) by the component that requested them.

        They are taken from logits and LM head inputs at all positions.
        """
        results: dict[str, ProbeOutput] = {}
        at = 1 + len(self.tree)
        for part, probes in self.probes_by_part.items():
            results[part] = ProbeOutput(probes, logits[at : at + len(probes)], hidden[at : at + len(probes)])
            at += len(probes)
        return results


def build_input(sequence: Sequence, tree: DraftTree, models: Models) -> VerificationInput:
    """Return the draft with the probe positions that drafter and verifier request.

    Probe positions are processed, but never accepted. Those that do not fit are left out and reported.

    With probe positions, the forward pass starts at the first layer, because the states from drafting do not include
    them.

    Raises:
        WorkbenchError: a probe mask has the wrong shape for its draft (a mistake in the drafter or verifier).
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
                f"In some rounds the KV cache had no room for the {len(probes)} probe positions of "
                f"{probes.source or part}, which are processed but never accepted."
            )
            continue
        accepted[part] = probes
        room -= len(probes)
    return VerificationInput(tree, accepted, None if accepted else exit_states(sequence, tree))


def exit_states(sequence: Sequence, tree: DraftTree) -> EarlyExitStates | None:
    """Return the hidden states from drafting with which verification continues.

    None if they lack hidden states that the method needs.
    """
    states = None if sequence.state.no_draft_reason or len(tree) == 0 else sequence.drafter.exit_states(sequence, tree)
    if states is None:
        return None
    lower = {layer for layer in sequence.state.captured_layers if layer < states.layer}
    return states if lower <= set(states.layer_states) else None
