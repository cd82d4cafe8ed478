"""EAGLE's head goes on learning while the tail of a batch is decoded."""

from __future__ import annotations

from workbench.engine.declared import Claim, Recording
from workbench.engine.method import Method, Promise, Source
from workbench.methods.catalogue.eagle_2 import HEAD, LOSSES, NORMS, TRIMMED
from workbench.methods.drafters.tlt import TLT
from workbench.methods.drafters.warmth import SHIFTING
from workbench.methods.growers.best_first import BestFirst
from workbench.methods.growers.offered import offered
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.buckets import Buckets
from workbench.methods.policies.entropy import Entropy
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.planned import Planned
from workbench.methods.verifiers.lossless import Lossless
from workbench.methods.verifiers.offered import for_growers

GROWERS = offered(BestFirst())

METHOD = Method(
    "tlt",
    title="Adaptive drafter (TLT)",
    promise=Promise.EXACT,
    source=Source(
        "Taming the long-tail: efficient reasoning RL training with adaptive drafter",
        "Hu et al.",
        2025,
        "https://arxiv.org/abs/2511.16665",
    ),
    teaches="A target that is being trained outgrows its drafter, and a few long answers leave time to catch up.",
    idea=(
        "EAGLE's head drafts, and the features that verification computes are kept with the step of the target's "
        "weights that made them. While only the long tail of a batch still runs, the head takes steps of training on "
        "texts of the last two steps; the verifier never changes, and so the output stays the target's."
    ),
    formula="in the tail:  θ ← AdamW( θ, ∇ mean of  smooth L1( f̂_θ(t+1), f(t+1) ) + 0.1 CE( p(t+1), q_θ(t+1) ) )",
    differs=(
        "Lessons are given by the process that decodes, between two rounds, where the paper trains on workers that are "
        "idle: here they take time from the rows of the tail.",
        "With warm=True a head goes on learning over the requests of this backend, as the paper's does over a run of "
        "training; else each request has a head of its own, which learns from its own text every few rounds.",
        "The pool is bounded by positions of text, the paper's by samples; laws are compared at 512 places of a lesson "
        "at most. Each lesson is about a few short stretches, since it has to fit between two rounds.",
        "Entries that an older head left of a text stay as they are, where the paper rebuilds them; again=True "
        "computes them anew after each lesson, which costs a pass of the layer over the text.",
        "How much is drafted is any policy's affair; `buckets` is the paper's: the more rows run, the fewer tokens "
        "each of them has verified, and lengths are played for by ε-greedy. Each row judges by its own rounds, and a "
        "strategy is a length: branches are as the tree's grower has them.",
        NORMS,
        LOSSES,
        TRIMMED,
    ),
    place=101,
    drafter=TLT(),
    verifier=Lossless(),
    other_verifiers=for_growers(GROWERS),
    policies=(Fixed(depth=5), Planned(depth=5), Entropy(depth=5), Bandit(depth=5), Buckets(depth=5)),
    growers=GROWERS,
    claims=(
        Claim(
            "speed-up of training by reinforcement, end to end", "reasoning models, long answers", 1.7, 1.7,
            "Hu et al. 2025, arXiv:2511.16665, abstract (above 1.7)", None, timed=True,
            lacks="training by reinforcement: `workbench train rollouts` has rollouts and a target that changes",
        ),
        Claim(
            "τ of the head that goes on learning / of the frozen one: the target moved, a stream that shifts",
            "drafters of targets that are being trained", None, None,
            "Hu et al. 2025, arXiv:2511.16665, abstract (direction)",
            lambda lab: lab.shifted(0.1).on(*SHIFTING).tau_over("tlt", {"warm": True}, {"rate": 0.0}, 0.0),
            key="adapts",
        ),
    ),
    head=HEAD,
    recording=Recording(("chat", "story")),
)  # fmt: skip
