"""Benchmark of approximate verifiers: share of right answers to sums, word problems and JSON records.

The method `draft-model` answers every problem with each of its verifiers, with the same seeds. An approximate verifier
raises τ and may lower the number of right answers. The table shows τ and right answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workbench.bench.conditions import conditions_of_models
from workbench.bench.datasets import first_of_each_group
from workbench.bench.markdown import format_interval, format_value, markdown_table
from workbench.bench.statistics import ratio_of_sums, share
from workbench.bench.study import BEGIN, JsonLines, Study, in_turn
from workbench.bench.verifiable_problems import all_problems
from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Models, Request
from workbench.methods import registry
from workbench.models.machine import describe, machine_facts
from workbench.trace import metrics

METHOD = "draft-model"
BOARD = "answers.json"


@dataclass(frozen=True, slots=True)
class Scale:
    """Size of the measurement of right answers: number of problems, temperature, length limit and seed.

    Attributes:
        per_group: number of problems per group; 0: all.
        temperature: temperature of all answers.
        tokens: length limit of an answer, in tokens.
        seed: seed of the first problem; the seed rises by 1 per problem.
    """

    per_group: int
    temperature: float
    tokens: int
    seed: int


def verifiers_of(models: Models) -> list[str]:
    """Return the names of the compared verifiers: the exact default, then each approximate one that can run."""
    method = registry.get(METHOD)
    default = method.verifier.name
    others = [v for v in method.other_verifiers if not v.exact_for and not models.unsupported_reason(v.needs)]
    return [default, *(v.name for v in others)]


def run_suite(
    models: Models,
    scale: Scale,
    progress: Callable[[str], None] = lambda words: None,
    resume: Path | None = None,
) -> dict[str, Any]:
    """Answer every problem with every verifier of `draft-model`, and count the right answers.

    Args:
        models: models with a draft model.
        scale: size of the measurement.
        progress: function that receives progress lines.
        resume: file of answers, JSON Lines, from which the same measurement continues.

    Returns:
        Plain JSON: `rows` (verifier, τ, and for each group a list with 1 per right answer and 0 per wrong one),
        `problems` (number by group), `target`, `dtype`, `temperature`, `tokens`, `command`, `machine`.
    """
    tasks = first_of_each_group(all_problems(), scale.per_group) if scale.per_group else all_problems()
    problems = {group: sum(p.group == group for p in tasks) for group in dict.fromkeys(p.group for p in tasks)}
    facts, names, engine = machine_facts(), verifiers_of(models), Engine(models, record=False)

    def answer(cell: tuple[str, int]) -> dict[str, int]:
        verifier, i = cell
        request = Request(
            tasks[i].encode(models.tokenizer),
            registry.get(METHOD).with_params(verifier=verifier),
            SamplingParams(temperature=scale.temperature),
            max_new_tokens=scale.tokens,
            seed=scale.seed + i,
        )
        trace = engine.generate(request)
        text = models.tokenizer.decode(trace.token_ids, skip_special_tokens=True)
        counts = {"emitted": metrics.count_emitted(trace.rounds), "rounds": len(trace.rounds)}
        return counts | {"right": int(tasks[i].is_right(text))}

    settings = conditions_of_models(models) | {"scale": asdict(scale), "problems": [p.prompt for p in tasks]}
    store = None if resume is None else JsonLines[dict[str, int]](resume, settings, dict, dict)
    cells, current = [(name, i) for name in names for i in range(len(tasks))], ""
    study = Study[tuple[str, int], dict[str, int]](cells, in_turn(answer), store)
    for kind, (name, _), _ in study.run():
        if kind == BEGIN and name != current:
            current = name
            progress(f"{name}: {len(tasks)} problems")
    rows = list[dict[str, Any]]()
    for name in names:
        answers = [study.results[name, i] for i in range(len(tasks))]
        right = {
            group: [a["right"] for a, p in zip(answers, tasks, strict=True) if p.group == group] for group in problems
        }
        tau = share(sum(a["emitted"] for a in answers), sum(a["rounds"] for a in answers))
        rows.append({"verifier": name, "tau": tau, "right": right})
    target = models.target_name
    command = f"workbench bench --suite answers --target {target} --max-new-tokens {scale.tokens}"
    command += f" --temperature {scale.temperature:g}" + (f" --per-group {scale.per_group}" if scale.per_group else "")
    return {
        "rows": rows,
        "problems": problems,
        "target": target,
        "dtype": str(models.target.weight_dtype).removeprefix("torch."),
        "temperature": scale.temperature,
        "tokens": scale.tokens,
        "command": f"{command} --out assets/boards/{BOARD}",
        "machine": facts,
    }  # fmt: skip


def table(report: dict[str, Any]) -> str:
    """Return a Markdown table with a row per verifier: τ, and numbers of right answers by group and in total.

    The last column is the ratio of right answers to those of the exact verifier.

    Args:
        report: result of `run_suite`.
    """
    problems: dict[str, int] = report["problems"]

    def all_of(row: dict[str, Any]) -> list[int]:
        return [answer for group in problems for answer in row["right"][group]]

    exact = all_of(report["rows"][0])
    columns: dict[str, Callable[[dict[str, Any]], Any]] = {
        "verifier": lambda row: f"`{row['verifier']}`",
        "τ": lambda row: format_value(row["tau"], ".2f"),
    }
    for group, n in problems.items():
        columns[f"{group}, of {n}"] = lambda row, group=group: sum(row["right"][group])
    columns[f"right, of {sum(problems.values())}"] = lambda row: sum(all_of(row))
    columns["× exact rule [95 %]"] = lambda row: _ratio(all_of(row), exact)
    return markdown_table(columns, report["rows"])


def _ratio(right: Sequence[int], exact: Sequence[int]) -> str:
    """Return the ratio of a verifier's right answers to those of the exact verifier as text.

    The text contains the 95 % interval if it is finite.

    Args:
        right: 1 for each right answer and 0 for each wrong answer of the verifier.
        exact: 1 for each right answer and 0 for each wrong answer of the exact verifier.
    """
    if not sum(exact):
        return format_interval(None)
    ratio = ratio_of_sums(right, exact)
    assert ratio is not None
    ends = [ratio[end] for end in ("low", "high")]
    return format_interval(
        ratio if all(end is not None and math.isfinite(end) for end in ends) else {**ratio, "low": None}
    )


def page(reports: Sequence[dict[str, Any]]) -> str:
    """Return the results of approximate verifiers as Markdown: one table of right answers per target."""
    lines = [
        "# Correct answers under approximate verifiers",
        "",
        f"Answers of the method `{METHOD}` with the exact verifier and with each approximate verifier: τ, and "
        f"the number of answers that a program judged correct. All verifiers get the same problems and seeds. "
        f"`workbench docs` writes this page.",
    ]
    for report in reports:
        lines += [
            "",
            f"## {report['target']}",
            "",
            table(report),
            "",
            f"{report['dtype']}, temperature {report['temperature']:g}, at most {report['tokens']} tokens. Made by "
            f"`{report['command']}`. Measured on {describe(report['machine'])}.",
        ]
    return "\n".join([*lines, ""])
