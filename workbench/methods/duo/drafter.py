"""Duo-LLM: every layer has a small and a big MLP; the small MLPs draft, the big ones verify."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar
from weakref import WeakValueDictionary

from jaxtyping import Float, Int
from torch import Tensor

from workbench.core.params import param
from workbench.core.table_signals import make_table_signals
from workbench.engine.request import Sequence
from workbench.kernels.weight_sharing import WeightSharingCopy
from workbench.methods.common.layer_skipping import ReducedTarget, ReducedTargetDrafter
from workbench.models.loading import Models
from workbench.models.narrowed_mlp import activity, narrow_mlps

STEP = 64
"""Unit of the width of small MLPs, in columns. If the big MLP is wider than one unit, the small MLP's width is a
multiple of the unit, because compiled matrix products support no other widths."""


@dataclass(frozen=True, slots=True)
class SmallMLPs:
    """Draft model of a sequence: the target with a small MLP in each layer.

    Attributes:
        shared_copy: weight-sharing copy of the target in which the MLPs are small.
        retained_shares: for each layer, the share of the full MLP's activation that falls on the columns of its small
            MLP; 1 for a layer with its full MLP.
    """

    shared_copy: WeightSharingCopy
    retained_shares: list[float]


@dataclass(frozen=True)
class Duo(ReducedTargetDrafter):
    """Draft with the small MLP of every layer, over the target's own KV cache; the attention layers are shared.

    The small MLP of a layer consists of the columns of its big MLP that add most to the residual stream: those with the
    largest mean |a_j| · ‖w_j‖ over the sequence's last tokens, where w_j is column j of the down projection and a_j the
    activation that it multiplies. The columns are chosen once per sequence, from the text of this sequence alone, and
    copied. The copies take `share` of the memory of the target's MLPs while a sequence drafts with them. Sequences with
    the same columns draft in one batch. In `big` layers, those in which the small MLP would retain the smallest share
    of the activations, the full MLP drafts.

    Source: Alizadeh et al. 2024, Duo-LLM, arXiv:2410.10846, §3 (big and small module in every layer, and routes among
    them); in the paper both are trained, with random routes.
    """

    source: ClassVar[str] = "duo"
    share: float = param(0.5, ge=0.05, le=1.0, doc="size of the reduced MLP, as a share of the full MLP")
    big: int = param(
        0,
        ge=0,
        le=64,
        doc=("number of layers that keep their full MLP: those where the reduced MLP would lose most activation"),
    )
    read: int = param(64, ge=1, le=256, doc="number of last tokens whose activations select the MLP columns")

    def init_state(self, sequence: Sequence, models: Models) -> SmallMLPs:
        """Build the small MLPs from the target's MLP activations in a second pass over the end of the text."""
        target, slot = models.target, sequence.cache_slot
        begin = slot.image_prefill_length
        start = max(min(begin, len(sequence.committed) - 1), len(sequence.committed) - self.read)
        activities = activity(target, slot, start, sequence.committed[start:])
        columns = {layer: most_active(a, self.share) for layer, a in activities.items()}
        shares = {
            layer: float(activities[layer][selected].sum() / activities[layer].sum())
            for layer, selected in columns.items()
        }
        for layer in sorted(shares, key=shares.__getitem__)[: self.big]:
            del columns[layer], shares[layer]
        copies = models.shared.setdefault("duo", WeakValueDictionary[Hashable, WeightSharingCopy]())
        key = tuple((layer, selected.cpu().numpy().tobytes()) for layer, selected in columns.items())
        shared_copy = copies.get(key) or narrow_mlps(target, columns)
        copies[key] = shared_copy
        return SmallMLPs(shared_copy, [shares.get(layer, 1.0) for layer in range(target.n_layers)])

    def reduced_target(self, sequence: Sequence) -> ReducedTarget:
        """Return the target with the sequence's small MLPs, and record the share of activations that each retains."""
        state: SmallMLPs = sequence.state.drafter
        sequence.report.signals.update(
            make_table_signals("retained activation share", {"feed-forward": state.retained_shares})
        )
        return ReducedTarget(sequence.models.target, shared_copy=state.shared_copy)


def most_active(activity: Float[Tensor, " I"], share: float) -> Int[Tensor, " k"]:
    """Return the indices of the MLP columns with the largest activity, ascending.

    Args:
        activity: mean activity of each of I columns.
        share: share k / I of the columns to return. If I > 64, k is rounded up to a multiple of 64.

    Example:
        >>> most_active(torch.tensor([0.5, 0.1, 0.9, 0.3]), 0.5).tolist()
        [0, 2]
    """
    width = len(activity)
    n = max(1, round(share * width))
    n = min(width, -(-n // STEP) * STEP) if width > STEP else n
    return activity.topk(n).indices.sort().values
