"""Every hostile request gets a proper answer that reveals no internals, and the backend keeps working."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import serving
from hostile.cases import STORY, Case, cases

from workbench import Workbench
from workbench.ui.hosting import return_errors
from workbench.ui.session import Session

pytestmark = pytest.mark.proof

SECRET = "hf_aSecretOfTheEnvironment"
LEAKS = ("Traceback", 'File "', "site-packages", "/work/", "/home/", "/root/", "/usr/lib", "root:x:0", SECRET, "0x7f")
CASES = cases()
JSON = {"content-type": "application/json"}
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


class Errors(logging.Handler):
    """Collects the errors that the workbench logs: unexpected exceptions."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage() + repr(record.exc_info))


@pytest.fixture(scope="module")
def errors() -> Iterator[Errors]:
    handler = Errors()
    logging.getLogger("workbench").addHandler(handler)
    yield handler
    logging.getLogger("workbench").removeHandler(handler)


@pytest.fixture(scope="module")
def bench(errors: Errors) -> Iterator[Workbench]:
    """The app's backend, with a secret in the environment; at the end it must be as at the start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_TOKEN", SECRET)
        bench = serving.app().bench
        wanted = bench.generate(STORY, "draft-tree", max_new_tokens=16).text
        threads = serving.thread_names()
        yield bench
        assert serving.wait_until(lambda: serving.n_unfinished_runs(bench) == 0), "a sequence is left"
        assert bench.generate(STORY, "draft-tree", max_new_tokens=16).text == wanted
        assert bench.health()["status"] == "ok"
        assert {entry["name"] for entry in bench.loaded_models()} <= {"text-target", "text-drafter"}
        new = [name for name in serving.thread_names() if name not in threads and not name.startswith(POOLS)]
        assert not new, "a thread is left"


POOLS = ("workbench-api", "workbench-loader", "asyncio", "AnyIO", "ThreadPoolExecutor")
"""Threads of pools, which grow up to their size and stay."""


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(base_url=serving.app().url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def mine(bench: Workbench) -> Iterator[str]:
    """Return the id of a run that exists during all requests."""
    run = bench.start(STORY, "draft-model", max_new_tokens=500, paused=True)
    yield run.id
    assert not run.ended, "an invalid request ended another user's run"
    run.cancel()


def assert_no_leak(text: str, case: Case) -> None:
    """Check that an answer contains no internals."""
    sent = json.dumps(case.body) if case.raw is None else repr(case.raw)
    for leak in LEAKS:
        assert leak not in text or leak in sent, f"{leak} in {text[:500]}"


def is_error(answer: Any) -> bool:
    """Return whether an answer is an error; check that it has a message and a remedy."""
    if not isinstance(answer, dict) or "error" not in answer:
        return False
    error = answer["error"]
    assert error["message"]
    by_a_run = error.get("code", error.get("kind")) == "WorkbenchError"  # its message contains the remedy
    assert error["remedy"] or by_a_run, error
    assert len(error["message"]) < 2000
    assert "An internal error occurred" not in error["message"], error
    return True


@pytest.mark.parametrize("case", [c for c in CASES if c.interface == "gradio"], ids=lambda c: c.name)
def test_an_endpoint(case: Case, bench: Workbench, http: httpx.Client, mine: str, errors: Errors) -> None:
    body = {name: mine if value == "MINE" else value for name, value in case.body.items()}
    joined = http.post(f"/gradio_api/call/v2/{case.endpoint}", content=json.dumps(body), headers=JSON)
    assert joined.status_code < 500, joined.text
    assert_no_leak(joined.text, case)
    if joined.status_code != 200:
        return
    with http.stream("GET", f"/gradio_api/call/{case.endpoint}/{joined.json()['event_id']}") as stream:
        text = "".join(stream.iter_text())
    assert_no_leak(text, case)
    assert "event: complete" in text, text
    answers = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    last = answers[-1][0] if answers and answers[-1] else {}
    is_error(json.loads(last) if isinstance(last, str) else last)
    assert not errors.found


@pytest.mark.parametrize("case", [c for c in CASES if c.interface == "v1"], ids=lambda c: c.name)
def test_a_route(case: Case, bench: Workbench, http: httpx.Client, errors: Errors) -> None:
    answer = http.post(f"/v1/{case.endpoint}", content=json.dumps(case.body), headers=JSON)
    assert answer.status_code < 500, answer.text
    assert_no_leak(answer.text, case)
    assert is_error(answer.json()) == (answer.status_code >= 400)
    assert answer.status_code == 200 or not case.is_valid
    assert not errors.found


@pytest.mark.parametrize("case", [c for c in CASES if c.interface == "page"], ids=lambda c: c.name)
def test_a_function_of_the_page(case: Case, bench: Workbench) -> None:
    session = Session(bench)

    async def decode() -> list[Any]:
        return [message async for message in session.decode(case.body)]

    if case.endpoint == "decode":
        with ThreadPoolExecutor(1) as pool:  # a separate event loop: another test may run one in this thread
            *_, answer = pool.submit(asyncio.run, decode()).result(timeout=60)
    else:
        answer = return_errors(getattr(session, case.endpoint))(case.body)  # as the page calls the function
    assert_no_leak(json.dumps(answer), case)
    if "error" in answer:
        assert answer["error"]["message"]
        assert answer["error"]["remedy"]


@pytest.mark.parametrize("case", [c for c in CASES if c.interface == "http"], ids=lambda c: c.name)
def test_plain_http(case: Case, bench: Workbench, http: httpx.Client, errors: Errors) -> None:
    content = json.dumps(case.body).encode() if case.raw is None and case.verb == "POST" else case.raw
    headers = (JSON if case.raw is None else {}) | case.headers
    text = ""
    try:
        with http.stream(case.verb, case.endpoint, content=content, headers=headers) as answer:
            status = answer.status_code
            for part in answer.iter_text():
                text += part
                if len(text) > 1 << 20 or "event: heartbeat" in text:
                    break
    except httpx.RemoteProtocolError:
        # malformed HTTP, a body that is too large, and Gradio's way of ending an unknown stream
        assert "header" in case.name or len(content or b"") > 1 << 20 or "Not Found" in text
        return
    assert status < 500, text[:500]
    if "theme" not in case.name:  # the page itself names its modules by their path, as Gradio serves them
        assert_no_leak(text, case)


def test_a_body_that_never_ends_blocks_no_other_request(bench: Workbench, http: httpx.Client) -> None:
    host, port = serving.app().url.removeprefix("http://").split(":")
    lines = [socket.create_connection((host, int(port))) for _ in range(20)]
    for line in lines:
        line.sendall(HEAD + b"content-length: 999\r\n\r\n{")
    answer = http.post("/v1/completions", json={"prompt": STORY, "max_tokens": 2, "temperature": 0})
    assert answer.status_code == 200
    for line in lines:
        line.close()


def test_connections_that_close_at_once_leave_nothing_behind(bench: Workbench, http: httpx.Client, mine: str) -> None:
    host, port = serving.app().url.removeprefix("http://").split(":")
    body = json.dumps({"prompt": STORY, "max_tokens": 400, "stream": True}).encode()
    for cut in [*range(0, len(body), len(body) // 5), *[len(body)] * 10]:
        with socket.create_connection((host, int(port))) as line:
            line.sendall(HEAD + f"content-length: {len(body)}\r\n\r\n".encode() + body[:cut])
    time.sleep(0.2)
    assert serving.wait_until(lambda: bench.health()["rows"] == 1), "only the paused run of this module"


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 300
    assert len({case.name for case in CASES}) == len(CASES)
    assert {case.interface for case in CASES} == {"gradio", "v1", "page", "http"}
