"""A verifier that takes back what it kept, over HTTP: who streams text never has it, who follows is told of it."""

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
"""Whatever is drafted is kept, and every step is written twice: the second time with the target's own tokens."""


@pytest.fixture(scope="module", autouse=True)
def toy(load_toy: Callable[[str], Method]) -> Method:
    return load_toy("step_judge")


@pytest.fixture(scope="module")
def plain() -> str:
    return serving.app().bench.generate(serving.STORY, "autoregressive", max_new_tokens=N).text


def stream_text() -> Iterator[str]:
    """The pieces of text that OpenAI's endpoint sends, as they come."""
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
    """The events of such a run as a client in another process gets them."""
    remote = Workbench(serving.app().url)
    try:
        return list(remote.start(serving.STORY, "step-judge", params=SEVERE, max_new_tokens=N, pace=200))
    finally:
        remote.close()


def test_streamed_text_never_has_what_is_taken_back(plain: str) -> None:
    pieces = [piece for piece in stream_text() if piece]
    assert len(pieces) > 2, "it came in parts"
    for heard in itertools.accumulate(pieces):
        assert plain.startswith(heard), "not the target's: it was still to be judged"
    assert "".join(pieces) == plain


def test_who_follows_is_told_what_is_set_and_what_is_taken_back(plain: str) -> None:
    rounds = follow_rounds()
    text, wrong = "", 0
    for n, r in enumerate(rounds):
        stood = {placed.position: placed for placed in list_tentative_tokens(rounds[:n])}
        assert set(r.revoked) <= set(stood), "only what was set can be taken back"
        back = "".join(stood[position].text for position in sorted(r.revoked))
        wrong += bool(back) and not plain[len(text) :].startswith(back)
        text += "".join(emitted.text for emitted in r.emitted)
        assert plain.startswith(text)
    assert text == plain
    assert list_tentative_tokens(rounds) == []
    assert wrong > 0, "a client that showed what was set would have shown other words than the target's"
