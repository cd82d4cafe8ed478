"""The workload board: speed-up of every training-free method on each kind of work (workload), for each measured target.

A kind of work on a target is one row, measured in one session: plain decoding and all methods take turns on its
prompts. The runs themselves are saved; `workbench.bench.statistics` computes τ and speed-ups from them for display. A
stopped measurement loses the runs of the current kind of work, with which the next measurement starts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workbench.bench import board, interleaved_measurement, workloads
from workbench.bench.contenders import EngineContender
from workbench.bench.lanes import BASELINE
from workbench.bench.markdown import format_interval, format_value
from workbench.bench.markdown import markdown_table as table
from workbench.bench.measured_speeds import speedup_of_runs, workload_runs
from workbench.bench.prompts import BenchPrompt
from workbench.bench.sample import counts_by_prompt
from workbench.bench.statistics import ratio_of_sums
from workbench.bench.study import Rows, Study, in_turn
from workbench.core.errors import PromptError
from workbench.core.sampling import SamplingParams
from workbench.decoders import ConfiguredMethod
from workbench.engine import Engine, Models
from workbench.methods import method_info, registry
from workbench.models.machine import describe, describe_hardware, machine_facts
from workbench.trace.speedup import FASTER

BOARD = "work"
TOKENS, WARM_UP = 48, 12
"""Length of a run on the workload board, and length of a method's warm-up, in tokens."""
COMMAND = "workbench recommend --kinds --report --target"

Row = dict[str, Any]
Progress = Callable[[int, int, str], None]
"""Type of a function that is called with number of finished kinds of work, number of all kinds, and current run."""


def training_free() -> list[str]:
    """Return the names of the training-free methods, which need neither a draft model nor a trained head."""
    return [method.name for method in method_info.methods() if method.is_training_free]


def measure(
    models: Models,
    methods: Sequence[ConfiguredMethod],
    suite: Mapping[str, Sequence[BenchPrompt]],
    max_new_tokens: int = TOKENS,
    finished_rows: Mapping[str, Row] | None = None,
    save_row: Callable[[str, Row], None] = lambda key, row: None,
    progress: Progress = lambda *_: None,
) -> tuple[dict[str, Row], bool]:
    """Measure all methods on each kind of work (workload), for the workload board.

    Args:
        models: models with the target.
        methods: methods to measure besides plain decoding.
        suite: prompts by kind; those that do not fit the context are left out, with their number in the row.
        max_new_tokens: length limit of every run.
        finished_rows: rows of kinds that need not be measured again, by key.
        save_row: function that is called with each finished row.
        progress: function that is called before every run.

    Returns:
        rows by key, and whether the measurement is complete: Ctrl-C ends it early.
    """
    engine, plain = Engine(models, record=False), registry.get(BASELINE).with_params()
    lanes = [EngineContender(engine, c, SamplingParams(temperature=0.0), max_new_tokens) for c in (plain, *methods)]
    short = [lane.shortened(WARM_UP) for lane in lanes]
    is_warm, limit = False, models.target.context - max_new_tokens

    def measure_kind(kind: str) -> Row:
        nonlocal is_warm
        ids = {p.name: p.encode(models.tokenizer) for p in suite[kind]}
        fitting = {name: token_ids for name, token_ids in ids.items() if len(token_ids) <= limit}
        if not fitting:
            raise PromptError(
                f"No prompt of the workload {kind} leaves room for {max_new_tokens} new tokens.",
                "Lower the length limit (--max-new-tokens).",
            )

        def tell(_: int, __: int, what: str) -> None:
            progress(list(suite).index(kind), len(suite), f"{kind} · {what}")

        inputs, facts = list(fitting.values()), machine_facts()
        samples, complete = interleaved_measurement.measure(
            lanes, inputs, 1, tell, warm_up=int(not is_warm), warm_up_contenders=short
        )
        if not complete:
            raise KeyboardInterrupt
        is_warm = True
        row_facts = {
            "kind": kind,
            "target": models.target_name,
            "dtype": str(models.target.weight_dtype).removeprefix("torch."),
        }
        return row_facts | {
            "tokens": max_new_tokens, "prompts": list(fitting), "left_out": len(ids) - len(fitting),
            "methods": {
                lane.name: {"params": lane.changed_parameters, "runs": counts_by_prompt(samples, lane.name)}
                for lane in lanes
            },
            "date": facts["date"], "commit": board.commit(), "machine": facts,
        }  # fmt: skip

    def key(kind: str) -> str:
        return key_of(kind, models.target_name)

    study = Study[str, Row](list(suite), in_turn(measure_kind), Rows(key, finished_rows or {}, save_row))
    with contextlib.suppress(KeyboardInterrupt):
        for _ in study.run():
            pass
    return {key(kind): study.results[kind] for kind in suite if kind in study.results}, study.is_complete


def key_of(kind: str, target: str) -> str:
    """Return the key under which the workload board saves the row of a kind of work on a target."""
    return f"{kind} on {target}"


def save(key: str, row: Row) -> None:
    """Save the row of a kind of work on a target to the workload board."""
    board.save(BOARD, key, row, lambda saved: markdown(targets(saved)))


def reusable_rows(
    saved_rows: Mapping[str, Row], target: str, dtype: str, names: Sequence[str], prompts: Mapping[str, Sequence[str]],
    tokens: int,
) -> dict[str, Row]:  # fmt: skip
    """Return a target's saved rows of the workload board that have the same settings, commit and machine as this run.

    These rows need no new measurement.

    Args:
        saved_rows: rows of the board.
        target: name of the target.
        dtype: number format of the target.
        names: methods that would be measured.
        prompts: names of the prompts that would be used, by kind.
        tokens: length limit of every run.
    """
    machine, commit = describe_hardware(machine_facts()), board.commit()
    required = {"target": target, "dtype": dtype, "tokens": tokens, "commit": commit}
    return {
        key: row
        for key, row in saved_rows.items()
        if all(row.get(name) == value for name, value in required.items())
        and describe_hardware(row["machine"]) == machine
        and set(row["methods"]) == {BASELINE, *names}
        and set(row["prompts"]) <= set(prompts.get(row["kind"], ()))
        and len(row["prompts"]) + row["left_out"] == len(prompts[row["kind"]])
    }


# -- figures of the rows -----------------------------------------------------------------------------------------------


def targets(saved_rows: Mapping[str, Row] | None = None) -> list[dict[str, Any]]:
    """Return the workload board: an entry for each target, with its methods ordered by speed over all kinds of work.

    Each entry has target, dtype, tokens, prompts (per kind), kinds (name → description), methods (method, title,
    params, `all`, and `cells`: speedup and tau by kind), best (method by kind; None where no method is faster than
    plain decoding), and date, commits and machine of the measurement.

    Args:
        saved_rows: the saved rows; by default those of the repository.
    """
    rows = list((board.read(BOARD) if saved_rows is None else saved_rows).values())
    titles = {method.name: method.title for method in method_info.methods()}
    names = dict.fromkeys(row["target"] for row in rows)
    return [_target([row for row in rows if row["target"] == name], titles) for name in names]


def _target(rows: Sequence[Row], titles: Mapping[str, str]) -> dict[str, Any]:
    by_kind = {row["kind"]: row for row in sorted(rows, key=lambda row: list(workloads.KINDS).index(row["kind"]))}
    names = [name for name in dict.fromkeys(n for row in rows for n in row["methods"]) if name != BASELINE]
    methods = [_method(name, titles.get(name, name), by_kind) for name in names]
    methods.sort(key=lambda m: -m["all"]["speedup"]["value"] if m["all"]["speedup"] else 0.0)
    newest = max(rows, key=lambda row: row["date"])
    return {
        "target": newest["target"], "dtype": newest["dtype"], "tokens": newest["tokens"],
        "prompts": max(len(row["prompts"]) for row in rows),
        "kinds": {kind: workloads.KINDS[kind] for kind in by_kind},
        "methods": methods, "best": {kind: _best(methods, kind) for kind in by_kind},
        "date": newest["date"], "commits": sorted({board.commit_of(row) for row in rows}),
        "machine": describe(newest["machine"]), "command": f"{COMMAND} {newest['target']}",
    }  # fmt: skip


def _method(name: str, title: str, own: Mapping[str, Row]) -> dict[str, Any]:
    with_method = {kind: row for kind, row in own.items() if name in row["methods"]}
    params = next(iter(with_method.values()))["methods"][name]["params"]
    cells = {kind: _cell(name, {kind: row}) for kind, row in with_method.items()}
    return {"method": name, "title": title, "params": params, "all": _cell(name, with_method), "cells": cells}


def _cell(name: str, rows: Mapping[str, Row]) -> dict[str, Any]:
    """Return a method's speed-up over plain decoding, paired by prompt, and its τ, over one or more kinds of work."""
    runs, plain_runs = (workload_runs(rows.values(), side) for side in (name, BASELINE))
    ratio = speedup_of_runs(runs, plain_runs)
    tau = ratio_of_sums([run[0] for run in runs.values()], [run[1] for run in runs.values()])
    return {"speedup": ratio and ratio.to_wire() | {"verdict": ratio.verdict}, "tau": tau}


def _best(methods: Sequence[dict[str, Any]], kind: str) -> str | None:
    values = {m["method"]: s["value"] for m in methods if (s := m["cells"].get(kind, {}).get("speedup"))}
    best = max(values, key=lambda name: values[name], default=None)
    return best if best is not None and values[best] > 1 else None


def markdown(entries: Sequence[dict[str, Any]]) -> str:
    """Return the workload board as Markdown: a table per target, with a column per kind of work."""
    lines = [
        "# Choosing a method for your workload",
        "",
        "Every method that needs no model but the target, on each workload. Each cell has the speed-up over "
        "plain decoding of the same prompt (geometric mean over prompts with its 95 % Student interval) and τ, "
        "the number of tokens per pass of the target. Bold: the fastest method of a column, if it is faster "
        "than plain decoding; as the best of many, its measured speed-up is likely too high. ✓: the whole "
        "interval lies above 1. All runs are greedy. Methods that support the policy `planned`, which plans "
        "drafts from measured costs, use it. `workbench bench --suite WORKLOAD` has the same prompts; no "
        "bundled model was trained on them. Generated by `workbench recommend "
        "--kinds --report --target NAME`, which continues after an interruption; `workbench recommend` measures your "
        "own prompts.",
    ]
    for entry in entries:
        columns: dict[str, Callable[[dict[str, Any]], str]] = {
            "method": lambda m: f"`{m['method']}`",
            "all kinds": lambda m: _words(m["all"]),
        }
        for kind, title in entry["kinds"].items():
            columns[title] = lambda m, kind=kind, best=entry["best"]: _words(
                m["cells"].get(kind), best[kind] == m["method"]
            )
        commits = ", ".join(entry["commits"])
        lines += [
            "", f"## On {entry['target']}", "", table(columns, entry["methods"]), "",
            f"{entry['prompts']} prompt{'s' * (entry['prompts'] > 1)} per workload, up to {entry['tokens']} "
            f"tokens each, "
            f"{entry['dtype']}; {commits}. Measured on {entry['machine']}. `{entry['command']}`",
        ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _words(cell: dict[str, Any] | None, best: bool = False) -> str:
    if not cell or not cell["speedup"]:
        return "–"
    tau = format_value(cell["tau"] and cell["tau"]["value"], ".2f")
    text = format_interval(cell["speedup"]) + (" ✓" if cell["speedup"]["verdict"] == FASTER else "")
    return f"{f'**{text}**' if best else text} τ {tau}"
