"""Every definition of acceptance in use, from one trace, side by side, with its denominator and where it is defined.

"Acceptance rate" is not one figure: engines divide by what was drafted, by what was tested, or by what could have been
drafted, and count the target's own token or not. Each definition below was read where `source` points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from workbench.core.rules import ALL, Rule
from workbench.trace import metrics
from workbench.trace.events import Round


@dataclass(frozen=True, slots=True)
class Definition:
    """One way to count, applied to one trace.

    Attributes:
        user: whose definition it is.
        name: what it is called there.
        formula: part / whole, in words.
        part: the count above the line.
        whole: the count below the line.
        value: their quotient, plus one where the formula says so; None where the denominator is zero.
        source: where the definition was read.
        values: for definitions by position: one value for each, from the first on.
        note: what to know before comparing it with another.
    """

    user: str
    name: str
    formula: str
    part: int
    whole: int
    value: float | None
    source: str
    values: tuple[float, ...] = ()
    note: str = ""

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


VLLM = "https://github.com/vllm-project/vllm/blob/016a8587edb0/vllm/v1/spec_decode/metrics.py"
SGLANG = "https://github.com/sgl-project/sglang/pull/23530"
SGLANG_TREES = "https://github.com/sgl-project/sglang/pull/33518"
LLAMA_CPP = "https://github.com/ggml-org/llama.cpp/pull/14104"
LLAMA_CPP_LENGTH = "https://github.com/ggml-org/llama.cpp/pull/24536"
SPEC_BENCH = "https://github.com/hemingkx/Spec-Bench/blob/132ba4cf8474/evaluation/speed.py"
LEVIATHAN = "https://arxiv.org/abs/2211.17192"
HERE = "workbench/trace/metrics.py"


def definitions(rounds: Sequence[Round], rules: Mapping[str, Rule] | None = None) -> list[Definition]:
    """All definitions, applied to these rounds. `rules`: of the trace's header; without them α is not known."""
    accepted, tested, drafted = metrics.accepted(rounds), metrics.tested(rounds), metrics.drafted(rounds)
    emitted, passes = metrics.emitted(rounds), len(rounds)
    drafts = sum(len(r.nodes) > 0 for r in rounds)
    configured = passes * max((len(r.nodes) for r in rounds), default=0)
    depths = max((len(r.path) for r in rounds), default=0)
    reached = [sum(len(r.path) > i for r in rounds) for i in range(depths)]
    by_depth = metrics.acceptance_by_depth(rounds)
    per_draft = tuple(n / drafts for n in reached)
    return [
        _of("workbench", "acceptance rate", "accepted / tested", accepted, tested, HERE,
            note="A test ends at the first rejection; what follows it was never tested."),
        _of("workbench", "draft utilisation", "accepted / drafted", accepted, drafted, HERE),
        _of("workbench", "τ", "tokens emitted / target passes", emitted, passes, HERE,
            note="Bonus and corrected tokens count; rounds without a draft count."),
        _of("workbench", "accepted per round", "accepted / target passes", accepted, passes, HERE,
            note="τ without the target's own token."),
        Definition(
            "workbench", "conditional acceptance by position", "rounds that accepted at i / rounds that tested i",
            sum(k for _, _, k in by_depth), sum(t for _, t, _ in by_depth), None, HERE,
            tuple(k / t for _, t, k in by_depth), "Given that everything before was accepted; siblings count once.",
        ),
        _leviathan(rounds, rules or {}),
        _of("vLLM", "draft acceptance rate", "num_accepted_tokens / num_draft_tokens", accepted, drafted, VLLM),
        _plus_one("vLLM", "mean acceptance length", "1 + num_accepted_tokens / num_drafts", accepted, drafts, VLLM,
                  "Rounds without a draft are left out, and a text cut in a round still counts one token more."),
        Definition("vLLM", "per-position acceptance rate", "rounds that accepted at least i / num_drafts",
                   sum(reached), drafts, None, VLLM, per_draft, "Not conditional: it falls by itself with i."),
        _of("SGLang", "spec_accept_rate", "accepted drafts / (spec_verify_ct · configured drafts)",
            accepted, configured, SGLANG,
            note="The denominator is rebuilt from the configured size (here: the largest draft of the run), so drafts "
            "that stopped early count as if they had not. Until April 2026 it was (accepted + 1) / (drafted + 1)."),
        _of("SGLang", "spec_accept_length", "completion_tokens / spec_verify_ct", emitted, passes, SGLANG_TREES),
        _of("llama.cpp", "draft acceptance rate", "draft_n_accepted / draft_n", accepted, drafted, LLAMA_CPP,
            note="“Generated” are the drafts given to the target, those behind a rejection included; drafts shorter "
            "than --draft-min are left out since June 2025."),
        _plus_one("llama.cpp", "mean acceptance length", "1 + accepted / drafts", accepted, drafts, LLAMA_CPP_LENGTH),
        _of("Spec-Bench", "#Mean accepted tokens", "mean of accept_lengths over all steps", emitted, passes, SPEC_BENCH,
            note="Counts the target's own token. Its speed-up counts its baseline's tokens anew by the tokenizer."),
    ]  # fmt: skip


def _leviathan(rounds: Sequence[Round], rules: Mapping[str, Rule]) -> Definition:
    """α, the mean of β = Σ min(p, q) over places: each tested draft's min(1, p/q) estimates it without bias.

    The law p of a place is the target's own. So the first draft of a place counts, and a later sibling, which is
    judged against what its elders left, does not. A chosen draft is drawn from a point mass (q = 1, which leaves p),
    and greedy decoding makes p a point mass (which leaves 0 or 1). A comparison with a threshold has no such
    probability, and what one leaves to another rule is no fair sample of all drafts.
    """
    tested = [
        (accept, rules.get(name or ""))
        for r in rounds
        for accept, name in zip(r.nodes.accept, r.nodes.rule, strict=True)
        if accept is not None
    ]
    chances = [accept for accept, rule in tested if rule is not None and rule.leviathan]
    others = [rule for _, rule in tested if rule is not None and not rule.leviathan]
    is_later = [rule.leaves != ALL and "residual" in rule.reads for rule in others]
    later = sum(is_later)
    unlike = sorted({rule.title.lower() for rule, left in zip(others, is_later, strict=True) if not left})
    unsaid = sum(rule is None for _, rule in tested)
    notes = ["min(1, p/q) of the first draft for each place; p where it was chosen, 0 or 1 when greedy."]
    if later:
        notes.append(f"{later} later siblings are left out: they were judged against what their elders left of p.")
    if unlike:
        notes.append(f"Undefined under {' and '.join(unlike)}: not min(1, p/q) alone decides.")
    if unsaid:
        notes.append(f"{unsaid} tested drafts are left out: the trace does not say by which rule they were judged.")
    value = sum(chances) / len(chances) if chances else None
    formula = "Σ min(1, p/q) / tested drafts that were judged against p"
    return Definition(
        "Leviathan et al.", "α", formula, round(sum(chances)), len(chances), value, LEVIATHAN, note=" ".join(notes)
    )


def _of(user: str, name: str, formula: str, part: int, whole: int, source: str, note: str = "") -> Definition:
    return Definition(user, name, formula, part, whole, part / whole if whole else None, source, note=note)


def _plus_one(user: str, name: str, formula: str, part: int, whole: int, source: str, note: str = "") -> Definition:
    return Definition(user, name, formula, part, whole, 1 + part / whole if whole else None, source, note=note)
