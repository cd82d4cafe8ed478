"""Build a datastore of text for drafting: read texts in chunks, tokenise and sort them.

A build that was killed can be resumed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from workbench.core.errors import ModelError, TokenizerMismatchError, WorkbenchError, system_reason
from workbench.core.panics import convert_panics
from workbench.engine.datastore import (
    CARD,
    ORDERED,
    SUFFIXES,
    TOKENS,
    Card,
    Datastore,
    dtype_of,
    n_ids,
    open_store,
    tokenizer_hash,
)
from workbench.models.checksums import sum_of
from workbench.models.loading import Models
from workbench.trace.files import check_regular, replace_atomically, write_atomically

OWN_TEXTS = Path(__file__).resolve().parents[2] / "assets" / "datastores" / "own-texts.txt"
"""File with the texts of this project from which a small datastore is built, for any tokenizer."""
NEXT_TEXT = "\f\n"
"""Separator between the texts in the file `OWN_TEXTS`."""
ENV = "WORKBENCH_DATASTORE"
"""Environment variable with the folders of a user's datastores, separated as in PATH.

The first datastore with the target's tokenizer is used.
"""
PIECE = 1 << 20
"""Number of bytes of text that are tokenised at a time."""

Progress = Callable[[int, int, str], None]
"""Type of the progress callback of a build: (finished units, total units, name of the current step)."""


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Return the token ids of plain text. Text that looks like a special token is tokenised as plain text.

    Raises:
        WorkbenchError: the tokenizer fails on the text.
    """
    try:
        with convert_panics():
            encoding = tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)
            return list(encoding["input_ids"])
    except Exception as error:  # tokenizers raise many types
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise WorkbenchError(
            f"The tokenizer cannot read a text: {reason}", "Leave this text out of the datastore."
        ) from error


def sort_suffixes(tokens: np.ndarray, on_progress: Progress = lambda *_: None) -> np.ndarray:
    """Return a suffix array: token positions, sorted by the 32 tokens (`ORDERED`) that start at each position.

    Positions with the same 32 tokens keep their order.

    The algorithm is prefix doubling (Manber & Myers 1993): sorting by k tokens gives ranks; sorting by pairs of ranks
    that are k positions apart sorts by 2 k tokens. Peak memory is 32 bytes per token.

    Args:
        tokens: big-endian unsigned [n], n < 2³¹.
        on_progress: progress callback, called once per doubling.

    Returns:
        Token positions, int32 [n].
    """
    n, bits = len(tokens), 8 * tokens.itemsize
    if n and int(tokens.max()) == 2**bits - 1:
        bits *= 2
    width, key = 64 // bits, np.zeros(n, np.uint64)
    for i in range(min(width, n)):  # ids plus one: the end of a text sorts before token 0
        key[: n - i] |= tokens[i:].astype(np.uint64) + np.uint64(1) << np.uint64(64 - bits * (i + 1))
    rounds = (ORDERED // width).bit_length()
    for step in range(rounds):
        on_progress(step, rounds, "sorting")
        order = np.argsort(key, kind="stable")
        if step == rounds - 1:
            break
        key = key[order]
        ranks = np.zeros(n, np.uint32)
        np.cumsum(key[1:] != key[:-1], out=ranks[1:])
        rank = np.empty(n, np.uint32)
        rank[order] = ranks
        del order, ranks
        key = rank.astype(np.uint64) << np.uint64(32)
        key[: max(n - width, 0)] |= rank[width:] + np.uint64(1)
        width *= 2
    return order.astype(np.int32)


def own_texts(tokenizer: Any, target: str) -> Datastore:
    """Build a datastore of the texts of this project in memory, for any tokenizer. This takes half a second.

    Raises:
        WorkbenchError: the tokenizer fails on the texts, or the texts are missing in this checkout.
    """
    try:
        content = OWN_TEXTS.read_text(encoding="utf-8")
    except OSError as error:
        message = f"The bundled texts cannot be read from {OWN_TEXTS}: {system_reason(error)}."
        raise ModelError(message, f"Set {ENV} to the folder of your own datastore.") from None
    vocabulary, ids, texts = n_ids(tokenizer), list[int](), list[tuple[str, int]]()
    for text in content.split(NEXT_TEXT):
        name, _, body = text.partition("\n")
        texts.append((name, len(ids)))
        ids += [*encode_text(tokenizer, body), vocabulary]
    tokens = np.array(ids, dtype_of(vocabulary))
    card = Card(len(ids), vocabulary, tokenizer_hash(tokenizer), target, len(content.encode()), texts)
    return Datastore(card, tokens, sort_suffixes(tokens))


@lru_cache(maxsize=16)
def _opened(folder: Path, _changed_ns: int) -> Datastore:
    return open_store(folder)


def store_of(models: Models, own: bool) -> Datastore:
    """Return the datastore from which drafts for a target are copied. Requests never change a datastore.

    Args:
        models: models of the target.
        own: whether to use a datastore in `WORKBENCH_DATASTORE`, if there is one; otherwise the datastore of this
            project's texts is used.

    Raises:
        TokenizerMismatchError: no datastore in `WORKBENCH_DATASTORE` has this target's tokenizer.
        ModelError: a datastore cannot be read.
    """
    folders = [Path(name) for name in os.environ.get(ENV, "").split(os.pathsep) if name] if own else []
    if not folders:
        key = "datastore"
        if key not in models.shared:
            models.shared[key] = own_texts(models.tokenizer, models.target_name)
        return models.shared[key]
    refused: TokenizerMismatchError | None = None
    for folder in folders:
        changed = (folder / CARD).stat().st_mtime_ns if (folder / CARD).is_file() else 0
        store = _opened(folder, changed)
        try:
            store.check_tokenizer(models.tokenizer, str(folder), models.target_name)
        except TokenizerMismatchError as error:
            refused = refused or error
        else:
            return store
    assert refused is not None
    raise refused


# -- building ---------------------------------------------------------------------------------------------------------


def build(
    files: Sequence[Path],
    out: Path,
    tokenizer: Any,
    target: str,
    on_progress: Progress = lambda *_: None,
    replace: bool = False,
) -> Datastore:
    """Build a datastore from text files.

    The text is tokenised in chunks of a megabyte, which are stored in a folder next to `out`. So a build that was
    killed can be resumed by the same call. The new datastore is moved to `out` only when it is complete.

    Args:
        files: UTF-8 text files, each of which is one text of the datastore.
        out: folder of the datastore.
        tokenizer: tokenizer of the target.
        target: name of the target.
        on_progress: progress callback.
        replace: whether to replace an existing datastore.

    Raises:
        WorkbenchError: a file is unreadable or not text, `out` exists, or another process is building this datastore.
    """
    if out.exists() and not (replace and (out / CARD).is_file()):
        remedy = "Give another folder" + (
            ", or use --force to replace the datastore." if (out / CARD).is_file() else "."
        )
        raise WorkbenchError(f"{out} exists already.", remedy)
    work = out.with_name(f".{out.name}.building")
    try:
        sizes = [_size(file) for file in files]
        work.mkdir(parents=True, exist_ok=True)
        with FileLock(work / "lock", timeout=0):
            _prepare_build(work, files, tokenizer)
            _write(
                work, _tokenise(work, files, sizes, tokenizer, on_progress), tokenizer, target, sum(sizes), on_progress
            )
            open_store(work)
            _put(work, out)
    except Timeout:
        raise WorkbenchError(
            f"Another process is building {out}.", "Wait until that process ends, or give another folder."
        ) from None
    except OSError as error:
        why = system_reason(error)
        remedy = "Check that the path exists, that you may read and write it, and that the disk has space left."
        raise WorkbenchError(f"{error.filename or out} cannot be used: {why}.", remedy) from error
    return open_store(out)


def _size(file: Path) -> int:
    check_regular(file)
    return file.stat().st_size


def _prepare_build(work: Path, files: Sequence[Path], tokenizer: Any) -> None:
    """Keep the tokenised chunks of an interrupted build of a datastore if its files and tokenizer were the same.

    Otherwise delete them.
    """
    states = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    plan = json.dumps({"files": states, "tokenizer": tokenizer_hash(tokenizer), "piece": PIECE}).encode()
    path = work / "plan.json"
    if not path.is_file() or path.read_bytes() != plan:
        for old in (*work.glob("piece-*.npy"), *work.glob("*.part")):
            old.unlink()
        write_atomically(path, plan)


def _tokenise(
    work: Path, files: Sequence[Path], sizes: Sequence[int], tokenizer: Any, told: Progress
) -> list[tuple[str, list[Path]]]:
    """Tokenise texts in chunks; return the name of each text and the files of its chunks.

    Chunks that exist from an interrupted build are kept.
    """
    vocabulary, total, n_bytes, number = n_ids(tokenizer), sum(sizes), 0, 0
    dtype, texts = dtype_of(vocabulary), list[tuple[str, list[Path]]]()
    for file in files:
        pieces = list[Path]()
        for piece in _chunks(file):
            told(n_bytes >> 10, total >> 10, f"tokens of {file.name}")
            path = work / f"piece-{number:06}.npy"
            if not path.is_file():
                try:
                    text = piece.decode()
                except UnicodeDecodeError:
                    raise WorkbenchError(
                        f"{file} is not UTF-8 text.", "Convert the file to UTF-8, or leave the file out."
                    ) from None
                _save(path, np.array(encode_text(tokenizer, text), dtype))
            pieces.append(path)
            n_bytes, number = n_bytes + len(piece), number + 1
        texts.append((file.name, pieces))
    if not number:
        raise WorkbenchError("The given files contain no text.", "Give files that contain text.")
    return texts


def _chunks(file: Path) -> Iterator[bytes]:
    """Yield a text in chunks of about a megabyte.

    A chunk ends at the end of a line, or of a character if the line is too long.
    """
    with file.open("rb") as stream:
        while piece := stream.read(PIECE):
            piece += stream.readline(PIECE)
            if not piece.endswith(b"\n"):
                while (following := stream.peek(1)[:1]) and following[0] & 0xC0 == 0x80:  # within a character
                    piece += stream.read(1)
            yield piece


def _write(
    work: Path, texts: list[tuple[str, list[Path]]], tokenizer: Any, target: str, text_bytes: int, told: Progress
) -> None:
    """Join the tokenised chunks, sort their suffixes, and write the datastore; `card.json` is written last."""
    vocabulary = n_ids(tokenizer)
    end, parts, starts, n = np.array([vocabulary], dtype_of(vocabulary)), list[np.ndarray](), [], 0
    for name, pieces in texts:
        starts.append((name, n))
        arrays = [*(np.load(piece, allow_pickle=False) for piece in pieces), end]
        parts += arrays
        n += sum(map(len, arrays))
    if n >= 1 << 31:
        raise WorkbenchError(f"{n:,} tokens exceed the size limit of a datastore.", "Give fewer files.")
    tokens = np.concatenate(parts, dtype=end.dtype)  # without dtype, NumPy uses the machine's byte order
    del parts
    _save(work / TOKENS, tokens)
    _save(work / SUFFIXES, sort_suffixes(tokens, told))
    sha256 = {name: sum_of(work / name) for name in (TOKENS, SUFFIXES)}
    card = Card(n, vocabulary, tokenizer_hash(tokenizer), target, text_bytes, starts, sha256)
    write_atomically(work / CARD, json.dumps(card.to_wire(), ensure_ascii=False).encode())


def _save(path: Path, array: np.ndarray) -> None:
    with replace_atomically(path) as part, part.open("xb") as file:
        np.save(file, array, allow_pickle=False)


def _put(work: Path, out: Path) -> None:
    """Move the finished datastore to the folder `out`, then delete the old datastore and the intermediate files."""
    old = out.with_name(f".{out.name}.old")
    if out.exists():
        shutil.rmtree(old, ignore_errors=True)
        out.rename(old)
    work.rename(out)
    shutil.rmtree(old, ignore_errors=True)
    for intermediate in (*out.glob("piece-*.npy"), out / "plan.json", out / "lock"):
        with contextlib.suppress(OSError):
            intermediate.unlink()
