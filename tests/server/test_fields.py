"""Request fields of OpenAI's and vLLM's clients: implemented exactly, or refused by name."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import model_helpers
import openai
import pytest
import serving
import torch
from starlette.testclient import TestClient
from traces import FIXTURES

from workbench import Workbench
from workbench.core.errors import ParameterError
from workbench.core.params import params_of
from workbench.core.sampling import SamplingParams
from workbench.engine.request_options import RequestOptions, TokenLogprob
from workbench.methods import method_info
from workbench.server import fields, logprobs
from workbench.server import openai as server_openai
from workbench.server.app import make
from workbench.trace.events import Footer, Header, Trace

STORY = serving.STORY
GREEDY: dict[str, Any] = {"model": "text-target", "temperature": 0}


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{serving.app().url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def plain() -> list[int]:
    """Return the tokens of plain decoding."""
    return serving.app().bench.generate(STORY, "autoregressive", max_new_tokens=24).token_ids


def complete(client: openai.OpenAI, **asked: Any) -> Any:
    known = {"n", "logprobs", "echo", "logit_bias", "presence_penalty", "frequency_penalty", "stream", "prompt", "seed"}
    more = {name: asked.pop(name) for name in list(asked) if name not in {*known, "max_tokens", "temperature", "stop"}}
    return client.completions.create(**{"prompt": STORY, "max_tokens": 24, **GREEDY, **asked}, extra_body=more)


# -- without models ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chat", "asked", "words"),
    [
        (False, {"temperture": 1}, "Did you mean 'temperature'"),
        (False, {"max_token": 5}, "Did you mean 'max_tokens'"),
        (True, {"stop_token_id": [1]}, "Did you mean 'stop_token_ids'"),
        (True, {"n": 1, "zzzz": 1}, "The request has the unknown field 'zzzz'"),
        (False, {"guided_json": {}}, "guided_json is not supported: grammar-constrained decoding"),
        (True, {"response_format": {"type": "json_object"}}, "response_format is not supported"),
        (True, {"echo": True}, "/v1/completions has echo"),
        (True, {"prompt": "x"}, "only /v1/completions has this field"),
        (False, {"use_beam_search": True}, "use_beam_search is not supported"),
    ],
)
def test_unknown_and_unsupported_fields_are_named(chat: bool, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(ParameterError, match=words) as caught:
        fields.check_names(asked, chat)
    assert caught.value.option == list(asked)[-1]


@pytest.mark.parametrize("chat", [False, True])
def test_unsupported_fields_with_neutral_values_are_accepted(chat: bool) -> None:
    silent = dict.fromkeys(fields.SILENT, "x")
    neutral = {name: values[0] for name, (_, values) in fields.UNSUPPORTED_FIELDS.items() if values}
    fields.check_names(silent | neutral, chat)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("presence_penalty", 2.1), ("frequency_penalty", "1"), ("frequency_penalty", math.nan), ("min_tokens", -1),
        ("min_tokens", 10**400), ("presence_penalty", -(10**400)), ("frequency_penalty", math.inf),
        ("min_tokens", 1.5), ("min_tokens", True), ("stop_token_ids", 7), ("stop_token_ids", ["7"]),
        ("stop_token_ids", [-1]), ("ignore_eos", 1), ("truncate_prompt_tokens", 0), ("logit_bias", []),
        ("logit_bias", {"a": 1}), ("logit_bias", {"1": 101}), ("logit_bias", {"1": None}), ("prompt_logprobs", 21),
        ("top_logprobs", 3),
    ],
)  # fmt: skip
def test_invalid_values_are_refused_with_their_field(name: str, value: Any) -> None:
    with pytest.raises(ParameterError) as caught:
        fields.read({name: value}, chat=True).extras()
    assert caught.value.option == name


def test_every_sampling_parameter_is_a_field_with_the_engines_default() -> None:
    own = {name: spec.default for name, spec in params_of(SamplingParams()).items()}
    assert own | {"temperature": 1.0} == fields.SAMPLING, "1 is OpenAI's default"
    for chat in (False, True):
        fields.check_names(dict.fromkeys(own, 1), chat)


def test_fields_become_request_options() -> None:
    asked = {"logprobs": True, "top_logprobs": 4, "min_tokens": 3, "stop_token_ids": [9], "ignore_eos": True,
             "logit_bias": {"5": -1}, "presence_penalty": 0.5, "truncate_prompt_tokens": 8}  # fmt: skip
    assert fields.read(asked, chat=True).extras() == RequestOptions(3, (9,), True, ((5, -1.0),), 0.5, 0.0, 4, None, 8)
    assert fields.read({}, chat=False).extras() == RequestOptions()
    assert fields.read({"logprobs": 2, "echo": True}, chat=False).extras() == RequestOptions(
        logprobs=2, prompt_logprobs=2
    )


@pytest.mark.parametrize(
    ("asked", "n_tokens"), [({"max_tokens": 5}, 5), ({"max_completion_tokens": 7, "max_tokens": 5}, 7), ({}, None)]
)
def test_fields_become_arguments_of_a_run(asked: dict[str, Any], n_tokens: int | None) -> None:
    speculation = {"method": "suffix", "params": {"depth": 3}}
    options = fields.read(asked | {"model": "m", "seed": 0, "speculation": speculation}, chat=True).start_options()
    assert options == speculation | {"target": "m", "seed": 0} | ({"max_new_tokens": n_tokens} if n_tokens else {})


def test_a_part_of_a_character_has_bytes_and_no_text() -> None:
    scores = [TokenLogprob(i, data, 1, -0.5) for i, data in enumerate([b" a", b"\xe4\xb8", b"\xad", b"b"])]
    logprob_fields = logprobs.CompletionLogprobs().more(scores)
    assert logprob_fields["tokens"] == [" a", "bytes:\\xe4\\xb8", "bytes:\\xad", "b"]
    assert logprob_fields["text_offset"] == [0, 2, 2, 3]
    assert logprobs.of_chat(scores)["content"][1]["bytes"] == [0xE4, 0xB8]


class Read(TokenLogprob):
    """A token that counts accesses to its bytes."""

    reads = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "data":
            Read.reads += 1
        return super().__getattribute__(name)


@pytest.mark.parametrize("echo", [False, True])
def test_streamed_logprobs_equal_the_whole_and_read_each_token_once(echo: bool) -> None:
    """Reading all earlier tokens again for each piece would block the event loop of all requests."""
    line = [Read(i, data, 1, -0.5) for i, data in enumerate([b" a", b"\xe4\xb8", b"\xad", b"b"] * 8)]
    n_prompt = 9 if echo else 0
    asked = RequestOptions(logprobs=0, prompt_logprobs=0 if echo else None)
    request = SimpleNamespace(options=asked, logprobs=[], prompt_logprobs=line[:n_prompt])
    run: Any = SimpleNamespace(
        request=request, trace=SimpleNamespace(header=SimpleNamespace(prompt="x", prompt_text=["x"]))
    )
    wanted: Any = SimpleNamespace(echo=echo, chat=False)
    logprob_stream, pieces = server_openai.LogprobStream(wanted, run), []
    Read.reads = 0
    for one in line[n_prompt:]:
        request.logprobs.append(one)
        pieces.append(logprob_stream.more())
    assert Read.reads == 2 * len(line)  # once for its text, once for its offset
    whole = server_openai.LogprobStream(wanted, run).more()
    assert whole is not None
    assert whole == {name: [x for part in pieces for x in part[name]] for name in whole}


def test_a_target_without_drafter_answers_ordinary_requests(tmp_path: Path) -> None:
    """`workbench serve --target X` without a draft model: a method that runs decodes."""
    folder = tmp_path / "alone"
    model_helpers.family("llama", vocab_size=257).float().save_pretrained(folder)
    model_helpers.byte_tokenizer().save_pretrained(folder)
    with Workbench(target=str(folder), drafter="auto", device="cpu") as bench:
        bench.load()
        http = TestClient(make(bench), base_url="http://localhost")
        for path, body in (
            ("/v1/completions", {"prompt": "abc", "max_tokens": 4}),
            ("/v1/completions", {"model": "alone", "prompt": "abc", "max_tokens": 4}),
        ):
            answer = http.post(path, json=body)
            assert answer.status_code == 200, answer.text
            assert answer.json()["usage"]["speculation"]["method"] == "prompt-lookup"


# -- with the bundled models and OpenAI's client ----------------------------------------------------------------------


def test_an_unknown_field_is_an_error_in_openais_format(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, temperture=1.0)
    body: Any = caught.value.body
    assert (body["param"], body["type"]) == ("temperture", "invalid_request_error")
    assert "Did you mean 'temperature'?" in body["message"]


def test_several_answers_and_several_prompts(client: openai.OpenAI) -> None:
    warm: dict[str, Any] = {"temperature": 1.0, "seed": 3, "max_tokens": 8, "ignore_eos": True}
    answer = complete(client, n=2, prompt=[STORY, "Tom had a red ball."], **warm)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    one = [complete(client, prompt=prompt, **warm | {"seed": 3 + i}).choices[0].text
           for prompt in (STORY, "Tom had a red ball.") for i in range(2)]  # fmt: skip
    assert [choice.text for choice in answer.choices] == one
    assert answer.usage.completion_tokens == 32
    assert len(answer.usage.model_dump()["speculation"]["runs"]) == 4
    texts = ["", "", "", ""]
    for part in complete(client, n=2, prompt=[STORY, "Tom had a red ball."], stream=True, **warm):
        texts[part.choices[0].index] += part.choices[0].text
    assert texts == one


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_equal_the_models(client: openai.OpenAI, plain: list[int], stream: bool) -> None:
    """Including the echoed prompt; compared with one forward pass without cache and engine."""
    bench = serving.app().bench
    answer = complete(client, logprobs=2, echo=True, stream=stream)
    parts = list(answer) if stream else [answer]
    text = "".join(part.choices[0].text for part in parts)
    logprob_fields = [part.choices[0].logprobs for part in parts if part.choices[0].logprobs]
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    tokens, values, tops, offsets = ([x for one in logprob_fields for x in getattr(one, name)] for name in names)
    assert "".join(tokens) == text
    assert offsets == [len("".join(tokens[:i])) for i in range(len(tokens))]
    prompt = bench.generate(STORY, "autoregressive", max_new_tokens=1).header.prompt_tokens
    models = bench._backend.load("text-target")
    ids = torch.tensor([[*prompt, *plain]])
    with torch.inference_mode():
        distributions = models.target.model(ids, use_cache=False).logits[0].double().log_softmax(-1)
    wanted = distributions[:-1].gather(1, ids[0, 1:, None])[:, 0].tolist()
    assert values[0] is None
    assert values[1:] == pytest.approx(wanted, abs=1e-6)
    assert all(len(top) >= 2 and max(top.values()) >= value for top, value in zip(tops[1:], values[1:], strict=True))


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_returns_log_probabilities_too(client: openai.OpenAI, stream: bool) -> None:
    messages: list[Any] = [{"role": "user", "content": "What is 2 + 3?"}]
    asked: dict[str, Any] = {"messages": messages, "logprobs": True, "top_logprobs": 3, "max_tokens": 8, **GREEDY}
    answer = client.chat.completions.create(**asked, stream=stream)
    parts: Any = list(answer) if stream else [answer]
    said = [(part.choices[0].delta if stream else part.choices[0].message).content or "" for part in parts]
    content = [one for part in parts if part.choices[0].logprobs for one in part.choices[0].logprobs.content]
    assert "".join(one.token for one in content).startswith("".join(said))
    assert all(one.logprob == max(top.logprob for top in one.top_logprobs) for one in content)
    assert all(bytes(one.bytes).decode() == one.token for one in content)
    assert {len(one.top_logprobs) for one in content} == {3}


def test_log_probabilities_of_a_prompt_alone(client: openai.OpenAI) -> None:
    choice = complete(client, prompt_logprobs=1, max_tokens=1).choices[0].model_dump()
    first, *others = choice["prompt_logprobs"]
    assert first is None
    assert choice["logprobs"] is None
    assert all(min(one["rank"] for one in each.values()) == 1 for each in others)


def test_stop_options_end_the_text(client: openai.OpenAI, plain: list[int]) -> None:
    stop = plain[10]
    at = plain.index(stop)
    cut = complete(client, stop_token_ids=[stop])
    assert (cut.choices[0].finish_reason, cut.usage.completion_tokens) == ("stop", at + 1)
    longer = complete(client, stop_token_ids=[stop], min_tokens=at + 2)
    assert longer.usage.completion_tokens > at + 1
    barred = complete(client, logit_bias={str(stop): -100}, stop_token_ids=[stop])
    assert barred.choices[0].finish_reason == "length"
    assert complete(client, ignore_eos=True, max_tokens=4).usage.completion_tokens == 4


def test_penalties_change_the_text_equally_for_all_methods(client: openai.OpenAI) -> None:
    asked = {"presence_penalty": 0.6, "frequency_penalty": 0.9}
    texts = {complete(client, **asked, speculation={"method": name}).choices[0].text
             for name in ("autoregressive", "draft-model", "draft-tree")}  # fmt: skip
    assert len(texts) == 1
    assert texts != {complete(client).choices[0].text}


def test_truncation_removes_the_beginning_of_the_prompt(client: openai.OpenAI) -> None:
    assert complete(client, truncate_prompt_tokens=5, max_tokens=2).usage.prompt_tokens == 5


# -- figures and offsets ----------------------------------------------------------------------------------------------


def test_offsets_of_tokens_in_an_echoed_prompt() -> None:
    token_bytes = [b"<s>", b" ab", b" ", b"\xc3", b"\xa4", b"<|end|>", b"c"]
    assert logprobs.offsets_in("ab äc", token_bytes) == [0, 0, 2, 3, 3, 4, 4]
    assert logprobs.offsets_in("<s> abab", [b"<s>", b" ab", b"ab"]) == [0, 3, 6]  # written by the user
    assert logprobs.offsets_in("\ufb01x y", [b"fi", b"x", b" y"]) == [0, 1, 2]  # a ligature that a tokenizer has split


def test_offsets_after_an_echo_and_of_special_tokens_are_positions_in_the_text() -> None:
    prompt = ("<s>", [TokenLogprob(1, b"a", 1, -0.5), TokenLogprob(2, b"b", 1, -0.5)])
    pieces = logprobs.CompletionLogprobs(prompt, "ab")
    first = pieces.more([TokenLogprob(3, b"c", 1, -0.5), TokenLogprob(0, b"<s>", 1, -0.5, is_special=True)])
    assert first["tokens"] == ["<s>", "a", "b", "c", "<s>"]
    assert first["text_offset"] == [0, 0, 1, 2, 3]
    assert pieces.more([TokenLogprob(4, b"d", 1, -0.5)])["text_offset"] == [3]


def make_trace(tokens: int, method: str = "draft-model", **params: Any) -> Any:
    own = method_info.get(method).params
    every = {name: spec.default for name, spec in {**own, **method_info.sampling()}.items()} | params
    header = Header.from_wire(json.loads((FIXTURES / "tree.json").read_text())["header"])
    header.method, header.params, header.prompt_tokens = method, every, [7] * tokens
    return Trace(header, [], Footer(reason="length"))


def test_every_prompt_is_counted_once_equal_prompts_separately() -> None:
    for prompts, n in (([3, 3], 1), ([3], 3), ([3, 3, 5], 2)):
        traces = [make_trace(tokens) for tokens in prompts for _ in range(n)]
        assert server_openai.usage(traces, n)["prompt_tokens"] == sum(prompts), (prompts, n)


def test_usage_lists_the_parameters_in_effect() -> None:
    every = make_trace(3).header.params
    cold = server_openai.usage([make_trace(3, temperature=0.0)])["speculation"]["params"]
    assert {"temperature", "depth", "policy", "verifier"} <= set(cold)
    assert not {"top_k", "top_p", "min_p"} & set(cold)
    chosen = {
        spec.when.partition(" = ")[2] for name, spec in method_info.get("draft-model").params.items() if name in cold
    }
    assert all(not users or every["policy"] in users or every["verifier"] in users for users in chosen)
    assert len(cold) < len(every) / 2
    warm = server_openai.usage([make_trace(3, temperature=1.0)])["speculation"]["params"]
    assert {"top_k", "top_p", "min_p"} <= set(warm)


def test_min_tokens_above_max_tokens_is_refused_by_name(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        complete(client, min_tokens=9, max_tokens=8)
    body: Any = refused.value.body
    assert body["param"] == "min_tokens"
    assert "min_tokens=9 exceeds the maximum of 8 new tokens" in body["message"]
    assert complete(client, min_tokens=2, max_tokens=2).usage.completion_tokens == 2
