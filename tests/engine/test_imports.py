"""The engine can be imported inside serving images, without the libraries of the user interfaces."""

from __future__ import annotations

import subprocess
import sys

import model_helpers

from workbench.bench import forced, forced_acceptance
from workbench.engine import Engine, Models, Request, load_models
from workbench.engine import admission as former_admission
from workbench.engine import models as former_models
from workbench.methods import registry
from workbench.models import admission

CODE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"gradio", "plotly", "polars", "ipywidgets", "anywidget"}:
            raise ModuleNotFoundError(f"{name} is not installed here", name=name)

sys.meta_path.insert(0, Absent())
import pkgutil, importlib
import workbench.core, workbench.engine, workbench.kernels, workbench.methods, workbench.models, workbench.trace
from workbench.methods import registry
for name in ("core", "decoders", "engine", "kernels", "methods", "models", "trace"):
    package = getattr(workbench, name)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if module.name.removeprefix("workbench.trace.") not in {"frames", "export", "store", "entries", "runindex"}:
            importlib.import_module(module.name)
assert len(registry.names()) >= 11, registry.names()
"""

TRACE_ALONE = """
import sys
import workbench.trace.events, workbench.trace.metrics
assert not {"torch", "transformers", "polars", "numpy"} & set(sys.modules), "the trace imports too much"
"""


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_core_engine_methods_and_trace_import_without_ui_libraries() -> None:
    run(CODE)


def test_traces_are_read_without_torch() -> None:
    run(TRACE_ALONE)


def test_former_names_of_the_engine_still_work() -> None:
    """Scripts with reproductions of faults, outside this repository, import them."""
    assert former_models.load_models is load_models
    assert former_models.Models is Models
    assert former_admission.admit is admission.admit
    assert forced.noisy_copy is forced_acceptance.noisy_copy
    engine = Engine(model_helpers.make_models("llama"), max_rows=3)
    assert engine.max_sequences == 3
    assert engine.idle
    engine.submit(Request([1, 2, 3], registry.get("prompt-lookup"), max_new_tokens=2))
    assert not engine.idle
