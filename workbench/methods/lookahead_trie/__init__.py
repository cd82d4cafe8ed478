"""Lookahead (Zhao et al.): draft all earlier continuations of the newest tokens as one tree."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import Claim, Recording, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.presets import copying
from workbench.methods.lookahead_trie.drafter import LookaheadTrie

METHOD = Method(
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
    summary="If the newest tokens had several continuations, draft all of them: one look-up gives many branches.",
    idea=(
        "Prompt and output are cut into short branches and counted in a trie, in which the newest tokens are "
        "looked up. All branches that have followed them are drafted at once as a tree, the most frequent first."
    ),
    formula="score = (1 − w) · count in the prompt + w · count in outputs, with w = output_weight",
    differences=(
        "The default tree has 16 nodes and branches of 8 tokens instead of 64 and 12, because each node costs a "
        "small target relatively more time; τ may be lower on texts that repeat long passages.",
        "Unlike in the paper, no nodes are reserved for branches of the prompt or of the outputs: the branches with "
        "the best scores take all nodes. A match may begin with any word, so drafts after common words may be "
        "poorer. Outputs have no limit besides the size limit of the whole trie.",
        "The trie is empty at the start of every run, so that a seeded run does not depend on earlier ones. The "
        "paper's trie serves all requests, as with warm=True; only then does the gain over many requests show.",
    ),
    order=60,
    testing=Testing(short={"depth": 2}, real={"depth": 4}, no_perfect_reason="The method drafts without a model."),
    drafter=LookaheadTrie(),
    **copying(depth=8),
    claims=(
        Claim(
            "speed-up over plain decoding on text that repeats its prompt", "retrieval-augmented service at Alipay",
            2.66, 6.26, "Zhao et al. 2024, arXiv:2312.12728, abstract (from memory)",
            lambda lab: lab.on_copied_answers().speed(),
            timed=True,
        ),
    ),
    recording=Recording(("copy ×3",)),
)  # fmt: skip
