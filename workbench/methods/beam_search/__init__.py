"""Beam search, the classical search for a text of high probability."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.beam_search.decoder import BeamSearch
from workbench.decoders.declarations import Claim
from workbench.decoders.method import Source
from workbench.methods.undrafted import undrafted

METHOD = undrafted(
    "beam-search",
    title="Beam search",
    promise=Promise.APPROXIMATE,
    source=Source(
        "Beam search strategies for neural machine translation",
        "Freitag and Al-Onaizan",
        2017,
        "https://arxiv.org/abs/1702.01806",
        "§2",
    ),
    summary="Several candidate texts grow in one token tree; the most probable complete text is the output.",
    idea=(
        "Greedy decoding commits to the most probable token at once. Beam search extends the best few candidate texts "
        "by one token per round, keeps the best of all extensions, and returns the candidate with the best score; λ "
        "sets how strongly the score favours long texts. The candidates are the branches of one tree over the KV "
        "cache, so one forward pass extends all of them. Tokens that all candidates share are final; the rest of the "
        "best candidate may still change."
    ),
    formula=(
        "score(x) = Σ log p(x(t) | x(1) … x(t − 1)) / length(x)^λ; keep the best B extensions per round (B: beam width)"
    ),
    differences=(
        "When the KV cache is full, candidates whose first token differs from the best candidate's are dropped.",
        "Sampling settings have no effect: the search is deterministic.",
        "A stop string does not end a candidate during the search; the final text is cut at the string.",
    ),
    order=5,
    claims=(
        Claim(
            "speed-up of pruned over plain beam search",
            "neural translation, German and Chinese to English",
            1.1,
            1.43,
            "Freitag and Al-Onaizan 2017, arXiv:1702.01806, abstract (from memory)",
            None,
            lacks="pruning of candidates, translation models",
            matched=True,
        ),
    ),
    decoder_params=BeamSearch(),
)
