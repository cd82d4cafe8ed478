"""From samples to rows: ratios within one prompt and repetition, then their median and quartiles over prompts."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from workbench.bench.contenders import Contender, Sample
from workbench.bench.machine import describe
from workbench.bench.prompts import BenchPrompt, groups_of

BASELINE = "autoregressive"
COUNTERPARTS = {"draft-model": "hf-assisted", "prompt-lookup": "hf-prompt-lookup"}
"""What a method is compared with on the side of Hugging Face; every other method meets plain `generate`."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of a figure over prompts."""

    median: float
    q1: float
    q3: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None where there is nothing to summarise.

        Example:
            >>> Spread.of([1.0, 2.0, 3.0])
            Spread(median=2.0, q1=1.5, q3=2.5, n=3)
        """
        if not values:
            return None
        if len(values) == 1:
            return cls(values[0], values[0], values[0], 1)
        q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, q1, q3, len(values))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.q1:.2f}–{self.q3:.2f})"


@dataclass(slots=True)
class BenchRow:
    """One line of the table. Rates are 0 to 1, times in the unit of their name, speed-ups are ratios.

    Attributes:
        method: registry name, or `hf-…`.
        title: name for people.
        kind: "workbench" or "hugging-face".
        promise: what the method promises.
        parameters: values of its parameters.
        prompts: prompts measured.
        tau: tokens emitted / target verification passes, over all prompts.
        acceptance_rate: accepted / tested drafted tokens; None without drafts or where the other side does not say.
        tokens_per_second: median over prompts, prefill left out (of the whole call for Hugging Face).
        speedup_vs_autoregressive: ratio of rates within a repetition.
        speedup_per_tau: median speed-up / τ: the share of the ideal that arrives.
        speedup_vs_hf: ratio of the rates of whole calls, prefill included; None unless measured against it.
        hf_counterpart: the row that `speedup_vs_hf` refers to.
        overhead_share: wall time in no model forward / wall time from the end of prefill to the last token.
        overhead_ms_per_round: the same, in milliseconds a round.
        draft_ms_per_round: time in drafting.
        verify_ms_per_round: time in the target's verification.
        identical_to_autoregressive: share of prompts whose tokens equal the baseline's; None when sampling.
        warnings: what the self-checks said.
    """

    method: str
    title: str
    kind: str
    promise: str
    parameters: dict[str, Any]
    prompts: int
    tau: float | None
    acceptance_rate: float | None
    tokens_per_second: float
    speedup_vs_autoregressive: Spread | None
    speedup_per_tau: float | None
    speedup_vs_hf: Spread | None
    hf_counterpart: str | None
    overhead_share: float | None
    overhead_ms_per_round: float | None
    draft_ms_per_round: float | None
    verify_ms_per_round: float | None
    identical_to_autoregressive: float | None
    warnings: list[str] = field(default_factory=list)


@dataclass(slots=True)
class BenchReport:
    """Rows over all prompts and by group, with what is needed to read them."""

    settings: dict[str, Any]
    machine: dict[str, Any]
    rows: list[BenchRow]
    groups: dict[str, list[BenchRow]]
    complete: bool = True

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)

    def to_json(self) -> str:
        """Indented JSON."""
        return json.dumps(self.to_wire(), indent=2, ensure_ascii=False)

    def to_csv(self) -> str:
        """One line a row and group; spreads become three columns."""
        lines = [{"group": "all"} | _flat(row) for row in self.rows]
        lines += [{"group": name} | _flat(row) for name, rows in self.groups.items() for row in rows]
        out = io.StringIO()
        writer = csv.DictWriter(out, fieldnames=list(lines[0]) if lines else ["group"])
        writer.writeheader()
        writer.writerows(lines)
        return out.getvalue()

    def to_markdown(self, by_group: bool = False) -> str:
        """Tables for people, with the machine named under them."""
        parts = [_markdown_table(self.rows)]
        if by_group:
            parts += [f"**{name}**\n\n{_markdown_table(rows)}" for name, rows in self.groups.items()]
        note = ", ".join(f"{name} {value}" for name, value in self.settings.items() if value not in (None, ""))
        ended = "" if self.complete else "Stopped before the end. "
        parts.append(f"{ended}Measured on {describe(self.machine)}. {note}.")
        return "\n\n".join(parts) + "\n"


def build_rows(samples: Sequence[Sample], contenders: Sequence[Contender], greedy: bool) -> list[BenchRow]:
    """One row for each contender that was measured, in the order given."""
    runs: dict[str, dict[tuple[int, int], Sample]] = defaultdict(dict)
    for sample in samples:
        runs[sample.contender][sample.prompt, sample.repeat] = sample
    return [_row(c, runs, greedy) for c in contenders if c.name in runs]


def build_groups(
    samples: Sequence[Sample], contenders: Sequence[Contender], prompts: Sequence[BenchPrompt], greedy: bool
) -> dict[str, list[BenchRow]]:
    """Rows by group of prompts; empty when there is only one group."""
    names = groups_of(prompts)
    if len(names) < 2:
        return {}
    chosen = {name: [s for s in samples if prompts[s.prompt].group == name] for name in names}
    return {name: build_rows(some, contenders, greedy) for name, some in chosen.items() if some}


def _row(contender: Contender, runs: dict[str, dict[tuple[int, int], Sample]], greedy: bool) -> BenchRow:
    own = runs[contender.name]
    base = runs.get(BASELINE, {})
    plain = "hf-generate"
    counterpart = COUNTERPARTS.get(contender.name, plain)
    counterpart = counterpart if counterpart in runs else plain if plain in runs else None
    is_ours = contender.kind == "workbench"
    rate: Callable[[Sample], float] = (lambda s: s.decode_rate) if is_ours else (lambda s: s.call_rate)
    speedup = Spread.of(_ratios(own, base, rate)) if base else None
    tau = _share(sum(len(s.token_ids) for s in own.values()), sum(s.rounds for s in own.values()))
    sums: dict[str, float] = defaultdict(float)
    for sample in own.values():
        for name, value in sample.figures.items():
            sums[name] += value
    rounds = sum(s.rounds for s in own.values())
    same = [own[k].token_ids == base[k].token_ids for k in own if k in base]
    return BenchRow(
        method=contender.name,
        title=contender.title,
        kind=contender.kind,
        promise=contender.promise,
        parameters=contender.parameters,
        prompts=len({prompt for prompt, _ in own}),
        tau=tau,
        acceptance_rate=_share(sums["accepted"], sums["tested"]) if is_ours else None,
        tokens_per_second=statistics.median(_by_prompt({k: rate(s) for k, s in own.items()})),
        speedup_vs_autoregressive=speedup,
        speedup_per_tau=_share(speedup.median, tau) if speedup and tau else None,
        speedup_vs_hf=(
            Spread.of(_ratios(own, runs[counterpart], lambda s: s.call_rate)) if is_ours and counterpart else None
        ),
        hf_counterpart=counterpart if is_ours else None,
        overhead_share=_share(sums["overhead_s"], sums["decode_s"]) if is_ours else None,
        overhead_ms_per_round=_share(1e3 * sums["overhead_s"], rounds) if is_ours else None,
        draft_ms_per_round=_share(1e3 * sums["draft_s"], rounds) if is_ours else None,
        verify_ms_per_round=_share(1e3 * sums["verify_s"], rounds) if is_ours else None,
        identical_to_autoregressive=_share(sum(same), len(same)) if greedy and same else None,
        warnings=sorted({w for s in own.values() for w in s.warnings}),
    )


def _ratios(
    ours: dict[tuple[int, int], Sample], theirs: dict[tuple[int, int], Sample], rate: Callable[[Sample], float]
) -> list[float]:
    """Ratio of rates within each repetition, then the median over the repetitions of each prompt."""
    pairs = {k: rate(ours[k]) / rate(theirs[k]) for k in ours if k in theirs and theirs[k].token_ids}
    return _by_prompt(pairs)


def _by_prompt(values: dict[tuple[int, int], float]) -> list[float]:
    prompts: dict[int, list[float]] = defaultdict(list)
    for (prompt, _), value in values.items():
        prompts[prompt].append(value)
    return [statistics.median(v) for _, v in sorted(prompts.items())]


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _flat(row: BenchRow) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in asdict(row).items():
        if name in ("speedup_vs_autoregressive", "speedup_vs_hf"):
            for part in ("median", "q1", "q3"):
                flat[f"{name}_{part}"] = value[part] if value else None
        elif name == "parameters":
            flat[name] = " ".join(f"{k}={v}" for k, v in value.items())
        elif name == "warnings":
            flat[name] = " | ".join(value)
        else:
            flat[name] = value
    return flat


COLUMNS: dict[str, Callable[[BenchRow], str]] = {
    "method": lambda r: f"`{r.method}`",
    "τ": lambda r: _number(r.tau, 2),
    "accepted / tested": lambda r: _number(r.acceptance_rate, 2),
    "tokens/s": lambda r: _number(r.tokens_per_second, 0),
    "× autoregressive": lambda r: str(r.speedup_vs_autoregressive or "–"),
    "speed-up / τ": lambda r: _number(r.speedup_per_tau, 2),
    "× Hugging Face": lambda r: f"{r.speedup_vs_hf} `{r.hf_counterpart}`" if r.speedup_vs_hf else "–",
    "overhead": lambda r: "–" if r.overhead_share is None else f"{r.overhead_share:.0%}",
    "ms/round outside models": lambda r: _number(r.overhead_ms_per_round, 2),
    "same text": lambda r: "–" if r.identical_to_autoregressive is None else f"{r.identical_to_autoregressive:.0%}",
}
"""Columns of tables for people: title and how a row fills it."""


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _markdown_table(rows: Sequence[BenchRow]) -> str:
    head = [f"| {' | '.join(COLUMNS)} |", f"|---|{'--:|' * (len(COLUMNS) - 1)}"]
    return "\n".join(head + [f"| {' | '.join(fill(row) for fill in COLUMNS.values())} |" for row in rows])
