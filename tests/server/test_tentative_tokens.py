"""Tentative tokens over HTTP: text streams never contain revoked tokens, followers of rounds are notified of them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator

import httpx
import pytest
import serving

from workbench import Workbench
from workbench.decoders import Method
from workbench.trace.events import Round, list_tentative_tokens

N = 32
SEVERE = {"step": 6, "easy": 0.0, "enough": 1.0}
"""Every draft is accepted and every step revoked once; the second time it has the target's own tokens."""


@pytest.fixture(scope="module", autouse=True)
def toy(load_toy: Callable[[str], Method]) -> Method:
    return load_toy("step_judge")


@pytest.fixture(scope="module")
def plain() -> str:
    return serving.app().bench.generate(serving.STORY, "autoregressive", max_new_tokens=N).text


def stream_text() -> Iterator[str]:
    """Yield the pieces of text that OpenAI's endpoint streams."""
    body = {
        "model": "text-target", "prompt": serving.STORY, "max_tokens": N, "temperature": 0, "stream": True,
        "speculation": {"method": "step-judge", "params": SEVERE},
    }  # fmt: skip
    with httpx.stream("POST", f"{serving.app().url}/v1/completions", json=body, timeout=60) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line[6:])["choices"][0]["text"]


def follow_rounds() -> list[Round]:
    """Return the rounds of such a run as a remote client receives them."""
    remote = Workbench(serving.app().url)
    try:
        return list(remote.start(serving.STORY, "step-judge", params=SEVERE, max_new_tokens=N, pace=200))
    finally:
        remote.close()


def test_streamed_text_never_contains_revoked_tokens(plain: str) -> None:
    pieces = [piece for piece in stream_text() if piece]
    assert len(pieces) > 2, "the text was streamed in several pieces"
    for heard in itertools.accumulate(pieces):
        assert plain.startswith(heard), "a tentative token was streamed"
    assert "".join(pieces) == plain


def test_followers_receive_tentative_and_revoked_tokens(plain: str) -> None:
    rounds = follow_rounds()
    text, wrong = "", 0
    for n, r in enumerate(rounds):
        stood = {placed.position: placed for placed in list_tentative_tokens(rounds[:n])}
        assert set(r.revoked) <= set(stood), "only tentative tokens can be revoked"
        back = "".join(stood[position].text for position in sorted(r.revoked))
        wrong += bool(back) and not plain[len(text) :].startswith(back)
        text += "".join(emitted.text for emitted in r.emitted)
        assert plain.startswith(text)
    assert text == plain
    assert list_tentative_tokens(rounds) == []
    assert wrong > 0, "a client that shows tentative tokens shows text other than the target's"
