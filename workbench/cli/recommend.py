"""`workbench recommend`: choose a method for your own prompts by measurement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench.cli import checks, workloads
from workbench.cli.bench import progress_bar
from workbench.cli.loading import load
from workbench.cli.options import DEFAULT_DRAFTER, DEFAULT_TARGET, Debug, Device, Drafter, Dtype, Json, Target
from workbench.cli.stream import harmless
from workbench.core.errors import PromptError
from workbench.service.checks import check_models

if TYPE_CHECKING:
    from workbench.bench.recommend import Recommendation

TOKENS = 64
"""Default of the maximum number of new tokens per run."""


def recommend(
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="Your prompts: a JSON Lines file with a `prompt` in each line. By default one bundled "
            "prompt of each group."
        ),
    ] = None,
    last: Annotated[int, typer.Option(min=0, help="Use the prompts of your last N saved runs of this target.")] = 0,
    minutes: Annotated[
        float, typer.Option(min=0.05, max=600, help="Time limit in minutes, not counting loading.")
    ] = 3.0,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Measure these methods; repeatable. By default all exact methods that can run."),
    ] = None,
    target: Target = DEFAULT_TARGET,
    drafter: Drafter = DEFAULT_DRAFTER,
    dtype: Dtype = "auto",
    device: Device = "auto",
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Length limit of every run, in tokens; by default 64, or 48 with --kinds.")
    ] = None,
    kinds: Annotated[
        bool,
        typer.Option(
            "--kinds", help="Measure the training-free methods on each workload of `bench --suite work` instead."
        ),
    ] = False,
    per_kind: Annotated[int, typer.Option(min=1, help="With --kinds: number of prompts per workload.")] = 3,
    report: Annotated[
        bool,
        typer.Option(
            help="With --kinds: save the result of each workload on the board; an interrupted measurement resumes."
        ),
    ] = False,
    fresh: Annotated[
        bool, typer.Option(help="With --report: repeat the measurements that are already on the board.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure which method is fastest on your own prompts and this machine, and explain why.

    All methods and plain decoding take turns on the prompts, with greedy decoding, until the time is over. Methods that
    are significantly slower than the best are dropped early. Ctrl-C prints the result of the measurements so far.

    Example: workbench recommend --prompts mine.jsonl --target smollm2 --minutes 10
    """
    if last and prompts is not None:
        raise typer.BadParameter("give --prompts or --last, not both", param_hint="--last")
    if kinds:
        if last or prompts is not None:
            raise typer.BadParameter(
                "the workloads have their own prompts; leave out --prompts and --last", param_hint="--kinds"
            )
        return workloads.measure(target, device, dtype, method or (), per_kind, max_new_tokens, report, fresh, as_json)
    if report or fresh:
        raise typer.BadParameter("results are saved on a board only with --kinds", param_hint="--report")
    max_new_tokens = max_new_tokens or TOKENS
    from workbench.bench.prompts import load_prompts

    texts = [] if last else load_prompts(prompts)
    pair = check_models(target, drafter, device, dtype)
    for name in method or ():
        checks.resolve_method(name, {}, pair)
    from workbench.bench import recommend as measuring
    from workbench.bench.datasets import first_of_each_group

    saved_prompts = measuring.saved_run_prompts(target, last) if last else []
    models = load(target, drafter, device, dtype)
    if prompts is None:
        texts = first_of_each_group(texts, 1) if texts else []
    chosen_prompts = saved_prompts or [measuring.PromptIds(p.name, p.encode(models.tokenizer)) for p in texts]
    free_tokens = models.target.context - max_new_tokens
    chosen_prompts = [candidate for candidate in chosen_prompts if len(candidate.ids) <= free_tokens]
    if not chosen_prompts:
        raise PromptError(f"No prompt leaves room for {max_new_tokens} new tokens.", "Give shorter prompts.")
    chosen = measuring.candidates(models, method or ())
    with progress_bar() as bar:
        progress = (lambda spent, _, what: bar(int(spent), int(60 * minutes), what)) if bar else lambda *_: None
        result = measuring.recommend(
            models, chosen_prompts, 60 * minutes, methods=chosen, max_new_tokens=max_new_tokens, progress=progress
        )
    print(json.dumps(result.to_wire(), ensure_ascii=False) if as_json else to_markdown(result))
    if not result.complete:
        raise typer.Exit(130)


def to_markdown(recommendation: Recommendation) -> str:
    """Return the recommendation as Markdown: the answer, the command for it, and the ranking."""
    from workbench.bench.markdown import format_value, markdown_table
    from workbench.models.local_models import with_paths
    from workbench.models.machine import describe

    columns: dict[str, Any] = {
        "method": lambda c: " ".join([c.method, *(f"{k}={v}" for k, v in c.params.items())]),
        "speed-up": lambda c: c.speedup.sentence,
        "τ": lambda c: format_value(c.tau, ".2f"),
        "accepted / tested": lambda c: format_value(c.acceptance, ".0%"),
        "round / plain round": lambda c: format_value(c.round_cost, ".2f"),
        "dropped after pass": lambda c: c.left or "–",
    }
    prefix = "" if recommendation.complete else "Stopped before the time limit. "
    failures = "".join(f"{name} could not run: {harmless(reason)}\n" for name, reason in recommendation.failed.items())
    size = (
        f"{len(recommendation.prompts)} of {recommendation.asked} prompts"
        if recommendation.asked
        else f"{len(recommendation.prompts)} prompts"
    )
    limits = f"{harmless(recommendation.limits)}\n" if recommendation.limits else ""
    cost = f"{recommendation.passes} passes over the prompts, {recommendation.seconds:.0f} s"
    summary = f"{prefix}{size}, {cost}, greedy, on {describe(recommendation.machine)}."
    table = (
        f"{markdown_table(columns, recommendation.ranking, left=('speed-up',))}\n\n" if recommendation.ranking else ""
    )
    return f"{recommendation.answer}\n\n  {with_paths(recommendation.command)}\n\n{table}{failures}{limits}{summary}"
