"""The methods that ship with the workbench: which parts, what promise, from where, and what one learns from it."""

from __future__ import annotations

from workbench.engine.method import Method, Promise, Source
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
from workbench.methods.policies.confidence import Confidence
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
        drafter=Medusa(),
        verifier=TypicalAcceptance(),
        policies=(Fixed(),),
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
        drafter=Oracle(),
        verifier=Lossless(),
        policies=(Fixed(),),
    )
)
