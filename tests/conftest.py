"""Fixtures and hooks of all tests: location of the models, device, and tests that this machine cannot run."""

from __future__ import annotations

import functools
import gc
import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():  # before PyTorch, which imports Triton
    os.environ.setdefault("TRITON_INTERPRET", "1")
gc.disable()  # until all tests are collected: importing PyTorch and 1,500 modules takes a quarter less CPU time

import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import file_order
import httpx
import pytest
import torch
import transformers.modeling_utils  # noqa: F401  (before the import hook, with which compiled code is not found again)
import typechecker
from _pytest.mark.expression import Expression
from jaxtyping import config as shapes

if TYPE_CHECKING:
    from workbench.decoders import Method

ROOT = Path(__file__).resolve().parents[1]

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start; see `set_num_threads` below
os.environ.setdefault("WORKBENCH_BEHIND", "none")  # so that no test's app loads a further model of half a gigabyte
for folder in (ROOT / "assets" / "models", ROOT / ".cache" / "models"):
    if all((folder / name / "config.json").is_file() for name in ("text-target", "text-drafter", "text-target-medusa")):
        os.environ.setdefault("WORKBENCH_MODELS", str(folder))
typechecker.install()
# Reading the certificates for each of thousands of requests to 127.0.0.1 took four minutes of a run.
httpx._transports.default.create_ssl_context = functools.cache(httpx.create_ssl_context)
torch.set_num_threads(1)  # test models are small: synchronising threads costs more than they gain


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", help="device of the engine's tests: cpu, cuda, cuda:1 …; cuda with -m gpu, else cpu")
    parser.addoption("--record-durations", action="store_true", help="write tests/durations.json, which orders files")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(file_order.DurationRecorder())


def selects_only(config: pytest.Config, mark: str) -> bool:
    """Return whether `-m` chooses tests with a mark, and no test without any."""
    wanted = str(config.getoption("-m"))
    if mark not in wanted:
        return False
    expression = Expression.compile(wanted)
    return expression.evaluate(lambda name, **_: name == mark) and not expression.evaluate(lambda name, **_: False)


def is_gpu_run(config: pytest.Config) -> bool:
    """Return whether the tests that need CUDA are wanted: those with the mark `gpu`, and all that take a device."""
    return selects_only(config, "gpu")


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    """Return the device of the models in this run."""
    config = request.config
    return str(config.getoption("--device") or ("cuda" if is_gpu_run(config) else "cpu"))


@pytest.fixture(scope="session", autouse=True)
def _isolate_pass_costs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Write measured pass costs to a temporary file; compile native code before a test moves the user's disk cache.

    Costs that are measured while other tests run must not enter the user's disk cache; code that numba compiles may.
    numba's cache folder is chosen at import: after a test that moves the user's cache, as `temporary_disk_cache` does,
    each worker compiled everything again, for half a minute, into a folder that is not used later.
    """
    from workbench.kernels import compilation

    if compilation.load_kernels("forward"):
        import compile_once  # on systems with numba's kernels only: it locks files as Unix does

        compile_once.install()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workbench.models.pass_costs.FACTS", str(tmp_path_factory.mktemp("costs") / "costs.json"))
        yield


@pytest.fixture(scope="module")
def temporary_disk_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use a temporary folder as the user's disk cache, for example for the costs that the planned policy measures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def no_user_heads() -> Iterator[None]:
    """Clear the user's choice of heads before and after a test."""
    from workbench.models.checkpoints import user_heads

    user_heads.use_heads()
    yield
    user_heads.use_heads()


@pytest.fixture(scope="module")
def load_toy() -> Iterator[Callable[[str], Method]]:
    """Return a function that loads the method of a file in `tests/toys`; restore the registry after the module."""
    from workbench.methods import registry

    registry.names()
    held: list[dict[str, Any]] = [registry._methods, registry._places, registry._of_file]
    before = [dict(kept) for kept in held]
    yield lambda name: registry.get(*registry.load(ROOT / "tests" / "toys" / f"{name}.py"))
    for mine, kept in zip(held, before, strict=True):
        mine.clear()
        mine.update(kept)


def is_proof(item: pytest.Item) -> bool:
    """Return whether only `.ci/run` runs a test: notebooks except the first two, and browser tests without `smoke`."""
    if item.get_closest_marker("on_demand"):  # only its own ring of tests runs it
        return True
    if item.path.suffix == ".ipynb":
        return item.path.name[:2] not in ("00", "01")
    return bool(item.get_closest_marker("browser")) and not item.get_closest_marker("smoke")


NOTEBOOK_S = 900
"""Time limit of a lesson, in seconds. A single cell has the limit of `--nbmake-timeout`."""
PROOF_MARKERS = ("mark.proof", "on_demand", "browser")
"""A module with tests of the proof ring has one of these words: see `is_proof`."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip modules without a test of the proof ring where only that ring is wanted: importing all takes minutes."""
    if collection_path.suffix != ".py" or not selects_only(config, "proof"):
        return None
    return None if any(word in collection_path.read_text("utf-8") for word in PROOF_MARKERS) else True


@pytest.hookimpl(tryfirst=True)  # before pytest selects tests by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the tests that this machine cannot run, with the reason. WORKBENCH_REQUIRE_BROWSER: fail without a browser.

    Failed tests that wait for a browser or for other processes are run once more, since a wait may time out on a busy
    machine. pytest's last line counts these reruns, and a test that is really wrong fails twice.
    """
    has_browser = any(shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    must_have_browser = bool(os.environ.get("WORKBENCH_REQUIRE_BROWSER"))
    on_gpu = is_gpu_run(config)
    for item in items:
        if on_gpu and "device" in getattr(item, "fixturenames", ()):  # a doctest has none
            item.add_marker("gpu")
        waits = item.get_closest_marker("browser") or item.get_closest_marker("processes")
        if waits and config.getoption("reruns", None) != 0:  # `--reruns 0` shows a failure at once
            item.add_marker(pytest.mark.flaky(reruns=1))
        if is_proof(item):
            item.add_marker("proof")
        if item.path.suffix == ".ipynb":  # the longest computes for four minutes beside two other workers
            item.add_marker(pytest.mark.timeout(NOTEBOOK_S))
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        if item.get_closest_marker("browser") and not has_browser and not must_have_browser:
            item.add_marker(pytest.mark.skip(reason="needs chromium: apt-get install chromium"))


@pytest.hookimpl(tryfirst=True)  # before xdist collects the list of tests
def pytest_collection_finish(session: pytest.Session) -> None:
    """Sort the files, long ones first, and exempt all existing objects from garbage collection to save time."""
    file_order.sort_tests(session.items)
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)  # Python's 700 would start thirty times as many collections
    gc.enable()


@pytest.fixture(autouse=True)
def _disable_shape_checks_in_slow_tests(request: pytest.FixtureRequest) -> Iterator[None]:
    """Switch off shape checks in tests marked `slow` or `unchecked`: repeated checks would take most of their time."""
    typechecker.reset_call_counts()
    before, mark = shapes.jaxtyping_disable, request.node.get_closest_marker
    shapes.jaxtyping_disable = before or any(map(mark, ("slow", "unchecked")))
    yield
    shapes.jaxtyping_disable = before


@pytest.fixture(autouse=True)
def _default_dtype() -> Iterator[None]:
    """Reset PyTorch's default dtype after each test.

    transformers changes it while it loads a model; two loads in two threads at once may leave it changed.
    """
    yield
    if torch.get_default_dtype() is not torch.float32:
        torch.set_default_dtype(torch.float32)
