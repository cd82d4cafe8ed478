"""Rows of a bench's table, computed from timed runs: each ratio compares runs of the same prompt and repeat."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.bench.lanes import BASELINE
from workbench.bench.markdown import format_value
from workbench.bench.prompts import BenchPrompt, groups_of
from workbench.bench.sample import Contender, Sample
from workbench.bench.statistics import Rates, Totals, acceptance_of, average_rate, rates, share, tau_of
from workbench.trace.speedup import Estimate, estimate, group_by_prompt, speedup

ESTIMATES = (
    "speedup_vs_autoregressive", "call_speedup_vs_autoregressive", "speedup_vs_hf", "hf_plain_part",
    "hf_speculation_part",
)  # fmt: skip
"""Columns of a bench's table that contain a metric with its interval (`Estimate`)."""
HF_BASELINE = "hf-generate"
COUNTERPARTS = {"draft-model": "hf-assisted", "prompt-lookup": "hf-prompt-lookup"}
"""Hugging Face counterparts by method; methods that are not listed are compared with plain `generate`."""


@dataclass(slots=True)
class BenchRow:
    """Row of a bench's table: the metrics of one method. Shares are 0 to 1; a time's name gives its unit.

    Attributes:
        method: registry name, or `hf-…`, `llama.cpp…`.
        title: name of the method for display.
        kind: "workbench", "hugging-face" or "llama.cpp".
        promise: promise of the method about its output, such as "exact".
        parameters: values of the method's parameters.
        prompts: number of measured prompts.
        tau: tokens emitted / target verification passes: geometric mean over prompts, like speed-ups.
        acceptance_rate: accepted / tested drafted tokens, mean over prompts; None without drafts or if unknown.
        tokens_per_second: decoding rate, without prefill: geometric mean over equally weighted prompts; None for other
            engines, which do not report the end of prefill.
        call_tokens_per_second: rate of whole calls, prefill included, which is known for every engine.
        speedup_vs_autoregressive: speed-up of decoding; see `workbench.trace.speedup`. None for other engines.
        call_speedup_vs_autoregressive: speed-up of whole calls over plain decoding's whole calls.
        speedup_vs_hf: speed-up of whole calls over the counterpart's; None unless the counterpart was measured.
        hf_counterpart: the row that `speedup_vs_hf` refers to.
        hf_plain_part: part of `speedup_vs_hf` due to plain decoding: the rate here over that of Hugging Face's plain
            `generate`.
        hf_speculation_part: part due to speculation: the method's gain over plain decoding here, over the counterpart's
            gain over plain `generate`. The product of the two parts is `speedup_vs_hf`.
        overhead_share: wall time outside model forward passes / wall time from the end of prefill to the last token.
        overhead_ms_per_round: wall time outside model forward passes, in milliseconds per round.
        draft_ms_per_round: drafting time, in milliseconds per round.
        verify_ms_per_round: time of the target's verification, in milliseconds per round.
        identical_to_autoregressive: share of prompts whose tokens equal the baseline's; None when sampling.
        acceptance_by_position: (depth, rounds that tested a token there, rounds that accepted one); [] if unknown.
        weights_mib: size of the weights of all models that the method uses, without copies in another memory layout.
        growth_mib: largest rise of memory during one of the method's runs.
        warnings: warnings of the self-tests.
    """

    method: str
    title: str
    kind: str
    promise: str
    parameters: dict[str, Any]
    prompts: int
    tau: float | None
    acceptance_rate: float | None
    tokens_per_second: float | None
    call_tokens_per_second: float | None
    speedup_vs_autoregressive: Estimate | None
    call_speedup_vs_autoregressive: Estimate | None
    speedup_vs_hf: Estimate | None
    hf_counterpart: str | None
    hf_plain_part: Estimate | None
    hf_speculation_part: Estimate | None
    overhead_share: float | None
    overhead_ms_per_round: float | None
    draft_ms_per_round: float | None
    verify_ms_per_round: float | None
    identical_to_autoregressive: float | None
    acceptance_by_position: list[tuple[int, int, int]] = field(default_factory=list)
    weights_mib: float | None = None
    growth_mib: float | None = None
    warnings: list[str] = field(default_factory=list)


Runs = dict[tuple[int, int], Sample]
"""Type of the timed runs of one contender, by (prompt, repeat)."""


def build_rows(samples: Sequence[Sample], contenders: Sequence[Contender], greedy: bool) -> list[BenchRow]:
    """Return one table row for each measured contender, in the order of `contenders`."""
    runs: dict[str, Runs] = defaultdict(dict)
    for sample in samples:
        runs[sample.contender][sample.prompt, sample.repeat] = sample
    return [_row(c, runs, greedy) for c in contenders if c.name in runs]


def build_groups(
    samples: Sequence[Sample], contenders: Sequence[Contender], prompts: Sequence[BenchPrompt], greedy: bool
) -> dict[str, list[BenchRow]]:
    """Return the table rows of all contenders for each group of prompts; empty if there is only one group."""
    names = groups_of(prompts)
    if len(names) < 2:
        return {}
    by_group = {name: [s for s in samples if prompts[s.prompt].group == name] for name in names}
    return {name: build_rows(subset, contenders, greedy) for name, subset in by_group.items() if subset}


def _row(contender: Contender, runs: dict[str, Runs], greedy: bool) -> BenchRow:
    samples = runs[contender.name]
    base = runs.get(BASELINE, {})
    is_ours = contender.kind == "workbench"
    decode, call = ({name: rates(subset.values(), whole) for name, subset in runs.items()} for whole in (False, True))
    totals = Totals.of(samples.values())
    equal = [samples[k].token_ids == base[k].token_ids for k in samples if k in base]
    growth = [s.growth_bytes for s in samples.values() if s.growth_bytes is not None]
    return BenchRow(
        method=contender.name,
        title=contender.title,
        kind=contender.kind,
        promise=contender.promise,
        parameters=contender.parameters,
        prompts=len({prompt for prompt, _ in samples}),
        tau=tau_of(samples.values()),
        acceptance_rate=acceptance_of(samples.values()) if is_ours else None,
        acceptance_by_position=_by_position(samples.values()),
        **speeds(contender.name, is_ours, decode, call),
        overhead_share=totals.overhead_share if is_ours else None,
        overhead_ms_per_round=totals.ms_per_round("overhead") if is_ours else None,
        draft_ms_per_round=totals.ms_per_round("draft") if is_ours else None,
        verify_ms_per_round=totals.ms_per_round("verify") if is_ours else None,
        identical_to_autoregressive=share(sum(equal), len(equal)) if greedy else None,
        weights_mib=contender.weights_bytes / 2**20,
        growth_mib=max(growth) / 2**20 if growth else None,
        warnings=sorted({w for s in samples.values() for w in s.warnings}),
    )


def speeds(name: str, is_ours: bool, decode: Mapping[str, Rates], call: Mapping[str, Rates]) -> dict[str, Any]:
    """Return the fields of a `BenchRow` that are speeds; a ratio compares decoding with decoding, or calls with calls.

    Args:
        name: name of the contender.
        is_ours: whether the contender runs on the workbench's engine, which reports the end of prefill.
        decode: rates of decoding by contender; rates of other engines than the workbench's are ignored.
        call: rates of whole calls by contender.
    """
    fields: dict[str, Any] = dict.fromkeys((*ESTIMATES, "tokens_per_second", "hf_counterpart"))
    method_rates, plain_rates = call.get(name, {}), call.get(BASELINE, {})
    fields["call_tokens_per_second"] = _average_rate(method_rates)
    fields["call_speedup_vs_autoregressive"] = speedup(method_rates, plain_rates)
    if not is_ours:
        return fields
    fields["tokens_per_second"] = _average_rate(decode.get(name, {}))
    fields["speedup_vs_autoregressive"] = speedup(decode.get(name, {}), decode.get(BASELINE, {}))
    if HF_BASELINE not in call:
        return fields
    hf_plain = call[HF_BASELINE]
    counterpart = COUNTERPARTS.get(name, HF_BASELINE)
    counterpart = counterpart if counterpart in call else HF_BASELINE
    hf = call[counterpart]
    # use the same runs for all three ratios, so that the product of the parts is the whole
    shared = [
        key for key in method_rates if all(side.get(key, 0.0) > 0 for side in (method_rates, plain_rates, hf, hf_plain))
    ]
    plain_part = {key: plain_rates[key] / hf_plain[key] for key in shared}
    total = {key: method_rates[key] / hf[key] for key in shared}
    speculation_part = {key: total[key] / plain_part[key] for key in shared}
    parts = {"speedup_vs_hf": total, "hf_plain_part": plain_part, "hf_speculation_part": speculation_part}
    return fields | {"hf_counterpart": counterpart} | {n: estimate(group_by_prompt(part)) for n, part in parts.items()}


def _average_rate(rates_by_run: Rates) -> float | None:
    average = average_rate(rates_by_run)
    return None if average is None else average.value


def _by_position(samples: Iterable[Sample]) -> list[tuple[int, int, int]]:
    tested: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for sample in samples:
        tested.update({depth: n for depth, n, _ in sample.depths})
        accepted.update({depth: n for depth, _, n in sample.depths})
    return [(depth, tested[depth], accepted[depth]) for depth in sorted(tested)]


COLUMNS: dict[str, Callable[[BenchRow], str]] = {
    "method": lambda r: f"`{r.method}`",
    "τ": lambda r: format_value(r.tau, ".2f"),
    "accepted / tested": lambda r: format_value(r.acceptance_rate, ".2f"),
    "tokens/s, decoding": lambda r: format_value(r.tokens_per_second, ".0f"),
    "tokens/s, whole call": lambda r: format_value(r.call_tokens_per_second, ".0f"),
    "× autoregressive, decoding [95 %]": lambda r: str(r.speedup_vs_autoregressive or "–"),
    "× autoregressive, whole call [95 %]": lambda r: str(r.call_speedup_vs_autoregressive or "–"),
    "× Hugging Face, whole call [95 %]": lambda r: (
        f"{r.speedup_vs_hf} `{r.hf_counterpart}`" if r.speedup_vs_hf else "–"
    ),
    "plain decoding × speculation": lambda r: (
        f"{r.hf_plain_part.value:.2f} × {r.hf_speculation_part.value:.2f}"
        if r.hf_plain_part and r.hf_speculation_part
        else "–"
    ),
    "overhead of decoding": lambda r: format_value(r.overhead_share, ".0%"),
    "overhead, ms per round": lambda r: format_value(r.overhead_ms_per_round, ".2f"),
    "memory, MiB": lambda r: (
        format_value(r.weights_mib, ".0f")
        + ("" if r.growth_mib is None or r.weights_mib is None else f" + {r.growth_mib:.0f}")
    ),
    "same text": lambda r: format_value(r.identical_to_autoregressive, ".0%"),
}
"""Columns of a bench's display tables: title, and function of a row that returns the cell."""
