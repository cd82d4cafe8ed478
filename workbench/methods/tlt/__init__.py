"""TLT: continue the training of EAGLE's head while the last sequences of a batch are decoded."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import Claim, Recording, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.differences import LOSSES, NORMS, TRIMMED
from workbench.methods.common.presets import tree_head
from workbench.methods.common.warm_start import SHIFTING_DOMAINS
from workbench.methods.eagle import HEAD
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.buckets import Buckets
from workbench.methods.policies.entropy import Entropy
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.planned import Planned
from workbench.methods.tlt.drafter import TLT
from workbench.methods.tree_builders.best_first import BestFirst

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
    summary=(
        "A target in training drifts away from its drafter, and the last long answers leave time to train the drafter."
    ),
    idea=(
        "EAGLE's head drafts, and the features that verification computes are stored with the training step of the "
        "target's weights that produced them. While only the last long sequences of a batch still run, the head, with "
        "weights θ, is trained on texts of the last two steps. Its losses compare predicted features f̂ with the "
        "target's f, and distributions q with p. The verifier never changes, so the output stays the target's."
    ),
    formula=(
        "while few sequences run:  θ ← AdamW( θ, ∇ mean of  smooth L1( f̂_θ(t+1), f(t+1) ) + 0.1 CE( p(t+1), q_θ(t+1) "
        ") )"
    ),
    differences=(
        "The process that decodes also trains the head, between two rounds, whereas the paper trains on idle "
        "workers. Training delays the remaining sequences.",
        "With warm=True training continues over the requests of this backend, as the paper's does over a training "
        "run; otherwise each request has its own copy of the head, trained on its own text every few rounds.",
        "The pool of training data has a maximum number of text positions; the paper limits the number of samples. A "
        "training step compares distributions at 512 positions at most. It uses a few short stretches of text, because "
        "it has to fit between two rounds.",
        "Cache entries that an older head computed for a text stay as they are, whereas the paper rebuilds them; "
        "again=True recomputes them after each training step, which costs a pass of the layer over the text.",
        "Any policy may set the draft length. `buckets` is the paper's policy: the more sequences run, the fewer "
        "tokens are verified for each, and lengths are chosen by ε-greedy. Here the length for a sequence is chosen "
        "from its own rounds only. A strategy is a draft length; the tree builder sets the branches.",
        NORMS,
        LOSSES,
        TRIMMED,
    ),
    order=101,
    testing=Testing(perfect={"rate": 0.0}),
    drafter=TLT(),
    **tree_head(BestFirst(), depth=5, policies=(Fixed, Planned, Entropy, Bandit, Buckets)),
    claims=(
        Claim(
            "speed-up of reinforcement learning, end to end", "reasoning models, long answers", 1.7, 1.7,
            "Hu et al. 2025, arXiv:2511.16665, abstract (above 1.7)", None, timed=True,
            lacks="reinforcement learning; instead, the board `rollouts` measures rollouts with a changing target",
        ),
        Claim(
            "τ with the head trained online relative to τ with the frozen head, after changes of target and domain",
            "drafters of targets whose weights change in training", None, None,
            "Hu et al. 2025, arXiv:2511.16665, abstract (only the direction is compared)",
            lambda lab: (
                lab.with_weight_noise(0.1)
                .on_groups(*SHIFTING_DOMAINS)
                .tau_over("tlt", {"warm": True}, {"rate": 0.0}, 0.0)
            ),
            key="adapts",
        ),
    ),
    head=HEAD,
    recording=Recording(("chat", "story")),
)  # fmt: skip
