"""Draft for a vision-language target with a small model that does not read the image."""

from __future__ import annotations

from typing import Any

from workbench.core.promise import Promise
from workbench.decoders.declarations import Claim, Measurement, Recording, Setting, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.presets import tree_head
from workbench.methods.policies.confidence import Confidence
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.heuristic import Heuristic
from workbench.methods.policies.planned import Planned
from workbench.methods.tree_builders.chain import Chain
from workbench.methods.vlm_draft.drafter import TextOnlyDraftModel
from workbench.models.bundle import VISION_TARGET
from workbench.trace import metrics


def facts_gap(lab: Any) -> Measurement:
    """Return the difference of two acceptance rates: on words without facts about the image, minus on words with facts.

    Args:
        lab: a `workbench.bench.vision_lab.VisionLab`.
    """
    gaps: list[float] = []
    for trace in lab.traces("text-only"):
        kinds = metrics.acceptance_by_kind(trace, lab.facts)
        (n_tested, n_good), (n_tested_other, n_good_other) = kinds["fact"], kinds[metrics.OTHER]
        if n_tested and n_tested_other:
            gaps.append(n_good_other / n_tested_other - n_good / n_tested)
    return lab.mean(gaps)


METHOD = Method(
    "vlm-text-only",
    title="Text-only drafter",
    promise=Promise.EXACT,
    source=Source(
        "On speculative decoding for multimodal large language models",
        "Gagrani et al.",
        2024,
        "https://arxiv.org/abs/2404.08856",
        "§3",
    ),
    summary="A drafter that does not read the image gets the grammar right and the facts of the image wrong.",
    idea=(
        "A small language model reads the prompt without its image tokens and drafts a chain; the target, which reads "
        "the image, verifies it. Function words are accepted and facts about the image rejected: the baseline for "
        "drafters that read the image."
    ),
    formula="drafter q( · | text alone ) against target p( · | image, text ); the draft is the same for every image",
    differences=(
        "The drafter is one small model, trained on questions and answers about scenes and tuned on the target's own "
        "answers. The paper compares three drafters of 115 million parameters, and has a variant with a small image "
        "adapter, which is missing here. The τ measured here says nothing about drafters of that size.",
    ),
    order=120,
    testing=Testing(no_perfect_reason="The drafter does not read the image."),
    drafter=TextOnlyDraftModel(),
    **tree_head(Chain(), drafter=TextOnlyDraftModel, policies=(Fixed, Heuristic, Confidence, Planned)),
    claims=(
        Claim(
            "acceptance rate on words that state facts about the image, subtracted from the rate on all other words",
            "LLaVA-7B with a text-only drafter of 115M", None, None,
            "Gagrani et al. 2024, arXiv:2404.08856, §4 (from memory)", facts_gap, neutral=0.0, home=VISION_TARGET,
        ),
    ),
    suites={
        "vision": (Setting("text-only", {"policy": "fixed"}, "vision-text-drafter"),),
    },
    recording=Recording(scene="four-shapes", params={"grower": "eagle-2", "depth": 5}),  # as SpecVLM, shown beside it
)  # fmt: skip
