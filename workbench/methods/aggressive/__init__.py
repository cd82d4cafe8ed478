"""Aggressive decoding: draft from the input, because most of an edited text repeats the input."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import Claim, Recording, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.aggressive.drafter import Aggressive
from workbench.methods.common.presets import copying
from workbench.methods.verifiers.lenient import Lenient

METHOD = Method(
    "aggressive",
    title="Aggressive decoding",
    promise=Promise.EXACT,
    source=Source(
        "Lossless acceleration for Seq2seq generation with aggressive decoding",
        "Ge et al.",
        2022,
        "https://arxiv.org/abs/2205.10350",
        "§3.1",
    ),
    summary="When the task is to edit a text, the input itself is the draft: copy it, and realign after each change.",
    idea=(
        "The output is expected to repeat most of the input, so the draft is the input from a pointer on. The pointer "
        "starts at the input's first token. When the target writes something else, the newest output tokens are looked "
        "up in the rest of the input, and copying continues after the match."
    ),
    formula=(
        "draft = s(j) … s(j+K−1), with input s, pointer j and draft length K; after a change j follows the shortest "
        "output suffix that s contains once"
    ),
    differences=(
        "The input is the prompt from token number `begin` on; in the paper an encoder reads the input alone. With "
        "begin=0 and an instruction before the text, the first draft is rejected, and the target's first token "
        "realigns the pointer.",
        "A draft has at most 16 tokens, because each one costs a small target time; the paper drafts the whole rest "
        "of the input.",
        "If a suffix of the output does not occur in the rest of the input, the whole input is searched, so that a "
        "passage may be copied twice.",
    ),
    order=42,
    testing=Testing(short={"depth": 2}, real={"depth": 4}, no_perfect_reason="The method drafts without a model."),
    drafter=Aggressive(),
    **copying(Lenient(), depth=12),
    claims=(
        Claim(
            "speed-up over plain decoding on text that repeats its input",
            "grammatical error correction, 6-layer Transformers", 7.0, 9.0,
            "Ge et al. 2022, arXiv:2205.10350, abstract", lambda lab: lab.on_copied_answers().speed(), timed=True,
        ),
    ),
    recording=Recording(("copy ×3",)),
)  # fmt: skip
