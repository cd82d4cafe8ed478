"""REST: draft continuations of the newest tokens found in a datastore of text."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import AT_LEAST_ONE, Claim, Recording, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.presets import copying
from workbench.methods.rest.drafter import Rest
from workbench.methods.verifiers.lenient import Lenient

SMALL_DATASTORE = (
    "wrong scale: a datastore of {} code tokens (paper: 0.9 GB); τ on code is {}, but a round with a tree takes "
    "longer than that many plain rounds"
)
"""Explanation of why REST's published speed-up on code is not reached. Its format arguments are the number of tokens of
the datastore, and τ measured for the claim `code`."""

METHOD = Method(
    "rest",
    title="Retrieval from a datastore (REST)",
    promise=Promise.EXACT,
    source=Source(
        "REST: retrieval-based speculative decoding",
        "He et al.",
        2024,
        "https://arxiv.org/abs/2311.08252",
        "§3",
    ),
    summary=(
        "Text that resembles existing text can be drafted by looking it up: this needs no model, but a large "
        "datastore."
    ),
    idea=(
        "The newest tokens are looked up in a datastore of text, by bisection in its suffix array, the longest match "
        "first. The continuations of the matches are merged into a tree, and the most frequent ones are verified."
    ),
    formula=(
        "longest n with c(t−n+1 … t) > 0; the nodes with the largest c(t−n+1 … t, x₁ … x_d), c: count in the datastore"
    ),
    differences=(
        "The default tree has at most 16 nodes instead of 64, because each node costs a small target relatively more "
        "time; nodes=64 is the paper's tree.",
        "The bundled datastore consists of this project's own texts, a quarter of a megabyte, whereas the paper's "
        "hold 0.5 to 12 GB: τ is lower. `workbench datastore build` makes one from your own files, "
        "WORKBENCH_DATASTORE names it.",
        "Verification draws one token at each node. The released code draws one for every path of the tree, which "
        "favours drafted tokens when sampling.",
        "At most 512 occurrences of a match are read, spread evenly over all, instead of 5,000.",
        "If nothing matches, nothing is drafted; the released code then verifies one constant token.",
    ),
    order=64,
    testing=Testing(
        short={"depth": 2, "nodes": 8},
        real={"depth": 4, "nodes": 8},
        no_perfect_reason="The method drafts without a model.",
    ),
    drafter=Rest(),
    **copying(Lenient(), depth=10),
    claims=(
        Claim(
            "speed-up over plain decoding",
            "HumanEval and MT-Bench, CodeLlama and Vicuna of 7B and 13B, datastores of code and of chat, 0.5 GB and "
            "more", 1.62, 2.36, "He et al. 2024, arXiv:2311.08252, abstract (from memory)",
            lambda lab: lab.speed(), timed=True,
            lacks="a datastore as large as the paper's; measured with the bundled datastore",
        ),
        Claim(
            "tokens per target pass (τ) on code", "HumanEval, CodeLlama of 7B and 13B, a datastore of code", None, None,
            "He et al. 2024, arXiv:2311.08252, §5 (the paper gives no number; only the direction is compared)",
            lambda lab: lab.on_groups("code").with_code().tau(), key="code", by_construction=AT_LEAST_ONE,
        ),
        Claim(
            "speed-up over plain decoding, code from a datastore of code",
            "HumanEval, CodeLlama of 7B and 13B, a datastore of code, 0.9 GB",
            1.62, 2.36, "He et al. 2024, arXiv:2311.08252, abstract (from memory; over code and chat)",
            lambda lab: lab.on_groups("code").with_code().speed(), key="code-speed", timed=True,
            explanation=("2026-11-30 14:34 UTC", SMALL_DATASTORE.format("90,000", "1.45")),
            explanation_by_column={"smollm2": ("2026-11-30 14:37 UTC", SMALL_DATASTORE.format("80,000", "1.30"))},
        ),
    ),
    recording=Recording(("story", "chat", "code")),
)  # fmt: skip
