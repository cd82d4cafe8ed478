"""Training setups of heads, for tests of their training."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from workbench.training.family.drafter import load_teacher
from workbench.training.family.head_training import TrainingSetup
from workbench.training.family.options import options_class
from workbench.training.family.readings import Readings, ReadingsOptions


def quiet(line: str) -> None:
    """Ignore progress lines."""


def make_head_options(kind: str, **values: Any) -> Any:
    """Return options for training a kind of head, with those of the values that it has."""
    cls = options_class(kind)
    return cls(**{field.name: values[field.name] for field in fields(cls) if field.name in values})


def make_training_setup(
    options: ReadingsOptions, tmp_path: Path, everywhere: bool = False, **more: Any
) -> TrainingSetup:
    asked = make_head_options(
        "eagle-3", target="text-target", readings=options.out, out=tmp_path, threads=1, draft_vocab_size=64,
        taps=(1, 3), checkpoint=None, **more,
    )  # fmt: skip
    teacher, readings = load_teacher(asked), Readings(options.out, include_prompts=everywhere)
    held = readings.split_indices(held_out=True)
    return TrainingSetup(asked, teacher, readings, torch.arange(0, 4096, 64), held, quiet)
