"""Incremental detokenisation: spans concatenate to the whole text, and incomplete characters are never shown."""

from __future__ import annotations

import model_helpers
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from workbench.engine.detokenise import ByteDetokeniser, Detokeniser, TokenText, detokeniser

TOKENIZER = model_helpers.byte_tokenizer()
HALF = "\N{REPLACEMENT CHARACTER}"


def ids_of(data: bytes) -> list[int]:
    return [b + 1 for b in data]


WAYS = pytest.mark.parametrize("way", [ByteDetokeniser, Detokeniser])


def spell(way: type[Detokeniser], prompt: list[int], ids: list[int]) -> tuple[list[tuple[str, int, int]], Detokeniser]:
    detokeniser = way(TOKENIZER, prompt)
    return [detokeniser.add(t) for t in ids], detokeniser


def test_byte_level_tokenizers_use_the_direct_method() -> None:
    assert type(detokeniser(TOKENIZER, [])) is ByteDetokeniser


@WAYS
@settings(deadline=None)
@given(st.text(max_size=30), st.text(max_size=60))
@example("", "naïve 🙂 family 👨‍👩‍👧 中文字符 end")
@example("中文", "🏳️‍🌈" * 8)
@example("x", "a" * 100)
def test_spans_concatenate_to_the_text(way: type[Detokeniser], prompt: str, text: str) -> None:
    ids = ids_of(text.encode())
    spans, detokeniser = spell(way, ids_of(prompt.encode()), ids)
    assert detokeniser.text + detokeniser.flush() == text
    at = 0
    for new, start, end in spans:
        assert start == at
        assert end == at + len(new)
        assert text[start:end] == new
        at = end


@WAYS
@settings(deadline=None)
@given(st.text(alphabet="aé中🙂", min_size=1, max_size=20))
def test_incomplete_characters_are_never_shown(way: type[Detokeniser], text: str) -> None:
    ids = ids_of(text.encode())
    detokeniser = way(TOKENIZER, [])
    for n, token in enumerate(ids, 1):
        detokeniser.add(token)
        assert HALF not in detokeniser.text
        whole = bytes(b - 1 for b in ids[:n]).decode(errors="ignore")
        assert detokeniser.text == whole


@WAYS
@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=8), st.binary(max_size=90))
@example(b"", b"\x80" * 80)
@example(b"\xf0\x9f", b"\x99\x82 then")
@example(b"", "\N{REPLACEMENT CHARACTER}a".encode())
def test_invalid_bytes_end_as_the_tokenizer_decodes_them(way: type[Detokeniser], prompt: bytes, data: bytes) -> None:
    """For any tokens, the final text equals the tokenizer's own decoding, and shown text never changes."""
    ids = ids_of(data)
    spans, detokeniser = spell(way, ids_of(prompt), ids)
    detokeniser.flush()
    for new, start, end in spans:
        assert detokeniser.text[start:end] == new
    try:
        prompt.decode()
    except UnicodeDecodeError:
        return  # the first tokens complete the prompt's last character, which belongs to neither text
    assert detokeniser.text == TOKENIZER.decode(ids, skip_special_tokens=False)


@WAYS
def test_special_tokens_have_no_text(way: type[Detokeniser]) -> None:
    spans, detokeniser = spell(way, [], [*ids_of(b"ab"), 0, *ids_of(b"c")])
    assert spans[2] == ("", 2, 2)
    assert detokeniser.text == "abc"


@WAYS
def test_an_incomplete_end_is_released_by_flush(way: type[Detokeniser]) -> None:
    _, detokeniser = spell(way, [], ids_of("a🙂".encode()[:-1]))
    assert detokeniser.text == "a"
    assert detokeniser.flush() == HALF
    assert detokeniser.flush() == ""


@pytest.mark.parametrize(
    ("token", "text"),
    [(ord("a") + 1, "a"), (ord(" ") + 1, " "), (0xE2 + 1, "‹E2›"), (999, "‹999›")],  # noqa: RUF001
)
def test_single_tokens_for_display(token: int, text: str) -> None:
    assert TokenText(TOKENIZER)(token) == text
