"""Compute all common definitions of acceptance from one trace, each with its denominator and source.

"Acceptance rate" has several definitions: engines divide by the drafted tokens, by the tested tokens, or by the
configured draft size. Some also count the bonus or corrected token. The field `source` of each definition names the
code or paper that it was taken from.
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
    """One definition of the acceptance rate or length, applied to one trace.

    Attributes:
        user: project or paper that uses the definition.
        name: name of the metric in that project or paper.
        formula: the quotient `part` / `whole` as text.
        part: numerator, a count.
        whole: denominator, a count.
        value: part / whole, plus 1 if the formula says so; None if the denominator is zero.
        source: URL or file of the definition.
        values: for a definition by draft position, one value per position from the first on; else empty.
        note: caveat for comparisons with other definitions.
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
        """Return this definition, with its counts and its value, as JSON data."""
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
    """Return the acceptance rates and lengths that engines and papers define, all computed from the same rounds.

    Args:
        rounds: rounds of a trace.
        rules: acceptance rules by name, from the trace's header; without them α is unknown.
    """
    accepted, tested, drafted = (
        metrics.count_accepted(rounds),
        metrics.count_tested(rounds),
        metrics.count_drafted(rounds),
    )
    emitted, passes = metrics.count_emitted(rounds), len(rounds)
    drafts = sum(len(r.nodes) > 0 for r in rounds)
    configured = passes * max((len(r.nodes) for r in rounds), default=0)
    depths = max((len(r.path) for r in rounds), default=0)
    reached = [sum(len(r.path) > i for r in rounds) for i in range(depths)]
    by_depth = metrics.acceptance_by_depth(rounds)
    per_draft = tuple(n / drafts for n in reached)
    return [
        _of("workbench", "acceptance rate", "accepted / tested", accepted, tested, HERE,
            note="Verification stops after a rejection, so draft nodes after the rejected one are not tested."),
        _of("workbench", "draft utilisation", "accepted / drafted", accepted, drafted, HERE),
        _of("workbench", "τ", "tokens emitted / target passes", emitted, passes, HERE,
            note="Includes bonus and corrected tokens, and rounds without a draft."),
        _of("workbench", "accepted per round", "accepted / target passes", accepted, passes, HERE,
            note="Equal to τ without bonus tokens, corrected tokens and tokens of rounds without a draft."),
        Definition(
            "workbench", "conditional acceptance by position", "rounds that accepted a token at position i / "
            "rounds that tested position i",
            sum(k for _, _, k in by_depth), sum(t for _, t, _ in by_depth), None, HERE,
            tuple(k / t for _, t, k in by_depth), "Conditional on acceptance at all earlier positions; siblings "
            "count once.",
        ),
        _leviathan(rounds, rules or {}),
        _of("vLLM", "draft acceptance rate", "num_accepted_tokens / num_draft_tokens", accepted, drafted, VLLM),
        _plus_one("vLLM", "mean acceptance length", "1 + num_accepted_tokens / num_drafts", accepted, drafts, VLLM,
                  "Excludes rounds without a draft. Adds a bonus token for every round, even if the text ended "
                  "before that token."),
        Definition("vLLM", "per-position acceptance rate", "rounds that accepted at least i tokens / num_drafts",
                   sum(reached), drafts, None, VLLM, per_draft, "Not conditional on earlier positions, so the "
                   "rate cannot increase with i."),
        _of("SGLang", "spec_accept_rate", "accepted draft tokens / (spec_verify_ct · "
            "configured draft tokens per verification)",
            accepted, configured, SGLANG,
            note="The denominator uses the configured draft size (here: the largest draft of the run), so drafts that "
            "stopped early count in full. Until April 2026 the definition was (accepted + 1) / (drafted + 1)."),
        _of("SGLang", "spec_accept_length", "completion_tokens / spec_verify_ct", emitted, passes, SGLANG_TREES),
        _of("llama.cpp", "draft acceptance rate", "draft_n_accepted / draft_n", accepted, drafted, LLAMA_CPP,
            note="Counts all drafted tokens that the target processes, including those after a rejection. "
            "Drafts shorter than --draft-min are excluded since June 2025."),
        _plus_one("llama.cpp", "mean acceptance length", "1 + accepted / drafts", accepted, drafts, LLAMA_CPP_LENGTH),
        _of("Spec-Bench", "#Mean accepted tokens", "mean of accept_lengths over all steps", emitted, passes, SPEC_BENCH,
            note="Includes the token that the target adds in each step. For speed-ups, Spec-Bench re-tokenizes "
            "the baseline's text to count its tokens."),
    ]  # fmt: skip


def _leviathan(rounds: Sequence[Round], rules: Mapping[str, Rule]) -> Definition:
    """Return the acceptance rate α of Leviathan et al. 2023: the mean of β = Σ min(p, q) over positions.

    The unbiased estimate is the mean of min(1, p/q) over tested drafts, where p is the target's unchanged distribution.
    Only the first draft at a position counts, because later siblings are tested against a residual distribution. A
    deterministic draft has q = 1, so its value is p; in greedy decoding p is a point mass, so the value is 0 or 1.
    Verifiers with a threshold rule have no α: the rule has no such acceptance probability, and the drafts that it
    leaves to another rule are a biased sample.
    """
    tested = [
        (accept, rules.get(name or ""))
        for r in rounds
        for accept, name in zip(r.nodes.accept, r.nodes.rule, strict=True)
        if accept is not None
    ]
    accept_probs = [accept for accept, rule in tested if rule is not None and rule.leviathan]
    others = [rule for _, rule in tested if rule is not None and not rule.leviathan]
    is_later = [rule.leaves != ALL and "residual" in rule.sources for rule in others]
    n_later = sum(is_later)
    other_rules = sorted(
        {rule.title.lower() for rule, is_later_sibling in zip(others, is_later, strict=True) if not is_later_sibling}
    )
    unknown = sum(rule is None for _, rule in tested)
    notes = [
        "Mean of min(1, p/q) of the first draft token at each position. The value is p for a deterministic "
        "draft, and 0 or 1 in greedy decoding."
    ]
    if n_later:
        notes.append(f"Excludes {n_later} later siblings, which were tested against a residual distribution.")
    if other_rules:
        notes.append(
            f"Excludes tests by the rules {' and '.join(other_rules)}, whose acceptance probability is not min(1, p/q)."
        )
    if unknown:
        notes.append(f"Excludes {unknown} tested drafts whose acceptance rule is not recorded in the trace.")
    value = sum(accept_probs) / len(accept_probs) if accept_probs else None
    formula = "Σ min(1, p/q) / drafts that were tested against p"
    return Definition(
        "Leviathan et al.",
        "α",
        formula,
        round(sum(accept_probs)),
        len(accept_probs),
        value,
        LEVIATHAN,
        note=" ".join(notes),
    )


def _of(user: str, name: str, formula: str, part: int, whole: int, source: str, note: str = "") -> Definition:
    return Definition(user, name, formula, part, whole, part / whole if whole else None, source, note=note)


def _plus_one(user: str, name: str, formula: str, part: int, whole: int, source: str, note: str = "") -> Definition:
    return Definition(user, name, formula, part, whole, 1 + part / whole if whole else None, source, note=note)
