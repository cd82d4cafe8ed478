"""Health, metrics and logs for operators; none of them contains users' text."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from workbench.core.errors import WorkbenchError
from workbench.methods import registry
from workbench.service import Backend, logs
from workbench.trace.metrics import acceptance_rate, count_emitted, decode_seconds, overhead_seconds, tau

from .conftest import PROMPT, wait_until

SECRET = "correct horse battery staple"


def samples(bench: Backend) -> dict[tuple[str, ...], float]:
    """Return (name, label values …) → value, as a scraper reads them."""
    families = text_string_to_metric_families(bench.metrics_text())
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


@pytest.fixture
def json_logs() -> Iterator[io.StringIO]:
    """Return a stream with the workbench's logs as JSON lines."""
    logger = logging.getLogger("workbench")
    before = (logger.handlers[:], logger.level, logger.propagate)
    filters = {name: logging.getLogger(name).filters[:] for name in logs.LIBRARIES}
    logs.write_json_logs("DEBUG")
    stream = io.StringIO()
    logger.handlers[0].setStream(stream)  # type: ignore[attr-defined]
    yield stream
    logger.handlers[:], logger.level, logger.propagate = before
    for name, those in filters.items():
        logging.getLogger(name).filters[:] = those


def test_metrics_agree_with_the_traces(backend: Callable[..., Backend]) -> None:
    bench = backend()
    traces = {m: bench.start(PROMPT, m, max_new_tokens=20).wait(120) for m in ("draft-model", "prompt-lookup")}
    waiting = bench.start(PROMPT, "autoregressive", paused=True, user="a")
    wait_until(lambda: waiting.state == "paused")
    found = samples(bench)
    for method, trace in traces.items():
        assert found["workbench_rounds_total", method] == len(trace.rounds)
        assert found["workbench_tokens_total", method] == count_emitted(trace.rounds) == 20
        assert found["workbench_mean_accepted_length", method] == pytest.approx(tau(trace.rounds))
        assert found["workbench_acceptance_rate", method] == pytest.approx(acceptance_rate(trace.rounds))
        assert found["workbench_verify_seconds_total", method] > 0
        assert found["workbench_decode_seconds_total", method] == pytest.approx(decode_seconds(trace.rounds))
        assert found["workbench_overhead_seconds_total", method] == pytest.approx(overhead_seconds(trace.rounds))
        assert found["workbench_runs_ended_total", method, "finished"] == 1
    assert found["workbench_runs", "paused"] == found["workbench_rows",] == 1
    assert found["workbench_model_events_total", "load"] == 1
    assert found["workbench_load_seconds_count",] == 1
    assert found["workbench_run_seconds_count",] == 2
    assert found["workbench_models",] == 2
    assert found["workbench_memory_bytes", "models"] > 0
    assert found["workbench_memory_bytes", "traces"] > 0
    assert found["workbench_up",] == 1


def test_errors_and_a_queue_are_counted(backend: Callable[..., Backend]) -> None:
    bench = backend(max_sequences=1)
    bench.load()
    for _ in range(2):
        with pytest.raises(WorkbenchError):
            bench.start("", "autoregressive")
    runs = [bench.start(PROMPT, "autoregressive", paused=True) for _ in range(3)]
    wait_until(lambda: runs[0].state == "paused")
    found = samples(bench)
    assert found["workbench_errors_total", "PromptError"] == 2
    assert found["workbench_queue_length",] == bench.health()["queue"] == 2
    assert bench.health()["runs"] == {"loading": 0, "queued": 2, "prefill": 0, "running": 0, "paused": 1}


def test_no_text_of_a_user_reaches_metrics_health_or_logs(
    backend: Callable[..., Backend], folders: tuple[str, str], json_logs: io.StringIO
) -> None:
    bench = backend()
    run = bench.start(
        SECRET, "draft-model", target=folders[0], user="user@example.org", max_new_tokens=5, stop=("zzz",)
    )
    trace = run.wait(120)
    for bad in ({"method": SECRET}, {"target": f"owner/{SECRET}"}, {"params": {SECRET: 1}}):
        with pytest.raises(WorkbenchError):
            bench.start(**({"prompt": SECRET, "method": "draft-model"} | bad))  # type: ignore[arg-type]
    wait_until(lambda: "run ended" in json_logs.getvalue())
    texts = [bench.metrics_text(), json.dumps(bench.health()), json_logs.getvalue()]
    for text in texts:
        for private in (SECRET, "user@example.org", run.id, folders[0], trace.text or "zzz", "zzz"):
            assert private not in text
    methods = {m.name for m in registry.methods()}
    labels = {
        s.labels["method"]
        for family in text_string_to_metric_families(texts[0])
        for s in family.samples
        if "method" in s.labels
    }
    assert labels
    assert labels <= methods


def test_logs_have_one_json_object_per_line(backend: Callable[..., Backend], json_logs: io.StringIO) -> None:
    bench = backend()
    run = bench.start(PROMPT, "draft-model", max_new_tokens=5)
    run.wait(120)
    wait_until(lambda: "run ended" in json_logs.getvalue())
    lines: list[dict[str, Any]] = [json.loads(line) for line in json_logs.getvalue().splitlines()]
    (ended,) = [line for line in lines if line["message"] == "run ended"]
    assert ended["state"] == "finished"
    assert ended["method"] == "draft-model"
    assert ended["run"] == logs.alias(run.id)
    assert ended["seconds"] > 0
    assert {"time", "levelname", "name"} <= set(ended)


def test_health_distinguishes_a_dead_engine_from_a_busy_one(
    backend: Callable[..., Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = backend()
    assert bench.health()["status"] == "ok"
    bench._engine_thread.failures = 3
    assert bench.health()["status"] == "failing"
    bench._engine_thread.failures = 0
    bench._engine_thread.beat -= 1000
    monkeypatch.setattr(bench._engine_thread, "_run_iteration", lambda: True)
    wait_until(lambda: bench.health()["status"] in ("stalled", "ok"))
    bench.close()
    assert bench.health()["status"] == "down"


def test_definitions_list_every_figure_with_its_formula(backend: Callable[..., Backend]) -> None:
    definitions = backend().definitions()
    assert definitions["tau"] == {
        "title": "mean accepted length τ",
        "formula": "tokens emitted (including bonus and corrected tokens) / verification passes of the target",
    }
    assert all(d["title"] and "/" in d["formula"] for d in definitions.values())


def test_an_error_is_logged_with_type_and_location_but_without_its_message(json_logs: io.StringIO) -> None:
    def tokenize(text: str) -> None:
        raise ValueError(f"cannot read {text!r} in /home/somebody/models")

    try:
        tokenize(SECRET)
    except ValueError:
        logging.getLogger("workbench.service").exception("could not start a run")
    line = json.loads(json_logs.getvalue())
    assert line["message"] == "could not start a run"
    assert line["exc_info"].startswith("ValueError at test_telemetry.py:")
    assert "in tokenize" in line["exc_info"]
    for word in (SECRET, "somebody", "/"):
        assert word not in json_logs.getvalue()


def test_plain_text_logs_have_the_same_content(json_logs: io.StringIO) -> None:
    logger = logging.getLogger("workbench")
    logs.write_plain_logs()
    logger.handlers[0].setStream(json_logs)  # type: ignore[attr-defined]
    try:
        raise RuntimeError(SECRET)
    except RuntimeError:
        logger.exception("a turn failed")
    first, second = json_logs.getvalue().splitlines()
    assert first == "ERROR workbench: a turn failed"
    assert second.startswith("RuntimeError at test_telemetry.py:")


def test_the_server_logs_an_error_during_an_answer_without_its_message(
    json_logs: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = logging.StreamHandler(json_logs)
    for name in logs.LIBRARIES:
        logger = logging.getLogger(name)
        monkeypatch.setattr(logger, "disabled", False)  # a server that another test started may have silenced it
        level = logger.level
        logger.setLevel(logging.ERROR)
        logger.addHandler(handler)
        try:
            raise RuntimeError(SECRET)
        except RuntimeError as error:
            logger.error("Exception in ASGI application\n", exc_info=error)
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
    assert json_logs.getvalue().count("Exception in ASGI application: RuntimeError at test_telemetry.py:") == 2
    assert SECRET not in json_logs.getvalue()
