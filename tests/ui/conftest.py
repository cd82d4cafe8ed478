"""A browser and two running apps: one with synthetic rounds, one with the bundled models."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
ARGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
ARGS += ["--disable-component-update", "--disable-sync"]
OFF = ["WebUIOmniboxPopup", "WebUIOmniboxAimPopup"]
"""Address-bar features that each new window would load, a fifth of the time for opening a page."""
OFF += ["AimEnabled", "HttpsUpgrades", "HttpsFirstBalancedModeAutoEnable", "MediaRouter", "LensOverlay", "PaintHolding"]
OFF += ["OptimizationHints", "NetworkTimeServiceQuerying", "PreconnectToSearch", "ThirdPartyStoragePartitioning"]
OFF += ["AvoidUnnecessaryBeforeUnloadCheckSync", "DestroyProfileOnBrowserClose", "AvoidCorsURLLoaderRestartOnRedirect"]
ARGS += [f"--disable-features={','.join(OFF)}"]  # Chromium uses only the last such list, so this repeats Playwright's
READY = ".wb[data-ready=true]"
PREFERENCES = {"wb-drafts": "on", "wb-autobaseline": "off", "wb-intro": "off", "wb-cardfacts": "on"}
"""Preferences of the tests' reader: rejected drafts are shown, the introduction is closed, and no run starts by itself.
They differ from the defaults, which `test_opening.py` tries."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def serve(command: list[str], port: int, log: Path, **env: str) -> Iterator[str]:
    """Run a server until the generator is closed; yield its address as soon as it responds."""
    url = f"http://127.0.0.1:{port}"
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **env})
        try:
            deadline = time.monotonic() + 120
            while True:
                try:
                    urllib.request.urlopen(url, timeout=2).close()
                    break
                except OSError:
                    assert process.poll() is None, log.read_text()
                    assert time.monotonic() < deadline, log.read_text()
                    time.sleep(0.2)
            yield url
        finally:
            process.terminate()
            process.wait(timeout=20)


def models_folder() -> Path | None:
    """Return the folder of the bundled models: the repository's, or the newest snapshots of a running training."""
    named = os.environ.get("WORKBENCH_MODELS")
    for folder in ([Path(named)] if named else []) + [ROOT / "assets" / "models", ROOT / ".cache" / "models"]:
        if (folder / "text-target" / "config.json").is_file():
            return folder
    return None


@contextmanager
def chromium(*more: str) -> Iterator[Any]:
    """Open Chromium with further arguments; until it closes, Playwright's event loop runs in this thread."""
    sync_api = pytest.importorskip("playwright.sync_api")
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    assert found, "no chromium on the PATH"
    with sync_api.sync_playwright() as play:
        opened = play.chromium.launch(executable_path=found, args=[*ARGS, *more])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Open Chromium for one module."""
    with chromium() as opened:
        yield opened


class PageOpener:
    """Opens pages, each in a new profile, and collects the errors of all of them."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser
        self.contexts: list[Any] = []
        self.problems: list[str] = []
        self.allowed: list[str] = []

    def __call__(
        self, url: str, ready: str = READY, preferences: Mapping[str, str] = PREFERENCES, **options: Any
    ) -> Any:
        context = self.browser.new_context(**({"viewport": {"width": 1440, "height": 1100}} | options))
        context.set_default_timeout(120_000)  # slow shared machines must not fail tests
        self.contexts.append(context)
        chosen = "".join(
            f"localStorage.getItem({name!r}) ?? localStorage.setItem({name!r}, {value!r});"
            for name, value in preferences.items()
        )
        context.add_init_script(f"try {{ {chosen} }} catch {{}}")  # pages without an address have no storage
        page = context.new_page()
        page.on("console", lambda m: self.problems.append(format_console_message(m)) if m.type == "error" else None)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda r: self.problems.append(f"asked {r.url}") if is_external(r.url) else None)
        page.goto(url)
        page.wait_for_selector(ready)
        return page

    def unexpected(self) -> list[str]:
        return [text for text in self.problems if not any(part in text for part in self.allowed)]


@pytest.fixture
def open_page(browser: Any) -> Iterator[PageOpener]:
    """Return an opener; afterwards check that no page logged an error or sent a request to another machine."""
    opener = PageOpener(browser)
    yield opener
    for context in opener.contexts:
        context.close()
    assert not opener.unexpected()


def format_console_message(message: Any) -> str:
    """Return a console message with its URL, which the text of Chromium's own messages lacks."""
    return f"{message.text} ({message.location.get('url', '')})"


def wait_until_drawn(page: Any) -> None:
    """Wait until the page is drawn: views draw once per frame, after the event handler of the key or click."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def is_external(url: str) -> bool:
    return not url.startswith(("http://127.0.0.1", "data:", "blob:"))


@pytest.fixture(scope="session")
def fake_app_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which `fake_app` keeps runs."""
    return tmp_path_factory.mktemp("fake") / "runs"


@pytest.fixture(scope="session")
def fake_app(fake_app_runs: Path) -> Iterator[str]:
    """Run the app with synthetic rounds, twenty per second; yield its address."""
    port = free_port()
    command = [sys.executable, "tests/ui/serve_fake.py", str(port), "0.05"]
    yield from serve(command, port, fake_app_runs.parent / "log", WORKBENCH_RUNS=str(fake_app_runs))


@pytest.fixture(scope="session")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of sweeps of the app with the bundled models."""
    return tmp_path_factory.mktemp("sweeps")


@pytest.fixture(scope="session")
def real_app(tmp_path_factory: pytest.TempPathFactory, sweeps: Path) -> Iterator[str]:
    """Run `python app.py` with the bundled models; yield its address."""
    folder = models_folder()
    if folder is None:
        pytest.skip("needs the bundled models: assets/models is empty")
    port, log = free_port(), tmp_path_factory.mktemp("real") / "log"
    env = {"WORKBENCH_MODELS": str(folder), "WORKBENCH_SWEEPS": str(sweeps)}
    yield from serve([sys.executable, "app.py", "--port", str(port)], port, log, **env)
