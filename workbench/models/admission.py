"""Run the self-test of a model (`model_self_test`) before its first use; cache the result on this machine."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import weakref
from dataclasses import asdict
from functools import cache
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.errors import ModelError
from workbench.kernels import disk_cache
from workbench.models.model_self_test import SelfTestResult, run_self_test
from workbench.models.runner import Runner
from workbench.models.weight_files import weight_files

FACTS = "verified.json"
"""Name of the file in the cache folder that stores the results of models' self-tests."""

SOURCES, CHECKED = Path(__file__).parents[1], ("core", "kernels", "models")
"""`SOURCES`: folder of the workbench's packages. `CHECKED`: names of the packages whose code a model's self-test runs.
A change in this code invalidates cached self-test results."""

MOST_FACTS = 500
"""Maximum number of cached self-test results; the oldest results are dropped."""


def admit(runner: Runner, name: str, folder: str | Path | None = None) -> None:
    """Test a model before its first use. If it passes only for chains, the runner refuses draft trees from then on.

    Args:
        runner: runner of a target or of a draft model, not in use.
        name: name of the model that users see.
        folder: folder of the model's files, for caching the result on disk; None: cache the result in the model object.

    Raises:
        ModelError: the model fails the test for chains, too, so that the engine cannot verify any drafts with it.
    """
    result = _cached_result(runner, folder)
    kind = getattr(runner.model.config, "model_type", "") or type(runner.model).__name__
    if result.why_not:
        raise ModelError(
            f"{name} ({kind}) is not supported: {result.why_not}.",
            "Use a model of another family (Llama, Qwen2/3, Mistral, Gemma 3, GPT-2, …); if only this dtype fails, "
            "use another dtype.",
        )
    runner.why_no_trees = result.why_no_trees and (
        f"{name} ({kind}) can verify draft chains but not draft trees: {result.why_no_trees}."
    )


_of_objects: weakref.WeakKeyDictionary[PreTrainedModel, tuple[object, SelfTestResult]] = weakref.WeakKeyDictionary()


def _cached_result(runner: Runner, folder: str | Path | None) -> SelfTestResult:
    """Return the cached self-test result for the same weights, dtype, device and code, or run the self-test."""
    if folder is None or not Path(folder).is_dir():
        version = [(runner.dtype, runner.device, runner.model.training), *map(_version, runner.model.parameters())]
        cached = _of_objects.get(runner.model)
        if cached is None or cached[0] != version:
            cached = _of_objects[runner.model] = (version, run_self_test(runner))
        return cached[1]
    key = _key(runner, Path(folder))
    facts = disk_cache.read(FACTS)
    if key not in facts:
        facts[key] = asdict(run_self_test(runner))
        disk_cache.write(FACTS, dict(list(facts.items())[-MOST_FACTS:]))
    return SelfTestResult(**facts[key])


def _version(weight: Tensor) -> tuple[int, int]:
    return (0 if weight.is_inference() else weight._version), weight.data_ptr()


def _key(runner: Runner, folder: Path) -> str:
    """Return the key of a cached self-test result: a hash of weight files, configuration, dtype, device and code."""
    files = weight_files(folder)
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    config = runner.model.config.to_json_string()
    key_parts = [str(folder.resolve()), stats, config, str(runner.weight_dtype), str(runner.device), _code()]
    return hashlib.sha256(json.dumps(key_parts).encode()).hexdigest()[:24]


@cache
def _code() -> str:
    """Return a hash of the source files that a self-test uses, and of the versions of torch and Transformers."""
    digest = hashlib.sha256()
    for name in ("torch", "transformers"):
        digest.update(importlib.metadata.version(name).encode())
    for path in sorted(path for package in CHECKED for path in (SOURCES / package).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
