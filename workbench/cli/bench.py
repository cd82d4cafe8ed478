"""`workbench bench`: methods side by side, measured honestly."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from workbench.cli.loading import load
from workbench.cli.options import (
    DEFAULT_DRAFTER,
    DEFAULT_TARGET,
    Debug,
    Device,
    Drafter,
    Dtype,
    Json,
    Seed,
    Settings,
    Target,
    Temperature,
    TopK,
    TopP,
    parse_settings,
)
from workbench.core.errors import UnknownNameError, WorkbenchError


class Against(str, Enum):
    """Whom to compare with."""

    hf = "hf"
    hf_stock = "hf-stock"


class Suite(str, Enum):
    """What is measured."""

    prompts = "prompts"
    acceptance = "acceptance"


def bench(
    method: Annotated[
        list[str] | None, typer.Option(help="A method to measure; repeat for more. By default all but simulations.")
    ] = None,
    settings: Settings = None,
    prompts: Annotated[Path | None, typer.Option(help="JSON lines with `prompt`; the bundled set by default.")] = None,
    group: Annotated[list[str] | None, typer.Option(help="Only these groups of prompts, for example copy.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Only the first so many prompts; 0 takes all.")] = 0,
    suite: Annotated[
        Suite, typer.Option(help="prompts, or drafters of forced acceptance against Hugging Face.")
    ] = Suite.prompts,
    against: Annotated[
        Against | None,
        typer.Option(
            help="Also measure Hugging Face's generate: hf on the same model objects, hf-stock on unpacked ones."
        ),
    ] = None,
    target: Target = DEFAULT_TARGET,
    drafter: Drafter = DEFAULT_DRAFTER,
    dtype: Dtype = "auto",
    drafter_dtype: Annotated[str, typer.Option(help="Number format of the drafter.")] = "auto",
    device: Device = "auto",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Length limit of every generation, in tokens.")] = 128,
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions of every method and prompt.")] = 3,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    depth: Annotated[int, typer.Option(min=1, help="Draft length of the suite `acceptance`, in tokens.")] = 5,
    out: Annotated[Path | None, typer.Option(help="Also write the report here: .json, .csv or .md.")] = None,
    by_group: Annotated[bool, typer.Option(help="Show a table for each group of prompts too.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure speed, acceptance and overhead, interleaved with plain decoding, prompt by prompt.

    Speed-ups are ratios within one repetition, given as the median over prompts with quartiles. Ctrl-C keeps what is
    done. `--set NAME=VALUE` applies to every method that has the parameter, `--set METHOD.NAME=VALUE` to one.
    """
    from workbench.bench.prompts import load_prompts
    from workbench.bench.suites import Plan, bench_forced_acceptance, bench_methods
    from workbench.core.sampling import SamplingParams
    from workbench.methods import registry

    chosen = [p for p in load_prompts(prompts) if not group or p.group in group]
    chosen = chosen[:limit] if limit else chosen
    if not chosen:
        raise WorkbenchError(f"No prompt belongs to {', '.join(group or [])}.", "Leave --group out to use all.")
    if out is not None and out.suffix not in (".json", ".csv", ".md"):
        raise typer.BadParameter("the name must end in .json, .csv or .md", param_hint="--out")
    configured = _configure([registry.get(n) for n in (method or registry.names())], parse_settings(settings))
    sampling = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    plan = Plan(
        max_new_tokens, repeats, sampling, seed, against_hf=against is not None, stock=against is Against.hf_stock
    )
    models = load(target, drafter, device, dtype, drafter_dtype)
    if not method:
        configured = [c for c in configured if c.promise != "simulation" and not models.why_not(c.method.needs)]
    with _progress() as progress:
        if suite is Suite.acceptance:
            report = bench_forced_acceptance(models, chosen, plan, depth, progress=progress)
        else:
            report = bench_methods(models, configured, chosen, plan, progress)
    written = {".json": report.to_json, ".csv": report.to_csv, ".md": lambda: report.to_markdown(by_group=True)}
    if out is not None:
        out.write_text(written[out.suffix](), encoding="utf-8")
    if as_json:
        print(report.to_json())
    else:
        print(report.to_markdown(by_group or suite is Suite.acceptance))
    if not report.complete:
        raise typer.Exit(130)


def _configure(methods: list[Any], settings: dict[str, str]) -> list[Any]:
    """Each method with the settings that concern it."""
    used: set[str] = set()
    found = []
    for method in methods:
        values = {}
        for key, value in settings.items():
            scope, dot, name = key.rpartition(".")
            if (dot and scope == method.name) or (not dot and name in method.params):
                values[name] = value
                used.add(key)
        found.append(method.with_params(**values))
    for key in settings:
        if key not in used:
            known = {name for method in methods for name in method.params}
            raise UnknownNameError.of("parameter", key, known)
    return found


class _progress:
    """A progress bar on standard error; nothing where that is not a terminal."""

    def __enter__(self) -> Any:
        if not sys.stderr.isatty():
            return None
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            refresh_per_second=2,
        )
        self.bar.start()
        task = self.bar.add_task("starting", total=None)
        return lambda done, total, what: self.bar.update(task, completed=done, total=total, description=what)

    def __exit__(self, *_: object) -> None:
        if hasattr(self, "bar"):
            self.bar.stop()
