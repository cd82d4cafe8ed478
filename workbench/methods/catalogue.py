"""The methods that ship with the workbench: which parts, what promise, from where, and what one learns from it."""

from __future__ import annotations

from workbench.engine.method import Method, Promise, Source
from workbench.methods.catalogue_differs import DIFFERS
from workbench.methods.drafters.draft_model import DraftModel
from workbench.methods.drafters.early_exit import EarlyExit
from workbench.methods.drafters.medusa import Medusa
from workbench.methods.drafters.ngram import NGram
from workbench.methods.drafters.nothing import Nothing
from workbench.methods.drafters.oracle import Oracle
from workbench.methods.drafters.stochastic_beam import StochasticBeam
from workbench.methods.drafters.token_recycling import TokenRecycling
from workbench.methods.drafters.top_k_tree import TopKTree
from workbench.methods.drafters.trie import LookaheadTrie
from workbench.methods.drafters.vlm import BlindDraftModel, SeeingDraftModel
from workbench.methods.policies.confidence import Confidence
from workbench.methods.policies.dynamic_tree import DynamicTree
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.heuristic import Heuristic
from workbench.methods.policies.no_draft import NoDraft
from workbench.methods.policies.planned import Planned
from workbench.methods.registry import register
from workbench.methods.verifiers.lossless import Lossless
from workbench.methods.verifiers.typical import TypicalAcceptance

MEDUSA = Source(
    "Medusa: simple LLM inference acceleration framework with multiple decoding heads",
    "Cai et al.",
    2024,
    "https://arxiv.org/abs/2401.10774",
    "§2.1",
)

register(
    Method(
        "autoregressive",
        title="Autoregressive",
        promise=Promise.EXACT,
        source=Source(
            "Plain decoding, the baseline", "—", 0, "https://huggingface.co/docs/transformers/generation_strategies"
        ),
        teaches="One target pass for every token: what every other method is measured against.",
        idea=(
            "The target reads the text so far and draws one token, then reads that token and draws the next. Every "
            "token costs one whole pass of the target, which in a large model goes mostly into reading its weights."
        ),
        formula="x(t+1) drawn from p( · | x(1) … x(t) ),  τ = 1",
        drafter=Nothing(),
        verifier=Lossless(),
        policies=(NoDraft(),),
    )
)

register(
    Method(
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
        differs=DIFFERS["draft-model"],
        drafter=DraftModel(),
        verifier=Lossless(),
        policies=(Fixed(), Heuristic(), Confidence(), Planned()),
    )
)

register(
    Method(
        "draft-tree",
        title="Draft tree, top-k",
        promise=Promise.EXACT,
        source=Source(
            "EAGLE-2: faster inference of language models with dynamic draft trees",
            "Li et al.",
            2024,
            "https://arxiv.org/abs/2406.16858",
            "§4, with a separate draft model",
        ),
        teaches="Several guesses for one place cost little to verify: watch the second sibling save a round.",
        idea=(
            "The draft model offers its likeliest continuations at each of the most promising nodes, and the best "
            "nodes of that tree are verified in one pass. The target draws its own token at each place and follows "
            "the branch that holds it, so that a second guess can save the round."
        ),
        formula="score(node) = product of q along its path; the nodes with the largest scores are verified",
        differs=DIFFERS["draft-tree"],
        drafter=TopKTree(),
        verifier=Lossless(),
        policies=(Fixed(),),
    )
)

register(
    Method(
        "draft-tree-sampled",
        title="Draft tree, sampled (RSD-S)",
        promise=Promise.EXACT,
        source=Source(
            "Recursive speculative decoding", "Jeon et al.", 2024, "https://arxiv.org/abs/2402.14160", "RSD-S"
        ),
        teaches="Siblings drawn without replacement waste no slot, and recursive rejection keeps the law exact.",
        idea=(
            "Siblings are drawn from the draft model without replacement, so that no two of them spend a slot on the "
            "same token, and a stochastic beam spreads them over the levels. They are tested one after the other, "
            "each against what its elder siblings left of the target's law."
        ),
        formula="accept sibling i with probability min(1, pᵢ(x) / qᵢ(x)); else pᵢ₊₁ ∝ (pᵢ − qᵢ)₊, qᵢ₊₁ ∝ qᵢ without x",
        differs=DIFFERS["draft-tree-sampled"],
        drafter=StochasticBeam(),
        verifier=Lossless(),
        policies=(Fixed(),),
    )
)

register(
    Method(
        "prompt-lookup",
        title="Prompt lookup",
        promise=Promise.EXACT,
        source=Source(
            "Prompt lookup decoding", "Saxena", 2023, "https://github.com/apoorvumang/prompt-lookup-decoding"
        ),
        teaches="Copying from the context is the cheapest draft there is; watch τ fall when nothing repeats.",
        idea=(
            "The newest n tokens are looked up in the text so far, and what followed them there is proposed. No "
            "second model runs: a draft costs a look-up, and where nothing repeats the round is plain decoding."
        ),
        formula="draft = x(j+1) … x(j+K), where x(j−n+1) … x(j) equals the newest n tokens",
        differs=DIFFERS["prompt-lookup"],
        drafter=NGram(),
        verifier=Lossless(),
        policies=(Fixed(depth=10),),
    )
)

register(
    Method(
        "token-recycling",
        title="Token recycling",
        promise=Promise.EXACT,
        source=Source(
            "Turning trash into treasure: accelerating inference with token recycling",
            "Luo et al.",
            2024,
            "https://arxiv.org/abs/2408.08696",
            "§3",
        ),
        teaches="Candidates that lost a round are good drafts later: a table of 8 successors a token is enough.",
        idea=(
            "A table holds, for every token, the 8 tokens that the target last found likeliest after it; following "
            "the table from the newest token gives a tree, which is the draft. Every verified node writes the "
            "target's new ranking into the table, accepted or not, so that what lost this round can win a later one."
        ),
        formula="M[x] ← the 8 largest of p( · | … x ), at every verified node x",
        differs=DIFFERS["token-recycling"],
        drafter=TokenRecycling(),
        verifier=Lossless(),
        policies=(Fixed(depth=6),),
    )
)

register(
    Method(
        "lookahead-trie",
        title="Lookahead trie",
        promise=Promise.EXACT,
        source=Source(
            "Lookahead: an inference acceleration framework with lossless generation accuracy",
            "Zhao et al.",
            2024,
            "https://arxiv.org/abs/2312.12728",
            "§4",
        ),
        teaches="When the context offers several continuations, draft them all: one look-up, many branches.",
        idea=(
            "Prompt and output are cut into short branches and counted in a trie, in which the newest tokens are "
            "looked up. All branches that have followed them are drafted at once as a tree, the most frequent first."
        ),
        formula="score = (1 − w) · count in the prompt + w · count in outputs",
        differs=DIFFERS["lookahead-trie"],
        drafter=LookaheadTrie(),
        verifier=Lossless(),
        policies=(Fixed(depth=8),),
    )
)

register(
    Method(
        "early-exit",
        title="Early exit (LayerSkip)",
        promise=Promise.EXACT,
        source=Source(
            "LayerSkip: enabling early exit inference and self-speculative decoding",
            "Elhoushi et al.",
            2024,
            "https://arxiv.org/abs/2404.16710",
            "§3.3",
        ),
        teaches="The target's own first layers can draft, without a second model or cache; how deep is the trade-off.",
        idea=(
            "The first E layers of the target, with its final norm and head, draft K tokens over the target's own "
            "cache. The whole target then verifies them in one pass, so that there is no second model and no second "
            "cache."
        ),
        formula=(
            "q = softmax( head( norm( h(E) ) ) ), with h(E) the state after layer E; accept with probability min(1, "
            "p / q)"
        ),
        differs=DIFFERS["early-exit"],
        drafter=EarlyExit(),
        verifier=Lossless(),
        policies=(Fixed(depth=3), Confidence(depth=3)),
    )
)

register(
    Method(
        "medusa",
        title="Medusa",
        promise=Promise.EXACT,
        source=MEDUSA,
        teaches="Heads guess several places at once from one hidden state: nearly free, but blind to each other.",
        idea=(
            "Extra heads read the target's last hidden state once, and head k guesses the k-th token after the "
            "newest one, blind to what the other heads guess. A fixed tree combines their best guesses, shaped by "
            "how often each head was right on held-out text, and one pass of the target verifies it."
        ),
        formula="head k: softmax( LM head( h + SiLU(W(k) h + b(k)) ) )",
        differs=DIFFERS["medusa"],
        drafter=Medusa(),
        verifier=Lossless(),
        policies=(Fixed(),),
    )
)

register(
    Method(
        "medusa-typical",
        title="Medusa, typical acceptance",
        promise=Promise.APPROXIMATE,
        source=Source(MEDUSA.title, MEDUSA.authors, MEDUSA.year, MEDUSA.url, "§2.3.1"),
        teaches="Asking for plausible instead of exact buys acceptance, and pays in distribution.",
        idea=(
            "Heads and tree are Medusa's, but a token is kept when the target finds it plausible enough, judged "
            "against the target's own entropy. The output is no longer the target's distribution: ε and δ say how "
            "far it may go."
        ),
        formula="accept x if p(x) > min( ε, δ · exp(−H(p)) )",
        differs=DIFFERS["medusa-typical"],
        drafter=Medusa(),
        verifier=TypicalAcceptance(),
        policies=(Fixed(),),
    )
)

register(
    Method(
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
        teaches="A drafter that never sees the picture gets the grammar right and the facts of the picture wrong.",
        idea=(
            "A small language model reads the prompt without its image tokens and drafts a chain; the target, which "
            "sees the picture, verifies it. Function words are accepted and picture facts rejected: the floor that a "
            "drafter with eyes has to beat."
        ),
        formula="q( · | text alone ) against p( · | picture, text );  the draft is the same for every picture",
        differs=DIFFERS["vlm-text-only"],
        drafter=BlindDraftModel(),
        verifier=Lossless(),
        policies=(Fixed(), Heuristic(), Confidence(), Planned()),
    )
)

register(
    Method(
        "vlm-draft",
        title="Draft model with vision",
        promise=Promise.EXACT,
        source=Source(
            "MASSV: multimodal adaptation and self-data distillation for speculative decoding of VLMs",
            "Ganesan et al.",
            2025,
            "https://arxiv.org/abs/2505.10526",
            "chain; its dynamic tree: Spec-LLaVA, Huo et al. 2025, arXiv:2509.11961",
        ),
        teaches="Give the small model eyes, and words about the picture are accepted, too.",
        idea=(
            "A small language model gets the target's vision tower through a projector of its own and learns from the "
            "target's own answers. It reads the picture by itself and drafts a chain, or a tree that branches where "
            "its law is flat and goes deep where it is sure."
        ),
        formula="offer x if Π q along its path ≥ threshold, at most so many at each node",
        differs=DIFFERS["vlm-draft"],
        drafter=SeeingDraftModel(),
        verifier=Lossless(),
        policies=(Fixed(depth=6), DynamicTree()),
    )
)

register(
    Method(
        "oracle",
        title="Oracle with a dial",
        promise=Promise.SIMULATION,
        source=Source(
            "Fast inference from transformers via speculative decoding",
            "Leviathan et al.",
            2023,
            "https://arxiv.org/abs/2211.17192",
            "§3.1, equation 1: the closed forms it reproduces",
        ),
        teaches="Set the acceptance rate; τ is then (1 − aᴷ⁺¹)/(1 − a). It knows the answer, so its speed is moot.",
        idea=(
            "The drafter draws from the target's own law mixed with its least likely token, so that every draft is "
            "accepted with the probability on the dial, whatever came before. It runs the target to draft, so it is "
            "an instrument and no method: it shows what acceptance alone does to τ."
        ),
        formula="q = a · p + (1 − a) · (least likely token);  τ = (1 − aᴷ⁺¹) / (1 − a)",
        differs=DIFFERS["oracle"],
        drafter=Oracle(),
        verifier=Lossless(),
        policies=(Fixed(),),
    )
)
