"""The methods whose drafters see pictures as the target saw them: heads on its features."""

from __future__ import annotations

from workbench.engine.method import Method, Promise, Source
from workbench.methods.catalogue_differs import DIFFERS
from workbench.methods.drafters.eagle_vlm import EagleVLM
from workbench.methods.drafters.flash import Flash
from workbench.methods.drafters.msd import MSD
from workbench.methods.drafters.specvlm import SpecVLM
from workbench.methods.policies.fixed import Fixed
from workbench.methods.registry import register
from workbench.methods.verifiers.lossless import Lossless

SPECVLM = Source(
    "SpecVLM: fast speculative decoding in vision-language models",
    "Huang et al.",
    2025,
    "https://arxiv.org/abs/2509.11815",
    "§3.1: the baseline EagleVLM",
)

register(
    Method(
        "eagle-vlm",
        title="EagleVLM",
        promise=Promise.EXACT,
        source=SPECVLM,
        teaches="One decoder layer that reads what the target read drafts well, and pays for every patch it is shown.",
        idea=(
            "The target's last hidden state at each position, fused with the embedding of the token that follows, "
            "goes through one decoder layer, which guesses the next hidden state; the target's own LM head turns that "
            "into tokens. Words and patches of the picture enter alike."
        ),
        formula="f̂(t+1) = layer( W [ norm e(x(t+1)) ; norm f(t) ], … ),  q = softmax( LM head f̂(t+1) )",
        differs=DIFFERS["eagle-vlm"],
        drafter=EagleVLM(),
        verifier=Lossless(),
        policies=(Fixed(depth=5),),
    )
)

register(
    Method(
        "msd",
        title="MSD, text and vision decoupled",
        promise=Promise.EXACT,
        source=Source(
            "Speculative decoding reimagined for multimodal large language models",
            "Lin et al.",
            2025,
            "https://arxiv.org/abs/2505.14260",
            "§3",
        ),
        teaches="A patch has no next word: let it enter as what it is, and fuse only words with what follows them.",
        idea=(
            "Words enter as in EAGLE; a patch enters as the vector that the projector made of it, without the target's "
            "hidden state and without a next token. Training goes from text alone to pictures and text."
        ),
        formula="word: W [ e(x(t+1)) ; f(t) ],  patch: e(v) itself",
        differs=DIFFERS["msd"],
        drafter=MSD(),
        verifier=Lossless(),
        policies=(Fixed(depth=5),),
    )
)

register(
    Method(
        "specvlm",
        title="SpecVLM, elastic compressor",
        promise=Promise.EXACT,
        source=Source(SPECVLM.title, SPECVLM.authors, SPECVLM.year, SPECVLM.url, "§3.2, §3.3"),
        teaches="A drafter needs little of a picture: a gate reads the question and chooses how little, even nothing.",
        idea=(
            "EagleVLM's drafter, but the picture is made smaller first: some patches are dropped, or blocks of them "
            "averaged or convolved, or two learned queries read them all, or nothing is left. A gate reads the "
            "question and chooses."
        ),
        formula="choice = arg max softmax( G · mean f(question) ) of { prune, pool, conv, resample, none }",
        differs=DIFFERS["specvlm"],
        drafter=SpecVLM(),
        verifier=Lossless(),
        policies=(Fixed(depth=5),),
    )
)

register(
    Method(
        "flash",
        title="FLASH, latents and blocks",
        promise=Promise.EXACT,
        source=Source(
            "FLASH: latent-aware semi-autoregressive speculative decoding for multimodal tasks",
            "Wang et al.",
            2025,
            "https://arxiv.org/abs/2505.12728",
            "§3",
        ),
        teaches="One forward can draft a block: cheaper than a token a forward, and surer the more the text is a form.",
        idea=(
            "Learned queries mix the picture's features into a few latent vectors. From one state of the layer an MLP "
            "guesses several future features at once, which the LM head turns into a block of tokens that do not know "
            "each other."
        ),
        formula="picture: softmax(A Fᵀ) F;  f̂(t+1) = s(t),  f̂(t+1+i) = s(t) + MLPᵢ(s(t)), i < k",
        differs=DIFFERS["flash"],
        drafter=Flash(),
        verifier=Lossless(),
        policies=(Fixed(depth=8),),
    )
)
