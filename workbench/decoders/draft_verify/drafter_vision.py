"""Report which image information (such as the number of vision tokens) a drafter uses, for the trace."""

from __future__ import annotations

import dataclasses
from typing import Any

from workbench.decoders.declarations import DRAFTERS
from workbench.engine.image_trace import position_bytes, record_images
from workbench.engine.request import Sequence


def report_vision(sequence: Sequence, **fields: Any) -> None:
    """Report which image information (such as the number of vision tokens) a sequence's drafter uses.

    Drafters call this in `init_state` or `propose`.

    `fields` has the keys of `Round.vision`. The engine records the information with the next round, and after each
    change again.
    """
    sequence.state.vision.update(fields)


def changed_vision(sequence: Sequence) -> dict[str, Any]:
    """Return the image information of target and drafter, for `Round.vision`; {} if unchanged since the last report."""
    target, pictured = sequence.models.target, sequence.cache_slot.image_prefill
    if pictured is None:
        return {}
    n_vision, changes = pictured.n_vision, sequence.state.image_changes
    n_drafter = n_vision if sequence.drafter.reads_target else 0
    fields = {
        "drafter": _drafter_name(sequence), "compressor": None, "n_target": n_vision, "n_drafter": n_drafter,
        "target_bytes": n_vision * position_bytes(target), "drafter_bytes": 0, "target_prefill_s": pictured.seconds,
        "drafter_prefill_s": 0.0, "kept": None, "blocks": None, "weights": None, "gate": None,
    } | sequence.state.vision  # fmt: skip
    if fields == sequence.state.vision_recorded and not changes:
        return {}
    sequence.state.vision_recorded, sequence.state.image_changes = fields, []
    if not changes:
        return dict(fields)
    *targets, last = (
        [dataclasses.asdict(p) for p in record_images(sequence.models, s.image_inputs, s.pil_images)] for s in changes
    )
    return (
        fields | {"pictures": last, "sees": changes[-1].receiver} | ({"target_pictures": targets[0]} if targets else {})
    )


def _drafter_name(sequence: Sequence) -> str | None:
    heads = [sequence.models.heads[need].name for need in sequence.drafter.needs if need in sequence.models.heads]
    return heads[0] if heads else sequence.models.draft_model_name if DRAFTERS & set(sequence.drafter.needs) else None
