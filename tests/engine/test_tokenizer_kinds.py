"""Incremental detokenisation with every kind of tokenizer: the spans concatenate to the decoded text."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    normalizers,
    pre_tokenizers,
    trainers,
)
from tokenizers import models as kinds
from transformers import PreTrainedTokenizerFast

from workbench.engine.detokenise import Detokeniser, TokenText, detokeniser

HALF = "\N{REPLACEMENT CHARACTER}"
TEXTS = [
    "the grey heron naps near a quiet pond while small frogs hum",
    "nine naïve foxes don't stop; they'll run, hop and play again.",
    "eine große Straße führt über den Fluß, und Zoë läuft",
    "人工 语言 模型 很 小 的 模型",
]
"""Invented texts from which tokenizers learn pieces; unseen characters become bytes or unknown tokens."""


def wrapped(tokenizer: Tokenizer, **special: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def byte_fallback() -> PreTrainedTokenizerFast:
    """Return a tokenizer like Llama 2's: SentencePiece BPE, in which a character without a piece becomes its bytes."""
    letters = sorted({c for text in TEXTS for c in text if c.isascii() and c != " "})
    words = ["▁t", "he", "▁the", "▁f", "▁fo", "▁a", "an", "▁an"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", *letters, *words, HALF, "▁▁"]
    merges = [
        ("▁", "t"),
        ("h", "e"),
        ("▁t", "he"),
        ("▁", "f"),
        ("▁f", "o"),
        ("▁", "a"),
        ("a", "n"),
        ("▁a", "n"),
        ("▁", "▁"),
    ]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(
        kinds.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return wrapped(tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def byte_level() -> PreTrainedTokenizerFast:
    """Return a tokenizer like those of GPT-2 and Llama 3: BPE over bytes, with a special token without a role."""
    tokenizer = Tokenizer(kinds.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=["<e>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    made = wrapped(tokenizer, eos_token="<e>")
    cast(Any, made).add_tokens([AddedToken("<|reserved|>", special=True)], special_tokens=True)
    return made


def latin_1() -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer with added words whose letters belong to the byte alphabet."""
    made = byte_level()
    made.add_tokens(["straße", "ÿes", "éé"])
    return made


def word_piece() -> PreTrainedTokenizerFast:
    """Return a tokenizer like BERT's."""
    tokenizer = Tokenizer(kinds.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]", "[SEP]"], show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return wrapped(tokenizer, unk_token="[UNK]", sep_token="[SEP]")


def unigram() -> PreTrainedTokenizerFast:
    """Return a tokenizer like T5's."""
    tokenizer = Tokenizer(kinds.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return wrapped(tokenizer, unk_token="<unk>", eos_token="</s>")


KINDS = {make.__name__: make for make in (byte_fallback, byte_level, latin_1, word_piece, unigram)}
ANY_KIND = pytest.mark.parametrize("kind", KINDS)


@lru_cache
def tokenizer_of(kind: str) -> Any:
    return KINDS[kind]()


def ids_of(tokenizer: Any, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def decode(tokenizer: Any, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def spelt(tokenizer: Any, prompt: list[int], ids: list[int]) -> str:
    """Return the incremental text, and check that shown text never changes and that the spans cover it."""
    growing: Detokeniser = detokeniser(tokenizer, prompt)
    at = 0
    for token in ids:
        new, start, end = growing.add(token)
        assert (start, end) == (at, at + len(new))
        assert growing.text[start:] == new
        at = end
    growing.flush()
    assert growing.flush() == ""
    return growing.text


WORDS = [
    "the", "fox", "straße", "ÿes", "éé", "naïve", "don't", "模型", "语", "한국", "नमस्ते", "e\u0301", "🙂", "👩‍🚀", "🏳️‍🌈",
    "🇳🇴", "שלום", "مرحبا", "\u202eabc", "\x00", "\x1b[31m", "\n", "\t", "  ", " ", ".", ",", "\u20393C\u203a", HALF,
    "<0x41>", "\U0001d518", "\u200d",
]  # fmt: skip
texts = st.one_of(st.text(max_size=30), st.lists(st.sampled_from(WORDS), max_size=24).map("".join))


@ANY_KIND
@settings(deadline=None, max_examples=80)
@given(texts, texts)
@example("", "🙂 and 中文字符, 👨‍👩‍👧 " * 4)
@example("a fox", " the 🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂")
@example("语言", "")
def test_incremental_text_equals_the_decoded_text(kind: str, before: str, text: str) -> None:
    """The prompt before it is context: both together decode to the prompt's text and the shown text."""
    tokenizer = tokenizer_of(kind)
    prompt, ids = ids_of(tokenizer, before), ids_of(tokenizer, text)
    if kind == "latin_1":  # an added word is kept, whereas `decode` reads its letters as bytes
        assert spelt(tokenizer, prompt, ids) == text
        return
    assert spelt(tokenizer, [], ids) == decode(tokenizer, ids)
    assert decode(tokenizer, prompt) + spelt(tokenizer, prompt, ids) == decode(tokenizer, prompt + ids)


@ANY_KIND
@settings(deadline=None, max_examples=150)
@given(st.data())
def test_incremental_text_of_any_tokens_equals_the_decoded_text(kind: str, data: st.DataObject) -> None:
    """Any tokens: special ones, unknown ones, continuations without a beginning, invalid bytes."""
    tokenizer = tokenizer_of(kind)
    usual = st.integers(0, len(tokenizer) - 1)
    bytes_ = st.integers(3, 258) if kind == "byte_fallback" else usual
    ids = data.draw(st.lists(st.one_of(usual, bytes_), max_size=40))
    added = {i for i, token in tokenizer.added_tokens_decoder.items() if not token.special}
    ids = [i for i in ids if i not in added]
    wanted = _with_characters_kept(tokenizer, ids) if kind == "byte_fallback" else decode(tokenizer, ids)
    assert spelt(tokenizer, [], ids) == wanted


def _with_characters_kept(tokenizer: Any, ids: list[int]) -> str:
    """Decode so that an invalid byte does not affect its neighbours.

    The decoder replaces a whole run of byte tokens by replacement characters if one of them is invalid; by then a
    stream has shown the others. So an invalid byte is passed as the piece that is the replacement character itself.
    """
    out: list[int] = []
    run = b""
    for i in [*(i for i in ids if i not in tokenizer.all_special_ids), -1]:
        if 3 <= i < 259:
            run += bytes([i - 3])
            continue
        for char in run.decode(errors="surrogateescape"):
            broken = "\udc80" <= char <= "\udcff"
            out += [tokenizer.convert_tokens_to_ids(HALF)] if broken else [b + 3 for b in char.encode()]
        run = b""
        out.append(i)
    return decode(tokenizer, out[:-1])


def test_invalid_byte_does_not_affect_its_neighbours() -> None:
    tokenizer = tokenizer_of("byte_fallback")
    ids = [*ids_of(tokenizer, "🙂"), 3 + 0x80, *ids_of(tokenizer, "中")]
    assert spelt(tokenizer, [5], ids).replace(" ", "") == f"🙂{HALF}中"


@ANY_KIND
def test_incomplete_characters_are_not_shown_before_the_text_ends(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    growing = detokeniser(tokenizer, [])
    for token in ids_of(tokenizer, "the 🙂 模 🏳️‍🌈 한 naïve " * 3):
        assert HALF not in growing.add(token)[0]


def test_cost_per_token_does_not_depend_on_the_length() -> None:
    """Two short decodes per token, never one of the whole text."""
    tokenizer = tokenizer_of("unigram")
    longest = 0

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(tokenizer, name)

        def decode(self, ids: list[int], **more: Any) -> str:
            nonlocal longest
            longest = max(longest, len(ids))
            return cast(str, tokenizer.decode(ids, **more))

    growing = detokeniser(Counting(), list(range(2, 60)))
    for token in [*range(2, 100)] * 3:
        growing.add(token)
    assert longest == 2


@pytest.mark.parametrize(
    ("kind", "token", "text"),
    [
        ("byte_fallback", "<0xE4>", "\u2039E4\u203a"),
        ("byte_fallback", "<0x3C>", "<"),
        ("byte_fallback", "<0x0A>", "\n"),
        ("byte_fallback", "▁the", " the"),
        ("byte_fallback", HALF, HALF),
        ("latin_1", "straße", "straße"),
        ("byte_level", "Ġ", " "),
        ("byte_level", "Ã", "\u2039C3\u203a"),
        ("byte_level", "<e>", "<e>"),
        ("unigram", "▁the", " the"),
    ],
)
def test_single_tokens_for_display(kind: str, token: str, text: str) -> None:
    tokenizer = tokenizer_of(kind)
    found = tokenizer.convert_tokens_to_ids(token)
    assert tokenizer.convert_ids_to_tokens(found) == token
    assert TokenText(tokenizer)(found) == text
