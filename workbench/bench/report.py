"""From samples to rows: ratios within one prompt and repeat, summarised by `workbench.trace.speedup`."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from workbench.bench.machine import describe
from workbench.bench.prompts import BenchPrompt, groups_of
from workbench.bench.sample import Contender, Sample
from workbench.trace.speedup import Estimate, by_prompt, estimate, speedup

ESTIMATES = (
    "speedup_vs_autoregressive", "call_speedup_vs_autoregressive", "speedup_vs_hf", "hf_plain_part",
    "hf_speculation_part",
)  # fmt: skip
"""Columns of a row that are an `Estimate`."""
SCHEMA_VERSION = 3
"""Of saved reports. 1 had medians with quartiles, 2 whole calls of other engines in the columns of decoding; `saved`
computes their speeds anew from their runs."""
BASELINE, HF_BASELINE = "autoregressive", "hf-generate"
COUNTERPARTS = {"draft-model": "hf-assisted", "prompt-lookup": "hf-prompt-lookup"}
"""What a method is compared with on the side of Hugging Face; every other method meets plain `generate`."""


@dataclass(slots=True)
class BenchRow:
    """One line of the table. Rates are 0 to 1, times in the unit of their name, speed-ups are ratios.

    Attributes:
        method: registry name, or `hf-…`, `llama.cpp…`.
        title: name for people.
        kind: "workbench", "hugging-face" or "llama.cpp".
        promise: what the method promises.
        parameters: values of its parameters.
        prompts: prompts measured.
        tau: tokens emitted / target verification passes, over all prompts.
        acceptance_rate: accepted / tested drafted tokens; None without drafts or where the other side does not say.
        tokens_per_second: of decoding, prefill left out: geometric mean, prompts weighing alike; None for other
            engines, which do not say when prefill ends.
        call_tokens_per_second: the same of whole calls, prefill included: every engine has it.
        speedup_vs_autoregressive: of decoding; see `workbench.trace.speedup`. None for other engines.
        call_speedup_vs_autoregressive: the same estimate of whole calls, on both sides.
        speedup_vs_hf: the same estimate of whole calls over the counterpart's; None unless measured against it.
        hf_counterpart: the row that `speedup_vs_hf` refers to.
        hf_plain_part: what plain decoding alone gives of `speedup_vs_hf`: ours over Hugging Face's plain `generate`.
        hf_speculation_part: what speculation adds: its gain over plain decoding here over the counterpart's gain there.
            The two parts multiply to `speedup_vs_hf`.
        overhead_share: wall time in no model forward / wall time from the end of prefill to the last token.
        overhead_ms_per_round: the same, in milliseconds a round.
        draft_ms_per_round: time in drafting.
        verify_ms_per_round: time in the target's verification.
        identical_to_autoregressive: share of prompts whose tokens equal the baseline's; None when sampling.
        acceptance_by_position: (depth, rounds that tested it, rounds that accepted there); [] where nobody says.
        weights_mib: weights of the models it uses, without rearranged copies.
        growth_mib: largest rise of memory during one of its runs.
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


@dataclass(slots=True)
class BenchReport:
    """Rows over all prompts and by group, with what is needed to read them.

    Attributes:
        settings: what was asked for.
        machine: where it was measured (`machine_facts`).
        rows: over all prompts.
        groups: the same by group of prompts; empty where there is one group only.
        complete: False where it was stopped.
        runs: every timed run as plain values (`SAVED`), for comparisons with other reports and for answer files.
        left_out: prompts that were not run, by the reason.
    """

    settings: dict[str, Any]
    machine: dict[str, Any]
    rows: list[BenchRow]
    groups: dict[str, list[BenchRow]]
    complete: bool = True
    runs: list[dict[str, Any]] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"schema": SCHEMA_VERSION, **asdict(self)}

    def to_json(self) -> str:
        """JSON; `saved.read_report` reads it back."""
        return json.dumps(self.to_wire(), ensure_ascii=False)

    def to_csv(self) -> str:
        """One line a row and group; an estimate has a column for each of its numbers."""
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
        ended += "".join(f"Left out {n} of {why}. " for why, n in self.left_out.items())
        parts.append(f"{ended}Measured on {describe(self.machine)}. {note}.")
        return "\n\n".join(parts) + "\n"


Runs = dict[tuple[int, int], Sample]
"""Runs of one contender by (prompt, repeat)."""


def build_rows(samples: Sequence[Sample], contenders: Sequence[Contender], greedy: bool) -> list[BenchRow]:
    """One row for each contender that was measured, in the order given."""
    runs: dict[str, Runs] = defaultdict(dict)
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


def _row(contender: Contender, runs: dict[str, Runs], greedy: bool) -> BenchRow:
    own = runs[contender.name]
    base = runs.get(BASELINE, {})
    is_ours = contender.kind == "workbench"
    decode, call = ({name: _rates(some, which) for name, some in runs.items()} for which in (_decode_rate, _call_rate))
    tau = _share(sum(len(s.token_ids) for s in own.values()), sum(s.rounds for s in own.values()))
    sums: dict[str, float] = defaultdict(float)
    for sample in own.values():
        for name, value in sample.figures.items():
            sums[name] += value
    rounds = sum(s.rounds for s in own.values())
    same = [own[k].token_ids == base[k].token_ids for k in own if k in base]
    growth = [s.growth_bytes for s in own.values() if s.growth_bytes is not None]
    return BenchRow(
        method=contender.name,
        title=contender.title,
        kind=contender.kind,
        promise=contender.promise,
        parameters=contender.parameters,
        prompts=len({prompt for prompt, _ in own}),
        tau=tau,
        acceptance_rate=_share(sums["accepted"], sums["tested"]) if is_ours else None,
        acceptance_by_position=_by_position(own.values()),
        **speeds(contender.name, is_ours, decode, call),
        overhead_share=_share(sums["overhead_s"], sums["decode_s"]) if is_ours else None,
        overhead_ms_per_round=_share(1e3 * sums["overhead_s"], rounds) if is_ours else None,
        draft_ms_per_round=_share(1e3 * sums["draft_s"], rounds) if is_ours else None,
        verify_ms_per_round=_share(1e3 * sums["verify_s"], rounds) if is_ours else None,
        identical_to_autoregressive=_share(sum(same), len(same)) if greedy and same else None,
        weights_mib=contender.weights_bytes / 2**20,
        growth_mib=max(growth) / 2**20 if growth else None,
        warnings=sorted({w for s in own.values() for w in s.warnings}),
    )


def _decode_rate(sample: Sample) -> float:
    return sample.decode_rate


def _call_rate(sample: Sample) -> float:
    return sample.call_rate


def _rates(runs: Runs, rate: Callable[[Sample], float]) -> dict[tuple[int, int], float]:
    return {key: rate(sample) for key, sample in runs.items()}


Rates = Mapping[str, Mapping[tuple[int, int], float]]
"""Tokens per second by contender, then by (prompt, repeat)."""


def speeds(name: str, is_ours: bool, decode: Rates, call: Rates) -> dict[str, Any]:
    """The fields of a `BenchRow` that are speeds. Each is of decoding or of whole calls on both of its sides.

    Args:
        name: of the contender.
        is_ours: whether it is the workbench's, so that it says when prefill ends.
        decode: rates of decoding; those of other engines are not looked at.
        call: rates of whole calls.
    """
    found: dict[str, Any] = dict.fromkeys((*ESTIMATES, "tokens_per_second", "hf_counterpart"))
    own, plain = call.get(name, {}), call.get(BASELINE, {})
    found["call_tokens_per_second"] = _typical(own)
    found["call_speedup_vs_autoregressive"] = speedup(own, plain)
    if not is_ours:
        return found
    found["tokens_per_second"] = _typical(decode.get(name, {}))
    found["speedup_vs_autoregressive"] = speedup(decode.get(name, {}), decode.get(BASELINE, {}))
    if HF_BASELINE not in call:
        return found
    theirs_plain = call[HF_BASELINE]
    counterpart = COUNTERPARTS.get(name, HF_BASELINE)
    counterpart = counterpart if counterpart in call else HF_BASELINE
    theirs = call[counterpart]
    # the same runs in all three, so that the parts multiply to the whole
    shared = [key for key in own if all(side.get(key, 0.0) > 0 for side in (own, plain, theirs, theirs_plain))]
    of_plain = {key: plain[key] / theirs_plain[key] for key in shared}
    whole = {key: own[key] / theirs[key] for key in shared}
    added = {key: whole[key] / of_plain[key] for key in shared}
    parts = {"speedup_vs_hf": whole, "hf_plain_part": of_plain, "hf_speculation_part": added}
    return found | {"hf_counterpart": counterpart} | {n: estimate(by_prompt(part)) for n, part in parts.items()}


def _typical(rates: Mapping[tuple[int, int], float]) -> float | None:
    found = estimate(by_prompt(rates))
    return None if found is None else found.value


def _by_position(samples: Iterable[Sample]) -> list[tuple[int, int, int]]:
    tested: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for sample in samples:
        tested.update({depth: n for depth, n, _ in sample.depths})
        accepted.update({depth: n for depth, _, n in sample.depths})
    return [(depth, tested[depth], accepted[depth]) for depth in sorted(tested)]


SAVED = (
    "contender", "prompt", "name", "group", "category", "question", "turn", "repeat", "tokens", "seconds",
    "decode_seconds", "rounds", "accepted", "tested", "drafted", "draft_s", "verify_s", "overhead_s", "growth_bytes",
    "steps", "token_ids",
)  # fmt: skip
"""Columns of a report's runs: what is known of the prompt, `figures` of the sample; `steps`."""


def build_runs(samples: Sequence[Sample], prompts: Sequence[BenchPrompt]) -> list[dict[str, Any]]:
    """Every sample as plain values."""
    return [_run(sample, prompts[sample.prompt]) for sample in samples]


def _run(sample: Sample, prompt: BenchPrompt) -> dict[str, Any]:
    known = {name: getattr(sample, name) for name in SAVED if name in Sample.__dataclass_fields__}
    about = {
        "name": prompt.name,
        "group": prompt.group,
        "category": prompt.category,
        "question": prompt.question,
        "turn": prompt.turn,
    }
    known |= {"tokens": len(sample.token_ids), **about, **sample.figures}
    return {name: known.get(name) for name in SAVED}


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _flat(row: BenchRow) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in asdict(row).items():
        if name in ESTIMATES:
            for part in ("value", "low", "high", "n", "prompts"):
                flat[f"{name}_{part}"] = value[part] if value else None
        elif name == "acceptance_by_position":
            flat[name] = " ".join(f"{depth}:{accepted}/{tested}" for depth, tested, accepted in value)
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
    "tokens/s, decoding": lambda r: _number(r.tokens_per_second, 0),
    "tokens/s, whole call": lambda r: _number(r.call_tokens_per_second, 0),
    "× autoregressive, decoding [95 %]": lambda r: str(r.speedup_vs_autoregressive or "–"),
    "× autoregressive, whole call [95 %]": lambda r: str(r.call_speedup_vs_autoregressive or "–"),
    "× Hugging Face, whole call [95 %]": lambda r: (
        f"{r.speedup_vs_hf} `{r.hf_counterpart}`" if r.speedup_vs_hf else "–"
    ),
    "of it plain decoding × speculation": lambda r: (
        f"{r.hf_plain_part.value:.2f} × {r.hf_speculation_part.value:.2f}"
        if r.hf_plain_part and r.hf_speculation_part
        else "–"
    ),
    "overhead of decoding": lambda r: "–" if r.overhead_share is None else f"{r.overhead_share:.0%}",
    "overhead, ms a round": lambda r: _number(r.overhead_ms_per_round, 2),
    "memory, MiB": lambda r: _memory(r),
    "same text": lambda r: "–" if r.identical_to_autoregressive is None else f"{r.identical_to_autoregressive:.0%}",
}
"""Columns of tables for people: title and how a row fills it."""


def _memory(row: BenchRow) -> str:
    if row.weights_mib is None:
        return "–"
    return f"{row.weights_mib:.0f}" + ("" if row.growth_mib is None else f" + {row.growth_mib:.0f}")


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _markdown_table(rows: Sequence[BenchRow]) -> str:
    head = [f"| {' | '.join(COLUMNS)} |", f"|---|{'--:|' * (len(COLUMNS) - 1)}"]
    return "\n".join(head + [f"| {' | '.join(fill(row) for fill in COLUMNS.values())} |" for row in rows])
