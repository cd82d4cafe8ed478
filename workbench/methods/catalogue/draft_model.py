"""A small model writes ahead, and the target checks it."""

from __future__ import annotations

from workbench.engine.declared import WRONG_SCALE, Claim, Setting
from workbench.engine.method import Method, Promise, Source
from workbench.methods.drafters.draft_model import DraftModel
from workbench.methods.growers.chain import Chain
from workbench.methods.growers.offered import offered
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.confidence import Confidence
from workbench.methods.policies.entropy import Entropy
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.heuristic import Heuristic
from workbench.methods.policies.optimal_oracle import OptimalOracle
from workbench.methods.policies.planned import Planned
from workbench.methods.policies.specdec_plus_plus import SpecDecPlusPlus
from workbench.methods.verifiers.entropy_adaptive import EntropyAdaptive
from workbench.methods.verifiers.judge import Judge, JudgeHead
from workbench.methods.verifiers.lenient import Lenient
from workbench.methods.verifiers.lossless import Lossless
from workbench.methods.verifiers.nearest import Nearest
from workbench.methods.verifiers.offered import for_growers
from workbench.methods.verifiers.reflective import Reflective
from workbench.methods.verifiers.typical import TypicalAcceptance

JUDGED = "Bachmann et al. 2025, Judge Decoding, arXiv:2501.19309, tables of results"
BY_RULE = {"policy": "fixed", "depth": 16}
BY_JUDGE = {**BY_RULE, "verifier": "judge"}

METHOD = Method(
    "draft-model",
    title="Draft model",
    promise=Promise.EXACT,
    source=Source(
        "Fast inference from transformers via speculative decoding",
        "Leviathan et al.",
        2023,
        "https://arxiv.org/abs/2211.17192",
        "Algorithm 1",
    ),
    teaches="A small model guesses ahead; min(1, p/q) and the residual keep the output exactly the target's.",
    idea=(
        "A small model writes K tokens ahead, one after the other; the target reads them all in one pass and "
        "keeps the beginning that it agrees with. A rejected token is replaced by a draw from what the draft "
        "left of the target's law, which makes the output exactly the target's."
    ),
    formula="accept x with probability min(1, p(x) / q(x)); after a rejection draw from (p − q)₊ / Σ (p − q)₊",
    differs=(
        "With policy=confidence a draft stops by the drafter's law before a token is drawn from it, where Hugging "
        "Face's rule looks at the drawn token, because a stop that looks at the token would bias sampled text; "
        "unlikely tokens stay in the draft, and it may be shorter or longer than there.",
        "verifier=judge learns from answers that a program made wrong, where the paper annotated some 500 questions by "
        "hand; it keeps drafts in sampled text too. It lets pass mistakes that the paper's judge might see.",
        "policy=planned counts with the seconds that this very run's rounds took instead of the paper's one ratio of "
        "costs, and with acceptance by level; it may draft nothing, and its length differ from the formula's.",
    ),
    place=10,
    drafter=DraftModel(),
    verifier=Lossless(),
    other_verifiers=(
        *for_growers(offered(Chain())),
        *(TypicalAcceptance(), Lenient(), Nearest(), EntropyAdaptive(), Reflective(), Judge()),
    ),
    policies=(
        *(Fixed(), Heuristic(), Confidence(), Planned(), Entropy(), Bandit(), SpecDecPlusPlus()),
        OptimalOracle(),
    ),
    growers=offered(Chain()),
    claims=(
        Claim(
            "speed-up over plain decoding", "T5-XXL 11B with a T5 drafter, translation and summaries", 2.0, 3.0,
            "Leviathan et al. 2023, arXiv:2211.17192, abstract (recalled)", lambda lab: lab.speed(), timed=True,
        ),
        Claim(
            "τ / E[τ] of equation 1 at the measured acceptance", "any pair with acceptances alike", 1.0, 1.0,
            "Leviathan et al. 2023, arXiv:2211.17192, equation 1", lambda lab: lab.tau_over_closed_form(),
            key="equation-1", tolerance=0.1,
        ),
        Claim(
            "τ with the judge / τ of the exact rule, 16 drafts a round",
            "Llama 3.1 405B with an 8B drafter: 19.7 tokens accepted a round against 6.3", 2.8, 2.8,
            f"{JUDGED} (recalled; with the target's own token a round)",
            lambda lab: lab.on("arithmetic").tau_over("draft-model", BY_JUDGE, BY_RULE, temperature=0.0),
            key="judge", needs=(JudgeHead.kind,),
        ),
        Claim(
            "answers right with the judge / with the exact rule",
            "Llama 3.1 405B with an 8B drafter, GSM8K, MMLU, ARC, HumanEval: nearly the same", 1.0, 1.0,
            f"{JUDGED} (recalled)", lambda lab: lab.on("arithmetic").right_over(BY_JUDGE, BY_RULE),
            key="judge-answers", tolerance=0.05, needs=(JudgeHead.kind,),
            why=(
                "2026-11-24 07:13 UTC",
                f"{WRONG_SCALE}: a line through the 288 numbers of a 13M target still keeps 8 % of the wrong tokens of "
                "held-out answers at δ = 0.5, 10 % of the draft model's own (its card), and one wrong digit spoils an "
                "answer; the paper's judge reads 16,384 numbers of a 405B target.",
            ),
        ),
    ),
    suites={
        "gpu": (Setting("Draft model"),),
        "on-policy": (Setting("chain", {"policy": "fixed", "depth": 5}),),
    },
)  # fmt: skip
