"""Online speculative decoding: train the draft model while it drafts."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import Claim, Recording, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.warm_start import SHIFTING_DOMAINS
from workbench.methods.online.drafter import Online
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.confidence import Confidence
from workbench.methods.policies.entropy import Entropy
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.heuristic import Heuristic
from workbench.methods.policies.optimal_oracle import OptimalOracle
from workbench.methods.policies.planned import Planned
from workbench.methods.verifiers.lossless import Lossless

SAME_CORES = (
    "wrong setting: training shares the two decoding cores and adds about {} ms to a round; the paper uses spare "
    "compute"
)
"""Explanation of why the published speed-up of online speculative decoding is not reached. Its format
argument is the training time per round in ms, measured on one prompt."""

METHOD = Method(
    "online",
    title="Online draft model (OSD)",
    promise=Promise.EXACT,
    source=Source(
        "Online speculative decoding",
        "Liu et al.",
        2024,
        "https://arxiv.org/abs/2310.07177",
        "§4",
    ),
    summary="The target's distribution at a rejected draft is training data that costs no extra pass of the target.",
    idea=(
        "A draft model drafts. The positions that the target verified, or only those at which it rejected, are stored "
        "together with the target's distribution there. Every I rounds a copy of the draft model's layers, with "
        "weights θ, takes one training step towards these distributions p, so that acceptance rises within a text of "
        "a new kind. The verifier never changes, so the output stays the target's."
    ),
    formula="every I rounds:  θ ← AdamW( θ, ∇ mean over verified positions of Σ p(x) log p(x) / q_θ(x) )",
    differences=(
        "By default the draft model is trained on all positions that the target verified, whereas the paper uses "
        "those at which it rejected (places=rejected).",
        "Training steps come after rounds of one text; in the paper they come after requests. With warm=True "
        "training continues over the requests of this backend, as in the paper.",
        "Only the draft model's layers are trained; embedding and LM head are shared with the untrained draft model.",
        "The target's distribution at a rejected position is taken from the verification; the released code "
        "runs the target over the text again. The draft model's KV cache keeps entries computed before a training "
        "step; they are not recomputed.",
    ),
    order=12,
    testing=Testing(perfect={}),
    drafter=Online(),
    verifier=Lossless(),
    policies=(Fixed(), Heuristic(), Confidence(), Planned(), Entropy(), Bandit(), OptimalOracle()),
    claims=(
        Claim(
            "speed-up over the same draft model without training",
            "Vicuna-7B and Flan-T5, streams of requests of one kind", 1.22, 3.06,
            "Liu et al. 2024, arXiv:2310.07177, abstract",
            lambda lab: lab.speed_over(
                {"policy": "fixed", "warm": True}, [{"policy": "fixed", "rate": 0.0, "warm": False}]
            ),
            timed=True,
            explanation=("2026-11-30 14:34 UTC", SAME_CORES.format("4")),
            explanation_by_column={"smollm2": ("2026-11-30 14:41 UTC", SAME_CORES.format("24"))},
        ),
        Claim(
            "τ with training that continues while the domain of the requests shifts, relative to τ without training",
            "acceptance rate rises by between 0.1 and 0.65", None, None,
            "Liu et al. 2024, arXiv:2310.07177, abstract (only the direction is compared)",
            lambda lab: lab.on_groups(*SHIFTING_DOMAINS).tau_over(
                "online", {"policy": "fixed", "warm": True}, {"policy": "fixed", "rate": 0.0}, 0.0
            ),
            key="learns",
        ),
    ),
    recording=Recording(),
)  # fmt: skip
