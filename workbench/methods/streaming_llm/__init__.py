"""StreamingLLM: plain decoding with a KV cache of constant size."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import Claim
from workbench.decoders.method import Source
from workbench.decoders.streaming.decoder import Streaming
from workbench.methods.undrafted import undrafted

METHOD = undrafted(
    "streaming-llm",
    title="StreamingLLM",
    promise=Promise.APPROXIMATE,
    source=Source(
        "Efficient streaming language models with attention sinks",
        "Xiao et al.",
        2023,
        "https://arxiv.org/abs/2309.17453",
        "§3.2",
    ),
    summary="Plain decoding with the first few and the newest tokens in the KV cache: constant memory, endless text.",
    idea=(
        "The KV cache grows with every token, and a model fails beyond the length that it was trained for. This cache "
        "keeps the entries of the first few tokens, which take much of the attention (attention sinks), and those of "
        "the newest ones, and drops the others. Positions are counted within the cache, so they never exceed its "
        "size. Until the window is full the text is the target's own; later it is an approximation."
    ),
    formula="attend to the sinks x(1) … x(S) and the window x(t − W + 1) … x(t), at positions 1 … S + W",
    differences=(
        "Keys are cached with rotary positions, and rotated again when they move; the paper caches keys without "
        "positions.",
        "Old entries are dropped in blocks of a quarter of the window, so that a key is moved few times; in between, "
        "tokens attend to at most a quarter more entries than the window has.",
        "The prompt is processed in chunks of one window, and tokens of a chunk attend to up to two windows before "
        "them.",
    ),
    order=6,
    claims=(
        Claim(
            "speed-up over a sliding window that is computed again for every token",
            "Llama-2-7B, texts up to 4M tokens",
            22.2,
            22.2,
            "Xiao et al. 2023, arXiv:2309.17453, abstract (from memory)",
            None,
            timed=True,
            lacks="a sliding window that is computed again for every token",
            matched=True,
        ),
    ),
    decoder_params=Streaming(),
)
