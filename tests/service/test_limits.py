"""Limits of requests, and the messages of refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from workbench.core.errors import CapacityError, ParameterError, PromptError
from workbench.engine.request_options import RequestOptions
from workbench.service import Backend, Limits
from workbench.service.users import LOCAL, user_key

from .conftest import PROMPT, wait_until


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ("", "empty"),
        ([], "empty"),
        (None, "neither text nor token ids"),
        (7, "neither text nor token ids"),
        ([1, "a"], "whole numbers"),
        ([True], "whole numbers"),
        ("a\ud800b", "lone surrogate"),
        ("x" * 11, "Shorten the prompt by 1 characters"),
        ([1] * 8, "Shorten the prompt by 3 tokens"),
    ],
)
def test_an_invalid_prompt_is_refused_with_the_reason(prompt: object, says: str) -> None:
    with pytest.raises(PromptError, match=says):
        Limits(prompt_chars=10, prompt_tokens=5).check_prompt(prompt)  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [0, -1, 11, 10**30, 1.5, "8", True, None])
def test_an_invalid_length_is_refused(n: object) -> None:
    with pytest.raises(ParameterError, match="max_new_tokens"):
        Limits(max_new_tokens=10).check_tokens(n)  # type: ignore[arg-type]


@pytest.mark.parametrize("stop", ["abc", [""], ["x" * 300], ["a"] * 17, [1]])
def test_invalid_stop_strings_are_refused(stop: object) -> None:
    with pytest.raises(ParameterError, match="stop string"):
        Limits().check_stops(stop)  # type: ignore[arg-type]


def test_runs_are_limited_per_user_and_in_total() -> None:
    limits = Limits(runs_per_user=2, runs=4)
    limits.check_room("a", ["a", "b", "b"])
    with pytest.raises(CapacityError, match="You have 2 running"):
        limits.check_room("a", ["a", "a"])
    with pytest.raises(CapacityError, match="The server has 4"):
        limits.check_room("a", ["b", "b", "c", "c"])
    limits.check_room(LOCAL, [LOCAL] * 3)


def test_new_user_names_do_not_bypass_the_limit_per_address() -> None:
    limits = Limits(runs_per_user=2, runs_per_address=3, runs=9)
    names = [user_key("1.2.3.4", name) for name in "abcd"]
    assert len(set(names)) == 4
    limits.check_room(names[2], names[:2])
    with pytest.raises(CapacityError, match="address"):
        limits.check_room(names[3], names[:3])
    limits.check_room(user_key("1.2.3.5", "a"), names[:3])
    same = [user_key(f"2001:db8::{i}", name) for i, name in enumerate("abc")]
    with pytest.raises(CapacityError, match="address"):
        limits.check_room(user_key("2001:db8:0:0:ffff::1", "d"), same)
    Limits(runs_per_user=2, runs=9).check_room(names[3], names[:3])


def test_waiting_runs_count_and_ended_ones_do_not(backend: Callable[..., Backend]) -> None:
    bench = backend(max_sequences=1, limits=Limits(runs_per_user=2))
    first = bench.start(PROMPT, "autoregressive", paused=True, user="a")
    bench.start(PROMPT, "autoregressive", paused=True, user="a")
    with pytest.raises(CapacityError, match="stop one"):
        bench.start(PROMPT, "autoregressive", user="a")
    bench.start(PROMPT, "autoregressive", paused=True, user="b")
    first.cancel()
    wait_until(lambda: first.ended)
    bench.start(PROMPT, "autoregressive", paused=True, user="a")


def test_a_prompt_of_too_many_tokens_is_refused_once_they_can_be_counted(backend: Callable[..., Backend]) -> None:
    bench = backend(limits=Limits(prompt_tokens=5))
    loading = bench.start(PROMPT, "autoregressive")  # 9 tokens, known only after the tokenizer is loaded
    with pytest.raises(Exception, match="Shorten the prompt by 4 tokens"):
        loading.wait(120)
    assert loading.state == "error"
    with pytest.raises(PromptError, match="Shorten the prompt by 4 tokens"):
        bench.start(PROMPT, "autoregressive")
    assert len(bench.start("abc", "autoregressive", max_new_tokens=2).wait(120).token_ids) == 2


def test_only_the_remaining_part_of_a_truncated_prompt_counts(backend: Callable[..., Backend]) -> None:
    bench = backend(limits=Limits(prompt_tokens=5, max_new_tokens=8))
    wish = RequestOptions(truncate_prompt=3)
    ids = bench.start("abcde", "autoregressive", max_new_tokens=1).wait(120).header.prompt_tokens
    for prompt in (PROMPT, ids * 3):
        run = bench.start(prompt, "autoregressive", max_new_tokens=2, extras=wish, paused=True)
        wait_until(lambda run=run: run.trace is not None)
        assert run.charged_tokens == 3 + 2
        run.resume()
        header = run.wait(120).header
        assert (len(header.prompt_tokens), header.prompt) == (3, PROMPT[-3:] if prompt is PROMPT else "cde")
    with pytest.raises(PromptError, match="4 tokens"):
        bench.start(ids * 2, "autoregressive", max_new_tokens=2, extras=RequestOptions(truncate_prompt=9))


def test_a_refused_request_does_not_count_as_a_run(backend: Callable[..., Backend]) -> None:
    bench = backend(limits=Limits(runs_per_user=1))
    bench.load()
    for bad in ({"method": "medusa"}, {"params": {"depth": 99}}, {"max_new_tokens": 0}, {"prompt": "x" * 300}):
        with pytest.raises(Exception, match=r"."):
            bench.start(**({"prompt": PROMPT, "user": "a"} | bad)).wait(120)
    assert bench.start(PROMPT, "autoregressive", user="a", max_new_tokens=2).wait(120).footer.reason == "length"
