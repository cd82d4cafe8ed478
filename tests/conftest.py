"""What all tests share: where models are, and which tests this machine can run."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers.modeling_utils  # noqa: F401  (before the import hook, under which nothing compiled is found again)
import typechecker
import weights
from _pytest.mark.expression import Expression
from jaxtyping import config as shapes

if TYPE_CHECKING:
    from workbench.engine import Method

ROOT = Path(__file__).resolve().parents[1]

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("WORKBENCH_BEHIND", "none")  # no app of a test loads a model of half a gigabyte behind its own
for folder in (ROOT / "assets" / "models", ROOT / ".cache" / "models"):
    if all((folder / name / "config.json").is_file() for name in ("text-target", "text-drafter", "text-target-medusa")):
        os.environ.setdefault("WORKBENCH_MODELS", str(folder))
typechecker.install()
torch.set_num_threads(1)  # test models are small: threads that wait for each other cost more than they bring


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", help="device of the engine's tests: cpu, cuda, cuda:1 …; cuda with -m gpu, else cpu")
    parser.addoption("--record-durations", action="store_true", help="write tests/durations.json, which orders files")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(weights.Recorder())


def asks_for_gpu(config: pytest.Config) -> bool:
    """Whether the tests that need CUDA are wanted (`-m gpu`): those with the mark, and all that take a device.

    They are where the expression holds for a test that has this mark, and not for one that has none.
    """
    wanted = str(config.getoption("-m"))
    if "gpu" not in wanted:
        return False
    expression = Expression.compile(wanted)
    return expression.evaluate(lambda name, **_: name == "gpu") and not expression.evaluate(lambda name, **_: False)


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    """Where models live in this run."""
    config = request.config
    return str(config.getoption("--device") or ("cuda" if asks_for_gpu(config) else "cpu"))


@pytest.fixture(scope="session", autouse=True)
def _own_costs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What passes cost beside other tests is not remembered for this machine's user; what numba compiles is.

    The folder of that is chosen when it is imported: behind a test that moves the user's cache, as `own_cache` does,
    each worker compiled all of it once more, for half a minute, and left it to nobody.
    """
    from workbench.kernels import compilation

    compilation.compiled("forward")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workbench.models.pass_costs.FACTS", str(tmp_path_factory.mktemp("costs") / "costs.json"))
        yield


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is measured and remembered, as the planned policy does, stays in a folder of this run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def nothing_chosen() -> Iterator[None]:
    """No heads of one's own are chosen, before a test and behind it."""
    from workbench.models.checkpoints import user_heads

    user_heads.choose()
    yield
    user_heads.choose()


@pytest.fixture(scope="module")
def load() -> Iterator[Callable[[str], Method]]:
    """Load the method of a file in the folder of the toys; behind the module the register is as it was."""
    from workbench.methods import registry

    registry.names()
    held: list[dict[str, Any]] = [registry._methods, registry._places, registry._of_file]
    before = [dict(kept) for kept in held]
    yield lambda name: registry.get(*registry.load(ROOT / "tests" / "toys" / f"{name}.py"))
    for mine, kept in zip(held, before, strict=True):
        mine.clear()
        mine.update(kept)


def is_proof(item: pytest.Item) -> bool:
    """Return whether only `.ci/run` runs a test: lessons but the first two, browser tests but one a page (`smoke`)."""
    if item.get_closest_marker("on_demand"):  # no ring but its own runs it
        return True
    if item.path.suffix == ".ipynb":
        return item.path.name[:2] not in ("00", "01")
    return bool(item.get_closest_marker("browser")) and not item.get_closest_marker("smoke")


MAKES_PROOF = ("mark.proof", "mark.on_demand", "browser", "others_on_demand")
"""A module with tests of the proof ring has one of these words: see `is_proof`."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip modules without a test of the proof ring where only that ring is wanted: importing all takes minutes."""
    expression = str(config.getoption("-m"))
    if collection_path.suffix != ".py" or "proof" not in expression:
        return None
    wanted = Expression.compile(expression)
    only = wanted.evaluate(lambda name, **_: name == "proof") and not wanted.evaluate(lambda name, **_: False)
    return True if only and not any(word in collection_path.read_text("utf-8") for word in MAKES_PROOF) else None


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip, with the reason, what this machine cannot run. WORKBENCH_REQUIRE_BROWSER makes a missing browser fail.

    What waits for a browser or for other processes is tried once more: on a starved machine a wait may run out. The
    closing line of pytest counts such tries, and a test that is wrong fails twice.
    """
    has_browser = any(shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    must_have_browser = bool(os.environ.get("WORKBENCH_REQUIRE_BROWSER"))
    on_gpu = asks_for_gpu(config)
    for item in items:
        if on_gpu and "device" in getattr(item, "fixturenames", ()):  # a doctest has none
            item.add_marker("gpu")
        waits = item.get_closest_marker("browser") or item.get_closest_marker("processes")
        if waits and config.getoption("reruns", None) != 0:  # `--reruns 0` shows a failure at once
            item.add_marker(pytest.mark.flaky(reruns=1))
        if is_proof(item):
            item.add_marker("proof")
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        if item.get_closest_marker("browser") and not has_browser and not must_have_browser:
            item.add_marker(pytest.mark.skip(reason="needs chromium: apt-get install chromium"))


@pytest.hookimpl(tryfirst=True)  # before xdist tells which tests there are
def pytest_collection_finish(session: pytest.Session) -> None:
    """Long files are dealt out first. What is there by now stays: the garbage collector need not look through it."""
    weights.sort(session.items)
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _shapes_go_unchecked_where_calls_are_thousands(request: pytest.FixtureRequest) -> Iterator[None]:
    """Most of such a test's time would be checks of the same calls, for all that they are made sparingly."""
    typechecker.next_test()
    before, mark = shapes.jaxtyping_disable, request.node.get_closest_marker
    shapes.jaxtyping_disable = before or any(map(mark, ("slow", "unchecked")))
    yield
    shapes.jaxtyping_disable = before


@pytest.fixture(autouse=True)
def _default_dtype() -> Iterator[None]:
    """transformers changes PyTorch's default dtype while it loads; two loads at once in two threads may leave it so."""
    yield
    if torch.get_default_dtype() is not torch.float32:
        torch.set_default_dtype(torch.float32)
