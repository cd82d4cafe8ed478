"""Recognise the layout of a checkpoint of trained heads: try the readers of all layouts in turn."""

from __future__ import annotations

from pathlib import Path

from workbench.core.errors import ModelError
from workbench.models.checkpoints.description import Checkpoint
from workbench.models.checkpoints.eagle import read_eagle
from workbench.models.checkpoints.eagle3 import read_eagle3
from workbench.models.checkpoints.files import open_checkpoint
from workbench.models.checkpoints.hydra import read_hydra
from workbench.models.checkpoints.medusa import read_medusa

READERS = (read_eagle3, read_eagle, read_hydra, read_medusa)
KNOWN = (
    "EAGLE-1 and -2 (SafeAILab), EAGLE-3 (SafeAILab, SpecForge), Medusa (FasterDecoding, vLLM), Hydra and Hydra++, and "
    "vLLM's speculators (eagle, eagle3, mtp)"
)


def read_checkpoint(place: Path) -> Checkpoint:
    """Return the description of the trained heads in a folder or a safetensors file, without reading their weights.

    Raises:
        ModelError: the files cannot be read, are damaged, or have an unknown layout.
    """
    stored = open_checkpoint(place)
    for reader in READERS:
        if (checkpoint := reader(stored)) is not None:
            return checkpoint
    kind = stored.config.get("speculators_model_type")
    contents = f"speculators' type {kind!r:.30}" if kind else f"tensors like {', '.join(sorted(stored.shapes)[:3])}"
    raise ModelError(
        f"{place} has no drafting heads in a known layout: it contains {contents}.", f"Known layouts: {KNOWN}."
    )
