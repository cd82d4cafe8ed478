"""Behaviour between processes: a client that is killed, a server that is absent, names that are paths."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import serving

from workbench import Workbench
from workbench.bench.compare import Plan, prepare
from workbench.bench.steps import StepDecoder, StepEncoder
from workbench.client import wire
from workbench.core.errors import ModelError, PromptError, UnknownNameError, WorkbenchError

STORY = serving.STORY
LONG = 900


@pytest.fixture
def bench() -> Workbench:
    return serving.app().bench


@pytest.mark.slow
@pytest.mark.processes
def test_a_killed_client_frees_its_sequences_within_two_seconds(bench: Workbench) -> None:
    code = f"""
import time
from workbench import Workbench
bench = Workbench({serving.app().url!r})
runs = [bench.start({STORY!r}, "autoregressive", max_new_tokens={LONG}, paused=p) for p in (True, False)]
print("started", flush=True)
time.sleep(60)
"""
    assert serving.wait_until(lambda: serving.n_unfinished_runs(bench) == 0)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "started\n"
        assert serving.wait_until(lambda: bench.health()["rows"] == 2)
        client.kill()
        killed = time.monotonic()
        assert serving.wait_until(lambda: serving.n_unfinished_runs(bench) == 0)
    assert time.monotonic() - killed < 4, "two seconds, plus two for a busy machine"


def test_a_script_exits_without_waiting_for_its_run(bench: Workbench) -> None:
    code = f"from workbench import Workbench; Workbench({serving.app().url!r}).start({STORY!r}, paused=True)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert serving.wait_until(lambda: serving.n_unfinished_runs(bench) == 0)


def test_closing_a_client_ends_only_its_own_runs(bench: Workbench) -> None:
    mine = bench.start(STORY, max_new_tokens=20, paused=True)
    with Workbench(serving.app().url) as remote:
        theirs = remote.start(STORY, paused=True)
        assert remote.run(mine.id).state in ("queued", "prefill", "paused")
    assert serving.wait_until(lambda: bench.run(theirs.id).state == "cancelled")
    assert not mine.ended
    mine.resume()
    assert mine.wait(timeout=60).footer.reason == "length"


def test_ctrl_c_keeps_the_measurements_of_a_remote_comparison_and_ends_it_on_the_server(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Workbench(serving.app().url) as remote:
        events = remote._backend.events

        def interrupted(*asked: Any) -> Iterator[dict[str, Any]]:
            """Yield messages until both lanes have a run; then raise KeyboardInterrupt instead of the next message."""
            for message in events(*asked):
                yield message
                if (message.get("news") or {}).get("runs") and message["done"] >= 4:
                    raise KeyboardInterrupt

        monkeypatch.setattr(remote._backend, "events", interrupted)
        steps: list[Any] = []
        found = remote.compare([STORY, "The fox and the hare"], ["draft-model"], max_new_tokens=16, repeats=9,
                               progress=steps.append)  # fmt: skip
        assert not found.complete
        assert [sorted(lane.samples) for lane in found.lanes] == [[(0, 0)], [(0, 0)]]
        assert found.to_wire()["lanes"][1]["exact"]["identical"] == 1, "texts and traces are included"
        assert (steps[-1].last, steps[-1].text) == (True, "stopped")
        assert serving.wait_until(lambda: serving.n_unfinished_runs(bench) == 0), (
            "the comparison continues on the server"
        )


def test_ctrl_c_between_two_steps_keeps_the_measurements_too(bench: Workbench) -> None:
    def enough(step: Any) -> None:
        if step.comparison is not None and step.done >= 4:
            raise KeyboardInterrupt

    with Workbench(serving.app().url) as remote:
        for client in (remote, bench):
            found = client.compare(STORY, ["draft-model"], max_new_tokens=8, repeats=9, progress=enough)
            assert [len(lane.samples) for lane in found.lanes] == [1, 1]
            assert serving.wait_until(lambda: serving.n_unfinished_runs(bench) == 0)


def test_a_remote_comparison_equals_the_local_one(bench: Workbench) -> None:
    """Complete comparisons with races and texts: streamed run by run, and local."""
    telling, hearing, last = StepEncoder(), None, None
    for last in bench.stream_comparison([STORY, "The fox"], ["draft-model", "eagle-vlm"], max_new_tokens=8, repeats=3):
        hearing = hearing or StepDecoder(prepare([STORY, "The fox"], ["draft-model", "eagle-vlm"], Plan(
            max_new_tokens=8, repeats=3)))  # fmt: skip
        heard = hearing.step(json.loads(json.dumps(telling.message(last))))
        assert heard.done == last.done
    assert hearing
    assert last
    assert json.loads(json.dumps(hearing.comparison.to_wire())) == json.loads(json.dumps(last.comparison.to_wire()))


def test_an_app_of_another_version_is_reported() -> None:
    old = {"done": 1, "total": 2, "text": "measured", "waiting": "", "left_s": None, "last": False, "comparison": None}
    with pytest.raises(WorkbenchError, match="same version"):
        StepDecoder(prepare([STORY], ["draft-model"], Plan())).step(old)


def test_a_run_without_polls_is_ended() -> None:
    """`start` and `since` are for clients that cannot follow a stream; their runs have a lease."""
    with Workbench(serving.app().url) as remote:
        answer = remote._backend.call("start", STORY, paused=True, max_new_tokens=4)
        assert 0 < answer["lease_s"] <= 60
        run = serving.app().bench.run(answer["run"])
        assert getattr(run, "lease_s") == answer["lease_s"]  # noqa: B009
        run.cancel()


def test_an_address_without_server_is_reported() -> None:
    url = f"http://127.0.0.1:{serving.free_port()}"
    with pytest.raises(WorkbenchError) as caught:
        Workbench(url)
    assert url in caught.value.message
    assert "app.py" in caught.value.remedy


def test_a_server_that_is_not_a_workbench_is_reported() -> None:
    with pytest.raises(WorkbenchError):
        Workbench(f"{serving.app().url}/health")


@pytest.mark.processes
def test_a_server_that_stops_ends_the_run_with_the_reason() -> None:
    code = """
import sys
import serving
print(serving.app().url, flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="tests",
        env={**__import__("os").environ, "PYTHONPATH": "..:."},
    ) as server:  # fmt: skip
        assert server.stdout is not None
        remote = Workbench(server.stdout.readline().strip())
        run = remote.start(STORY, max_new_tokens=LONG, paused=True)
        run.step()
        assert serving.wait_until(lambda: run.trace is not None and len(run.trace.rounds) == 1)
        server.kill()
    with pytest.raises(WorkbenchError):
        run.wait(timeout=60)
    assert run.state == "error"
    assert run.trace is not None
    assert len(run.trace.rounds) == 1, "rounds that arrived are kept"
    with pytest.raises(WorkbenchError):
        run.pause()


def test_importing_the_package_is_light() -> None:
    code = (
        "import sys, workbench; assert not {'torch', 'gradio', 'gradio_client', 'httpx'} & set(sys.modules);"
        "from workbench import Workbench; assert 'torch' not in sys.modules; assert 'gradio_client' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_token_of_the_environment_goes_to_spaces_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_thisIsASecret123")
    with Workbench(serving.app().url) as remote:
        headers = remote._backend.app.headers
    assert "hf_thisIsASecret123" not in str(headers)


# -- serialisation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd", "/etc/passwd", "~/x", "file:///etc/passwd", "http://evil/x", "a/b/c", "..", "a\\b", "a/..",
        ".", "C:\\x", "x\x00y", "assets", "owner/na me",
    ],
)  # fmt: skip
def test_a_path_is_refused_as_model_name(name: str) -> None:
    with pytest.raises(WorkbenchError):
        wire.model_name("target", name, ["text-target"])


def test_listed_names_and_hub_ids_are_accepted_as_model_names() -> None:
    assert wire.model_name("target", "/srv/models/mine", ["/srv/models/mine"]) == "/srv/models/mine"
    assert wire.model_name("target", "Qwen/Qwen3-0.6B", []) == "Qwen/Qwen3-0.6B"
    assert wire.model_name("target", "", []) is wire.model_name("target", None, []) is None


def test_an_error_keeps_its_class_message_and_remedy() -> None:
    back = wire.error_from_wire(wire.error_to_wire(UnknownNameError("There is no x.", "Take y.")))
    assert (type(back), back.message, back.remedy) == (UnknownNameError, "There is no x.", "Take y.")


def test_an_error_contains_no_folder_no_access_token_and_no_traceback() -> None:
    wire_error = wire.error_to_wire(
        ModelError(
            "Cannot read /home/me/.cache/huggingface/x.bin with hf_abcdefGHIJ123456", "See C:\\Users\\me\\x.txt."
        )
    )
    assert wire_error["message"] == "Cannot read … with …"
    assert "Users" not in wire_error["remedy"]
    assert wire.error_to_wire(RuntimeError("secret"))["message"] == "An internal error occurred."


@pytest.mark.parametrize("text", ["http://localhost:7860", "owner/name", "1/2", "and/or"])
def test_addresses_and_names_are_not_folders(text: str) -> None:
    assert wire.scrub(text) == text


def test_an_unpaired_surrogate_is_refused() -> None:
    with pytest.raises(PromptError):
        wire.check_prompt("a\ud800b")


def test_metrics_are_in_prometheus_text_format() -> None:
    answer = httpx.get(f"{serving.app().url}/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "# TYPE" in answer.text
