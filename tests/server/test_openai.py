"""OpenAI's own client, and plain HTTP, against `/v1` of the whole app."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import openai
import pytest
import serving

from workbench import Workbench
from workbench.models.bundle import DEFAULT_TARGET
from workbench.models.names import known_targets
from workbench.server.openai import stable_prefix

STORY = serving.STORY
GREEDY = {"model": "text-target", "temperature": 0}


@pytest.fixture
def bench() -> Workbench:
    return serving.app().bench


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{serving.app().url}/v1", api_key="none", max_retries=0) as made:
        yield made


def speculation(method: str, **params: Any) -> dict[str, Any]:
    return {"speculation": {"method": method, "params": params}}


def test_models_are_listed(client: openai.OpenAI) -> None:
    listed = {model.id: model.owned_by for model in client.models.list()}
    bundled = [
        name for name, owner in listed.items() if owner != "published"
    ]  # published models may be installed or not
    assert sorted(bundled) == sorted(name for name, _, config in known_targets() if "target" not in config)
    assert bundled[0] == DEFAULT_TARGET
    assert client.models.retrieve("text-target").owned_by == "bundled"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


def test_a_completion_is_the_engines_text_with_its_figures(client: openai.OpenAI, bench: Workbench) -> None:
    wanted = bench.generate(STORY, "draft-model", params={"depth": 3}, max_new_tokens=20)
    answer = client.completions.create(
        prompt=STORY, max_tokens=20, extra_body=speculation("draft-model", depth=3), **GREEDY
    )
    assert answer.choices[0].text == wanted.text
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(wanted.header.prompt_tokens), 20)
    figures = answer.usage.model_dump()["speculation"]
    assert (figures["method"], figures["promise"], figures["params"]["depth"]) == ("draft-model", "exact", 3)
    assert figures["rounds"] == len(wanted.rounds)
    assert figures["tau"] == pytest.approx(20 / len(wanted.rounds))
    assert figures["accepted"] == sum(len(r.path) for r in wanted.rounds)
    details = answer.usage.completion_tokens_details
    assert details is not None
    assert details.accepted_prediction_tokens == figures["accepted"]
    assert details.rejected_prediction_tokens == figures["tested"] - figures["accepted"]


def test_a_stream_is_the_same_text_in_parts(client: openai.OpenAI, bench: Workbench) -> None:
    wanted = bench.generate(STORY, "draft-tree", max_new_tokens=24).text
    parts = list(
        client.completions.create(
            prompt=STORY, max_tokens=24, stream=True, stream_options={"include_usage": True},
            extra_body=speculation("draft-tree"), **GREEDY,
        )
    )  # fmt: skip
    *texts, last = parts
    assert "".join(part.choices[0].text for part in texts) == wanted
    assert len(texts) > 2
    assert [part.choices[0].finish_reason for part in texts if part.choices[0].finish_reason] == ["length"]
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 24
    assert last.usage.model_dump()["speculation"]["method"] == "draft-tree"
    assert len({part.id for part in parts}) == 1


def test_a_chat_answers_in_the_chat_format(client: openai.OpenAI, bench: Workbench) -> None:
    messages: list[Any] = [{"role": "user", "content": "What is 2 + 3?"}]
    wanted = bench.generate("<|user|>What is 2 + 3?<|assistant|>", "autoregressive", max_new_tokens=16).text
    answer = client.chat.completions.create(messages=messages, max_completion_tokens=16, **GREEDY)
    assert answer.choices[0].message.content == wanted
    assert answer.choices[0].message.role == "assistant"
    parts = [
        part.choices[0].delta
        for part in client.chat.completions.create(messages=messages, max_tokens=16, stream=True, **GREEDY)
    ]
    assert parts[0].role == "assistant"
    assert "".join(part.content or "" for part in parts) == wanted


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_end_the_text_before_them(client: openai.OpenAI, bench: Workbench, stream: bool) -> None:
    text = bench.generate(STORY, "autoregressive", max_new_tokens=40).text
    stop = text[20:24]
    answer = client.completions.create(prompt=STORY, max_tokens=40, stop=[stop], stream=stream, **GREEDY)
    got = "".join(part.choices[0].text for part in answer) if stream else answer.choices[0].text  # pyright: ignore
    assert got == text[: text.index(stop)]


def test_a_seed_makes_sampling_repeatable(client: openai.OpenAI) -> None:
    def ask(seed: int) -> str:
        return client.completions.create(
            model="text-target", prompt=STORY, max_tokens=24, temperature=1.0, top_p=0.9, seed=seed
        ).choices[0].text  # fmt: skip

    assert ask(7) == ask(7)
    assert len({ask(seed) for seed in range(5)}) > 1


def test_token_ids_are_a_prompt_too(client: openai.OpenAI, bench: Workbench) -> None:
    ids = bench.generate(STORY, max_new_tokens=1).header.prompt_tokens
    one = client.completions.create(prompt=ids, max_tokens=8, **GREEDY).choices[0].text
    assert one == client.completions.create(prompt=STORY, max_tokens=8, **GREEDY).choices[0].text


@pytest.mark.parametrize(
    ("more", "kind", "words"),
    [
        ({"prompt": ""}, openai.BadRequestError, "empty"),
        ({"max_tokens": 0}, openai.BadRequestError, "max_new_tokens"),
        ({"temperature": 9}, openai.BadRequestError, "temperature"),
        ({"n": 99}, openai.BadRequestError, "n is not a whole number from 1 to 16"),
        ({"logprobs": 99}, openai.BadRequestError, "logprobs"),
        ({"best_of": 3}, openai.BadRequestError, "best_of is not supported"),
        ({"logit_bias": {"5": 101}}, openai.BadRequestError, "logit_bias"),
        ({"logit_bias": {"999999": 1}}, openai.BadRequestError, "logit_bias"),
        ({"model": "gpt-4o"}, openai.NotFoundError, "gpt-4o"),
        ({"model": "../../etc"}, openai.NotFoundError, "name of a model"),
        ({"extra_body": speculation("nonsense")}, openai.BadRequestError, "no method"),
        ({"extra_body": speculation("draft-model", depth=99)}, openai.BadRequestError, "depth"),
        ({"extra_body": {"speculation": {"mehtod": "x"}}}, openai.BadRequestError, "speculation"),
        ({"prompt": "word " * 3000}, openai.BadRequestError, "context"),
        ({"prompt": "word " * 3000, "stream": True}, openai.BadRequestError, "context"),
    ],
)
def test_errors_are_in_openais_format(client: openai.OpenAI, more: dict, kind: type, words: str) -> None:
    with pytest.raises(kind) as caught:
        client.completions.create(**{"prompt": STORY, "max_tokens": 4, **GREEDY, **more})
    body: Any = caught.value.body
    assert words in body["message"]
    assert body["remedy"]
    assert body["type"] == "invalid_request_error"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_frees_its_sequence(bench: Workbench, stream: bool) -> None:
    assert serving.wait_until(lambda: serving.n_unfinished_runs(bench) == 0)
    body = json.dumps({"prompt": STORY, "max_tokens": 900, "stream": stream} | GREEDY).encode()
    host = serving.app().url.removeprefix("http://")
    name, port = host.split(":")
    with socket.create_connection((name, int(port))) as line:
        line.sendall(
            f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        assert serving.wait_until(lambda: bench.health()["rows"] == 1)
        if stream:
            assert b"data: " in line.recv(4096) + line.recv(4096)
    assert serving.wait_until(lambda: serving.n_unfinished_runs(bench) == 0, seconds=4), (
        "two seconds, plus two for a busy machine"
    )


def test_concurrent_requests_get_the_same_text_as_alone(bench: Workbench) -> None:
    prompts = [STORY, "The old lighthouse", "Tom had a red ball.", "What is 2 + 3?"]
    methods = ["autoregressive", "draft-model", "draft-tree", "prompt-lookup"]

    async def ask(http: httpx.AsyncClient, prompt: str, method: str) -> str:
        body = {"prompt": prompt, "max_tokens": 12, **GREEDY, **speculation(method)}
        answer = await http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["text"]

    async def all_at_once() -> list[str]:
        async with httpx.AsyncClient(base_url=serving.app().url, timeout=120) as http:
            return await asyncio.gather(*map(partial(ask, http), prompts, methods))

    stalled = bench.start(STORY, paused=True)  # another user's paused run, which occupies a sequence
    alone = [bench.generate(prompt, "autoregressive", max_new_tokens=12).text for prompt in prompts]
    assert asyncio.run(all_at_once()) == alone
    assert not stalled.ended
    stalled.cancel()


def test_one_run_too_many_is_refused_with_429(bench: Workbench) -> None:
    user_limit = bench.limits.runs_per_user

    async def more_than_allowed() -> list[int]:
        async with httpx.AsyncClient(base_url=serving.app().url, timeout=120) as http:
            body = {"prompt": STORY, "max_tokens": 60, **GREEDY}
            answers = await asyncio.gather(*(http.post("/v1/completions", json=body) for _ in range(user_limit + 2)))
            return sorted(answer.status_code for answer in answers)

    assert asyncio.run(more_than_allowed()) == [200] * user_limit + [429, 429]


def test_health_reports_the_load(bench: Workbench) -> None:
    run = bench.start(STORY, paused=True)
    assert serving.wait_until(lambda: httpx.get(f"{serving.app().url}/health").json()["rows"] == 1)
    run.cancel()
    assert serving.wait_until(lambda: httpx.get(f"{serving.app().url}/health").json()["rows"] == 0)


@pytest.mark.parametrize(
    ("text", "stops", "said"),
    [
        ("abc", (), "abc"),
        ("abc", ("cd",), "ab"),
        ("abcd", ("cd",), "ab"),
        ("abcdX", ("cd",), "ab"),
        ("aXbYc", ("Y", "X"), "a"),
        ("a\n", ("\n\n",), "a"),
        ("a\nb", ("\n\n",), "a\nb"),
        ("aba", ("abab", "ba"), ""),
    ],
)
def test_a_stream_holds_back_text_that_could_start_a_stop_string(text: str, stops: tuple[str, ...], said: str) -> None:
    assert stable_prefix(text, stops) == said
