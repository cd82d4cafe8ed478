"""A model that generates hostile text, a trace of it, and a public app on a read-only file system."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from security import hostile_model
from ui.conftest import browser, free_port, models_folder, open_page  # noqa: F401

from workbench.service import Backend
from workbench.trace.events import Trace

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def hostile_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_model.make(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="session")
def hostile_trace(hostile_folder: Path) -> Trace:
    """Return a trace in which all hostile texts occur twice; the second time they are drafted."""
    backend = Backend(str(hostile_folder), None, device="cpu", dtype="float32")
    try:
        run = backend.start(hostile_model.PIECES[0], "prompt-lookup", max_new_tokens=2 * len(hostile_model.PIECES))
        trace = run.wait(60)
    finally:
        backend.close()
    assert "".join(hostile_model.PIECES[1:8]) in trace.text
    assert any(len(r.nodes) for r in trace.rounds)
    return trace


READ_ONLY = "mount --make-rprivate / && mount -o remount,bind,ro / && mount -t tmpfs tmpfs /tmp && exec "
NOBODY = ["setpriv", "--reuid=10001", "--regid=10001", "--clear-groups"]


def is_runnable(command: list[str]) -> bool:
    """Return whether a command can run on this machine."""
    return shutil.which(command[0]) is not None and not subprocess.run(command, capture_output=True).returncode


@pytest.fixture(scope="session")
def public_app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    """Run `python app.py --public` as in the image: without rights, only /tmp writable. Yield its address and log.

    If the machine does not allow this (no root), the app runs as an ordinary process.
    """
    if models_folder() is None:
        pytest.skip("needs the bundled models: assets/models is empty")
    port, log = free_port(), tmp_path_factory.mktemp("public") / "log"
    said = {
        "HOME": "/tmp", "XDG_CACHE_HOME": "/tmp/cache", "HF_HOME": "/tmp/hf", "GRADIO_TEMP_DIR": "/tmp/gradio",
        "PYTHONDONTWRITEBYTECODE": "1", "HF_TOKEN": "hf_a_secret", "HF_HUB_OFFLINE": "1", "WORKBENCH_BEHIND": "none",
        "GRADIO_ANALYTICS_ENABLED": "False", "WORKBENCH_MODELS": str(models_folder()), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, "app.py", "--public", "--port", str(port)]
    if is_runnable([*NOBODY, sys.executable, "-c", "import torch"]):
        command = [*NOBODY, *command]
    there = f"test -e {ROOT}/app.py -a -x {sys.executable}"  # fails if the repository itself is in /tmp
    if is_runnable(["unshare", "-m", "bash", "-c", READ_ONLY.removesuffix("exec ") + there]):
        command = ["unshare", "-m", "bash", "-c", READ_ONLY + " ".join(command)]
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, env={**os.environ, **said})
    try:
        import httpx

        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 150
        while True:
            try:
                if httpx.get(url + "/health", timeout=5).json()["status"] == "ok":
                    break
            except (httpx.HTTPError, ValueError):
                pass
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.3)
        yield url, log
    finally:
        process.terminate()
        process.wait(timeout=30)
