"""State of draft-and-verify decoding for one sequence that lasts longer than a round."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workbench.decoders.draft_verify.parts import Plan

if TYPE_CHECKING:
    from workbench.decoders.draft_verify.drafter_lifetime import ObservingDrafter
    from workbench.decoders.draft_verify.inspectable_state import FinishedState
    from workbench.decoders.draft_verify.tentative_tokens import TentativeToken
    from workbench.engine.request import Sequence
    from workbench.engine.settings import ImageChange


@dataclass(slots=True)
class DraftState:
    """State of one sequence's drafter, tree builder, verifier and policy.

    Attributes:
        drafter: the drafter's state, from `Drafter.init_state`.
        tree_builder: the tree builder's state, from `TreeBuilder.init_state`.
        verifier: the verifier's state, from `Verifier.init_state`.
        policy: the policy's state, from `Policy.init_state`.
        plan: draft budget of the current round.
        captured_layers: target layers whose hidden states the method needs from a verification.
        no_draft_reason: why the drafter can no longer draft; "" if it can.
        inactive: earlier drafters that still receive feedback, by `Drafter.state_key`.
        vision: image information that the drafter uses, as it reported by `drafter_vision.report_vision`.
        vision_recorded: the entries of `vision` that are already in the trace.
        tentative: tokens that may still be revoked, the last tokens of `Sequence.committed`, oldest first.
        n_final: number of the oldest tentative tokens that become final in the next round.
        image_changes: images that changed since the last round.
        final: drafter state saved at the end of the sequence.
        retractions: number of times that tokens were revoked since the last token became final.
    """

    drafter: Any = None
    tree_builder: Any = None
    verifier: Any = None
    policy: Any = None
    plan: Plan = field(default_factory=lambda: Plan(0))
    captured_layers: set[int] = field(default_factory=set[int])
    no_draft_reason: str = ""
    inactive: dict[Hashable, ObservingDrafter] = field(default_factory=dict)
    vision: dict[str, Any] = field(default_factory=dict)
    vision_recorded: dict[str, Any] = field(default_factory=dict)
    tentative: list[TentativeToken] = field(default_factory=list)
    n_final: int = 0
    retractions: int = 0
    image_changes: list[ImageChange] = field(default_factory=list)
    final: FinishedState | None = None


def drafter_state(sequence: Sequence) -> Any:
    """Return the state of a sequence's drafter; None before its prefill ends, or if its decoder has no drafter."""
    return sequence.state.drafter if isinstance(sequence.state, DraftState) else None


def final_state(sequence: Sequence) -> FinishedState | None:
    """Return the drafter state saved at the end of a sequence; None if none was saved."""
    return sequence.state.final if isinstance(sequence.state, DraftState) else None
