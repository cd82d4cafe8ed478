"""Build the tokenizer of a GGUF file from the file's metadata alone.

Transformers' own conversion is not used, because it ignores some of the metadata: it adds `<|endoftext|>`, `<s>` and
`</s>` to vocabularies without these tokens, ignores `ignore_merges`, and puts a space before texts regardless of
`add_space_prefix`. The reference for this module is llama.cpp's `src/llama-vocab.cpp`. Like llama.cpp, and unlike the
`tokenizer.json` of some models (Qwen2's), this tokenizer does not normalise text to NFC, because no field of the
metadata requests it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors
from transformers import PreTrainedTokenizerFast
from transformers.tokenization_utils_base import generate_merges

from workbench.core.errors import ModelError
from workbench.models.gguf_metadata import DAMAGED_ADVICE, refuse, special_id
from workbench.models.gguf_pretokenizer import SPLITTINGS, Splitting

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Token types that a GGUF file lists in `tokenizer.ggml.token_type`."""
_SPACE = "\u2581"
_SENTENCEPIECE = Splitting((), adds_bos=True, has_bytes=False)


def tokenizer_of(reader: Any, file: Path) -> PreTrainedTokenizerFast:
    """Build the tokenizer of a GGUF file.

    Args:
        reader: a `gguf.GGUFReader` of the file.
        file: path of the file, for errors.

    Raises:
        ModelError: the tokenizer's kind or pre-tokenisation is not supported, or its tables do not match.
    """
    facts = {
        name.removeprefix("tokenizer."): field.contents()
        for name, field in reader.fields.items()
        if name.startswith("tokenizer.")
    }
    kind = facts.get("ggml.model")
    splitting = _splitting(kind, facts.get("ggml.pre"), file)
    tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(facts.get("ggml.tokens", ()))]
    ids = {token: i for i, token in enumerate(tokens)}
    kinds = facts.get("ggml.token_type") or [NORMAL] * len(tokens)
    if not tokens or len(kinds) < len(tokens) or len(ids) < len(tokens):
        raise ModelError(f"The tokenizer in {file} cannot be read: its list of tokens is damaged.", DAMAGED_ADVICE)
    backend = Tokenizer(_model(kind, facts, ids, kinds, splitting, file))
    _spaces(backend, kind, facts, splitting)
    special = {name: _text(tokens, special_id(facts, name)) for name in ("bos", "eos", "unknown", "padding")}
    backend.add_special_tokens([AddedToken(tokens[i], special=True, normalized=False) for i in _of(kinds, CONTROL)])
    backend.add_tokens([AddedToken(tokens[i], special=False, normalized=False) for i in _of(kinds, USER_DEFINED)])
    _ends(backend, facts, splitting, special, file)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, clean_up_tokenization_spaces=False, bos_token=special["bos"],
        eos_token=special["eos"], unk_token=special["unknown"], pad_token=special["padding"],
    )  # fmt: skip
    tokenizer.chat_template = facts.get("chat_template")
    return tokenizer


def _splitting(kind: Any, pre: Any, file: Path) -> Splitting:
    """Return the pre-tokenisation of a GGUF file's tokenizer.

    Args:
        kind: value of `tokenizer.ggml.model`.
        pre: value of `tokenizer.ggml.pre`.
        file: path of the file, for errors.
    """
    if kind == "llama":
        return _SENTENCEPIECE
    name = "gemma4" if kind == "gemma4" else pre
    refuse(
        f"its tokenizer is of the kind {kind!r}, which is not supported" if kind not in ("gpt2", "gemma4") else "", file
    )
    refuse(
        "its metadata lacks the tokenizer's pre-tokenisation (tokenizer.ggml.pre); an old converter wrote it"
        if not name
        else "",
        file,
    )
    refuse(
        f"its tokenizer has the pre-tokenisation {name!r}, which is not supported" if name not in SPLITTINGS else "",
        file,
    )
    return SPLITTINGS[name]


def _model(
    kind: Any, facts: dict[str, Any], ids: dict[str, int], kinds: list[int], splitting: Splitting, file: Path
) -> models.BPE:
    """Return the BPE model of a GGUF file's tokenizer.

    Its merges come from the file, or are computed from SentencePiece scores.

    Args:
        kind: value of `tokenizer.ggml.model`.
        facts: metadata of the file.
        ids: id by token.
        kinds: token type by id.
        splitting: pre-tokenisation of the vocabulary.
        file: path of the file, for errors.
    """
    if kind == "llama":
        scores = facts.get("ggml.scores")
        if scores is None or len(scores) < len(ids):
            raise ModelError(
                f"The tokenizer in {file} cannot be read: the file has fewer token scores than tokens.", DAMAGED_ADVICE
            )
        mergeable = {token: i for token, i in ids.items() if kinds[i] not in (CONTROL, UNKNOWN, BYTE)}
        merges = generate_merges(mergeable, {token: float(scores[i]) for token, i in mergeable.items()})
    elif "ggml.merges" in facts:
        # The first character of a piece may be a space, so the separator is searched for after it.
        separators = [(merge, merge.find(" ", 1)) for merge in facts["ggml.merges"]]
        merges = [(merge[:position], merge[position + 1 :]) for merge, position in separators]
    else:
        refuse("its tokenizer has no merges", file)
        raise AssertionError
    unknown = special_id(facts, "unknown")
    try:
        return models.BPE(
            vocab=ids, merges=merges, ignore_merges=splitting.ignores_merges, byte_fallback=not splitting.has_bytes,
            unk_token=_text([*ids], unknown) if not splitting.has_bytes else None, fuse_unk=not splitting.has_bytes,
        )  # fmt: skip
    except Exception as error:  # the Rust library raises it, e.g. for a merge of pieces that are not tokens
        raise ModelError(f"The tokenizer in {file} cannot be read: {error}.", DAMAGED_ADVICE) from error


def _spaces(backend: Tokenizer, kind: Any, facts: dict[str, Any], splitting: Splitting) -> None:
    """Set how the tokenizer `backend` encodes and decodes spaces and bytes.

    llama.cpp puts a space before the text and after each special token. A normalizer has the same effect, because it is
    applied to each piece of text between special tokens. For byte-level vocabularies, no space is added.
    """
    if splitting.has_bytes:
        backend.pre_tokenizer = splitting.pre_tokenizer()
        backend.decoder = decoders.ByteLevel()
        return
    has_prefix = bool(facts.get("ggml.add_space_prefix", kind == "llama")) and kind == "llama"
    replace_spaces = normalizers.Replace(" ", _SPACE)
    backend.normalizer = (
        normalizers.Sequence([normalizers.Prepend(_SPACE), replace_spaces]) if has_prefix else replace_spaces
    )
    if splitting.expressions:
        backend.pre_tokenizer = splitting.pre_tokenizer()
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if has_prefix else steps)


def _ends(
    backend: Tokenizer, facts: dict[str, Any], splitting: Splitting, special: dict[str, str | None], file: Path
) -> None:
    """Let the tokenizer add BOS before a text and EOS after it, if the GGUF file or its pre-tokeniser requires it."""
    flags = {"bos": facts.get("ggml.add_bos_token", splitting.adds_bos), "eos": facts.get("ggml.add_eos_token", False)}
    for name, is_added in flags.items():
        refuse(
            f"its tokenizer adds the token {name.upper()} to each text, but the token's id is missing"
            if is_added and not special[name]
            else "",
            file,
        )
    special_tokens = [{"id": name, "ids": [backend.token_to_id(token)], "tokens": [token]}
              for name, token in special.items() if token is not None and flags.get(name)]  # fmt: skip
    if special_tokens:
        single = [*(["bos:0"] if flags["bos"] else []), "$A:0", *(["eos:0"] if flags["eos"] else [])]
        pair = [*(["bos:0"] if flags["bos"] else []), "$B:1", *(["eos:0"] if flags["eos"] else [])]
        backend.post_processor = processors.TemplateProcessing(
            single=single, pair=[*single, *pair], special_tokens=special_tokens
        )


def _of(kinds: list[int], kind: int) -> list[int]:
    return [i for i, token_kind in enumerate(kinds) if token_kind == kind]


def _text(tokens: list[str], token: int | None) -> str | None:
    """Return the text of the token with a given id; None if there is no such token."""
    return tokens[token] if token is not None and 0 <= token < len(tokens) else None
