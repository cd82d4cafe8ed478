"""A public app, run as in the image: reachable routes, and information in its errors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from server import attack_page_calls

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
FIRST_S = 200.0
"""Time limit of a request in seconds. The first waits until layers are compiled, as no earlier cache can be read."""
SECRETS = re.compile(r"Traceback|hf_a_secret|site-packages|/root|\.py\b|" + re.escape(str(ROOT)))
FILES = (
    "/etc/passwd", "app.py", str(ROOT / "app.py"), str(ROOT / "workbench/ui/space.py"), "README.md",
    str(ROOT / "assets/models/text-target/config.json"), "/proc/self/environ", "/tmp", "/tmp/gradio", ".git/config",
    str(ROOT / "workbench/views/js/../../ui/space.py"), "js/../../ui/space.py",
    str(ROOT / "workbench/views/js") + "/..%2f..%2fui%2fspace.py",
    "..%2f..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/etc/passwd", "....//....//etc/passwd", "file:///etc/passwd",
    "http://127.0.0.1:22/", "\\\\host\\share", "%00/etc/passwd", str(ROOT / "workbench/views/js"), "",
)  # fmt: skip


def ask(app: tuple[str, Any], path: str, body: Any = None, **options: Any) -> httpx.Response:
    """Send one request; the client does not normalise the path."""
    url = httpx.URL(app[0]).copy_with(raw_path=path.encode("utf-8", "surrogateescape"))
    if body is not None:
        options["json"] = body
    return httpx.request("GET" if not options else "POST", url, timeout=FIRST_S, **options)


def complete(app: tuple[str, Any], **said: Any) -> httpx.Response:
    return ask(app, "/v1/completions", {"model": "text-target", "prompt": "Once upon", "max_tokens": 4} | said)


def test_it_generates_without_rights_and_without_writing(public_app: tuple[str, Any]) -> None:
    answer = complete(public_app, max_tokens=12)
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["choices"][0]["text"]) > 10


ROUTES = ("/gradio_api/file=", "/gradio_api/file/", "/file=", "/static/", "/assets/", "/svelte/",
          "/gradio_api/stream/", "/gradio_api/custom_component/", "/workbench/")  # fmt: skip


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("route", ROUTES)
def test_only_the_pages_own_files_are_served(public_app: tuple[str, Any], route: str, name: str) -> None:
    answer = ask(public_app, route + name.replace(" ", "%20"))
    # an unknown path is answered with the page itself, which contains no file
    refused = answer.status_code in (307, 308, 400, 401, 403, 404, 405, 422)
    assert refused or "<title>" in answer.text.lower(), answer.text[:200]
    assert "root:" not in answer.text
    assert "PYTHONDONTWRITEBYTECODE" not in answer.text
    assert "def main" not in answer.text


def test_the_pages_own_files_are_served(public_app: tuple[str, Any]) -> None:
    for name, kind in (
        ("js/live/page.js", "text/javascript"),
        ("stage.css", "text/css"),
        ("plotly.min.js", "text/javascript"),
    ):
        answer = ask(public_app, f"/workbench/{name}")
        assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, kind)


@pytest.mark.parametrize(
    "path", ["/", "/gallery", "/methods", "/learn", "/verifiers", "/config", "/gradio_api/info", "/v1/models"]
)
def test_no_page_reveals_paths_of_the_machine(public_app: tuple[str, Any], path: str) -> None:
    answer = ask(public_app, path)
    assert answer.status_code == 200
    assert str(ROOT) not in answer.text
    assert "site-packages" not in answer.text


def test_uploads_are_refused(public_app: tuple[str, Any]) -> None:
    for name, content in (("a.txt", b"x"), ("a.html", b"<script>"), ("big.bin", b"0" * (6 << 20))):
        answer = ask(public_app, "/gradio_api/upload", files={"files": (name, content)})
        assert answer.status_code in (413, 415), answer.text
    assert not (Path("/tmp/gradio") / "a.txt").exists()


MODELS = ("/etc", "/", "..", "./assets", str(ROOT / "assets/models/text-target"), "~", "~root", "Qwen/Qwen3-0.6B",
          "owner/name", "a" * 5000, "\x00", "assets/models", "file:///etc", "text-target/../text-drafter")  # fmt: skip


@pytest.mark.parametrize("model", MODELS, ids=lambda name: ascii(name)[:30])
def test_no_folder_and_no_unlisted_model_is_loaded(public_app: tuple[str, Any], model: str) -> None:
    answer = complete(public_app, model=model)
    assert 400 <= answer.status_code < 500, answer.text
    said = json.dumps(answer.json()).replace(json.dumps(model)[1:-1], "")  # the answer may repeat the request's text
    assert not SECRETS.search(said), said


@pytest.mark.parametrize("wrong", [
    {"prompt": "x" * 30_000}, {"max_tokens": 100_000}, {"max_tokens": -1}, {"temperature": "hot"}, {"prompt": {"a": 1}},
    {"prompt": [10**9]}, {"stop": 5}, {"seed": "s"}, {"n": 10**6}, {"speculation": {"method": "../../etc"}},
], ids=str)  # fmt: skip
def test_invalid_requests_get_short_answers_without_internals(
    public_app: tuple[str, Any], wrong: dict[str, Any]
) -> None:
    answer = complete(public_app, **wrong)
    assert 400 <= answer.status_code < 500 or wrong == {"n": 10**6}, answer.text
    assert not SECRETS.search(answer.text), answer.text
    assert len(answer.text) < 2000


def test_the_pages_calls_reveal_no_internals(public_app: tuple[str, Any]) -> None:
    """Server functions of the page are public: any name, any argument."""
    config = ask(public_app, "/config").json()
    stage = next(c["id"] for c in config["components"] if c["props"].get("elem_id") == "wb-page")
    for name, data in (
        ("catalogue", {"target": "/etc"}), ("catalogue", {"target": ["a"]}), ("catalogue", None), ("catalogue", 5),
        ("control", {"run": "../../x", "action": "__class__"}), ("control", {"run": None, "action": "cancel"}),
        ("recorded", {"name": "../../../../etc/passwd"}), ("recorded", {"name": str(ROOT / "README.md")}),
        ("recorded", {"name": "draft-tree/../../x"}), ("fetch_trace", {"run": "x", "from": "y"}),
        ("export_parquet", {"trace": {"header": 1}}), ("change", {"run": "x", "drafter": "/etc"}),
        ("__init__", {}), ("estimate", {"method": 1}),
    ):  # fmt: skip
        answer = ask(public_app, "/gradio_api/component_server",
                     {"session_hash": "s", "component_id": stage, "fn_name": name, "data": data})  # fmt: skip
        said = answer.text.replace(str((data or {}).get("name")) if isinstance(data, dict) else "", "")
        assert not SECRETS.search(said), (name, data, said)
        assert "root:" not in answer.text


def test_the_log_contains_no_prompt_and_no_token(public_app: tuple[str, Any]) -> None:
    assert complete(public_app, prompt="a very private sentence").status_code == 200
    log = public_app[1].read_text()
    assert "a very private sentence" not in log
    assert "hf_a_secret" not in log


def test_loops_of_page_calls_end_by_their_cost_and_a_completion_finishes(public_app: tuple[str, Any]) -> None:
    """Thirty loops from one address once delayed a completion from 0.15 s to 39 s, and none was ever refused."""
    url = public_app[0]
    with attack_page_calls.Attack(url).running() as attack:
        answer = attack_page_calls.complete(url)
    assert (answer.status_code, answer.json()["usage"]["completion_tokens"]) == (200, 24), answer.text
    outcomes = attack.outcomes
    assert outcomes[attack_page_calls.ANSWERED] > 0
    assert outcomes[attack_page_calls.BUDGET] == attack_page_calls.LOOPS, "each loop ended because it was refused"
    assert outcomes[attack_page_calls.OTHER] == 0
    with attack_page_calls.http(url, attack_page_calls.USER) as user:
        component = attack_page_calls.component_ids(user)["boards"]
        other = attack_page_calls.call(user, component, "boards")
    assert attack_page_calls.outcome(other) == attack_page_calls.ANSWERED, "another address has a budget of its own"
