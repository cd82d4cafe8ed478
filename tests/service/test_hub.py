"""Models from the Hub: download with progress, safetensors only, and a clear error without network."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from workbench.client.requests import Generation, Models
from workbench.core.errors import CapacityError, ModelError, WorkbenchError
from workbench.models import local_models, model_index
from workbench.models.bundle import bundled_folder
from workbench.service import Backend, hub
from workbench.service.progress import LoadAbortedError, Progress

from .conftest import PROMPT
from .fake_hub import FakeHub, use_hub_at

MOST = 1 << 40


@pytest.fixture
def online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that makes the Hub's library use an address, with an empty cache."""
    return lambda url: use_hub_at(url, tmp_path / "cache", monkeypatch)


@pytest.fixture
def repos(folders: tuple[str, str], tmp_path: Path, online: Callable[[str], None]) -> Iterator[FakeHub]:
    """owner/good, with files that must not be fetched; owner/pickled, without safetensors; owner/gated."""
    good, pickled = tmp_path / "good", tmp_path / "pickled"
    shutil.copytree(folders[0], good)
    (good / "pytorch_model.bin").write_bytes(b"a pickle")
    (good / "modeling_good.py").write_text("raise SystemExit('remote code')")
    (good / "consolidated.safetensors").write_bytes(b"the same weights again")
    (good / "onnx").mkdir()
    (good / "onnx" / "config.json").write_text("{}")
    shutil.copytree(folders[0], pickled)
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    served = FakeHub({"owner/good": good, "owner/pickled": pickled, "owner/gated": good}, gated=("owner/gated",))
    online(served.url)
    yield served
    served.close()


def closed_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_a_model_is_fetched_with_progress_and_only_what_it_needs(repos: FakeHub) -> None:
    progress = Progress("owner/good")
    seen: list[dict[str, Any]] = []
    reach = progress.reach
    progress.reach = lambda n: (reach(n), seen.append(progress.to_wire()))[0]  # type: ignore[method-assign]
    folder = Path(hub.fetch("owner/good", progress, MOST))
    fetched = {p.name for p in folder.rglob("*") if p.is_file()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= fetched
    assert not fetched & {"pytorch_model.bin", "modeling_good.py", "consolidated.safetensors"}
    assert not any("pytorch_model.bin" in path or "onnx" in path or ".py" in path for path in repos.requested_paths)
    total = sum(p.stat().st_size for p in folder.iterdir())
    assert seen[-1] == {"stage": "downloading", "done": total, "total": total}
    assert [s["done"] for s in seen] == sorted(s["done"] for s in seen)


def test_a_hub_model_runs_under_its_own_name_and_again_without_network(
    repos: FakeHub, online: Callable[[str], None], backend: Callable[..., Backend]
) -> None:
    bench = backend()
    options: dict[str, Any] = {"target": "owner/good", "drafter": "owner/good", "max_new_tokens": 8}
    trace = bench.start(PROMPT, "draft-model", **options).wait(60)
    assert (trace.header.target, trace.header.drafter) == ("owner/good", "owner/good")
    assert {entry["name"] for entry in bench.loaded_models()} == {"owner/good"}
    assert any(t["name"] == "owner/good" and t["kind"] == "hub" for t in bench.targets())
    repos.close()
    bench.unload("owner/good")
    assert bench.start(PROMPT, "draft-model", **options).wait(60).token_ids == trace.token_ids


def test_the_token_of_the_environment_is_used(repos: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_a_secret")
    hub.fetch("owner/good", Progress(""), MOST)
    assert repos.tokens == {"hf_a_secret"}
    with pytest.raises(ModelError) as refused:
        hub.fetch("owner/gated", Progress(""), MOST)
    assert "hf_a_secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("owner/pickled", "no safetensors"),
        ("owner/gated", "Ask for access.*HF_TOKEN"),
        ("owner/missing", "The Hugging Face Hub has no model owner/missing"),
    ],
)
def test_refusals_of_the_hub_are_reported(repos: FakeHub, name: str, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        hub.fetch(name, Progress(""), MOST)
    assert not any("/resolve/" in path for path in repos.requested_paths)


def test_a_check_downloads_nothing_and_skips_the_hub_for_cached_models(
    repos: FakeHub, online: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.check("owner/good")
    assert repos.requested_paths == ["/api/models/owner/good"]
    with pytest.raises(ModelError, match="The Hugging Face Hub has no model owner/missing"):
        hub.check("owner/missing")
    hub.fetch("owner/good", Progress(""), MOST)
    n_asked = len(repos.requested_paths)
    hub.check("owner/good")
    assert len(repos.requested_paths) == n_asked
    online(f"http://127.0.0.1:{closed_port()}")
    hub.check("owner/missing")  # the Hub does not answer: loading reports that later
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.check("owner/good")
    with pytest.raises(ModelError, match="not on this machine"):
        hub.check("owner/missing")


def test_a_model_too_large_is_refused_before_it_is_fetched(repos: FakeHub) -> None:
    with pytest.raises(CapacityError, match="owner/good has"):
        hub.fetch("owner/good", Progress(""), 1000)
    assert not any("/resolve/" in path for path in repos.requested_paths)


@pytest.mark.parametrize("offline", [True, False])
def test_without_network_the_error_comes_at_once_and_names_the_bundled_models(
    online: Callable[[str], None], backend: Callable[..., Backend], monkeypatch: pytest.MonkeyPatch, offline: bool
) -> None:
    online(f"http://127.0.0.1:{closed_port()}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    started = time.monotonic()
    run = backend().start(PROMPT, "autoregressive", target="owner/good")
    with pytest.raises(WorkbenchError, match=r"Hub cannot be reached.*text-target"):
        run.wait(120)
    assert time.monotonic() - started < 10
    assert run.state == "error"


def test_a_hub_that_never_answers_times_out(online: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "PATIENCE_S", 0.3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        online(f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(ModelError, match="cannot be reached"):
            hub.fetch("owner/good", Progress(""), MOST)


def test_a_download_ends_when_the_backend_is_closed(repos: FakeHub) -> None:
    """Threads of the Hub's library report the bytes; an exception in that callback ends the download."""
    over_flags: list[bool] = []

    def is_over() -> bool:
        over_flags.append(len(over_flags) > 1)  # started, some bytes, then an end
        return over_flags[-1]

    with pytest.raises(LoadAbortedError, match="owner/good was aborted"):
        hub.fetch("owner/good", Progress("owner/good", is_over), MOST)
    assert over_flags[:3] == [False, False, True]


def test_a_file_in_xet_is_downloaded_over_http_so_that_it_can_be_cancelled(
    repos: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exceptions in Xet's threads do not end a download. Afterwards the user's own Xet setting is restored."""
    pytest.importorskip("hf_xet")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    repos.xet = True
    seen: list[bool] = []

    def is_over() -> bool:
        seen.append(constants.HF_HUB_DISABLE_XET)
        return len(seen) > 2

    with pytest.raises(LoadAbortedError):
        hub.fetch("owner/good", Progress("owner/good", is_over), MOST)
    assert seen[:3] == [False, True, True]
    hub.fetch("owner/good", Progress("owner/good"), MOST)
    assert not any("/xet" in path for path in repos.requested_paths), "the file was requested from Xet"
    assert not constants.HF_HUB_DISABLE_XET


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt; afterwards restore its handler, which also interrupts system calls again."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_a_download(repos: FakeHub, tmp_path: Path, restarts: bool) -> None:
    """By default the Hub's library waits for all threads, and each thread for all of its files.

    With `restarts`, the signal interrupts no system call, as after `loop.add_signal_handler` of asyncio.
    """
    signal.siginterrupt(signal.SIGINT, not restarts)
    model = replace(model_index.SMOLLM2, hub_id="owner/good")
    fetches = (lambda: model_index.download(model), lambda: hub.fetch("owner/good", Progress(""), MOST))
    for fetch in fetches:
        repos.gate, ended = threading.Event(), threading.Event()
        repos.requested_paths.clear()

        def interrupt(gate: threading.Event = repos.gate, ended: threading.Event = ended) -> None:
            deadline = time.monotonic() + 20
            while not any("/resolve/" in path for path in repos.requested_paths) and time.monotonic() < deadline:
                time.sleep(0.01)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            ended.wait(20)  # it ends before the first byte arrives
            gate.set()

        helper = threading.Thread(target=interrupt)
        helper.start()
        with pytest.raises(KeyboardInterrupt):
            fetch()
        ended.set()
        helper.join()
        for thread in threading.enumerate():
            if thread.name == "workbench-download":
                thread.join(20)
        assert not list((tmp_path / "cache").rglob("*.safetensors")), "the threads continued to download"


def test_closing_does_not_wait_for_a_load(backend: Callable[..., Backend], monkeypatch: pytest.MonkeyPatch) -> None:
    """Python waits for the threads of a pool at exit, so Ctrl-C would wait minutes for a download."""
    begun, ended = threading.Event(), threading.Event()

    def fetch(name: str, progress: Progress, most_bytes: int) -> str:
        try:
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                progress.add(1)
                begun.set()
                time.sleep(0.01)
            raise ModelError("The load was not cancelled.")
        except LoadAbortedError:
            ended.set()
            raise

    monkeypatch.setattr(hub, "fetch", fetch)
    for start in (lambda b: b.preload(), lambda b: b.start(PROMPT), lambda b: b.preload(["smollm2"])):
        bench = backend()
        begun.clear()
        ended.clear()
        start(bench)
        assert begun.wait(20)
        bench.close()
        assert ended.wait(10), "the load continues"


def answer_or_error(ask: Callable[[], Any]) -> str:
    """Return the answer or the error of a call."""
    try:
        return repr(ask())
    except WorkbenchError as error:
        return f"{type(error).__name__}: {error}"


def test_errors_do_not_reveal_whether_a_folder_exists(
    backend: Callable[..., Backend],
    folders: tuple[str, str],
    online: Callable[[str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a public server a name with a slash is a Hub id; otherwise errors would reveal local folders."""
    shutil.copytree(folders[0], tmp_path / "owner" / "hers")
    (tmp_path / "owner" / "x--y").mkdir()  # not a valid Hub id
    shutil.copytree(
        bundled_folder() / "text-target", tmp_path / "owner" / "words"
    )  # bundled drafters share its vocabulary
    monkeypatch.chdir(tmp_path)
    online(f"http://127.0.0.1:{closed_port()}")
    bench = backend(folders=False)

    def errors_for(name: str) -> list[str]:
        def run(**asked: Any) -> Any:
            options = Generation.options(bench, {"prompt": PROMPT, "method": "draft-model", **asked})
            return bench.start(**options).wait(60)

        asked = (
            lambda: Models.options(bench, {"target": name}),
            lambda: bench.drafters(name),
            lambda: [(method["name"], method["reason"]) for method in bench.methods(name)],
            lambda: [(method["name"], method["reason"]) for method in bench.methods(None, name)],
            lambda: [(method["name"], method["reason"]) for method in bench.methods("vision-target", name)],
            lambda: bench.conditions("prompt-lookup", name),
            lambda: bench.load(name),
            lambda: bench.unload(name),
            lambda: run(target=name),
            lambda: run(drafter=name),
            lambda: [target["name"] for target in bench.targets()],
        )
        return [answer_or_error(ask).replace(name, "NAME") for ask in asked]

    assert errors_for("owner/hers") == errors_for("owner/none")
    assert errors_for("owner/words") == errors_for("owner/none")
    assert errors_for("owner/x--y") == errors_for("owner/z--y")
    assert any("cannot be reached" in text for text in errors_for("owner/hers"))
    assert backend().start(PROMPT, "autoregressive", target="owner/hers", max_new_tokens=2).wait(60).token_ids


def test_a_hub_id_is_never_read_as_a_path(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    for said in (str(tmp_path / "secret"), f"/{tmp_path}/secret", "C:\\x\\y", "x/y", "/x/y.gguf"):
        assert not local_models.path_of(local_models.HubId(said)).exists()
        assert local_models.path_of(local_models.HubId(said)).is_relative_to(os.devnull)
