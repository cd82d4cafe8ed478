"""Tokenizers of GGUF files: the file's metadata decides. Expected values by hand, from small vocabularies.

They also agree with llama.cpp's own vectors (its `models/ggml-vocab-*.gguf.inp` and `.out`; see `SPLITTINGS`), which
are too large for this repository.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer

from workbench.core.errors import ModelError
from workbench.interop.gguf import _splitter  # pyright: ignore[reportPrivateUsage]
from workbench.models.gguf_pretokenizer import SPLITTINGS
from workbench.models.gguf_tokenizer import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, tokenizer_of

FILE = Path("model.gguf")
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
WORDS = ["he", "hel", "lo", "hello", "Ġw", "or", "Ġwor", "ld", "zq"]
"""No merges build "hello" and "zq"."""
MERGES = ["h e", "he l", "l o", "Ġ w", "o r", "Ġw or", "l d"]
TOKENS = [*BYTES, *WORDS, "<|begin|>", "<|end|>", "<tool>", "[PAD]"]
KINDS = [NORMAL] * (len(TOKENS) - 4) + [CONTROL, CONTROL, USER_DEFINED, UNUSED]


def reader(**facts: Any) -> Any:
    """Return the parts of a `GGUFReader` that the tokenizer reads."""
    given = {f"tokenizer.{name.replace('__', '.')}": value for name, value in facts.items() if value is not None}
    fields = {name: SimpleNamespace(contents=lambda value=value: value) for name, value in given.items()}
    return SimpleNamespace(fields=fields)


def byte_level(pre: str | None, **facts: Any) -> Any:
    own = {"model": "gpt2", "pre": pre, "tokens": TOKENS, "token_type": KINDS, "merges": MERGES,
           "bos_token_id": TOKENS.index("<|begin|>"), "eos_token_id": TOKENS.index("<|end|>")}  # fmt: skip
    return tokenizer_of(reader(**{f"ggml__{name}": value for name, value in (own | facts).items()}), FILE)


@pytest.mark.parametrize(
    ("pre", "add_bos", "has_bos", "whole"),
    [
        ("llama-bpe", None, True, True), ("llama-bpe", True, True, True), ("llama-bpe", False, False, True),
        ("tekken", None, True, True), ("youtu", None, False, True), ("gpt-2", None, False, False),
        ("gpt-2", True, True, False), ("qwen2", None, False, False), ("chameleon", None, True, False),
    ],
)  # fmt: skip
def test_pre_tokeniser_name_decides_bos_and_whole_words_by_default(
    pre: str, add_bos: bool | None, has_bos: bool, whole: bool
) -> None:
    tokenizer = byte_level(pre, add_bos_token=add_bos)
    first = ["<|begin|>"] if has_bos else []
    cut = {
        "hello": ["hello"] if whole else ["hel", "lo"],
        "zq world": [*(["zq"] if whole else ["z", "q"]), "Ġwor", "ld"],
    }
    for text, pieces in cut.items():
        assert tokenizer.convert_ids_to_tokens(tokenizer.encode(text)) == [*first, *pieces]
        assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) == text
    assert len(tokenizer) == len(TOKENS), "only tokens of the file"


def test_token_types_decide_which_tokens_are_matched_whole() -> None:
    tokenizer = byte_level("gpt-2", add_eos_token=True)
    assert tokenizer.all_special_tokens == ["<|begin|>", "<|end|>"]
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("<tool>hello<|end|>")) == [
        "<tool>",
        "hel",
        "lo",
        "<|end|>",
        "<|end|>",
    ]
    assert tokenizer.decode(tokenizer.encode("<tool>he"), skip_special_tokens=True) == "<tool>he"
    assert "[PAD]" not in tokenizer.convert_ids_to_tokens(tokenizer.encode("[PAD]"))


PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "a", "b", "▁a", "ab", "▁ab", "[X]"]
SCORES = [0.0] * 259 + [-6.0, -7.0, -8.0, -2.0, -1.0, -3.0, 0.0]


def sentencepiece(**facts: Any) -> Any:
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * 6, CONTROL]
    own = {"model": "llama", "tokens": PIECES, "scores": SCORES, "token_type": kinds}
    return tokenizer_of(reader(**{f"ggml__{name}": value for name, value in (own | facts).items()}), FILE)


@pytest.mark.parametrize("prefix", [True, None, False])
def test_sentencepiece_adds_a_space_prefix_unless_the_file_disables_it(prefix: bool | None) -> None:
    """The best score is merged first ("ab" before "▁a"); a space prefix also follows a special token."""
    tokenizer = sentencepiece(add_space_prefix=prefix)
    first = ["▁ab"] if prefix is not False else ["ab"]
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("ab ab")) == ["<s>", *first, "▁ab"]
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("ab[X]ab")) == ["<s>", *first, "[X]", *first]
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("é"))[-2:] == ["<0xC3>", "<0xA9>"]
    for text in ("ab é", " ab", "a  b"):
        assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) == text
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token) == ("<s>", "</s>", "<unk>")


def test_sentencepiece_file_may_name_its_special_tokens_otherwise() -> None:
    """Yi has neither `<s>` nor `</s>`; Transformers' class would add both."""
    pieces = ["<unk>", "<|startoftext|>", "<|endoftext|>", *PIECES[3:]]
    tokenizer = sentencepiece(tokens=pieces, bos_token_id=1, eos_token_id=2)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("ab")) == ["<|startoftext|>", "▁ab"]
    assert tokenizer.eos_token == "<|endoftext|>"
    assert len(tokenizer) == len(pieces), "only tokens of the file"


def test_sentencepiece_file_may_disable_bos() -> None:
    assert sentencepiece(add_bos_token=False).encode("ab") == [PIECES.index("▁ab")]


CUTS = {
    "gpt-2": ["Don", "'t", " sayĀB", " 12345", ",", " x", "\n\n  ", " y"],
    "smollm": ["Don", "'t", " sayĀB", " ", "1", "2", "3", "4", "5", ",", " x", "\n\n  ", " y"],
    "llama-bpe": ["Don", "'t", " sayĀB", " ", "123", "45", ",", " x", "\n\n", "  ", " y"],
    "qwen2": ["Don", "'t", " sayĀB", " ", "1", "2", "3", "4", "5", ",", " x", "\n\n", "  ", " y"],
    "tekken": ["Don", "'t", " say", "ĀB", " ", "1", "2", "3", "4", "5", ",", " x", "\n\n", "  ", " y"],
    "gpt-4o": ["Don't", " say", "ĀB", " ", "123", "45", ",", " x", "\n\n", "  ", " y"],
    "deepseek-v3": ["Don", "'t", " sayĀB", " ", "123", "45", ",", " x", "\n\n", "  ", " y"],
    "superbpe": ["Don't sayĀB ", "12", "345", ", x\n\n   y"],
    "afmoe": ["Don", "'t", " sayĀB", " ", "12", "345", ",", " x", "\n\n", "  ", " y"],
    "gemma4": ["Don't sayĀB 12345, x", "\n\n", "   y"],
}


@pytest.mark.parametrize("name", CUTS)
def test_text_is_pre_tokenised_by_name(name: str) -> None:
    text = "Don't sayĀB 12345, x\n\n   y"
    assert cuts(name, text) == CUTS[name]


def cuts(name: str, text: str) -> list[str]:
    """Return the pieces before they are spelled in the byte alphabet."""
    plain = dataclasses.replace(SPLITTINGS[name], has_bytes=False)
    return [piece for piece, _ in plain.pre_tokenizer().pre_tokenize_str(text)]


@pytest.mark.parametrize("name", SPLITTINGS)
def test_every_pre_tokeniser_keeps_all_text(name: str) -> None:
    text = " Ärger's 12 345,6\r\n\tdéjà—vu 你好。世界 ภาษา \u1160 ½²  \n\n<sentinel:7>" + " " * 9 + "x"
    pieces = cuts(name, text)
    assert "".join(pieces) == text
    assert len(pieces) > 2


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"pre": "klingon"}, "has the pre-tokenisation 'klingon'"),
        ({"pre": None}, "lacks the tokenizer's pre-tokenisation"),
        ({"model": "bert"}, "of the kind 'bert'"),
        ({"merges": None}, "has no merges"),
        ({"pre": "llama-bpe", "bos_token_id": None}, "adds the token BOS"),
        ({"tokens": [*TOKENS[:-1], "a"]}, "list of tokens is damaged"),
        ({"token_type": KINDS[:-1]}, "list of tokens is damaged"),
        ({"merges": ["Q Q"]}, "cannot be read"),
    ],
)  # fmt: skip
def test_unknown_tokenizer_is_refused_with_a_reason(facts: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        byte_level(**({"pre": "gpt-2"} | facts))


def test_tokenizer_is_the_same_after_saving(tmp_path: Path) -> None:
    """The Transformers class chosen by the model's family would add its own tokens and post-processor."""
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    for made in (byte_level("llama-bpe"), sentencepiece(add_space_prefix=False)):
        made.save_pretrained(tmp_path)
        back = AutoTokenizer.from_pretrained(tmp_path)
        assert back.get_vocab() == made.get_vocab()
        for text in ("hello zq", " ab <|end|>", "ab</s>é"):
            assert back.encode(text) == made.encode(text)
            assert back.decode(back.encode(text)) == made.decode(made.encode(text))


def test_export_names_the_pre_tokeniser_that_reads_it_back_or_none() -> None:
    for name in ("gpt-2", "smollm", "llama-bpe", "tekken", "qwen2", "deepseek-coder"):
        raw = Tokenizer(models.BPE(ignore_merges=SPLITTINGS[name].ignores_merges))
        raw.pre_tokenizer = SPLITTINGS[name].pre_tokenizer()
        known = json.loads(raw.to_str())
        found = _splitter(known["pre_tokenizer"], known["model"]["ignore_merges"])
        assert found is not None
        assert SPLITTINGS[found] == SPLITTINGS[name]
    cut = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    for part, name in (
        (cut, "smollm"),
        (pre_tokenizers.ByteLevel(add_prefix_space=True), None),
        (pre_tokenizers.Whitespace(), None),
    ):
        raw = Tokenizer(models.BPE())
        raw.pre_tokenizer = part
        assert _splitter(json.loads(raw.to_str())["pre_tokenizer"], False) == name
    assert _splitter(json.loads(raw.to_str())["pre_tokenizer"], True) is None
