"""Which layout it is: each is asked, and the first that knows the folder reads it."""

from __future__ import annotations

from pathlib import Path

from workbench.core.errors import ModelError
from workbench.models.checkpoints.description import Checkpoint
from workbench.models.checkpoints.eagle import read_eagle
from workbench.models.checkpoints.eagle3 import read_eagle3
from workbench.models.checkpoints.files import open_stored
from workbench.models.checkpoints.hydra import read_hydra
from workbench.models.checkpoints.medusa import read_medusa

READERS = (read_eagle3, read_eagle, read_hydra, read_medusa)
KNOWN = (
    "EAGLE-1 and -2 (SafeAILab), EAGLE-3 (SafeAILab, SpecForge), Medusa (FasterDecoding, vLLM), Hydra and Hydra++, and "
    "vLLM's speculators (eagle, eagle3, mtp)"
)


def read(place: Path) -> Checkpoint:
    """The heads in a folder, or in one of its safetensors files; values are not read yet, but for token maps.

    Raises:
        ModelError: it cannot be read, is damaged, or of a layout that is not known here.
    """
    stored = open_stored(place)
    for reader in READERS:
        if (found := reader(stored)) is not None:
            return found
    kind = stored.config.get("speculators_model_type")
    said = f"speculators' type {kind!r:.30}" if kind else f"tensors like {', '.join(sorted(stored.shapes)[:3])}"
    raise ModelError(f"{place} has no heads of a known layout: it has {said}.", f"Known layouts: {KNOWN}.")
