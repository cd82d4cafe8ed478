"""Draft from the target's predictions at probe positions of the forward pass that verifies the previous draft.

Probes s(1), s(2), … are extra positions that follow nodes of the draft, each at the position of a future token. The
target's prediction at a probe is a guess at the token after it. So one forward pass verifies a draft and guesses the
next one:

    positions     t        t + 1    t + 2    t + 3    …
    verified      x(t)     draft
    after x(t)             s(1)     s(2)     s(3)     …
    after the draft                 s(1)     s(2)     …

After x(t), probe s(j) guesses x(t + 1 + j). The token x(t + 1) needs no guess, because the target's own output at x(t)
determines it. Only the guesses after the last accepted node are used. A subclass defines the input of a probe; this
module, or the tree builder `DynamicSparse`, decides the number of probes after each node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.core.probes import Probes
from workbench.core.tree import DraftTree, tree_attention_mask
from workbench.decoders.draft_verify.parts import DistributionDrafter, Plan, RoundFeedback
from workbench.decoders.draft_verify.verification_input import ROOM
from workbench.engine.request import Sequence
from workbench.methods.common.trained_net import LevelNet
from workbench.methods.medusa.drafter import RANKS, HeadsGrowth
from workbench.methods.tree_builders.dynamic_sparse import planned_probe_counts

ProbeCounts = tuple[int, ...]
"""Number of probe steps after the root and after each node of a draft, in node order. A probe is an extra position
that is never accepted."""


class ProbeNet(LevelNet):
    """Base class of trained nets that compute the inputs of probes, extra positions that are never accepted."""

    levels: int
    """Maximum number of probe steps after one position, and so of draft levels. A probe is an extra position whose
    output drafts a token of the next round."""
    ensemble: int = 1
    """Number of probes (extra positions for drafting) per step, the ensemble. The predictions of an ensemble are
    averaged. Its probes have the indices 0, 1, …, and each probe attends only to probes with the same index."""

    def probe_logits(self, logits: Float[Tensor, "*b jv V"]) -> Float[Tensor, "*b j V"]:
        """Return the draft logits of j probe steps: in each step, the mean of the target's logits at v probes.

        Probes are extra positions of the verifying forward pass, whose outputs draft the next tokens.

        Args:
            logits: the target's logits at all probes, step by step.
        """
        *batch, _, vocabulary = logits.shape
        return logits.reshape(*batch, -1, self.ensemble, vocabulary).mean(-2)


@dataclass(slots=True)
class ProbeState:
    """Drafting state of one text, for a drafter that uses the target's predictions at extra positions (probes).

    Attributes:
        net: net that computes the inputs of probes.
        guesses: the target's logits at the s probe steps after the position where the last round ended; None: there
            were no probes after it.
        end: length in tokens of the text for which `guesses` are valid.
        probe_counts: number of probe steps after the root and after each node in the current forward pass.
        probing: probes of the current forward pass; None: it has none.
    """

    net: Any
    guesses: Float[Tensor, "s V"] | None = None
    end: int = 0
    probe_counts: ProbeCounts = ()
    probing: Probes | None = None

    def current_guesses(self, sequence: Sequence) -> Float[Tensor, "s V"] | None:
        """Return the target's logits at the last round's extra positions (probes); None if the text has changed."""
        return self.guesses if self.end == len(sequence.committed) else None

    def level_logits(self, hidden: Float[Tensor, "B s V"], level: int) -> Float[Tensor, "B V"]:
        """Return the logits of one draft level over the target's V tokens.

        Args:
            hidden: logits of all s levels, from `guesses`.
            level: index of the level, from 0.
        """
        return hidden[:, level]


class ProbeDrafter(DistributionDrafter):
    """Draft from the target's predictions at probes, extra positions in the pass that verified the previous draft.

    The first forward pass of a text has no draft: it processes the root and its probes. The same holds if the last
    round ended at a position without probes. Subclasses create a `ProbeState` for each sequence.
    """

    reads_target: ClassVar[bool] = True
    display_name: ClassVar[str]
    """Display name of the method's probes (extra positions for drafting), in the plural."""

    def add_probe_inputs(self, sequence: Sequence, tree: DraftTree, layout: ProbeLayout, probes: Probes) -> Probes:
        """Return the probes (extra positions for drafting) of a forward pass, with inputs from the trained net.

        Args:
            sequence: the sequence.
            tree: draft of the sequence.
            layout: anchor, step and ensemble index of each probe.
            probes: positions and attention mask of the probes; their token ids are −1, because they have no tokens.
        """
        raise NotImplementedError

    def max_levels(self, sequence: Sequence) -> int:
        """Return the maximum number of draft levels: one per probe (extra position for drafting) after a position."""
        return max(1, sequence.state.drafter.net.levels)

    def begin(self, sequence: Sequence) -> HeadsGrowth | None:
        """Start a tree, to be drafted from the target's logits at the last round's extra positions (probes).

        Return None if there are no such logits.
        """
        guesses = sequence.state.drafter.current_guesses(sequence)
        if guesses is None:
            return None
        best = guesses.float().log_softmax(-1).topk(min(RANKS, guesses.shape[1]), dim=-1)
        return HeadsGrowth(sequence, guesses, best.values, best.indices)

    def propose_one(self, sequence: Sequence, plan: Plan) -> DraftTree:
        """Draft a tree from the target's logits at the probes (extra positions) after the last accepted position."""
        guesses = sequence.state.drafter.current_guesses(sequence)
        sequence.report.signals["guessed levels"] = 0 if guesses is None else len(guesses)
        return super().propose_one(
            sequence, plan if guesses is None else replace(plan, depth=min(plan.depth, len(guesses)))
        )

    def probes(self, sequence: Sequence, tree: DraftTree) -> Probes | None:
        """Return the probes that follow the root and each node of a draft; None if there are none.

        Probes are extra positions of the verifying forward pass, whose outputs draft the next tokens.
        """
        state: ProbeState = sequence.state.drafter
        useful = min(state.net.levels, sequence.remaining - 2) if sequence.state.plan.depth else 0
        state.probing, state.probe_counts = None, probes_per_node(sequence, tree, useful)
        sequence.report.signals[self.display_name] = sum(state.probe_counts)
        if not any(state.probe_counts):
            return None
        at = probe_layout(state.probe_counts, state.net.ensemble, tree.tokens.device)
        node_mask = tree_attention_mask(tree.parents, tree.depth)
        sees = torch.cat([node_mask.new_zeros(1, len(tree)), node_mask])[at.anchor]
        places = sees.sum(1) + at.step + 1
        parents = torch.where(at.before < 0, at.anchor - 1, at.before + len(tree))
        bare = Probes(
            torch.full_like(at.anchor, -1), parents, places, torch.cat([sees, at.mask], 1),
            tree.depth + state.net.levels, state.net.kind,
        )  # fmt: skip
        state.probing = self.add_probe_inputs(sequence, tree, at, bare)
        return state.probing

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Store the target's logits at the extra positions (probes) after the last accepted position, for drafting."""
        state: ProbeState = sequence.state.drafter
        state.guesses, probed = None, feedback.probe_output
        if probed is None or probed.probes is not state.probing:
            return  # the KV cache had no room for the probes
        last = feedback.result.path[-1] + 1 if feedback.result.path else 0
        begin, n = sum(state.probe_counts[:last]), state.probe_counts[last]
        if n:
            v = state.net.ensemble
            state.guesses, state.end = (
                state.net.probe_logits(probed.logits[begin * v : (begin + n) * v]),
                len(sequence.committed),
            )


def probes_per_node(sequence: Sequence, tree: DraftTree, useful: int) -> ProbeCounts:
    """Return the number of probe steps after the root and after each node of a draft.

    Probes are extra positions of the verifying forward pass, whose outputs draft the next tokens.

    The tree builder may have planned these numbers. Otherwise every position has `useful` probe steps, or fewer if the
    size limit of a forward pass requires it.

    Args:
        sequence: the sequence.
        tree: draft of the sequence.
        useful: maximum number of probe steps after one position. It is smaller near the end of the text, where fewer
            tokens remain to be drafted.
    """
    planned = planned_probe_counts(sequence, tree) if len(tree) else None
    counts = [useful] * (1 + len(tree)) if planned is None else [min(n, useful) for n in planned]
    room = (ROOM - len(tree)) // sequence.state.drafter.net.ensemble
    while sum(counts) > room:  # trees of other tree builders may be large
        largest = max(counts)
        if largest == 1:  # the last positions are the least likely
            counts = [n if sum(counts[:i]) < room else 0 for i, n in enumerate(counts)]
            break
        counts = [min(n, largest - 1) for n in counts]
    return tuple(counts)


@dataclass(frozen=True, slots=True)
class ProbeLayout:
    """Layout of the P probes (extra positions for drafting) of a forward pass, ordered by position, then by step.

    Attributes:
        anchor: position that each probe follows: 0 is the root, i + 1 is node i.
        step: index of the probe's step among the steps after the same position, from 0.
        input_index: index of the probe's input in the net: step · (probes per step) + index in the ensemble.
        before: index of the probe in the previous step with the same anchor and index in the ensemble; −1 in step 0.
        mask: true at the probes (columns) that each probe (row) attends to: those with the same anchor and index in the
            ensemble, up to itself.
    """

    anchor: Int[Tensor, " P"]
    step: Int[Tensor, " P"]
    input_index: Int[Tensor, " P"]
    before: Int[Tensor, " P"]
    mask: Bool[Tensor, "P P"]


@lru_cache(maxsize=256)
def probe_layout(counts: ProbeCounts, ensemble: int, device: torch.device) -> ProbeLayout:
    """Return the layout of the probes (extra positions for drafting) of a forward pass.

    The layout is cached, so callers must not modify it.

    Args:
        counts: number of probe steps after the root and after each node.
        ensemble: number of probes per step.
        device: device of the tensors.
    """
    with torch.inference_mode(False):  # the first caller may be in inference mode, whose tensors training cannot use
        cells = [(place, step, i) for place, n in enumerate(counts) for step in range(n) for i in range(ensemble)]
        place, step, part = torch.tensor(cells, device=device).unbind(1)
        index = torch.arange(len(cells), device=device)
        before = torch.where(step > 0, index - ensemble, -1)
        same_group = (place[:, None] == place) & (part[:, None] == part)
        return ProbeLayout(place, step, step * ensemble + part, before, same_group & (step <= step[:, None]))
