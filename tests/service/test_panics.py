"""Panics of Rust libraries: pyo3's exception is not an `Exception` and must not end a thread."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from workbench.core.errors import ModelError, PromptError, WorkbenchError
from workbench.core.panics import PanicError, convert_panics, is_panic
from workbench.engine.detokenise import Detokeniser
from workbench.engine.scheduler import Engine
from workbench.service import Backend
from workbench.trace import export
from workbench.ui.lazy_client import LazyClient

from .conftest import PROMPT, wait_until

BAD_NORMALIZER = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}


def panic(*_: Any, **__: Any) -> Any:
    """Cause a real panic: tokenizers reads a damaged character map."""
    model = {"type": "BPE", "vocab": {"a": 0}, "merges": []}
    Tokenizer.from_str(json.dumps({"version": "1.0", "added_tokens": [], "normalizer": BAD_NORMALIZER, "model": model}))


def is_idle(bench: Backend) -> bool:
    return not bench._runs.active() and bench.health()["rows"] == 0


def test_a_panic_becomes_an_ordinary_error_but_keyboard_interrupt_does_not() -> None:
    with pytest.raises(BaseException, match="charsmap") as raised:
        panic()
    assert is_panic(raised.value)
    assert not isinstance(raised.value, Exception), (
        "the library now raises ordinary exceptions: this module can be removed"
    )
    with pytest.raises(PanicError, match="charsmap"), convert_panics():
        panic()
    for ends in (KeyboardInterrupt, SystemExit, GeneratorExit):
        with pytest.raises(ends), convert_panics():
            raise ends


def test_a_tokenizer_that_panics_while_loading_ends_all_waiting_runs(
    backend: Callable[..., Backend], folders: tuple[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(folders[0], folder)
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"normalizer": BAD_NORMALIZER}))
    bench = backend()
    runs = [bench.start(PROMPT, "autoregressive", target=str(folder), drafter="none") for _ in range(3)]
    wait_until(lambda: all(run.ended for run in runs))
    for run in runs:
        with pytest.raises(ModelError, match="cannot be loaded"):
            run.wait(1)
    assert is_idle(bench)
    assert bench.start(PROMPT, "autoregressive", max_new_tokens=2).wait(60).token_ids, "the loaders work as before"


def test_runs_get_any_error_that_ends_their_loader(
    backend: Callable[..., Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = backend()
    monkeypatch.setattr(bench._pool, "load", panic)
    run = bench.start(PROMPT, "autoregressive")
    with pytest.raises(ModelError, match="cannot be loaded"):
        run.wait(120)
    assert is_idle(bench)


@pytest.mark.parametrize("loaded", [True, False], ids=["loaded", "loading"])
def test_a_prompt_on_which_the_tokenizer_panics_is_refused_and_does_not_count_as_a_run(
    loaded: bool, backend: Callable[..., Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = backend()
    models = bench.load()
    monkeypatch.setattr(type(models.tokenizer), "encode", panic)
    if not loaded:
        bench.unload()
    with pytest.raises(PromptError, match="tokenizer cannot read this prompt"):
        bench.start(PROMPT, "autoregressive", max_new_tokens=2).wait(120)
    assert is_idle(bench)
    assert bench.start([1, 2, 3], "autoregressive", max_new_tokens=2).wait(60).token_ids


def test_a_panic_on_a_token_ends_only_its_run(backend: Callable[..., Backend], monkeypatch: pytest.MonkeyPatch) -> None:
    bench = backend()
    bench.load()
    good = bench.start(PROMPT, "autoregressive", max_new_tokens=40, paused=True)
    wait_until(lambda: good.state == "paused")
    monkeypatch.setattr("workbench.engine.scheduler.detokeniser", lambda *_: Panicking())
    bad = bench.start(PROMPT, "autoregressive", max_new_tokens=4)
    with pytest.raises(WorkbenchError, match="charsmap"):
        bad.wait(120)
    good.resume()
    assert len(good.wait(60).token_ids) == 40
    assert is_idle(bench)


class Panicking(Detokeniser):
    """Panics on every token, also at the end of the text."""

    def __init__(self) -> None:
        self.text = ""

    add = flush = panic


def test_a_run_whose_sequence_cannot_be_created_ends(
    backend: Callable[..., Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = backend()
    bench.load()
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "_header", panic)
        run = bench.start(PROMPT, "autoregressive", max_new_tokens=4)
        with pytest.raises(WorkbenchError, match="could not be started"):
            run.wait(120)
    assert is_idle(bench)
    assert bench.health()["status"] == "ok"
    assert bench.start(PROMPT, "autoregressive", max_new_tokens=2).wait(60).token_ids


def test_an_engine_that_panics_is_replaced(backend: Callable[..., Backend], monkeypatch: pytest.MonkeyPatch) -> None:
    bench = backend()
    bench.load()
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "step", panic)
        with pytest.raises(WorkbenchError, match="engine failed"):
            bench.start(PROMPT, "autoregressive", max_new_tokens=4).wait(120)
    assert bench.start(PROMPT, "autoregressive", max_new_tokens=2).wait(60).token_ids


def test_a_panic_while_creating_the_client_is_reported() -> None:
    later = LazyClient()
    with pytest.raises(BaseException, match="charsmap"):
        later.make(panic)
    assert later.ready
    with pytest.raises(RuntimeError, match="could not be started"):
        later.targets()


def test_a_parquet_file_on_which_the_reader_panics_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polars.read_parquet_metadata", panic)
    with pytest.raises(WorkbenchError, match="cannot be read as Parquet"):
        export.read(b"PAR1")
