"""The board of drafting heads: all heads trained for one target, on the same prompts, compared with plain decoding.

The facts about a head's training are in its folder. The board's rows contain the runs; every metric is computed from
the runs when it is displayed. A target's heads are measured in one session, in turns on each prompt, so that all heads
run on one machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.bench import board, interleaved_measurement
from workbench.bench.contenders import EngineContender
from workbench.bench.lanes import BASELINE
from workbench.bench.markdown import format_interval, format_value
from workbench.bench.markdown import markdown_table as table
from workbench.bench.measured_speeds import head_runs, speedup_of_runs
from workbench.bench.sample import Sample, counts_by_prompt
from workbench.bench.statistics import ratio_of_sums
from workbench.core.sampling import SamplingParams
from workbench.decoders import ConfiguredMethod
from workbench.engine import Engine, Models
from workbench.methods import registry
from workbench.models.machine import describe
from workbench.models.weight_files import count_weights

BOARD, SUITE = "heads", "on-policy"
"""Name of the board of drafting heads, and key in `Method.suites` under which methods declare how heads are measured.

The last declared setting is used, since it drafts a tree if the method can.
"""
TOKENS, WARM_UP, N_POSITIONS = 64, 12, 5
"""Measurement of drafting heads: tokens per run, warm-up tokens per method, and number of shown draft positions."""
DEFAULT_BATCH_SIZE = 16
"""Answers per training step if a head's options do not contain it: the default of the recipe `chat-heads`."""
COMMAND = "workbench heads table --report --target"

Row = dict[str, Any]


def settings_by_head(models: Models) -> dict[str, ConfiguredMethod]:
    """Return the method and parameters with which each head of the models is measured, by kind of head.

    The first method that declares a setting for a kind of head is used.
    """
    settings: dict[str, ConfiguredMethod] = {}
    for method in registry.methods():
        rows = method.suites.get(SUITE, ())
        for kind in (kind for kind in method.needs if kind in models.heads and rows):
            settings.setdefault(kind, method.with_params(**rows[-1].params))
    return settings


def measure(
    models: Models,
    prompts: Mapping[str, Sequence[int]],
    tokens: int = TOKENS,
    progress: interleaved_measurement.Progress | None = None,
) -> Row | None:
    """Measure a target's drafting heads; return the row for the heads board, or None if Ctrl-C ended the measurement.

    Args:
        models: the target with its heads.
        prompts: token ids by name.
        tokens: length limit of every run.
        progress: function that is called before every run.
    """
    engine, settings = Engine(models, record=False), settings_by_head(models)
    plain, greedy = registry.get(BASELINE).with_params(), SamplingParams(temperature=0.0)
    lanes = [EngineContender(engine, plain, greedy, tokens)]
    lanes += [EngineContender(engine, setting, greedy, tokens, label=kind) for kind, setting in settings.items()]
    samples, complete = interleaved_measurement.measure(
        lanes, list(prompts.values()), 1, progress, warm_up=1,
        warm_up_contenders=[lane.shortened(WARM_UP) for lane in lanes],
    )  # fmt: skip
    if not complete:
        return None
    return {
        "target": models.target_name, "dtype": str(models.target.weight_dtype).removeprefix("torch."), "tokens": tokens,
        "prompts": list(prompts), "plain": counts_by_prompt(samples, BASELINE),
        "heads": {
            lane.name: _training_facts(models.heads[lane.name].folder) | _drafting_figures(samples, lane.name)
            | {"method": lane.configured.name, "params": lane.changed_parameters,
               "runs": counts_by_prompt(samples, lane.name)}
            for lane in lanes[1:]
        },
    }  # fmt: skip


def _drafting_figures(samples: Sequence[Sample], name: str) -> dict[str, Any]:
    """Return sums over the samples of the contender `name`: drafting seconds, drafted tokens, and rounds by position.

    Rounds are given for each draft position as [rounds that tested a token there, rounds that accepted one].
    """
    selected, positions = [s for s in samples if s.contender == name], dict[int, list[int]]()
    for depth, n_tested, n_accepted in (each for s in selected for each in s.depths):
        counts = positions.setdefault(depth, [0, 0])
        positions[depth] = [counts[0] + n_tested, counts[1] + n_accepted]
    sums = {part: sum(s.figures.get(part, 0.0) for s in selected) for part in ("draft_s", "drafted")}
    return {"draft_s": round(sums["draft_s"], 6), "drafted": int(sums["drafted"]),
            "places": [positions[depth] for depth in sorted(positions)]}  # fmt: skip


def _training_facts(folder: Path) -> dict[str, Any]:
    """Return a head's size and training metrics from its folder; None values if no training metrics are saved."""
    size = count_weights(folder / "model.safetensors")
    figures = folder / "training.json"
    training = json.loads(figures.read_text(encoding="utf-8")) if figures.is_file() else {}
    answers = (
        training["steps"] * int(training["options"].get("rows", DEFAULT_BATCH_SIZE)) if "curve" in training else None
    )
    return {
        "parameters": size,
        "steps": training.get("steps"),
        "trained_on": training.get("tokens"),
        "answers": answers,
    }


def save(row: Row) -> None:
    """Save the row of a target to the board of drafting heads."""
    board.save(BOARD, row["target"], row, markdown)


# -- figures of the rows -----------------------------------------------------------------------------------------------


def figures(row: Row) -> list[dict[str, Any]]:
    """Return the metrics of each head on the board, the fastest first.

    Each entry has kind, method, params, parameters, steps, answers and trained_on (tokens), ms (per drafted token),
    places (acceptance by position), and tau and speedup with 95 % intervals.
    """
    plain = head_runs(row, row["plain"])
    entries: list[dict[str, Any]] = []
    for kind, head in row["heads"].items():
        runs = head_runs(row, head["runs"])
        estimate = speedup_of_runs(runs, plain)
        entries.append({
            **{name: head[name] for name in ("method", "params", "parameters", "steps", "trained_on")},
            "answers": head.get("answers"),
            "kind": kind,
            "ms": 1e3 * head["draft_s"] / head["drafted"] if head["drafted"] else None,
            "places": [n_accepted / n_tested if n_tested else None for n_tested, n_accepted in head["places"]],
            "tau": ratio_of_sums([run[0] for run in runs.values()], [run[1] for run in runs.values()]),
            "speedup": estimate and estimate.to_wire(),
        })  # fmt: skip
    return sorted(entries, key=lambda each: -(each["speedup"] or {"value": 0.0})["value"])


def _per_group(row: Row) -> str:
    return f" --per-group {row['per_group']}" if "per_group" in row else ""


def markdown(rows: Mapping[str, Row]) -> str:
    """Return the board of drafting heads as Markdown: a table per target."""
    lines = [
        "# Comparison of drafting heads",
        "",
        "All heads that were trained for a target, on the same bundled prompts, greedy. No head was trained on these "
        "prompts; τ in a head's own model card is higher, because the held-out prompts there resemble its "
        "training data. Each head is measured with the largest draft of its method: a tree, or a chain if the method "
        "has no trees. Answers read: number of answers used in training, repetitions included; the head's model card "
        "says how many of them the target generated. Tokens counted: tokens of these answers; some recipes "
        "include prompts or padding. ms: drafting time per drafted token. Positions: acceptance rate at each "
        "position of the draft, over the rounds that reached the position. τ: tokens per pass of the target; "
        "speed-up: over plain decoding of the same prompt, geometric mean; both with their 95 % interval over "
        "prompts. A tree of 16 nodes and its root are 17 tokens, and verifying 17 tokens takes longer on a CPU "
        "than verifying one. This board therefore compares heads only; the claims board has each method's gain "
        "with fewer tokens per round. "
        "Generated by `workbench heads table --report --target NAME`.",
    ]
    for row in rows.values():
        columns: dict[str, Callable[[dict[str, Any]], str]] = {
            "head": lambda e: f"`{e['kind']}`",
            "method": lambda e: " ".join([f"`{e['method']}`", *(f"{k}={v}" for k, v in e["params"].items())]),
            "parameters": lambda e: f"{e['parameters']:,}",
            "answers read": lambda e: format_value(e["answers"], ","),
            "tokens counted": lambda e: (
                "–" if e["trained_on"] is None else f"{e['trained_on']:,} in {e['steps']:,} steps"
            ),
            "ms": lambda e: format_value(e["ms"], ".2f"),
            f"positions 1 to {N_POSITIONS}": lambda e: " · ".join(
                format_value(p, ".0%") for p in e["places"][:N_POSITIONS]
            ),
            "τ": lambda e: format_interval(e["tau"]),
            "speed-up": lambda e: format_interval(e["speedup"]),
        }
        lines += [
            "", f"## On {row['target']}", "", table(columns, figures(row)), "",
            f"{len(row['prompts'])} prompts, up to {row['tokens']} tokens each, {row['dtype']}; "
            f"{board.commit_of(row)}. Measured on {describe(row['machine'])}. `{COMMAND} {row['target']}"
            f"{_per_group(row)}`",
        ]  # fmt: skip
    return "\n".join(lines) + "\n"
