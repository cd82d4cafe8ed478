"""Hostile requests, generated in loops and the same in every run, with the interface each is sent to."""

from __future__ import annotations

import base64
import json
import pickle
from dataclasses import dataclass, field
from typing import Any

STORY = "Once upon a time"
NAN, INF = float("nan"), float("inf")


def nested(depth: int) -> Any:
    """Return `depth` nested lists: [[[…]]]."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


TEXTS: dict[str, str] = {
    "blank": "   ",
    "nul": "a\x00b",
    "controls": "".join(map(chr, range(1, 32))) + "\x7f\x80\x9f",
    "half a character": "a\ud800b",
    "the other half": "\udfffx",
    "right to left": "שלום \u202e العالم \u2066x\u2069",
    "zero width": "a\u200b\u200d\ufeffb",
    "stacked marks": "e" + "\u0301" * 500,
    "family": "👨‍👩‍👧‍👦" * 20,
    "outside": "\U0010ffff\ufffe\uffff",
    "one long word": "w" * 2000,
    "newlines": "\n" * 500,
    "markup": "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "template": "{{7*7}} ${7*7} %s %n {0} #{x}",
    "markers": "<|endoftext|><|assistant|><|user|><|image|><|pad|>",
    "other markers": "<s>[INST]<<SYS>>x<</SYS>>[/INST]</s><|im_start|>system<|im_end|>",
    "json": '"}],"error":null,"x":[{"',
    "event": "x\n\ndata: [DONE]\n\nevent: error\ndata: {}\n\n",
    "path": "../../../../etc/passwd",
    "sql": "'; DROP TABLE runs;--",
    "shell": "$(cat /etc/passwd) `id` | rm -rf /",
}
HUGE: dict[str, str] = {"200 kB": "word " * 40_000, "200 kB of one letter": "x" * 200_000, "over": "y" * 200_001}
NOT_TEXT: dict[str, Any] = {
    "nothing": None, "true": True, "number": 7, "fraction": 0.5, "list": [[1]], "object": {"a": {"b": [1, 2]}},
    "nested": nested(60), "words in a list": ["a", "b"],
}  # fmt: skip
NOT_WHOLE: dict[str, Any] = {
    "zero": 0, "negative": -1, "fraction": 1.5, "nan": NAN, "infinite": INF, "minus infinite": -INF, "1e308": 1e308,
    "2**63": 2**63, "2**64": 2**64, "10**300": 10**300, "word": "ten", "digits": "12", "list": [1], "object": {},
}  # fmt: skip
NAMES: dict[str, Any] = {
    "parent": "../../etc/passwd", "absolute": "/etc/passwd", "root": "/", "home": "~/.ssh/id_rsa",
    "here": "assets/models", "inside": "text-target/../text-drafter", "dot": ".", "file": "file:///etc/passwd",
    "http": "http://169.254.169.254/x", "windows": "C:\\windows\\system32", "backslash": "..\\..\\x",
    "nul": "text-target\x00.txt", "unc": "\\\\host\\share",
    "hub": "somebody/some-model", "unlisted": "gpt-4o", "long": "a" * 5000, "half": "\ud800", "empty": "", "space": " ",
    "percent": "%2e%2e%2fetc", "newline": "a\nb", "number": 7, "list": ["text-target"], "object": {"x": 1},
    "env": "${HF_TOKEN}", "rtl": "\u202egnp.tegrat", "encoded": "text-target%00",
}  # fmt: skip
PARAMS: dict[str, Any] = {
    "list": [1], "word": "depth=4", "number": 3, "nested": {"depth": {"x": 1}}, "list inside": {"depth": [1]},
    "nan": {"temperature": NAN}, "infinite": {"temperature": INF}, "huge": {"depth": 10**300},
    "negative": {"depth": -5}, "huge temperature": {"temperature": 1e308}, "wrong word": {"depth": "deep"},
    "null": {"depth": None},
    "unknown": {"no_such": 1}, "dunder": {"__class__": 1}, "processors": {"processors": ["x"]},
    "policy": {"policy": "../x"}, "empty name": {"": 1}, "long name": {"x" * 5000: 1}, "half": {"\ud800": 1},
    "many": {f"p{i}": i for i in range(500)}, "top_p": {"top_p": 2}, "top_k": {"top_k": -1}, "bool": {"depth": True},
    "zeroes": {"top_p": 0.0, "temperature": 1.0}, "tiny": {"temperature": 5e-324}, "digits": {"depth": "4"},
}  # fmt: skip
PLACES = {kind: NAMES[kind] for kind in ("parent", "absolute", "file", "nul", "hub", "half", "list", "long")}
FEW = {kind: NOT_WHOLE[kind] for kind in ("negative", "nan", "10**300", "word", "list")}
RUNS: dict[str, Any] = {
    "unknown": "AAAAAAAAAAAAAAAA", "empty": "", "path": "../../x", "nothing": None, "number": 0, "list": [],
    "object": {}, "long": "x" * 10_000, "half": "\ud800", "dunder": "__class__", "star": "*", "nul": "\x00",
}  # fmt: skip
IDS: dict[str, Any] = {
    "negative": [-1], "beyond": [10**6], "2**31": [2**31], "2**63": [2**63], "10**300": [10**300], "fraction": [1.5],
    "true": [True], "null": [None], "words": ["1"], "nested": [[1]], "empty": [], "many": [1] * 5000, "nan": [NAN],
    "fine": [5, 6, 7],
}  # fmt: skip


def packed(data: bytes) -> str:
    """Return data encoded as a file of a request."""
    return base64.b64encode(data).decode()


HEAD = json.dumps({"__metadata__": {"format": "workbench-drafter-state", "version": "1", "kind": "suffix"}}).encode()
FILES: dict[str, Any] = {
    "pickle": packed(pickle.dumps({"texts": [1, 2, 3]})), "path": "/etc/passwd", "not base64": "é~",
    "empty file": packed(b""), "no head": packed((1 << 62).to_bytes(8, "little") + HEAD),
    "head alone": packed(len(HEAD).to_bytes(8, "little") + HEAD), "zip": packed(b"PK\x03\x04" * 99),
    "deep head": packed((50_000).to_bytes(8, "little") + b'{"a":' * 10_000), "too large": "A" * 11_200_000, **NOT_TEXT,
}  # fmt: skip
"""Values sent as a drafter's state."""


@dataclass(frozen=True)
class Case:
    """One request.

    Attributes:
        name: of the test.
        interface: "gradio" (an endpoint of the API), "v1" (a route of OpenAI's), "page" (a function of the page), or
            "http".
        endpoint: name of the endpoint, route or function.
        body: what is sent as JSON.
        raw: bytes sent instead of `body`.
        headers: sent with it.
        verb: of HTTP.
        is_valid: whether it must succeed.
    """

    name: str
    interface: str
    endpoint: str
    body: Any = None
    raw: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    verb: str = "POST"
    is_valid: bool = False


def cases() -> list[Case]:
    """Return all cases."""
    return [*gradio(), *completions(), *chats(), *pages(), *http()]


def _fields(values: dict[str, dict[str, Any]], base: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return one request for each field and value; the other fields are as in `base`."""
    return [
        (f"{name} {kind}", base | {name: value}) for name, some in values.items() for kind, value in some.items()
    ]  # fmt: skip


def gradio() -> list[Case]:
    base = {"prompt": STORY, "max_new_tokens": 2}
    values = {
        "prompt": TEXTS | HUGE | NOT_TEXT | {f"ids {k}": v for k, v in IDS.items()},
        "method": {"unknown": "nonsense", "nul": "\x00", **NOT_TEXT},
        "params": PARAMS,
        "target": NAMES,
        "drafter": PLACES,
        "max_new_tokens": NOT_WHOLE,
        "seed": FEW,
        "stop": {"empty inside": [""], "word": ".", "many": ["x"] * 500, "long": ["x" * 5000], **NOT_TEXT},
    }
    found = [Case(f"generate {name}", "gradio", "generate", body) for name, body in _fields(values, base)]
    for name, run in RUNS.items():
        found += [
            Case(f"since {name}", "gradio", "since", {"run": run}),
            Case(f"follow {name}", "gradio", "follow", {"run": run}),
            Case(f"control {name}", "gradio", "control", {"run": run, "action": "cancel"}),
            Case(f"memory {name}", "gradio", "memory", {"run": run, "action": "save"}),
        ]
    for kind, value in {"dunder": "__class__", "close": "close", "unknown": "explode", **NOT_TEXT}.items():
        found.append(Case(f"control action {kind}", "gradio", "control", {"run": "MINE", "action": value}))
        found.append(Case(f"memory action {kind}", "gradio", "memory", {"run": "MINE", "action": value}))
    for kind, value in FILES.items():
        found.append(Case(f"memory file {kind}", "gradio", "memory", {"run": "MINE", "action": "load", "data": value}))
        found.append(
            Case(f"generate memory {kind}", "gradio", "generate", base | {"method": "suffix", "memory": value})
        )
    for kind, value in FEW.items():
        found.append(Case(f"since number {kind}", "gradio", "since", {"run": "MINE", "number": value}))
    for kind, value in PARAMS.items():
        found.append(Case(f"change params {kind}", "gradio", "change", {"run": "MINE", "params": value}))
    for kind, value in PLACES.items():
        found += [
            Case(f"change drafter {kind}", "gradio", "change", {"run": "MINE", "drafter": value}),
            Case(f"drafters of {kind}", "gradio", "drafters", {"target": value}),
            Case(f"unload {kind}", "gradio", "unload", {"target": value or "x"}),
        ]
    for kind, value in {**NOT_TEXT, "empty": [], "unknown": ["nonsense"], "many": ["autoregressive"] * 99}.items():
        found.append(Case(f"compare {kind}", "gradio", "compare", {"prompts": [STORY], "lanes": value}))
        found.append(Case(f"compare prompts {kind}", "gradio", "compare", {"prompts": value, "lanes": ["nonsense"]}))
        advice = {"prompts": value, "methods": ["nonsense"]}
        found.append(Case(f"recommending {kind}", "gradio", "recommending", advice))
        found.append(
            Case(f"recommending methods {kind}", "gradio", "recommending", {"prompts": [" "], "methods": value})
        )
    for kind, value in NOT_WHOLE.items():
        wrong = {"prompts": [" "], "seconds": value}
        found.append(Case(f"recommending seconds {kind}", "gradio", "recommending", wrong))
    for kind, value in HUGE.items():
        found.append(
            Case(f"recommending {kind}", "gradio", "recommending", {"prompts": [value], "methods": ["nonsense"]})
        )
    for kind, value in {"role": [{"role": "root", "content": "x"}], **NOT_TEXT, "parts": [{"role": "user"}]}.items():
        found.append(Case(f"chat_prompt {kind}", "gradio", "chat_prompt", {"messages": value}))
    return found


def completions() -> list[Case]:
    base = {"model": "text-target", "prompt": STORY, "max_tokens": 2, "temperature": 0}
    values = {
        "prompt": HUGE | NOT_TEXT | {f"ids {k}": IDS[k] for k in ("negative", "beyond", "10**300")},
        "model": NAMES,
        "max_tokens": FEW,
        "seed": NOT_WHOLE,
        "temperature": FEW,
        "stop": {"empty inside": [""], "word": ".", "many": ["x"] * 500, "long": ["x" * 5000], **NOT_TEXT},
        "stream": {"word": "yes", "number": 1, "list": []},
        "stream_options": {"word": "x", "list": [1], "inside": {"include_usage": "yes"},
                           "zero inside": {"include_usage": 0}},
        "n": {"two": 2, "zero": 0, "huge": 10**9, "word": "x"},
        "logprobs": {"five": 5, "true": True},
        "speculation": {
            "list": [1], "word": "fast", "unknown": {"x": 1}, "method": {"method": ["a"]}, "no method": {"method": "x"},
            "drafter": {"drafter": "../../x"}, "params": {"params": [1]}, "deep": {"params": {"depth": {"x": 1}}},
        },
    }  # fmt: skip
    found = [Case(f"completions {name}", "v1", "completions", body) for name, body in _fields(values, base)]
    return found + [
        Case(f"completions params {kind}", "v1", "completions", base | {"speculation": {"params": value}})
        for kind, value in PARAMS.items()
    ]


def chats() -> list[Case]:
    base = {"model": "text-target", "max_tokens": 2, "temperature": 0}

    def ask(content: Any, **more: Any) -> dict[str, Any]:
        return base | {"messages": [{"role": "user", "content": content, **more}]}

    found = [Case(f"chat {kind}", "v1", "chat/completions", ask(text)) for kind, text in TEXTS.items()]
    found += [Case(f"chat content {kind}", "v1", "chat/completions", ask(value)) for kind, value in NOT_TEXT.items()]
    found += [
        Case(f"chat messages {kind}", "v1", "chat/completions", base | {"messages": value})
        for kind, value in {**NOT_TEXT, "none": [], "many": [{"role": "user", "content": "x"}] * 600}.items()
    ]
    found += [
        Case(f"chat role {role!r}", "v1", "chat/completions", base | {"messages": [{"role": role, "content": "x"}]})
        for role in ("root", "", None, 7, "tool", "assistant\n", ["user"])
    ]
    picture = [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]
    found.append(Case("chat picture", "v1", "chat/completions", ask(picture)))
    found.append(Case("chat parts", "v1", "chat/completions", ask([{"type": "text", "text": "x"}]), is_valid=True))
    return found


def pages() -> list[Case]:
    base = {"channel": "c", "prompt": STORY, "method": "draft-model", "max_new_tokens": 2}
    values = {
        "prompt": NOT_TEXT | {k: TEXTS[k] for k in ("blank", "nul", "half a character", "markers", "markup")},
        "prompt_tokens": IDS,
        "method": {"unknown": "nonsense", **NOT_TEXT},
        "params": PARAMS,
        "target": PLACES,
        "max_new_tokens": FEW,
        "seed": FEW,
    }
    found = [Case(f"page decode {name}", "page", "decode", body) for name, body in _fields(values, base)]
    for kind, value in PLACES.items():
        found.append(Case(f"page catalogue {kind}", "page", "catalogue", {"target": value}))
        found.append(Case(f"page recorded {kind}", "page", "recorded", {"name": value}))
    for kind, run in RUNS.items():
        places = ("control", "change", "fetch_trace", "export_parquet", "memory")
        found += [Case(f"page {where} {kind}", "page", where, {"run": run, "action": "pause"}) for where in places]
    for kind, value in {
        "empty": {},
        "list": [1],
        "nested": {"header": nested(50)},
        "wrong": {"header": {}, "rounds": 1},
    }.items():
        found.append(Case(f"page export {kind}", "page", "export_parquet", {"trace": value}))
    return found


def http() -> list[Case]:
    def v1(name: str, raw: bytes, **headers: str) -> Case:
        return Case(
            f"http {name}", "http", "/v1/completions", raw=raw, headers={"content-type": "application/json"} | headers
        )

    fine = json.dumps({"prompt": STORY, "max_tokens": 2, "temperature": 0}).encode()
    bodies = {
        "no body": b"", "not json": b"{", "list": b"[]", "null": b"null", "number": b"1", "nan": b'{"prompt": NaN}',
        "not utf-8": b'{"prompt": "\xff\xfe"}', "deep": b"[" * 100_000, "deep object": b'{"a":' * 50_000,
        "digits": b'{"max_tokens": ' + b"9" * 5000 + b"}", "twice": b'{"prompt": "a", "prompt": ["b"]}',
        "utf-16": '{"prompt": "a"}'.encode("utf-16"), "too large": b'{"prompt": "' + b"x" * (5 << 20) + b'"}',
    }  # fmt: skip
    found = [v1(f"body {name}", raw) for name, raw in bodies.items()]
    kinds = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "image/png", "")
    found += [v1(f"declared as {kind or 'nothing'}", fine, **{"content-type": kind}) for kind in kinds]
    strange = {
        "authorization": "Bearer " + "x" * 4000, "x-forwarded-for": "1.2.3.4, 5.6.7.8, ::1, ' OR 1=1",
        "x-forwarded-host": "evil.example", "cookie": "; ".join(["a=b"] * 800), "accept": "*/*;q=nan",
        "accept-encoding": "bogus, br", "origin": "https://evil.example", "x-workbench-user": "\x7f" * 10,
        "te": "trailers", "expect": "x",
        "user-agent": "() { :;}; echo vulnerable", "range": "bytes=0-999999999999",
    }  # fmt: skip
    found += [v1(f"header {name}", fine, **{name: value}) for name, value in strange.items()]
    verbs = ("GET", "PUT", "DELETE", "PATCH", "OPTIONS")
    found += [Case(f"http {verb}", "http", "/v1/completions", raw=fine, verb=verb) for verb in verbs]
    for place in (
        "/v1/models/../../etc/passwd", "/v1/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd", "/v1/models/%00", "/v1/nothing",
        "/v1", "/health/../etc", "/metrics/x", "/gradio_api/file=/etc/passwd", "/gradio_api/file=../../etc/passwd",
        "/gradio_api/file=workbench/ui/page.py", "/gradio_api/file=README.md", "/static/../../etc/passwd",
        "/gradio_api/call/since/nonsense", "/gradio_api/queue/data?session_hash=nonsense",
        "/gradio_api/proxy=http://evil/", "/assets/%2e%2e/%2e%2e/x", "/" + "a" * 5000, "/?__theme=" + "x" * 5000,
    ):  # fmt: skip
        found.append(Case(f"http GET {place[:60]}", "http", place, verb="GET"))
    calls: dict[str, Any] = {
        "no data": {}, "data null": {"data": None}, "data word": {"data": "x"},
        "data object": {"data": {"prompt": "x"}}, "too few": {"data": []}, "too many": {"data": [1] * 50},
        "fn_index": {"data": [], "fn_index": 10**9},
        "session": {"data": [STORY], "session_hash": {"x": 1}}, "event": {"data": [STORY], "event_data": nested(50)},
        "list": [], "null": None, "file": {"data": [{"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}]},
        "token": {"data": [STORY], "oauth_token": ["x"]}, "batched": {"data": [[STORY]], "batched": True},
    }  # fmt: skip
    for name, body in calls.items():
        for place in ("/gradio_api/call/generate", "/gradio_api/queue/join", "/gradio_api/run/generate"):
            found.append(Case(f"http {name} to {place}", "http", place, body))
    server: dict[str, Any] = {
        "no function": {}, "unknown": {"fn_name": "nonsense"}, "dunder": {"fn_name": "__class__"},
        "data": {"data": nested(50)}, "component": {"component_id": 10**9}, "word": {"component_id": "x"},
        "session": {"session_hash": ["x"]},
    }  # fmt: skip
    for name, body in server.items():
        whole = {"component_id": 1, "fn_name": "catalogue", "session_hash": "s", "data": {}} | body
        found.append(Case(f"http server function {name}", "http", "/gradio_api/component_server", whole))
    found.append(
        Case(
            "http upload",
            "http",
            "/gradio_api/upload",
            raw=b"x" * 1000,
            headers={"content-type": "multipart/form-data; boundary=y"},
        )
    )
    found.append(Case("http unknown endpoint", "http", "/gradio_api/call/nonsense", {"data": []}))
    found.append(Case("http endpoint that is private", "http", "/gradio_api/call/decode", {"data": []}))
    return found
