"""A scaling study of one kind of head: a grid over its size and its training, each measured on the same prompts.

The runs are nested: batches depend on the step's number alone, so a longer run begins with the tokens of a shorter one.
But each has its own learning-rate schedule, since a run before its decay does not show the final quality.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from workbench.core.errors import ParameterError, WorkbenchError
from workbench.decoders.declarations import Head
from workbench.engine import Engine, Request
from workbench.engine.cluster import connect_ray
from workbench.methods import registry
from workbench.models.fingerprint import WEIGHTS
from workbench.models.loading import HeadInfo, load_models
from workbench.models.local_models import short_name
from workbench.models.machine import machine_facts
from workbench.trace.files import write_atomically
from workbench.trace.scaling import fit, runs_from_report
from workbench.training.family.cells import CELL, hash_prompts, load_finished_cell, load_study_prompts
from workbench.training.family.evaluate import evaluation_settings, with_chain_drafts
from workbench.training.family.heads import train_chat_heads
from workbench.training.family.options import options_class
from workbench.training.family.readings import Readings, batches
from workbench.training.loop import Report
from workbench.training.recipe import changed_options, finish
from workbench.training.resuming import resolve_resume

REPORT, FFN = "scaling.json", "ffn"
RETRIES = 3
"""Number of restarts of a run whose machine was lost; the run continues from its checkpoint."""


@dataclass
class ScalingOptions:
    """Options of the `scaling` recipe.

    Attributes:
        method: Kind of head to train.
        target: Name or folder of the target.
        readings: Folder with stored hidden states of the target's answers, from the `readings` recipe.
        answers: Folder with the target's answers that `readings` was computed from; its held-out prompts are the
            evaluation set.
        out: Folder of the study, with one subfolder per run.
        ffn: MLP widths to compare: the sizes of the head.
        tokens: Approximate numbers of training tokens to compare; there is one run per size and number.
        heads: Number of attention heads.
        form: Shape of the measured draft: "chain" or "tree".
        each: Number of held-out prompts per group of tasks.
        max_new_tokens: Maximum length of an answer, in tokens.
        rows: Batch size: answers per step.
        places: Positions per step at which draft and target distributions are compared.
        half: Compute in bfloat16.
        seed: Seed of initial weights and batches.
        threads: Number of CPU threads per run.
        ray: Address of a Ray cluster whose machines train in parallel: for example "ray://head:10001", "auto" for the
            cluster that runs on this machine, "local" to start one here. All machines need access to the folders.
            Empty: one run after the other.
    """

    method: str = "eagle"
    target: str = "text-target"
    readings: Path = Path(".cache/train/readings")
    answers: Path = Path(".cache/train/answers")
    out: Path = Path(".cache/train/scaling")
    ffn: tuple[int, ...] = (48, 192, 768)
    tokens: tuple[int, ...] = (250_000, 500_000, 1_000_000, 2_000_000)
    heads: int = 6
    form: str = "tree"
    each: int = 2
    max_new_tokens: int = 96
    rows: int = 32
    places: int = 1024
    half: bool = True
    seed: int = 0
    threads: int = 2
    ray: str = ""


def run_scaling_study(options: ScalingOptions, report: Report) -> dict[str, Any]:
    """Train and measure the missing runs and fit the scaling law; after an interruption, the same command continues.

    Raises:
        ParameterError: there is no such head or form, no held-out prompt, or the folder has a study with other
            settings; or there are too few runs to fit a scaling law.
    """
    torch.set_num_threads(options.threads)
    kinds = [
        kind for kind, head in registry.heads().items() if head.recipe == "chat-heads" and FFN in _net_options(head)
    ]
    if options.method not in kinds:
        raise ParameterError(
            f"There is no head {options.method!r:.40} of variable size.", f"Use one of: {', '.join(kinds)}."
        )
    if min(len(set(options.ffn)), len(set(options.tokens))) < 2:
        raise ParameterError("A scaling law needs several sizes and training lengths.", "Set two or more of each.")
    if options.form not in (form_names := [setting.name for setting in evaluation_settings(options.method)]):
        raise ParameterError(
            f"{options.method} is not measured as {options.form!r:.40}.", f"Use one of: {', '.join(form_names)}."
        )
    prompts = load_study_prompts(options.target, options.answers, options.readings, options.each)
    readings = Readings(options.readings)
    train = readings.split_indices(held_out=False)
    mean = float(readings.rows[train, 3].mean()) if train else 0.0
    if not mean:
        raise ParameterError(f"{options.readings} has no training data.", "Create it: workbench train readings.")
    lengths = {max(1, round(tokens / (options.rows * mean))): tokens for tokens in sorted(options.tokens)}
    if len(lengths) < len(set(options.tokens)):
        raise ParameterError("Some of these lengths have the same number of steps.", "Set lengths further apart.")
    rows_of_step = batches(readings, train, options.rows, options.seed)
    plan = [(ffn, steps) for ffn in dict.fromkeys(options.ffn) for steps in lengths]
    tokens_read = {
        steps: int(sum(readings.rows[rows_of_step(step), 3].sum() for step in range(steps))) for steps in lengths
    }
    cells = list[dict[str, Any]]()
    for (ffn, steps), cell in zip(plan, _cells(options, plan, prompts, report), strict=True):
        cells.append(cell | {"tokens": tokens_read[steps]})
        report(
            f"scaling: {len(cells)} of {len(plan)}: {options.method}, ffn={ffn}, {lengths[steps]:,} tokens, {steps} "
            f"steps, {cell['parameters']:,} parameters: τ {tau_of(cell):.3f}"
        )
    report_data: dict[str, Any] = {
        "target": short_name(options.target), "method": options.method, "form": options.form, "prompts": len(prompts),
        "max_new_tokens": options.max_new_tokens, "options": changed_options(options), "machine": machine_facts(),
        "cells": cells,
    }  # fmt: skip
    options.out.mkdir(parents=True, exist_ok=True)
    write_atomically(options.out / REPORT, (json.dumps(report_data, ensure_ascii=False, indent=1) + "\n").encode())
    fitted = fit(runs_from_report(report_data))
    return {"law": dataclasses.asdict(fitted), "runs": len(cells), "out": str(options.out / REPORT)}


def _net_options(head: Head) -> list[str]:
    """Return the options that a head's net takes."""
    return list(inspect.signature(head.net).parameters)


def tau_of(cell: dict[str, Any]) -> float:
    """Return the tokens per round over all prompts of a run."""
    return sum(cell["emitted"]) / sum(cell["rounds"])


def _cells(
    options: ScalingOptions, plan: list[tuple[int, int]], prompts: list[tuple[str, list[int]]], report: Report
) -> Iterator[dict[str, Any]]:
    """Yield the runs of (ffn, steps), in this order: one after the other here, or in parallel on a cluster."""
    if not options.ray:
        for ffn, steps in plan:
            report(f"scaling: {options.method}, ffn={ffn}, {steps} steps begins")
            yield _cell(options, ffn, steps, prompts, report)
        return
    ray = connect_ray(options.ray, "leave `ray` out")
    task = ray.remote(_run_remote_cell).options(num_cpus=options.threads, max_retries=RETRIES)
    futures = [task.remote(str(Path.cwd()), options, ffn, steps, prompts) for ffn, steps in plan]
    try:
        for future in futures:
            yield ray.get(future)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, WorkbenchError):
            raise cause from None
        raise WorkbenchError(
            f"The cluster could not train the head: {' '.join(str(error).split())[:200]}",
            "Run the same command again to continue.",
        ) from None
    finally:
        for future in futures:
            ray.cancel(future, force=True)


def _run_remote_cell(folder: str, options: ScalingOptions, ffn: int, steps: int, prompts: Any) -> dict[str, Any]:
    """Do one run on a machine of the cluster, with the same paths as on the machine that started it."""
    os.chdir(folder)
    return _cell(options, ffn, steps, prompts, lambda _: None)


def _cell(
    options: ScalingOptions, ffn: int, steps: int, prompts: list[tuple[str, list[int]]], report: Report
) -> dict[str, Any]:
    """Return one run: read it if it is finished, else train and measure it."""
    folder = options.out / f"{options.method}-{ffn}-{steps}"
    head_options = options_class(options.method)(
        method=options.method, target=options.target, readings=options.readings, out=folder, ffn=ffn,
        heads=options.heads, steps=steps, minutes=None, rows=options.rows, places=options.places, half=options.half,
        seed=options.seed, threads=options.threads, checkpoint=folder / "run.pt",
    )  # fmt: skip
    settings = {
        WEIGHTS: (readings := Readings(options.readings)).facts[WEIGHTS], "read": readings.n_tokens,
        "prompts": hash_prompts(prompts), "readings": str(options.readings), "answers": str(options.answers),
        "form": options.form, "each": options.each, "max_new_tokens": options.max_new_tokens,
        "heads": options.heads, "rows": options.rows,
        "places": options.places, "half": options.half, "seed": options.seed, "target": short_name(options.target),
    }  # fmt: skip
    if cell := load_finished_cell(folder, settings):
        return cell
    settled = resolve_resume(head_options, {}, report)
    result, facts = train_chat_heads(settled, report)
    figures = finish(result, settled.folder, {"options": changed_options(settled), **facts})
    config = json.loads((settled.folder / "config.json").read_text(encoding="utf-8"))
    cell = {
        "ffn": ffn, "steps": steps, "parameters": config["parameters"], "seconds": figures["seconds"],
        "agreement": next(iter(figures["held"].values())), "settings": settings,
    } | _measure_decoding(options, settled.folder, config, prompts)  # fmt: skip
    write_atomically(folder / CELL, (json.dumps(cell, indent=1) + "\n").encode())
    return cell


def _measure_decoding(
    options: ScalingOptions, folder: Path, config: dict[str, Any], prompts: list[tuple[str, list[int]]]
) -> dict[str, list[int]]:
    """Return tokens and rounds of each prompt, decoded greedily."""
    setting = next(setting for setting in evaluation_settings(options.method) if setting.name == options.form)
    models = load_models(options.target, None, "cpu", "float32")
    models.heads[options.method] = HeadInfo(folder.name, folder, config)
    models = with_chain_drafts(models) if setting.name == "chain" else models
    method = registry.get(setting.method).with_params(**dict(setting.params))
    traces = [
        Engine(models).generate(Request(ids, method, max_new_tokens=options.max_new_tokens)) for _, ids in prompts
    ]
    emitted = [sum(len(r.emitted) for r in trace.rounds) for trace in traces]
    return {"emitted": emitted, "rounds": [len(trace.rounds) for trace in traces]}
