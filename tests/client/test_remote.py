"""What only happens between processes: a client that dies, a server that is not there, names that are paths."""

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
def test_a_client_that_is_killed_frees_its_rows_within_two_seconds(bench: Workbench) -> None:
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
    assert time.monotonic() - killed < 4, "two seconds, and as much for a busy machine"


def test_a_script_that_ends_does_not_hang_on_its_run(bench: Workbench) -> None:
    code = f"from workbench import Workbench; Workbench({serving.app().url!r}).start({STORY!r}, paused=True)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert serving.wait_until(lambda: serving.n_unfinished_runs(bench) == 0)


def test_closing_a_client_ends_what_it_started_and_nothing_else(bench: Workbench) -> None:
    mine = bench.start(STORY, max_new_tokens=20, paused=True)
    with Workbench(serving.app().url) as remote:
        theirs = remote.start(STORY, paused=True)
        assert remote.run(mine.id).state in ("queued", "prefill", "paused")
    assert serving.wait_until(lambda: bench.run(theirs.id).state == "cancelled")
    assert not mine.ended
    mine.resume()
    assert mine.wait(timeout=60).footer.reason == "length"


def test_ctrl_c_keeps_what_a_comparison_elsewhere_has_measured_and_ends_it_there(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Workbench(serving.app().url) as remote:
        events = remote._backend.events

        def interrupted(*asked: Any) -> Iterator[dict[str, Any]]:
            """The messages, until both lanes have a run; then Ctrl-C, while the next one is waited for."""
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
        assert found.to_wire()["lanes"][1]["exact"]["identical"] == 1, "texts and traces came along"
        assert (steps[-1].last, steps[-1].text) == (True, "stopped")
        assert serving.wait_until(lambda: serving.n_unfinished_runs(bench) == 0), "the comparison goes on there"


def test_ctrl_c_between_two_steps_keeps_the_part_too(bench: Workbench) -> None:
    def enough(step: Any) -> None:
        if step.comparison is not None and step.done >= 4:
            raise KeyboardInterrupt

    with Workbench(serving.app().url) as remote:
        for client in (remote, bench):
            found = client.compare(STORY, ["draft-model"], max_new_tokens=8, repeats=9, progress=enough)
            assert [len(lane.samples) for lane in found.lanes] == [1, 1]
            assert serving.wait_until(lambda: serving.n_unfinished_runs(bench) == 0)


def test_what_a_comparison_elsewhere_tells_is_what_was_measured(bench: Workbench) -> None:
    """Whole comparisons, with races and texts: those told run by run, and those of the process itself."""
    telling, hearing, last = StepEncoder(), None, None
    for last in bench.stream_comparison([STORY, "The fox"], ["draft-model", "eagle-vlm"], max_new_tokens=8, repeats=3):
        hearing = hearing or StepDecoder(prepare([STORY, "The fox"], ["draft-model", "eagle-vlm"], Plan(
            max_new_tokens=8, repeats=3)))  # fmt: skip
        heard = hearing.step(json.loads(json.dumps(telling.message(last))))
        assert heard.done == last.done
    assert hearing
    assert last
    assert json.loads(json.dumps(hearing.comparison.to_wire())) == json.loads(json.dumps(last.comparison.to_wire()))


def test_an_app_of_another_version_is_said_to_be_one() -> None:
    old = {"done": 1, "total": 2, "text": "measured", "waiting": "", "left_s": None, "last": False, "comparison": None}
    with pytest.raises(WorkbenchError, match="same version"):
        StepDecoder(prepare([STORY], ["draft-model"], Plan())).step(old)


def test_a_run_that_nobody_asks_after_is_ended() -> None:
    """`start` and `since` are for those who cannot follow a stream; their runs have a lease."""
    with Workbench(serving.app().url) as remote:
        answer = remote._backend.call("start", STORY, paused=True, max_new_tokens=4)
        assert 0 < answer["lease_s"] <= 60
        run = serving.app().bench.run(answer["run"])
        assert getattr(run, "lease_s") == answer["lease_s"]  # noqa: B009
        run.cancel()


def test_nobody_at_the_address() -> None:
    url = f"http://127.0.0.1:{serving.free_port()}"
    with pytest.raises(WorkbenchError) as caught:
        Workbench(url)
    assert url in caught.value.message
    assert "app.py" in caught.value.remedy


def test_an_address_of_something_else() -> None:
    with pytest.raises(WorkbenchError):
        Workbench(f"{serving.app().url}/health")


@pytest.mark.processes
def test_a_server_that_goes_away_ends_the_run_with_the_reason() -> None:
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
    assert len(run.trace.rounds) == 1, "what arrived is kept"
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


# -- what crosses the wire --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd", "/etc/passwd", "~/x", "file:///etc/passwd", "http://evil/x", "a/b/c", "..", "a\\b", "a/..",
        ".", "C:\\x", "x\x00y", "assets", "owner/na me",
    ],
)  # fmt: skip
def test_a_path_is_no_name_of_a_model(name: str) -> None:
    with pytest.raises(WorkbenchError):
        wire.model_name("target", name, ["text-target"])


def test_listed_names_and_hub_ids_are_names() -> None:
    assert wire.model_name("target", "/srv/models/mine", ["/srv/models/mine"]) == "/srv/models/mine"
    assert wire.model_name("target", "Qwen/Qwen3-0.6B", []) == "Qwen/Qwen3-0.6B"
    assert wire.model_name("target", "", []) is wire.model_name("target", None, []) is None


def test_an_error_crosses_as_what_it_was() -> None:
    back = wire.error_from_wire(wire.error_to_wire(UnknownNameError("There is no x.", "Take y.")))
    assert (type(back), back.message, back.remedy) == (UnknownNameError, "There is no x.", "Take y.")


def test_an_error_tells_no_folder_no_token_and_no_traceback() -> None:
    told = wire.error_to_wire(
        ModelError(
            "Cannot read /home/me/.cache/huggingface/x.bin with hf_abcdefGHIJ123456", "See C:\\Users\\me\\x.txt."
        )
    )
    assert told["message"] == "Cannot read … with …"
    assert "Users" not in told["remedy"]
    assert wire.error_to_wire(RuntimeError("secret"))["message"] == "An internal error occurred."


@pytest.mark.parametrize("told", ["http://localhost:7860", "owner/name", "1/2", "and/or"])
def test_addresses_and_names_are_not_folders(told: str) -> None:
    assert wire.scrub(told) == told


def test_half_a_character_is_refused() -> None:
    with pytest.raises(PromptError):
        wire.check_prompt("a\ud800b")


def test_the_metrics_are_prometheus_text() -> None:
    answer = httpx.get(f"{serving.app().url}/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "# TYPE" in answer.text
