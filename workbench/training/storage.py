"""Comparison of a target's answers with float16 and int8 weights, and the section on it in the model card."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM

from workbench.core.errors import ModelError
from workbench.models.bundle import DEFAULT_TARGET, bundled, config_of
from workbench.models.int8_checkpoint import STORED, load_folder
from workbench.models.machine import describe_hardware, machine_facts
from workbench.scenes.held import held_scenes
from workbench.scenes.tasks import QUESTIONS
from workbench.trace.files import write_atomically
from workbench.training.cards import write_storage_section
from workbench.training.graded_answers import GradedAnswer
from workbench.training.masked_diffusion import AnswerWindows, MaskedDiffusionOptions, answer_problems
from workbench.training.models import format_json
from workbench.training.scenes.evaluate import answer_scenes
from workbench.training.scenes.model import load_vision_model
from workbench.training.tokenizer import load_tokenizer


def compare_answers(before: Path, after: Path, n: int) -> dict[str, Any]:
    """Compare greedy answers to held-out problems of two stored forms of a target, such as float16 and int8.

    Args:
        before: folder of the first form of `diffusion-target`, `vision-target` or a model trained like them.
        after: folder of the second form.
        n: number of problems per task, or of scenes per style of drawing with all questions about each scene.

    Returns:
        `each` (equal to `n`), `answers` (their number), `same_text` (number of answers with the same text in both
        forms), `right` [before, after], `gained` and `lost` (numbers of answers that are right in one form only), and
        `machine`.

    Raises:
        ModelError: there are no problems for this type of model.
    """
    config = config_of(before)
    if "vision_config" in config:
        first, second = (list(_vision_answers(folder, n)) for folder in (before, after))
    elif "mask_token_id" in config:
        first, second = (list(_masked_answers(folder, n)) for folder in (before, after))
    else:
        raise ModelError(
            f"There are no test problems for the kind of model in {before}.",
            "Leave out --measure, or give a draft model or a head.",
        )
    pairs = list(zip(first, second, strict=True))
    return {
        "each": n,
        "answers": len(pairs),
        "same_text": sum(a.text == b.text for a, b in pairs),
        "right": [sum(answer.is_right for answer in answers) for answers in (first, second)],
        "gained": sum(b.is_right and not a.is_right for a, b in pairs),
        "lost": sum(a.is_right and not b.is_right for a, b in pairs),
        "machine": describe_hardware(machine_facts()),
    }


def record(folder: Path, measured: dict[str, Any]) -> None:
    """Write the metrics of an int8 checkpoint into `config.json`, and a section into the model card if there is one."""
    config = config_of(folder)
    config |= {STORED: config[STORED] | {"measured": measured}}
    write_atomically(folder / "config.json", format_json(config))
    write_storage_section(folder)


def _vision_answers(folder: Path, n: int) -> Iterator[GradedAnswer[Any]]:
    model, processor = load_vision_model(folder)
    for sketch, freehand in ((False, 0.0), (True, 0.0), (True, 1.0)):
        scenes = held_scenes(n, sketch, freehand)
        for kind in QUESTIONS:
            yield from answer_scenes(model, processor.tokenizer, scenes, kind)


def _masked_answers(folder: Path, n: int) -> Iterator[GradedAnswer[Any]]:
    model = load_folder(LlamaForCausalLM, folder, torch.float32).eval()
    options = MaskedDiffusionOptions()
    windows = AnswerWindows(load_tokenizer(bundled()[DEFAULT_TARGET]), options)
    mask_token = json.loads((folder / "config.json").read_text(encoding="utf-8"))["mask_token_id"]
    for task in options.tasks:
        yield from answer_problems(model, windows, task, n, mask_token)
