"""The recipe `vision-evaluate`, which measures the bundled vision models and writes their model cards."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM

from workbench.models.int8_checkpoint import load_folder
from workbench.scenes.held import held_scenes
from workbench.training.cards import write_results
from workbench.training.loop import Report
from workbench.training.scenes.cards import CARDS
from workbench.training.scenes.drafters import acceptance
from workbench.training.scenes.evaluate import evaluate_scenes
from workbench.training.scenes.model import load_vision_model


@dataclass
class VisionEvaluateOptions:
    """Options of the `vision-evaluate` recipe.

    Attributes:
        models: Folder with `vision-target` and its drafters; missing drafters are skipped.
        out: JSON file for the results.
        count: Number of held-out scenes: a third each of exact drawings, sketches and freehand sheets.
        drafter_count: Number of held-out scenes on which drafters are measured.
        threads: Number of CPU threads.
        hardware: Description of the training machine for the model cards.
    """

    models: Path = Path("assets/models")
    out: Path = Path(".cache/train/vision-evaluation.json")
    count: int = 900
    drafter_count: int = 50
    threads: int = 1
    hardware: str = "one core of an AMD EPYC processor (AVX-512 BF16), shared with other work"


def evaluate_vision(options: VisionEvaluateOptions, report: Report) -> dict[str, Any]:
    """Measure the bundled vision models, and write the results and the model cards."""
    torch.set_num_threads(options.threads)
    folder = options.models / "vision-target"
    model, processor = load_vision_model(folder)
    third = options.count // 3
    results: dict[str, Any] = {
        "count": third,
        "drafter_count": options.drafter_count,
        "parameters": {"vision-target": sum(p.numel() for p in model.parameters())},
        "exact_match": {},
        "acceptance": {},
    }
    for name, sketch, freehand in (("rendered", False, 0.0), ("sketch", True, 0.0), ("freehand", True, 1.0)):
        figures = evaluate_scenes(model, processor.tokenizer, held_scenes(third, sketch, freehand))
        results["exact_match"][name] = figures
        report(f"{name}: " + " · ".join(f"{key} {value:.1%}" for key, value in figures.items()))
    for name in ("vision-text-drafter", "vision-drafter"):
        if not (options.models / name / "config.json").exists():
            continue
        if name == "vision-drafter":
            drafter = load_vision_model(options.models / name)[0]
        else:
            drafter = load_folder(LlamaForCausalLM, options.models / name, torch.float32).eval()
        results["parameters"][name] = sum(p.numel() for p in drafter.parameters())
        figures = acceptance(folder, drafter, options.drafter_count)
        results["acceptance"][name] = figures
        report(f"{name}: acceptance " + " · ".join(f"{key} {value:.1%}" for key, value in figures.items()))
    write_results(options.out, options.models, CARDS, results, options.hardware)
    return results
