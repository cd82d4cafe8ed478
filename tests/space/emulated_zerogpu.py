"""The `spaces` package as it behaves on ZeroGPU, on a machine without a GPU, for `python emulated_zerogpu.py`.

Its processes, queues and quota calls are the package's own; the service that lends GPUs is a small server here, and the
package's handling of CUDA is left out, the way it leaves it out where PyTorch is not installed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]


class FakeDeviceAPI(BaseHTTPRequestHandler):
    """Lends GPUs and remembers what it was asked."""

    calls: list[tuple[str, dict[str, str]]] = []  # noqa: RUF012
    quota = True

    def do_POST(self) -> None:
        place = urlsplit(self.path)
        said = {name: values[0] for name, values in parse_qs(place.query).items()}
        self.calls.append((place.path, said))
        if place.path != "/schedule":
            self.answer(200, {})
        elif self.quota:
            lent = {"idle": True, "nvidiaIndex": 0, "nvidiaUUID": "emulated", "allowToken": f"t{len(self.calls)}"}
            self.answer(200, lent)
        else:
            self.answer(429, {"left": 3, "wait": 3600})

    def answer(self, status: int, data: dict[str, Any]) -> None:
        text = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def start_device_api() -> None:
    """Start the service and make this process's environment that of a ZeroGPU Space."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeDeviceAPI)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    group = Path(tempfile.mkdtemp()) / "cgroup"
    group.write_text("0::/emulated")
    os.environ |= {
        "SPACES_ZERO_GPU": "true",
        "SPACES_ZERO_DEVICE_API_URL": f"http://127.0.0.1:{server.server_port}",
        "ZEROGPU_PROC_SELF_CGROUP_PATH": str(group),
        "ZEROGPU_OFFLOAD_DIR": str(group.parent / "offload"),
        "TOKENIZERS_PARALLELISM": "false",
    }


def import_spaces() -> Any:
    """The package in its ZeroGPU mode."""
    start_device_api()
    sys.modules["torch"] = None  # type: ignore[assignment]
    import spaces

    del sys.modules["torch"]
    return spaces


def children() -> list[int]:
    """Processes that this one has forked and that are alive."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and fields[0] != "Z":
            found.append(int(status.parent.name))
    return found


def schedule_calls() -> list[dict[str, str]]:
    return [said for path, said in FakeDeviceAPI.calls if path == "/schedule"]


def main() -> None:
    """Every case in one process, so that each runs after the troubles of the one before."""
    spaces = import_spaces()

    import pytest
    import torch
    from model_helpers import byte_tokenizer, family, noisy_copy

    from workbench.core.errors import WorkbenchError
    from workbench.engine import Engine, Models, Request, Runner
    from workbench.methods import registry
    from workbench.service import costs, zerogpu, zerogpu_models

    torch.set_num_threads(1)
    target = family("llama", vocab_size=257)
    tiny = {"tiny": target, "tiny-drafter": noisy_copy(target, 0.2, 1)}
    zerogpu.known_targets = lambda: iter([(name, Path(name), {}) for name in tiny])
    zerogpu_models.locate = lambda name: None
    zerogpu_models.load_model = lambda name, device, dtype: tiny[name]
    zerogpu_models.load_tokenizer = lambda name: byte_tokenizer()
    zerogpu.choices.targets = lambda names: [{"name": name, "title": name} for name in names]
    zerogpu_models.PACE_S = 0.0  # every round travels alone, so that a run can be caught in the middle
    client = zerogpu.ZeroGpuBackend(spaces.GPU, isolated=True, device="cpu", dtype="float64")
    options: dict[str, Any] = {"target": "tiny", "drafter": "tiny-drafter", "max_new_tokens": 40}

    def alone(method: str) -> list[int]:
        models = Models(Runner(target), byte_tokenizer(), "tiny", Runner(tiny["tiny-drafter"]), "tiny-drafter")
        return Engine(models).generate(Request("aababab", registry.get(method), max_new_tokens=40)).token_ids

    # a run is what it would be without a fork, and nothing of it stays in this process
    trace = client.generate("aababab", "draft-model", **options)
    assert trace.token_ids == alone("draft-model")
    assert trace.footer.reason == "length"
    assert trace.header.prefill_s > 0
    assert not client._models._engines, "the engine was built in the app's process"
    assert FakeDeviceAPI.calls[0][0] == "/schedule"
    assert int(schedule_calls()[0]["durationSeconds"]) >= costs.START_S
    said = client.estimate(options | {"method": "draft-model"})
    assert "on 1 run" in said, said
    print("SEEN same text")

    # the process is used again, with other methods
    assert len(children()) == 1, children()
    before = children()
    for method in ("prompt-lookup", "draft-tree"):
        assert client.generate("aababab", method, **options).token_ids == alone(method)
    assert children() == before
    print("SEEN one process for several runs")

    # cancelled in the middle: the run ends at once, the process lets the row go and serves the next run
    run = client.start("aababab", "draft-model", **options | {"max_new_tokens": 400})
    while len(run.since(0)["rounds"]) < 3:
        time.sleep(0.005)
    run.cancel()
    assert run.state == "cancelled"
    assert run.since(0)["footer"]["reason"] == "cancelled"
    released = len([1 for path, _ in FakeDeviceAPI.calls if path == "/release"])
    deadline = time.monotonic() + 20
    while len([1 for path, _ in FakeDeviceAPI.calls if path == "/release"]) == released and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len([1 for path, _ in FakeDeviceAPI.calls if path == "/release"]) == released + 1, (
        "the GPU was not given back"
    )
    n_rounds = len(run.since(0)["rounds"])
    assert n_rounds < 390
    assert client.generate("aababab", "draft-model", **options).token_ids == alone("draft-model")
    print("SEEN cancelled")

    # the process dies: a clear error, what was recorded stays, the next run gets a new process
    run = client.start("aababab", "draft-model", **options | {"max_new_tokens": 400})
    while len(run.since(0)["rounds"]) < 3:
        time.sleep(0.005)
    for process in children():
        os.kill(process, signal.SIGKILL)
    with pytest.raises(WorkbenchError, match="GPU task aborted"):
        run.wait(120)
    assert len(run.since(0)["rounds"]) >= 3
    assert client.generate("aababab", "draft-model", **options).token_ids == alone("draft-model")
    print("SEEN killed")

    # no quota left: the package's own words
    FakeDeviceAPI.quota = False
    with pytest.raises(WorkbenchError, match="ZeroGPU quota exceeded") as refusal:
        client.generate("aababab", "draft-model", **options)
    assert str(ROOT) not in str(refusal.value)
    FakeDeviceAPI.quota = True
    print("SEEN no quota")

    # several at once, each in its turn or in its own process, all right
    runs = [client.start("aababab", method, **options) for method in ("draft-model", "prompt-lookup", "draft-tree")]
    for run in runs:
        assert run.wait(60).token_ids == alone(run.method)
    print("SEEN several at once")
    assert not client.health()["rows"]


def exit_with_children(status: int) -> None:
    """End this process and those it forked, which wait for more work."""
    if status:
        traceback.print_exc()
    for process in children():
        os.kill(process, signal.SIGKILL)
    sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    status = 1
    try:
        main()
        status = 0
    finally:
        exit_with_children(status)
