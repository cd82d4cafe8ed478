"""Draft models for vision-language targets: one that ignores the images, and one that reads them."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from workbench.decoders.draft_verify.image_attribution import explain_draft_model
from workbench.engine.request import Request, Sequence
from workbench.methods.common.draft_model_cache import open_prefilled_slot
from workbench.methods.common.draft_model_tree import DraftModelState
from workbench.methods.draft_model.drafter import DraftModel
from workbench.models.loading import Models


@dataclass(frozen=True)
class TextOnlyDraftModel(DraftModel):
    """Draft from the text alone: image tokens are removed from the prompt, and later positions are shifted.

    Drafts do not depend on the image, so their acceptance shows how much can be predicted from text alone.

    Source: Gagrani et al. 2024, arXiv:2404.08856, §3.
    """

    needs: ClassVar[tuple[str, ...]] = ("drafter", "pictures")
    ignores_images: ClassVar[bool] = True
    source: ClassVar[str] = "vlm-text-only"

    def init_state(self, sequence: Sequence, models: Models) -> DraftModelState:
        """Open a slot of the draft model's KV cache, and prefill it with the prompt's text and all generated tokens."""
        return DraftModelState(open_prefilled_slot(sequence, models, ignore_images=True))


@dataclass(frozen=True)
class VisionDraftModel(DraftModel):
    """Draft with a small vision-language model that reads the images with its own processor and vision tower.

    The draft is a chain, or a tree if the policy plans one, such as `DynamicTree`.

    Source: Ganesan et al. 2025, MASSV, arXiv:2505.10526 (chain); Huo et al. 2025, Spec-LLaVA, arXiv:2509.11961 (tree).
    """

    needs: ClassVar[tuple[str, ...]] = ("drafter", "pictures", "sight")
    source: ClassVar[str] = "vlm-draft"

    def explain(
        self,
        models: Models,
        request: Request,
        tokens: abc.Sequence[int],
        on_progress: Callable[[float], None] = lambda _: None,
    ) -> dict[str, Any] | None:
        """Return attribution maps of emitted tokens over the draft model's vision tokens (`explain_draft_model`)."""
        return explain_draft_model(models, request, tokens, on_progress)
