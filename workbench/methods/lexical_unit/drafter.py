"""Lexical unit decoding: the target's predictions at placeholder tokens after the text become the next draft."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.core.params import param
from workbench.core.probes import Probes
from workbench.core.sampling import apply_logits_processors, replace_all_masked_rows
from workbench.core.table_signals import make_table_signals
from workbench.core.transfer import to_device, to_list
from workbench.core.tree import DraftTree, tree_attention_mask
from workbench.decoders.draft_verify.parts import DistributionDrafter, RoundFeedback, TreeBuilder
from workbench.decoders.draft_verify.tree_building import FullDistributions, PartialTree
from workbench.engine.request import Sequence
from workbench.methods.tree_builders.chain import Chain
from workbench.models.loading import Models
from workbench.models.side_passes import recompute_logits

GAP = "_"
"""Placeholder token at the positions of future tokens. If it has no token id, the prompt's first token is used."""


@dataclass(slots=True)
class Unit:
    """Target's predictions of a sequence's next tokens, at placeholder tokens after the text.

    Attributes:
        blank: token id of the placeholder.
        logits: logits at the m placeholders after the newest token that the target has processed. Row j predicts the
            token j + 1 positions after the last committed one. None: there are no predictions.
    """

    blank: int
    logits: Float[Tensor, "m V"] | None = None


class UnitGrowth(PartialTree):
    """Draft chain over the distributions of m levels, which do not depend on the tokens drafted at earlier levels."""

    def __init__(self, sequence: Sequence, logits: Float[Tensor, "m V"]) -> None:
        super().__init__(sequence, "lexical-unit", logits.device)
        self.logits = logits
        self.root = self.of_level()

    def of_level(self) -> FullDistributions:
        """Return the distribution of the next draft level.

        Penalties and logits processors read the chain drafted so far.
        """
        logits, sequence = self.logits[len(self.tokens)][None], self.sequence
        if sequence.sampling.needs_history:
            past = to_device(sequence.committed, self.device)
            logits = replace_all_masked_rows(
                apply_logits_processors(logits, sequence.sampling, [torch.cat([past, *self.tokens])])
            )
        return FullDistributions.of(logits, sequence.sampling)

    def distributions(self, tokens: Int[Tensor, " w"], below: Int[Tensor, " w"] | None) -> FullDistributions:
        """Return the distribution of the next draft level, see `of_level`."""
        return self.of_level()


@dataclass(frozen=True)
class LexicalUnit(DistributionDrafter):
    """Draft from the target's predictions at placeholder tokens after the text: several positions at once.

    A round may end at the last committed token or at any drafted one. After each of these K + 1 positions, the
    verification forward pass has m = `places` placeholders as probes: extra positions that are never accepted. A
    placeholder attends to the text up to the position that it follows, and to the earlier placeholders after the same
    position. The placeholders after the position where the round ends predict the tokens of the next draft. So drafting
    needs no forward pass of its own, and a round processes (K + 1) · m tokens in addition to its K drafts. Only
    placeholders attend to placeholders, and none is committed, so the output follows the target's distribution.

    Source: Sun et al. 2024, Lexical Unit Decoding, arXiv:2405.15208, §3. In the paper the target is trained with
    placeholders, and its confident predictions are accepted without verification (`verifier=as-drafted`).
    """

    needs: ClassVar[tuple[str, ...]] = ("trees",)
    reads_target: ClassVar[bool] = True
    default_tree_builder: ClassVar[TreeBuilder | None] = Chain()
    places: int = param(2, ge=1, le=6, doc="m, number of placeholder tokens after each position where a round may end")

    def init_state(self, sequence: Sequence, models: Models) -> Unit:
        """Return a drafting state with the target's predictions at placeholder tokens after the text.

        The last committed token is left out, because the target has not processed it yet.
        """
        candidates = [*models.tokenizer.encode(GAP, add_special_tokens=False), sequence.committed[0]]
        blank = next(token for token in candidates if token < models.target.vocab_size)
        state, start = Unit(blank), len(sequence.committed) - 1
        blanks = [blank] * min(self.places, models.target.context - start)
        state.logits = recompute_logits(models.target, sequence.cache_slot, start, blanks)
        return state

    def max_levels(self, sequence: Sequence) -> int:
        """Return the maximum number of draft levels: one per placeholder token after a position."""
        return self.places

    def begin(self, sequence: Sequence) -> UnitGrowth | None:
        """Return an empty draft chain over the target's predictions at placeholder tokens; None without predictions."""
        state: Unit = sequence.state.drafter
        return None if state.logits is None else UnitGrowth(sequence, state.logits)

    def probes(self, sequence: Sequence, tree: DraftTree) -> Probes:
        """Return `places` placeholder tokens after each position at which the round may end.

        They are probe positions: never accepted, but the target's predictions at them give the next draft.
        """
        n, m, device = len(tree), self.places, tree.tokens.device
        ends = torch.arange(-1, n, device=device)
        sees = tree_attention_mask(tree.parents, n)
        node_mask = torch.cat([sees.new_zeros(1, n), sees])  # per end position, the draft nodes up to it
        index = torch.arange((n + 1) * m, device=device)
        unit = index // m
        same_unit = (unit.unsqueeze(1) == unit) & (index.unsqueeze(1) >= index)
        mask = torch.cat([node_mask.repeat_interleave(m, 0), same_unit], 1)
        places = (node_mask.sum(1, keepdim=True) + torch.arange(1, m + 1, device=device)).flatten()
        chained = torch.arange(n - 1, n - 1 + len(places), device=device)  # index of the previous placeholder
        first = torch.arange(len(places), device=device) % m == 0
        parents = torch.where(first, ends.repeat_interleave(m), chained)
        tokens = torch.full_like(parents, sequence.state.drafter.blank)
        return Probes(tokens, parents, places, mask, tree.depth + m, "lexical-unit")

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Store the target's predictions at the placeholder tokens after the last accepted position.

        If another drafter drafted in this round, there are no such predictions.
        """
        state: Unit = sequence.state.drafter
        state.logits = None
        if feedback.probe_output is not None:
            end = feedback.result.path[-1] + 1 if feedback.result.path else 0
            state.logits = feedback.probe_output.logits[end * self.places : (end + 1) * self.places]
            confidence = to_list(state.logits.float().softmax(1).amax(1))
            sequence.report.signals.update(make_table_signals("prediction confidence", {"placeholder": confidence}))
