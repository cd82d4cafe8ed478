"""Prompt lookup: propose the tokens that followed an earlier occurrence of the newest tokens."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import Claim, Recording, Setting, Testing
from workbench.decoders.method import Method, Source
from workbench.methods.common.presets import copying
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.fixed import Fixed
from workbench.methods.policies.optimal_oracle import OptimalOracle
from workbench.methods.policies.planned import Planned
from workbench.methods.prompt_lookup.drafter import NGram
from workbench.methods.verifiers.judge import Judge
from workbench.methods.verifiers.lenient import Lenient

METHOD = Method(
    "prompt-lookup",
    title="Prompt lookup",
    promise=Promise.EXACT,
    source=Source("Prompt lookup decoding", "Saxena", 2023, "https://github.com/apoorvumang/prompt-lookup-decoding"),
    summary="Copying from the text so far is the cheapest way to draft; τ falls when nothing repeats.",
    idea=(
        "The newest n tokens are looked up in the text so far, and the tokens that followed them there are proposed. "
        "No second model runs: a draft costs a look-up, and if nothing matches the round is plain decoding."
    ),
    formula="draft = x(j+1) … x(j+K), where x(j−n+1) … x(j) equals the newest n tokens",
    differences=(
        "By default the draft continues the newest earlier occurrence, because this usually gives better drafts; the "
        "original continues the first one (occurrence=first). Drafts and τ differ.",
        "A continuation that reaches the end of the text is proposed even if it is shorter than K tokens.",
        "With occurrence=transformers and ngram=2, drafts equal Hugging Face's token for token, unless a logits "
        "processor forbids a token. With other values, drafts continue after an end-of-text token. Positions after "
        "such a token are wasted.",
    ),
    order=40,
    testing=Testing(short={"depth": 2}, real={"depth": 4}, no_perfect_reason="The method drafts without a model."),
    drafter=NGram(),
    **copying(Lenient(), Judge(), depth=10, policies=(Fixed, Planned, Bandit, OptimalOracle)),
    claims=(
        Claim(
            "speed-up over plain decoding on texts grounded in their input",
            "summaries and questions about documents, Mistral 7B and others", 2.0, 4.0,
            "Saxena 2023, README of prompt-lookup-decoding (from memory)",
            lambda lab: lab.on_copied_answers().speed(), timed=True,
        ),
    ),
    suites={"gpu": (Setting("Prompt lookup"),)},
    recording=Recording(("copy ×3",)),
)  # fmt: skip
