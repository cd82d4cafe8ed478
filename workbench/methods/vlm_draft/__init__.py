"""Draft with a small vision-language model that reads the image itself."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import Claim, Recording, Setting, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.msd import NO_ROOM
from workbench.methods.policies.dynamic_tree import DynamicTree
from workbench.methods.policies.fixed import Fixed
from workbench.methods.tree_builders.chain import Chain
from workbench.methods.tree_builders.common import supported_builders
from workbench.methods.verifiers.exact_verifiers import verifiers_for_builders
from workbench.methods.verifiers.lossless import Lossless
from workbench.methods.vlm_draft.drafter import VisionDraftModel
from workbench.models.bundle import VISION_TARGET

TREE_BUILDERS = supported_builders(Chain(), VisionDraftModel)

METHOD = Method(
    "vlm-draft",
    title="Draft model with vision",
    promise=Promise.EXACT,
    source=Source(
        "MASSV: multimodal adaptation and self-data distillation for speculative decoding of VLMs",
        "Ganesan et al.",
        2025,
        "https://arxiv.org/abs/2505.10526",
        "chain; for its dynamic tree: Spec-LLaVA, Huo et al. 2025, arXiv:2509.11961",
    ),
    summary="If the small model also reads the image, its drafts about the image are accepted, too.",
    idea=(
        "A small language model gets the target's vision tower through a projector of its own and is trained on the "
        "target's own answers. It reads the image itself and drafts a chain, or a tree that branches where its "
        "distribution is flat and goes deep where it is peaked."
    ),
    formula="propose x if Π q along its path ≥ threshold, at most a fixed number at each node",
    differences=(
        "The tree of policy=dynamic-tree follows Spec-LLaVA, whose paper gives no thresholds: we chose a minimum "
        "path probability of 0.1 and at most 4 children, and the paper's trees may be larger or smaller.",
        "The draft model is trained as MASSV's, projector first and then projector and language model on the "
        "target's own answers, but within minutes, and with a language model of no published family; the gain over a "
        "text-only drafter may differ.",
    ),
    order=130,
    testing=Testing(no_perfect_reason="Drafts about images are tested separately in test_perfect_drafters.py."),
    drafter=VisionDraftModel(),
    verifier=Lossless(),
    other_verifiers=verifiers_for_builders(TREE_BUILDERS),
    tree_builders=TREE_BUILDERS,
    policies=(Fixed(depth=6), DynamicTree()),
    claims=(
        Claim(
            "τ relative to the text-only drafter",
            "Qwen2.5-VL and Gemma 3, with a drafter of the same family", 1.3, 1.3,
            "Ganesan et al. 2025, arXiv:2505.10526, abstract: up to 30 % longer accepted drafts",
            lambda lab: lab.tau_over("text-only", "draft model, chain"), home=VISION_TARGET,
        ),
        Claim(
            "τ of the dynamic tree (5 to 13 nodes) relative to the chain of the same depth (5)",
            "LLaVA-1.5-7B, drafters of 68M and 160M", None, None,
            "Huo et al. 2025, arXiv:2509.11961 (only the direction is compared)",
            lambda lab: lab.tau_over("draft model, chain", "draft model, tree"), key="tree", home=VISION_TARGET,
            explanation=("2026-11-22 12:13 UTC", NO_ROOM.format("the chain", "5.4 (the tree 5.5; 92 questions)")),
        ),
    ),
    suites={
        "vision": (
            Setting("draft model, chain", {"policy": "fixed"}, "vision-drafter"),
            Setting("draft model, tree", {"policy": "dynamic-tree"}, "vision-drafter"),
        ),
    },
    recording=Recording(scene="four-shapes"),
)  # fmt: skip
