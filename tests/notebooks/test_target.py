"""Setting `TARGET` alone: every lesson with a target runs on any model, here a tiny random Llama in a local folder.

The cells run in this process, without a kernel: the tests concern the lessons' code, and thirteen kernels take minutes.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import types
from pathlib import Path
from typing import Any

import model_helpers
import nbformat
import pytest
import torch
import transformers

from workbench.models.pretrained import load_tokenizer
from workbench.models.truncated_drafter import drafter_for, save_truncated
from workbench.site import notebook_pairs

pytest.importorskip("anywidget")
hf: Any = transformers  # configurations accept more arguments than in their stubs
LAYERS = 4
"""Layers of the target; the first sixth of them, at least one, drafts."""


def asks_for_a_text_target(name: str) -> bool:
    source = (notebook_pairs.FOLDER / f"{name}.py").read_text(encoding="utf-8")
    return re.search(r"^TARGET = None(?!.*vision)", source, re.MULTILINE) is not None


LONG = ("08_temperature", "10_measuring", "11_your_drafter")
"""Lessons that take long for any target: `soak.py --target` runs them, and 09, which needs image input."""
TEXT = [name for name in notebook_pairs.names() if asks_for_a_text_target(name) and name not in LONG]


@pytest.fixture(scope="module")
def local_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a random Llama that is not bundled, with the bundled vocabulary."""
    return model_helpers.save_random_llama(tmp_path_factory.mktemp("models") / "user-model", LAYERS)


def run_cells(name: str, target: Path) -> None:
    """Run all code cells of a lesson, with the target's folder in its parameters cell."""
    book = nbformat.read(notebook_pairs.FOLDER / f"{name}.ipynb", as_version=4)
    module = types.ModuleType(f"lesson_{name}")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        for i, cell in enumerate(c for c in book.cells if c.cell_type == "code"):
            source = re.sub(r"^TARGET = None", f"TARGET = {str(target)!r}", cell.source, flags=re.MULTILINE)
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(source, f"{name}, code cell {i}", "exec"), module.__dict__)
    finally:
        del sys.modules[module.__name__]
        torch.set_grad_enabled(True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if i == 4 else pytest.param(name, marks=pytest.mark.on_demand) for i, name in enumerate(TEXT)]
)
def test_a_lesson_runs_on_a_target_alone(name: str, local_target: Path) -> None:
    run_cells(name, local_target)


def test_a_drafter_is_made_of_the_first_layers(local_target: Path, tmp_path: Path) -> None:
    made = Path(drafter_for(str(local_target)))
    assert made == Path(drafter_for(str(local_target))), "once a process"
    short = hf.AutoModelForCausalLM.from_pretrained(made)
    whole = hf.AutoModelForCausalLM.from_pretrained(local_target)
    assert short.config.num_hidden_layers == len(short.model.layers) == 1
    assert torch.equal(short.model.layers[0].mlp.up_proj.weight, whole.model.layers[0].mlp.up_proj.weight)
    assert torch.equal(short.lm_head.weight, whole.lm_head.weight)
    assert load_tokenizer(str(made)).get_vocab() == load_tokenizer(str(local_target)).get_vocab()
    all_of_it = hf.AutoModelForCausalLM.from_pretrained(save_truncated(str(local_target), tmp_path / "all", 99))
    ids = torch.arange(9)[None]
    assert torch.allclose(all_of_it(ids).logits, whole(ids).logits), (
        "with all layers the truncated model equals the model itself"
    )


def test_a_given_drafter_is_not_replaced(local_target: Path) -> None:
    assert drafter_for(None) == "text-drafter"
    assert drafter_for("vision-target") == "vision-drafter"
    assert drafter_for(str(local_target), "mine") == "mine"
