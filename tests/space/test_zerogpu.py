"""Generations on ZeroGPU: the package's own processes in an emulation, and its behaviour where there is no ZeroGPU."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from model_helpers import byte_tokenizer, family, noisy_copy

from workbench.core.errors import CapacityError, MethodUnavailableError, ModelError, UnknownNameError
from workbench.engine import Engine
from workbench.models.bundle import bundled
from workbench.models.names import known_targets
from workbench.models.pretrained import load_tokenizer
from workbench.server.access_control import make_access_control
from workbench.service import costs, zerogpu, zerogpu_models, zerorun
from workbench.service.choices import accepts_images, drafters
from workbench.service.limits import Limits
from workbench.service.rate_limiter import RateLimiter
from workbench.service.users import user_key
from workbench.ui import space

EXPECTED_CASES = ("same text", "one process for several runs", "cancelled", "killed", "no quota", "several at once")


def run_script(script: str, log: Path) -> tuple[str, ...]:
    """Return the cases that a script reports; its output is a file, because forked processes keep pipes open."""
    pytest.importorskip("spaces")
    with log.open("w") as out:
        command = [sys.executable, str(Path(__file__).with_name(script))]
        subprocess.run(command, stdout=out, stderr=out, timeout=250, check=False)
    lines = log.read_text().splitlines()
    return tuple(line.removeprefix("SEEN ") for line in lines if line.startswith("SEEN "))


@pytest.mark.slow
def test_whole_generations_run_in_processes_that_share_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert run_script("emulated_zerogpu.py", log) == EXPECTED_CASES, log.read_text()


@pytest.mark.slow
def test_the_app_starts_where_cuda_is_only_pretended(tmp_path: Path) -> None:
    if "text-target" not in bundled():
        pytest.skip("needs the bundled models")
    log = tmp_path / "log"
    assert run_script("emulated_zerogpu_start.py", log) == ("start",), log.read_text()


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client over two tiny models and the package's decorator, which here leaves functions as they are."""
    spaces = pytest.importorskip("spaces")
    target = family("llama", vocab_size=257)
    tiny = {"tiny": target, "tiny-drafter": noisy_copy(target, 0.2, 1)}
    monkeypatch.setattr(zerogpu, "known_targets", lambda: iter([(name, Path(name), {}) for name in tiny]))
    monkeypatch.setattr(zerogpu_models, "locate", lambda name: None)
    monkeypatch.setattr(zerogpu_models, "load_model", lambda name, device, dtype: tiny[name])
    monkeypatch.setattr(zerogpu_models, "load_tokenizer", lambda name: byte_tokenizer())
    monkeypatch.setattr(zerogpu_models, "PACE_S", 0.0)
    made = zerogpu.ZeroGpuBackend(
        spaces.GPU, isolated=False, device="cpu", dtype="float64", limits=Limits(runs_per_user=2)
    )
    yield made
    made.close()


OPTIONS: dict[str, Any] = {"target": "tiny", "drafter": "tiny-drafter", "max_new_tokens": 24}


def test_where_there_is_no_zerogpu_runs_take_turns_in_this_process(client: Any) -> None:
    runs = [client.start("aabab", method, **OPTIONS) for method in ("autoregressive", "draft-model", "draft-tree")]
    texts = [run.wait(60).token_ids for run in runs]
    assert texts[0] == texts[1] == texts[2]
    assert [len(text) for text in texts] == [24, 24, 24]


def test_a_run_is_followed_like_any_other(client: Any) -> None:
    run = client.start("aabab", "draft-model", **OPTIONS)
    rounds = list(run)
    news = client.run(run.id).since(2)
    assert [r["index"] for r in news["rounds"]] == [r.index for r in rounds[2:]]
    assert news["state"] == "finished"
    assert news["footer"]["reason"] == "length"
    assert news["header"]["target"] == "tiny"
    assert client.health()["status"] == "ok"
    assert 'workbench_rounds_total{method="draft-model"}' in client.metrics_text()


def test_what_cannot_work_says_why_before_and_when_it_is_asked_for(client: Any) -> None:
    assert set(client.unavailable_actions()) == {"pause", "step", "change", "pace", "memory"}
    run = client.start("aabab", "draft-model", **OPTIONS)
    for act in (run.pause, run.step, run.resume, lambda: run.change(method="prompt-lookup")):
        with pytest.raises(MethodUnavailableError, match="uninterrupted generation"):
            act()
    with pytest.raises(MethodUnavailableError, match="paused"):
        client.start("aabab", "draft-model", **OPTIONS, paused=True)
    assert run.wait(60).footer.reason == "length"


def test_the_estimate_is_what_is_asked_for_and_learns_from_runs(client: Any) -> None:
    request = OPTIONS | {"method": "draft-model", "max_new_tokens": 1000}
    first = client.estimate(request)
    assert "assumed" in first
    assert f"{client._duration(request)} s" in first
    client.generate("aabab", "draft-model", **OPTIONS)
    assert "measured on 1 run of this method" in client.estimate(request)
    client.costs.record_run("tiny", "draft-model", 10, 2.0)  # 0.2 s a token: the slowest run counts
    assert client._duration(request) == pytest.approx(costs.START_S + costs.MARGIN * 200, abs=1)


def test_a_run_that_asks_for_too_much_is_refused_with_what_fits(client: Any) -> None:
    client.costs.record_run("tiny", "draft-model", 10, 2.0)
    with pytest.raises(CapacityError) as refusal:
        client.start("aabab", "draft-model", **OPTIONS | {"max_new_tokens": 1000})
    fits = int("".join(filter(str.isdigit, refusal.value.remedy)))
    assert client.costs.seconds("tiny", "draft-model", fits) <= costs.LONGEST_S
    assert client.costs.seconds("tiny", "draft-model", fits + 1) >= costs.LONGEST_S


def test_wrong_requests_never_reach_the_gpu(client: Any) -> None:
    client._gpu = None  # would fail
    with pytest.raises(UnknownNameError):
        client.start("aabab", "no-such-method", **OPTIONS)
    with pytest.raises(ModelError, match="has not loaded the requested model"):
        client.start("aabab", "draft-model", **OPTIONS | {"target": "/etc/passwd"})
    with pytest.raises(MethodUnavailableError, match="heads"):
        client.start("aabab", "medusa", **OPTIONS)
    assert not client._runs.active()


def remaining_quota(client: Any, user: str, what: str = "tokens") -> float:
    """Return the quota that an address has left, in tokens or requests."""
    return client._runs.rate_limiter._bucket(user, what).level


def test_an_address_is_charged_for_prompts_and_new_tokens_and_a_comparison_is_one_request(client: Any) -> None:
    asks = user_key("203.0.113.7")
    client._runs.rate_limiter = RateLimiter(Limits(tokens_per_minute=1000, requests_per_minute=50), clock=lambda: 0.0)

    run = client.start("aabab", "autoregressive", user=asks, **OPTIONS)
    run.wait(60)
    assert (remaining_quota(client, asks), remaining_quota(client, asks, "requests")) == (1000 - 5 - 24, 49)
    steps = client.stream_comparison("aabab", ["autoregressive"], user=asks, target="tiny", max_new_tokens=4, repeats=2)
    assert list(steps)[-1].comparison.complete
    assert remaining_quota(client, asks, "requests") == 48
    assert remaining_quota(client, asks) == 1000 - 5 - 24 - 3 * (5 + 4)
    client.admit_request(asks)
    client._runs.rate_limiter.admit_request(asks, n=47)
    with pytest.raises(CapacityError, match="50 requests per minute"):
        client.stream_comparison("aabab", ["autoregressive"], user=asks)
    client._runs.rate_limiter.charge(asks, 1000)
    with pytest.raises(CapacityError, match=r"1,000 tokens per minute"):
        client.start("aabab", "autoregressive", user=asks, is_timed=True, **OPTIONS)


def test_what_pictures_add_to_a_prompt_is_charged_when_it_is_known(client: Any) -> None:
    asks = user_key("203.0.113.7")
    client._runs.rate_limiter = RateLimiter(Limits(tokens_per_minute=1000), clock=lambda: 0.0)
    run = zerorun.ZeroRun(client, asks, "autoregressive")
    client._runs.add(run, 24)
    done = client.generate("aabab", "autoregressive", **OPTIONS)
    header, footer = done.header.to_wire(), done.footer.to_wire()
    job = {"pictures": ["a picture"], "target": "tiny", "method": "autoregressive"}
    client._add_message(run, job, {"header": header})
    client._add_message(run, job, {"header": header, "rounds": [r.to_wire() for r in done.rounds[:3]]})
    client._add_message(run, job, {"header": header, "footer": footer, "busy_s": 1.0})
    assert remaining_quota(client, asks) == 1000 - 5 - 3


def test_the_log_holds_no_prompt(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    def broken(job: Any) -> Any:
        raise RuntimeError(f"cannot say {job['prompt']} my secret")

    client._gpu = broken
    with pytest.raises(CapacityError, match="RuntimeError"):
        client.generate("aabab", "autoregressive", **OPTIONS)
    assert "RuntimeError at test_zerogpu.py" in caplog.text
    assert "my secret" not in caplog.text


@pytest.mark.parametrize(("env", "others", "kind"), [
    ({"SPACES_ZERO_GPU": "true", "SPACE_ID": "a/b"}, True, "json"), ({"SPACE_ID": "a/b"}, True, "json"),
    ({}, True, "plain"), ({}, False, ""),
])  # fmt: skip
def test_whoever_is_asked_by_others_logs_without_words(
    env: dict[str, str], others: bool, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("spaces")
    written: list[str] = []
    monkeypatch.setattr("workbench.service.logs.write_json_logs", lambda: written.append("json"))
    monkeypatch.setattr("workbench.service.logs.write_plain_logs", lambda: written.append("plain"))
    monkeypatch.setattr("workbench.service.zerogpu.ZeroGpuBackend", lambda *_, **__: written.append("made"))
    monkeypatch.setattr(
        "workbench.client.Workbench", lambda **_: SimpleNamespace(preload=lambda extra_targets: written.append("made"))
    )
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    space.client(space.detect(env), "text-target", "auto", "auto", "auto", has_other_users=others)
    assert written == [*filter(None, [kind]), "made"], "before anything can go wrong"


def test_an_app_that_others_may_reach_is_for_others() -> None:
    assert not make_access_control("127.0.0.1", env={}).is_for_others("127.0.0.1")
    assert make_access_control("0.0.0.0", env={}).is_for_others("0.0.0.0")
    assert make_access_control("127.0.0.1", hosts=["lab.example.org"], env={}).is_for_others("127.0.0.1")
    assert make_access_control("127.0.0.1", key="a key of some length", env={}).is_for_others("127.0.0.1")


def test_a_run_nobody_follows_is_cancelled(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Engine.step
    monkeypatch.setattr(Engine, "step", lambda engine: (time.sleep(0.01), step(engine))[1])  # however fast the machine
    run = client.start("aabab", "autoregressive", **OPTIONS | {"max_new_tokens": 600}, lease_s=0.2)
    deadline = time.monotonic() + 30
    while not run.ended and time.monotonic() < deadline:
        time.sleep(0.05)
    assert run.state == "cancelled"
    assert "no client follows" in run.message
    assert run.since(0)["footer"]["reason"] == "lease"


def test_each_target_has_its_own_drafter_first_and_says_who_reads_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    spaces = pytest.importorskip("spaces")
    tiny = family("llama", vocab_size=257)
    names = [name for name in bundled() if (bundled()[name] / "tokenizer.json").is_file()]
    monkeypatch.setattr(zerogpu_models, "load_model", lambda name, device, dtype: tiny)
    monkeypatch.setattr(zerogpu_models, "load_tokenizer", load_tokenizer)
    monkeypatch.setattr(
        zerogpu_models, "load_processor", lambda name, model: object() if accepts_images(name) else None
    )
    made = zerogpu.ZeroGpuBackend(spaces.GPU, isolated=False, names=names, device="cpu", dtype="float32")
    for target, first in {"text-target": "text-drafter", "vision-target": "vision-drafter"}.items():
        found = made.drafters(target)
        listed = [entry for entry in drafters(target) if entry["name"] != "smollm2-drafter"]
        assert found == sorted(listed, key=lambda d: [e["name"] for e in found].index(d["name"]))
        assert found[0]["name"] == first
        assert found[0]["available"]
    found = {t["name"]: t["pictures"] for t in made.targets()}
    targets = [name for name, _, config in known_targets() if "target" not in config]
    assert found == {name: "vision" in name for name in targets}
    assert {"text-target", "vision-target"} <= set(found)
    assert "tokenizer of smollm2, which this server has not loaded" in made._models.problems["smollm2-drafter"], (
        "nor fetched"
    )
    made.close()


def test_every_call_of_the_workbench_is_there() -> None:
    from workbench.client import Workbench

    public = {name for name in dir(Workbench) if not name.startswith("_")}
    assert len(public) > 25
    assert not public - set(dir(zerogpu.ZeroGpuBackend)) - {"limits"}, "limits are an attribute there"
