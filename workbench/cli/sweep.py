"""`workbench sweep`: measure a grid of values of one or two settings, and compare each with plain decoding."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from workbench.cli import checks
from workbench.cli.bench import progress_bar
from workbench.cli.options import (
    DEFAULT_TARGET,
    ApiKey,
    Connect,
    Debug,
    Device,
    Dtype,
    Json,
    Method,
    Seed,
    Settings,
    Target,
    check_key,
    parse_settings,
    refuse_server_options,
)
from workbench.core.errors import ParameterError
from workbench.methods.choice import PREFERRED
from workbench.service.checks import check_models

FORMATS = (".json", ".csv", ".parquet")


def sweep(
    axis: Annotated[
        list[str] | None,
        typer.Option(
            help="Axis of the sweep: NAME=VALUE,VALUE,… or NAME=1..6; up to two axes. NAME: a method's "
            "parameter, method, drafter, target, prompts (groups), max_new_tokens or seed. Separate values that "
            "contain commas with ';'."
        ),
    ] = None,
    method: Method = None,
    settings: Settings = None,
    prompt: Annotated[list[str] | None, typer.Option(help="Prompt: a text to continue; repeatable.")] = None,
    group: Annotated[list[str] | None, typer.Option(help="Use bundled prompts of this group; repeatable.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of prompts of each group.")] = 2,
    repeats: Annotated[int, typer.Option(min=1, help="Number of runs of each prompt in each cell.")] = 2,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Length limit of every generation, in tokens.")] = 64,
    seed: Seed = 0,
    target: Target = DEFAULT_TARGET,
    drafter: Annotated[str | None, typer.Option(help="Draft model; by default the target's own.")] = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    workers: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of worker processes; with more than one, they compete for the CPU, "
            "which lengthens measured times.",
        ),
    ] = 1,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Measure on a Ray cluster: its address, auto (find a running cluster), or local (start one here).",
        ),
    ] = None,
    ray_gpus: Annotated[float, typer.Option(min=0, help="Number of GPUs per cell on the Ray cluster.")] = 0,
    connect: Connect = None,
    api_key: ApiKey = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for finished cells and their traces. A cell already measured under the same conditions "
            "(dtype, device, machine, weights, versions) is reused."
        ),
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="Also write a table with a row per cell: .csv, .parquet or .json.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure a grid of settings. With --out, a sweep that was stopped or killed can be resumed.

    Example: workbench sweep --axis depth=1..6 --axis temperature=0,0.7 --group stories --out sweep
    """
    from workbench.bench.sweep import Sweep, SweepFolder, run

    if export is not None and export.suffix not in FORMATS:
        raise typer.BadParameter(f"the name must end in {', '.join(FORMATS)}", param_hint="--export")
    check_key(connect, api_key)
    refuse_server_options(connect, device=(device, "auto"), dtype=(dtype, "auto"))
    if not axis and out is None:
        raise ParameterError(
            "No axis was given.", "Give an axis, for example --axis depth=1..6, or the folder of a sweep with --out."
        )
    checks.check_output_file(export, "export")
    checks.check_output_folder(out, "out")
    if axis and connect is None:
        pair = check_models(target, drafter or "auto", device, dtype)
        if method is None and not any(a.strip().startswith(("method", "drafter", "target")) for a in axis):
            method = checks.resolve_method(None, {}, pair)
    if axis:
        numbers = {"limit": limit, "max_new_tokens": max_new_tokens, "seed": seed, "repeats": repeats}
        texts = {"prompts": tuple(prompt or ()), "group": tuple(group or ())}
        names = {"method": method or PREFERRED[0], "target": target, "drafter": drafter}
        grid = Sweep.of(axis, params=parse_settings(settings), **names, **texts, **numbers)
    else:
        assert out is not None
        grid = SweepFolder(out).sweep
    backend: dict[str, Any] = {"device": device, "dtype": dtype}
    last: Any = None
    with progress_bar() as bar:
        for last in run(grid, create_workers(connect, api_key, workers, ray, ray_gpus, backend), out):
            if bar is not None:
                bar(last.done, last.total, last.text)
    if export is not None:
        write(last, export)
    print(
        json.dumps(last.to_wire(everything=True), ensure_ascii=False, indent=2) if as_json else to_markdown(last, out)
    )
    if not last.complete:
        raise typer.Exit(130)


def create_workers(
    connect: str | None, api_key: str | None, workers: int, ray: str | None, gpus: float, backend: dict[str, Any]
) -> Any:
    """Return the workers that measure a sweep: processes on this machine, a Ray cluster, or a running app."""
    if connect is not None:
        from workbench.bench.sweep import backend_workers
        from workbench.cli.loading import connect_to_app

        return backend_workers(connect_to_app(connect, api_key))
    if ray is not None:
        from workbench.service.ray_workers import make_ray_workers

        return make_ray_workers(ray, gpus=gpus, **backend)
    from workbench.service.workers import processes

    return processes(workers, **backend)


def write(update: Any, path: Path) -> None:
    """Write the results of a sweep as a table with a row per cell, in the format of the file's suffix."""
    if path.suffix == ".json":
        from workbench.cli.generate import write_file

        write_file(path, json.dumps(update.to_wire(everything=True), ensure_ascii=False, indent=2))
    else:
        from workbench.bench.tables import write_rows

        write_rows(update.rows(), path)


def to_markdown(update: Any, out: Path | None = None) -> str:
    """Return the results of a sweep as Markdown: grids of speed-up and τ (first axis downward), and errors.

    Grids are left out if no cell was measured. The last line is the command that measures the remaining cells, with the
    folder `out` if there is one.
    """
    from workbench.bench.markdown import markdown_table

    first, *others = update.sweep.axes
    parts = []
    has_figures = any(result.figures for result in update.results.values())
    for metric, title in (("speedup", "speed-up"), ("tau", "τ")) if has_figures else ():
        columns: dict[str, Callable[[Any], Any]] = {
            f"{title}: {first.name} ↓ {f'{others[0].name} →' if others else ''}": str
        }
        for value in others[0].values if others else ("",):
            second = (value,) if others else ()
            columns[str(value)] = partial(
                lambda metric, also, own: _cell(update.at(own, *also), metric), metric, second
            )
        parts.append(markdown_table(columns, first.values))
    errors = {r.error for r in update.results.values() if r.error}
    parts += [f"failed: {error}" for error in sorted(errors)]
    stop_note = "" if update.complete else "Stopped before the end. "
    reuse_note = f"; {update.kept} were reused from an earlier sweep" if update.kept else ""
    figures_note = (
        " Each cell: mean (speed-ups: geometric mean), 95 % confidence interval, number of runs." if has_figures else ""
    )
    parts.append(f"{stop_note}{update.done} of {update.total} cells{reuse_note}.{figures_note}")
    parts += [update.note] if update.note else []
    parts.append(update.sweep.command(out))
    return "\n\n".join(parts) + "\n"


def _cell(result: Any, metric: str) -> str:
    from workbench.bench.markdown import format_interval

    figure = result.figures.get(metric)
    return f"{format_interval(figure)}, {figure['n']}" if figure else "failed" if result.state == "failed" else "–"
