"""OmniDraft: draft with a model whose vocabulary differs from the target's."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import WRONG_SCALE, WRONG_SETTING, Claim, Recording, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.omni_draft.drafter import OmniDraft
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.optimal_oracle import OptimalOracle
from workbench.methods.policies.planned import Planned
from workbench.methods.verifiers.judge import Judge
from workbench.methods.verifiers.lenient import Lenient
from workbench.methods.verifiers.lossless import Lossless

LARGER = (
    f"{WRONG_SETTING}: the drafter has the larger vocabulary here (49,152 to 4,096), so its tokens are"
    " split rather than merged."
)
FREQUENT = (
    f"{WRONG_SCALE}: a drafter of 0.7 M weights, trained on stories; accepted words are mostly one token in both "
    "vocabularies."
)

DEAR = (
    f"{WRONG_SCALE}: SmolLM2's drafter is hardly smaller than the bundled target: a round takes as long as 3.7 rounds "
    "of plain decoding and emits 1.8 tokens."
)
STORIES = (
    f"{WRONG_SCALE}: a drafter of 0.7 M weights, trained on stories: a round emits 1.3 tokens and takes as long as "
    "1.4 rounds of plain decoding."
)
UNTAUGHT = (
    f"{WRONG_SETTING}: the stopping head starts untrained and is trained on 25 prompts of seven kinds; the paper's "
    "head is trained beforehand."
)

METHOD = Method(
    "omnidraft",
    title="Drafter with a different vocabulary (OmniDraft)",
    promise=Promise.EXACT,
    source=Source(
        "OmniDraft: a cross-vocabulary, online adaptive drafter",
        "Ramakrishnan et al.",
        2025,
        "https://arxiv.org/abs/2507.02659",
        "§3",
    ),
    summary="Two models with different vocabularies still share text: any small model may draft for any large one.",
    idea=(
        "A draft model with its own tokenizer reads the text and continues it. The target's tokenizer splits the "
        "drafted text, so that several drafter tokens that together spell one target token are merged and not "
        "rejected one by one."
    ),
    formula="draft = tokens of text( d(1) … d(n) ) by the target's tokenizer, with d the drafter's tokens",
    differences=(
        "The target's own tokenizer splits the drafted text. The paper has a cache of limited size instead, which "
        "records during generation which sequences of drafter tokens form one target token.",
        "The draft is verified as a deterministic one, without draft probabilities: one text can be tokenised in "
        "several ways, so the drafter's distribution does not determine one over the target's tokens. The paper "
        "multiplies the probabilities of the merged drafter tokens.",
        "Online training (`rate`) updates a copy of the drafter's layers. If the target's token corresponds to "
        "several drafter tokens, each of these is trained with the token of the text as its label. Without `rate` "
        "nothing is trained; with warm=True training continues over requests.",
        "The stopping head (`stop`) is linear in the drafter's hidden state and starts untrained; the paper's head "
        "reads several layers and is also trained beforehand.",
        "The drafter reads text without the special tokens of the target's chat format, and no images.",
    ),
    order=14,
    testing=Testing(perfect={}),
    drafter=OmniDraft(),
    verifier=Lossless(),
    other_verifiers=(Lenient(), Judge()),
    policies=(Fixed(), Planned(), Bandit(), OptimalOracle()),
    claims=(
        Claim(
            "speed-up over plain decoding with a drafter of a different vocabulary",
            "Llama-68M for Vicuna-7B, Qwen2-7B and Llama3-8B",
            1.5,
            2.0,
            "Ramakrishnan et al. 2025, arXiv:2507.02659, abstract",
            lambda lab: lab.with_other_vocabulary_drafter().speed(),
            timed=True,
            explanation=("2026-11-26 17:12 UTC", DEAR),
            explanation_by_column={"smollm2": ("2026-11-26 17:13 UTC", STORIES)},
        ),
        Claim(
            "τ with merging of several drafter tokens into one target token, relative to τ without merging",
            "the paper's n-gram cache, compared with a direct mapping between the vocabularies",
            None,
            None,
            "Ramakrishnan et al. 2025, arXiv:2507.02659, §3 (only the direction is compared)",
            lambda lab: lab.with_other_vocabulary_drafter().tau_over(
                "omnidraft", {"depth": 4}, {"depth": 4, "merge": False}, 0.0
            ),
            key="merging",
            explanation=("2026-11-26 14:32 UTC", LARGER),
            explanation_by_column={"smollm2": ("2026-11-26 14:34 UTC", FREQUENT)},
        ),
        Claim(
            "τ with training that continues across prompts relative to τ without training, on requests of one kind",
            "online distillation together with the n-gram cache",
            None,
            None,
            "Ramakrishnan et al. 2025, arXiv:2507.02659, §3.2 (only the direction is compared)",
            lambda lab: (
                lab.with_other_vocabulary_drafter()
                .on_groups("records")
                .tau_over(
                    "omnidraft",
                    {"policy": "fixed", "depth": 4, "rate": 3e-4, "warm": True},
                    {"policy": "fixed", "depth": 4},
                    0.0,
                )
            ),
            key="learns",
        ),
        Claim(
            "accepted tokens per pass of the drafter with the stopping head, relative to the same ratio without it",
            "fewer drafted tokens at an equal speed-up",
            None,
            None,
            "Ramakrishnan et al. 2025, arXiv:2507.02659, §3.3 (only the direction is compared)",
            lambda lab: lab.with_other_vocabulary_drafter().accepted_per_pass_over(
                {"policy": "fixed", "depth": 4, "stop": 0.4, "warm": True}, {"policy": "fixed", "depth": 4}
            ),
            key="stops",
            explanation=("2026-11-27 14:02 UTC", UNTAUGHT),
        ),
    ),
    recording=Recording(("story",), drafter="smollm2-drafter"),
)
