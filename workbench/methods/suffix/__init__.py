"""Suffix decoding: draft the most frequent continuations of earlier matches of the newest tokens."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import Claim, Recording, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.presets import copying
from workbench.methods.suffix.drafter import Suffix
from workbench.methods.verifiers.lenient import Lenient

METHOD = Method(
    "suffix",
    title="Suffix decoding",
    promise=Promise.EXACT,
    source=Source(
        "SuffixDecoding: extreme speculative decoding for emerging AI applications",
        "Oliaro et al.",
        2025,
        "https://arxiv.org/abs/2411.04975",
        "§3",
    ),
    summary="Draft many tokens after a long match whose continuations agree, and almost none elsewhere.",
    idea=(
        "The newest tokens are matched against the prompt and all generated tokens. The continuations of each match "
        "are counted and drafted as a tree; a longer match gives a larger tree. Among the drafts of all match "
        "lengths, the one with the largest sum of node probabilities is verified."
    ),
    formula="P(node) = P(parent) · count(node) / Σ count of siblings; score = Σ P(node) = expected accepted tokens",
    differences=(
        "No suffix tree is stored: a scan finds occurrences of the newest tokens and groups them level by level. The "
        "counts equal those of a suffix tree, limited to the newest 256 occurrences.",
        "Probabilities are shares of the continuations. The released code divides by the count of the parent, which "
        "includes the newest tokens themselves, although nothing follows them yet. So its first node after one "
        "earlier occurrence has probability ½, and its drafts are a little shorter.",
        "The default tree has at most 16 nodes, because each node costs a small target relatively more time.",
        "The store of earlier outputs is off (warm=True turns it on), so that a seeded run does not depend on earlier "
        "ones. It holds 65,536 tokens and drops the oldest.",
    ),
    order=62,
    testing=Testing(
        short={"depth": 2, "factor": 2.0}, real={"depth": 4}, no_perfect_reason="The method drafts without a model."
    ),
    drafter=Suffix(),
    **copying(Lenient(), depth=16),
    claims=(
        Claim(
            "speed-up over plain decoding on text that repeats itself",
            "agentic SQL generation; the paper's maximum",
            5.3,
            5.3,
            "Oliaro et al. 2025, arXiv:2411.04975, abstract",
            lambda lab: lab.on_copied_answers().speed(),
            timed=True,
        ),
        Claim(
            "τ relative to prompt lookup on text that repeats itself, drafts of equal length (factor=8, offset=8)",
            "agentic tasks: longer accepted drafts than look-ups in the prompt",
            None,
            None,
            "Oliaro et al. 2025, arXiv:2411.04975, §5 (only the direction is compared)",
            lambda lab: lab.on_copied_answers().tau_over("prompt-lookup", {"factor": 8.0, "offset": 8.0}, {}, 0.0),
            key="lookup",
        ),
    ),
    recording=Recording(("copy ×3",)),
)
