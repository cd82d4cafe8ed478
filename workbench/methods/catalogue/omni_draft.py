"""Any draft model, whatever its vocabulary."""

from __future__ import annotations

from workbench.engine.declared import WRONG_SCALE, WRONG_SETTING, Claim, Recording
from workbench.engine.method import Method, Promise, Source
from workbench.methods.drafters.omni_draft import OmniDraft
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
    f"{WRONG_SCALE}: a drafter of 0.7 M weights that learnt stories; accepted are words that both "
    "vocabularies have as one token."
)

DEAR = (
    f"{WRONG_SCALE}: SmolLM2's drafter is hardly smaller than the bundled target: a round takes 3.7 "
    "plain tokens and writes 1.8."
)
STORIES = (
    f"{WRONG_SCALE}: a drafter of 0.7 M weights that learnt stories: a round writes 1.3 tokens and "
    "takes 1.4 plain tokens."
)
UNTAUGHT = (
    f"{WRONG_SETTING}: the head begins untrained, where the paper's is trained beforehand, and sees 25"
    " prompts of seven kinds."
)

METHOD = Method(
    "omnidraft",
    title="Drafter of another vocabulary (OmniDraft)",
    promise=Promise.EXACT,
    source=Source("OmniDraft: a cross-vocabulary, online adaptive drafter", "Ramakrishnan et al.", 2025,
                  "https://arxiv.org/abs/2507.02659", "§3"),
    teaches="Two models that share no token still share text: any small model may draft for any large one.",
    idea=(
        "A draft model with a tokenizer of its own reads the text and writes on. What it writes is cut as the target's "
        "tokenizer cuts it, so that pieces which together spell one of the target's tokens are merged and not rejected "
        "one by one."
    ),
    formula="draft = the target's tokens of  text( d(1) … d(n) )",
    differs=(
        "The target's own tokenizer cuts the draft, where the paper's cache of n-grams learns, as they come up, which "
        "runs of the drafter's tokens are one of the target's, and holds a bounded number.",
        "The draft is judged as a chosen one: no law of the target's tokens follows from the drafter's, since one text "
        "may be said in several ways. The paper multiplies the chances of merged tokens.",
        "Lessons (`rate`) go to a copy of the drafter's layers; where the target's token is spelt in several, each "
        "piece is made likelier as the text has it. Without `rate` nothing learns, and with warm=True lessons go on "
        "over requests.",
        "The head that stops (`stop`) is linear in the drafter's state and knows nothing at first; the paper's reads "
        "several layers and is trained beforehand, too.",
        "The drafter reads text without the marks of the target's chat format, and sees nothing of pictures.",
    ),
    place=14,
    drafter=OmniDraft(),
    verifier=Lossless(),
    other_verifiers=(Lenient(), Judge()),
    policies=(Fixed(), Planned(), Bandit(), OptimalOracle()),
    claims=(
        Claim(
            "speed-up over plain decoding, drafted by a model of another vocabulary",
            "Llama-68M for Vicuna-7B, Qwen2-7B and Llama3-8B", 1.5, 2.0,
            "Ramakrishnan et al. 2025, arXiv:2507.02659, abstract", lambda lab: lab.estranged().speed(), timed=True,
            why=("2026-11-26 17:12 UTC", DEAR), why_on={"smollm2": ("2026-11-26 17:13 UTC", STORIES)},
        ),
        Claim(
            "τ with runs of tokens merged / with tokens of the same text alone",
            "the cache of n-grams beside the direct map", None, None,
            "Ramakrishnan et al. 2025, arXiv:2507.02659, §3 (direction)",
            lambda lab: lab.estranged().tau_over("omnidraft", {"depth": 4}, {"depth": 4, "merge": False}, 0.0),
            key="merging", why=("2026-11-26 14:32 UTC", LARGER), why_on={"smollm2": ("2026-11-26 14:34 UTC", FREQUENT)},
        ),
        Claim(
            "τ with lessons that go on from prompt to prompt / without, on requests of one kind",
            "online distillation beside the cache of n-grams", None, None,
            "Ramakrishnan et al. 2025, arXiv:2507.02659, §3.2 (direction)",
            lambda lab: lab.estranged().on("records").tau_over(
                "omnidraft", {"policy": "fixed", "depth": 4, "rate": 3e-4, "warm": True},
                {"policy": "fixed", "depth": 4}, 0.0,
            ),
            key="learns",
        ),
        Claim(
            "accepted tokens a pass of the drafter, with the head that stops / without",
            "fewer drafts at an equal speed-up", None, None,
            "Ramakrishnan et al. 2025, arXiv:2507.02659, §3.3 (direction)",
            lambda lab: lab.estranged().accepted_a_pass_over(
                {"policy": "fixed", "depth": 4, "stop": 0.4, "warm": True}, {"policy": "fixed", "depth": 4}
            ),
            key="stops", why=("2026-11-27 14:02 UTC", UNTAUGHT),
        ),
    ),
    recording=Recording(("story",), drafter="smollm2-drafter"),
)  # fmt: skip
