"""Report of a bench: table rows over all prompts and by group of prompts, and all timed runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from workbench.bench.markdown import markdown_table
from workbench.bench.prompts import BenchPrompt
from workbench.bench.rows import COLUMNS, ESTIMATES, BenchRow
from workbench.bench.sample import Sample
from workbench.bench.tables import as_bytes
from workbench.models.machine import describe

SCHEMA_VERSION = 3
"""Version of saved reports. Version 1 had medians with quartiles instead of means with confidence intervals. In version
2, the decoding columns of other engines had the speeds of whole calls, with prefill; in version 3 they are empty.
`report_files` computes the speeds of older versions again from their runs."""


@dataclass(slots=True)
class BenchReport:
    """Report of a bench: table rows over all prompts and by group of prompts, settings, machine and runs.

    Attributes:
        settings: settings of the bench.
        machine: the machine (`machine_facts`).
        rows: one row per method, over all prompts.
        groups: rows over the prompts of a group, by group; empty if there is only one group.
        complete: False if the measurement was stopped.
        runs: every timed run as plain values (`RUN_COLUMNS`), for comparisons with other reports and for answer files.
        left_out: number of prompts that were not run, by reason.
    """

    settings: dict[str, Any]
    machine: dict[str, Any]
    rows: list[BenchRow]
    groups: dict[str, list[BenchRow]]
    complete: bool = True
    runs: list[dict[str, Any]] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)

    def to_wire(self) -> dict[str, Any]:
        """Return the bench report as plain JSON."""
        return {"schema": SCHEMA_VERSION, **asdict(self)}

    def to_json(self) -> str:
        """Return the bench report as JSON text, which `report_files.read_report` reads."""
        return json.dumps(self.to_wire(), ensure_ascii=False)

    def to_csv(self) -> str:
        """Return the bench report as CSV, one line per row and group, with a column for each number of an estimate."""
        lines = [{"group": "all"} | _flat(row) for row in self.rows]
        lines += [{"group": name} | _flat(row) for name, rows in self.groups.items() for row in rows]
        return as_bytes(lines, "csv").decode()

    def to_markdown(self, by_group: bool = False) -> str:
        """Return the bench report as Markdown: its tables, then machine and settings.

        Args:
            by_group: whether to add a table for each group of prompts.
        """
        parts = [markdown_table(COLUMNS, self.rows)]
        if by_group:
            parts += [f"**{name}**\n\n{markdown_table(COLUMNS, rows)}" for name, rows in self.groups.items()]
        note = ", ".join(f"{name} {value}" for name, value in self.settings.items() if value not in (None, ""))
        remarks = "" if self.complete else "Stopped before the end. "
        for key, n in self.left_out.items():
            group, _, reason = key.partition(", ")
            remarks += f"Prompts left out of the group {group}: {n} ({reason}). "
        parts.append(f"{remarks}Measured on {describe(self.machine)}. {note}.")
        return "\n\n".join(parts) + "\n"


RUN_COLUMNS = (
    "contender", "prompt", "name", "group", "category", "question", "turn", "repeat", "tokens", "seconds",
    "decode_seconds", "rounds", "accepted", "tested", "drafted", "draft_s", "verify_s", "overhead_s", "growth_bytes",
    "steps", "token_ids",
)  # fmt: skip
"""Columns of the runs in a bench report: the prompt, the run's counts and times, and tokens per round (`steps`)."""


def build_runs(samples: Sequence[Sample], prompts: Sequence[BenchPrompt]) -> list[dict[str, Any]]:
    """Return every timed run of a bench as a row of plain values with the columns `RUN_COLUMNS`."""
    return [_run(sample, prompts[sample.prompt]) for sample in samples]


def _run(sample: Sample, prompt: BenchPrompt) -> dict[str, Any]:
    values = {name: getattr(sample, name) for name in RUN_COLUMNS if name in Sample.__dataclass_fields__}
    prompt_facts = {
        "name": prompt.name,
        "group": prompt.group,
        "category": prompt.category,
        "question": prompt.question,
        "turn": prompt.turn,
    }
    values |= {"tokens": len(sample.token_ids), **prompt_facts, **sample.figures}
    return {name: values.get(name) for name in RUN_COLUMNS}


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
