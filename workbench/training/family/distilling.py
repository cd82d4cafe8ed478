"""A study of distillation for draft models: the same initial model, trained with several losses on several texts.

Every cell begins with the weights of one drafter, trains for the same number of steps, and drafts on the same held-out
prompts in the real engine: greedily, and at temperature 1. One cell is the initial model itself.

Source: Zhou et al. 2024, DistillSpec, arXiv:2310.08461 (losses × data); Goel et al. 2024, Direct Alignment,
arXiv:2403.00858 (TVD++).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from workbench.core.errors import ParameterError
from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Request
from workbench.methods import registry
from workbench.models.fingerprint import WEIGHTS
from workbench.models.loading import load_models
from workbench.models.local_models import short_name
from workbench.models.machine import machine_facts
from workbench.trace.files import write_atomically
from workbench.training.distill import draft_model_losses
from workbench.training.family.cells import CELL, hash_prompts, load_finished_cell, load_study_prompts, tallies
from workbench.training.family.drafter import ChatDrafterOptions, train_chat_drafter
from workbench.training.family.evaluate import evaluation_settings
from workbench.training.family.readings import Readings
from workbench.training.family.training_texts import ALL, TARGET, TEXT, select_readings
from workbench.training.loop import Report
from workbench.training.recipe import changed_options, finish
from workbench.training.resuming import resolve_resume

REPORT, START, METHOD = "distilling.json", "start", "draft-model"
TEXT_ONLY_LOSS = "forward_kl:0"
"""Loss of the initial model: cross-entropy with the text only, weight 0 for the divergence from the target's
distributions."""
TEMPERATURES = {"greedy": 0.0, "sampled": 1.0}
SELECTION_OPTIONS = {"out", "threads", "losses", "crossed", "made"}
"""Options that select the cells and do not affect a cell's result."""


@dataclass
class DistillingOptions:
    """Options of the `distilling` recipe.

    Attributes:
        target: Name or folder of the target.
        readings: Folder with stored hidden states of the target's answers, from the `readings` recipe. For the source
            "given" it must also contain those of the training text's answers.
        answers: Folder with the target's answers that `readings` was computed from; its held-out prompts are the
            evaluation set.
        out: Folder of the study, with one subfolder per cell.
        begin: Folder of a drafter from `chat-drafter`, the initial weights of every cell; none: first train one on
            plain text, for `first` steps of cross-entropy only.
        first: Training steps of the initial drafter if there is no `begin`.
        steps: Training steps per cell.
        losses: Losses to compare on the target's own answers.
        made: Further sources of training text (see `chat-drafter`).
        crossed: Losses to compare on each source in `made`.
        anew: Training steps after which the drafter generates new training text.
        vocabulary: Size of the draft vocabulary: the tokens that the drafter can propose.
        hidden: Hidden size.
        layers: Number of decoder layers.
        inner: Intermediate size of the MLP.
        rows: Batch size: texts per step.
        positions: Positions per step at which draft and target distributions are compared.
        matrix_rate: Peak learning rate of Muon.
        other_rate: Peak learning rate of AdamW.
        each: Number of held-out prompts per group of tasks.
        max_new_tokens: Maximum length of an answer, in tokens.
        seed: Seed of initial weights, batches and generated texts.
        threads: Number of CPU threads.
    """

    target: str = "text-target"
    readings: Path = Path(".cache/train/readings")
    answers: Path = Path(".cache/train/answers")
    out: Path = Path(".cache/train/distilling")
    begin: Path | None = None
    first: int = 200
    steps: int = 200
    losses: tuple[str, ...] = ("forward_kl", "reverse_kl", "jensen_shannon", "total_variation", "tvd_plus_plus")
    made: tuple[str, ...] = (TEXT, "drafter", "mix")
    crossed: tuple[str, ...] = ("forward_kl", "total_variation")
    anew: int = 32
    vocabulary: int = 4096
    hidden: int = 128
    layers: int = 1
    inner: int = 384
    rows: int = 16
    positions: int = 1024
    matrix_rate: float = 0.02
    other_rate: float = 0.004
    each: int = 4
    max_new_tokens: int = 64
    seed: int = 1
    threads: int = 2


def run_distillation_study(options: DistillingOptions, report: Report) -> dict[str, Any]:
    """Train and measure the missing cells; after an interruption, the same command continues.

    Raises:
        ParameterError: there is no such loss or kind of text, no answers of that kind, no held-out prompt, or the
            folder has a study with other settings.
    """
    torch.set_num_threads(options.threads)
    pairs = [(TARGET, loss) for loss in options.losses]
    pairs += [(text_kind, loss) for text_kind in options.made for loss in options.crossed]
    pairs = list(dict.fromkeys(pairs))
    if not pairs:
        raise ParameterError("There are no losses to compare.", "Set losses.")
    prompts = load_study_prompts(options.target, options.answers, options.readings, options.each)
    readings = Readings(options.readings)
    for text_kind, loss in pairs:
        draft_model_losses(loss)
        select_readings(readings, text_kind)
    shared = {"target": short_name(options.target), WEIGHTS: readings.facts[WEIGHTS], "read": readings.n_tokens}
    shared |= {"prompts": hash_prompts(prompts)}
    plain = TEXT if TEXT in options.made else ALL
    start = options.out / START if options.begin is None else options.begin
    cells = [_cell(options, START, (plain, TEXT_ONLY_LOSS) if options.begin is None else None, shared, prompts, report)]
    shared |= {START: hashlib.sha256((start / "model.safetensors").read_bytes()).hexdigest()[:16]}
    for i, (text_kind, loss) in enumerate(pairs):
        report(f"distilling: {i + 1} of {len(pairs)}: {loss} on made={text_kind}")
        cells.append(_cell(options, f"{text_kind}-{loss}", (text_kind, loss), shared, prompts, report))
    study: dict[str, Any] = {
        "target": short_name(options.target), "method": METHOD, "prompts": len(prompts),
        "max_new_tokens": options.max_new_tokens, "options": changed_options(options), "machine": machine_facts(),
        "cells": cells,
    }  # fmt: skip
    options.out.mkdir(parents=True, exist_ok=True)
    write_atomically(options.out / REPORT, (json.dumps(study, ensure_ascii=False, indent=1) + "\n").encode())
    return {"cells": len(cells), "out": str(options.out / REPORT)}


def _cell(
    options: DistillingOptions,
    name: str,
    text_and_loss: tuple[str, str] | None,
    shared_settings: dict[str, Any],
    prompts: list[tuple[str, list[int]]],
    report: Report,
) -> dict[str, Any]:
    """Return one cell: read it if it is finished, else train and measure it.

    Args:
        options: options of the study.
        name: name of the cell's folder.
        text_and_loss: training text and loss; None: the initial drafter without training.
        shared_settings: settings that all cells share, besides the options.
        prompts: prompts to draft on.
        report: receives progress lines.
    """
    settings = shared_settings | {
        field.name: str(getattr(options, field.name))
        for field in dataclasses.fields(options)
        if field.name not in SELECTION_OPTIONS and field.name not in shared_settings
    }
    folder = options.out / name
    if cell := load_finished_cell(folder, settings):
        return cell
    cell = {"name": name, "made": "", "loss": "", "settings": settings, "steps": 0, "tokens": 0}
    drafter = folder
    if text_and_loss is None:
        assert options.begin is not None
        drafter = options.begin
    else:
        text_kind, loss = text_and_loss
        is_start = name == START
        drafter_options = resolve_resume(
            ChatDrafterOptions(
                target=options.target, readings=options.readings, out=folder, checkpoint=folder / "run.pt",
                vocabulary=options.vocabulary, hidden=options.hidden, layers=options.layers, inner=options.inner,
                steps=options.first if is_start else options.steps, minutes=None, rows=options.rows,
                positions=options.positions, text_weight=float(is_start), loss=loss, seed=options.seed,
                threads=options.threads, matrix_rate=options.matrix_rate, other_rate=options.other_rate,
                begin=None if is_start else options.begin or options.out / START, made=text_kind, anew=options.anew,
            ),
            {}, report,
        )  # fmt: skip
        result, facts = train_chat_drafter(drafter_options, report)
        figures = finish(result, folder, {"options": changed_options(drafter_options), **facts})
        cell |= {
            "made": text_kind, "loss": "" if is_start else loss, "steps": result.steps, "tokens": result.tokens,
            "seconds": figures["seconds"], "agreement": figures["held"]["agreement"],
        }  # fmt: skip
    cell |= {
        mode: _measure_decoding(options, drafter, prompts, temperature) for mode, temperature in TEMPERATURES.items()
    }
    report(f"distilling: {name}: α {', '.join(f'{_alpha(cell[mode]):.3f} {mode}' for mode in TEMPERATURES)}")
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / CELL, (json.dumps(cell, indent=1) + "\n").encode())
    return cell


def _alpha(counts: dict[str, list[int]]) -> float:
    return sum(counts["accepted"]) / max(sum(counts["tested"]), 1)


def _measure_decoding(
    options: DistillingOptions, folder: Path, prompts: list[tuple[str, list[int]]], temperature: float
) -> dict[str, list[int]]:
    """Return per prompt the accepted, tested and emitted tokens, and the target's rounds."""
    setting = next(setting for setting in evaluation_settings("drafter") if setting.method == METHOD)
    engine = Engine(load_models(options.target, str(folder), "cpu", "float32", strict=True))
    method, sampling = registry.get(METHOD).with_params(**dict(setting.params)), SamplingParams(temperature=temperature)
    return tallies(
        [
            engine.generate(Request(ids, method, sampling, options.max_new_tokens, options.seed + i)).rounds
            for i, (_, ids) in enumerate(prompts)
        ]
    )
