"""The bundled models' training mixture of texts, packed into files of 16-bit token ids.

Half of the tokens come from the project's own generators, half from the files of `sources.SOURCES`. One row in a
hundred of every file is held out, chosen by a hash of the row. The generators' held-out problems are held out, too.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerFast

from workbench.trace.files import write_atomically
from workbench.training.generators import TASKS, mixture
from workbench.training.sources import SOURCES, Source

DEFAULT_DATA = Path("../shared/data/train")
CHARS_PER_TOKEN = 3.2
HELD_OUT_CHARS = 120_000  # per group
EXACT_SHARE = 8  # one token in eight of the size of the mixture
EXACT_TASKS = (
    "addition",
    "subtraction",
    "multiplication",
    "sort_words",
    "sort_numbers",
    "copy",
    "repeat",
    "replace",
    "json",
)
Report = Callable[[str], None]


def is_row_held_out(row: object) -> bool:
    """Return whether a row of a training text's file is held out (about one row in a hundred)."""
    text = json.dumps(row, sort_keys=True, ensure_ascii=False)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % 100 == 0


def source_documents(source: Source, folder: Path, budget: int, seed: int) -> tuple[list[str], list[str]]:
    """Return shuffled training documents of at most `budget` characters, and the held-out documents."""
    train: list[str] = []
    held: list[str] = []
    for row in source.rows(folder):
        (held if is_row_held_out(row) else train).extend(source.documents(row))
    rng = random.Random(f"{source.file}/{source.group}/{seed}")
    chosen: list[str] = []
    remaining = budget
    for _ in range(source.passes):
        rng.shuffle(train)
        for document in train:
            if remaining <= 0:
                return chosen, held
            chosen.append(document)
            remaining -= len(document)
    return chosen, held


def build_documents(
    folder: Path, tokens: int, seed: int, report: Report = print
) -> tuple[list[str], dict[str, list[str]]]:
    """Generate and collect the documents of the training mixture.

    Returns:
        The shuffled training documents, and held-out documents by group.
    """
    half = tokens * CHARS_PER_TOKEN / 2
    documents: list[str] = []
    held: dict[str, list[str]] = {}
    for source in SOURCES:
        chosen, held_out = source_documents(source, folder, int(half * source.share), seed)
        documents += chosen
        if source.group != "copy":
            held.setdefault(source.group, []).extend(held_out)
        report(f"corpus {source.file} as {source.group}: {sum(map(len, chosen)):,} characters")
    remaining = half if documents else 2 * half
    for _, document in mixture(seed):
        documents.append(document)
        remaining -= len(document)
        if remaining <= 0:
            break
    random.Random(seed).shuffle(documents)
    for name, task in TASKS.items():
        group = "own stories" if name == "story" else "own tasks"
        count = 150 if name == "story" else 40
        held.setdefault(group, []).extend(i.render() for i in islice(task.stream(seed, held_out=True), count))
    return documents, {group: held_out for group, held_out in held.items() if held_out}


def encode_documents(tokenizer: PreTrainedTokenizerFast, documents: list[str]) -> np.ndarray:
    """Encode training documents as token ids, and concatenate the ids to one array.

    Returns:
        Token ids, uint16 [T].
    """
    pieces = [
        np.fromiter((i for e in tokenizer.backend_tokenizer.encode_batch_fast(batch) for i in e.ids), dtype=np.uint16)
        for batch in _batches(documents, 2000)
    ]
    return np.concatenate(pieces)


def _batches(documents: list[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(documents), size):
        yield documents[start : start + size]


def exact_documents(tokens: int, seed: int) -> list[str]:
    """Return training documents of the tasks with exact answers, which the recipe `target` adds to each batch."""
    documents: list[str] = []
    remaining = tokens * CHARS_PER_TOKEN
    for _, document in mixture(seed + 1, EXACT_TASKS):
        documents.append(document)
        remaining -= len(document)
        if remaining <= 0:
            return documents
    return documents


def pack_corpus(
    tokenizer: PreTrainedTokenizerFast,
    documents: list[str],
    held: dict[str, list[str]],
    out: Path,
    seed: int = 0,
    report: Report = print,
) -> None:
    """Write `train.bin`, `exact.bin`, one `held-GROUP.bin` per group and `corpus.json` (token counts) to a folder.

    Args:
        tokenizer: Tokenizer of the token files.
        documents: Training documents, for `train.bin`.
        held: Held-out documents by group.
        out: Output folder.
        seed: Seed of `exact.bin` (see `exact_documents`).
        report: Function that receives progress lines.
    """
    out.mkdir(parents=True, exist_ok=True)
    counts: dict[str, int] = {}
    tokens = encode_documents(tokenizer, documents)
    tokens.tofile(out / "train.bin")
    counts["train"] = len(tokens)
    exact = encode_documents(tokenizer, exact_documents(len(tokens) // EXACT_SHARE, seed))
    exact.tofile(out / "exact.bin")
    counts["exact"] = len(exact)
    for group, texts in held.items():
        excerpt: list[str] = []
        remaining = HELD_OUT_CHARS
        for document in texts:
            excerpt.append(document)
            remaining -= len(document)
            if remaining <= 0:
                break
        ids = encode_documents(tokenizer, excerpt)
        ids.tofile(out / f"held-{group.replace(' ', '-')}.bin")
        counts[f"held-{group}"] = len(ids)
    write_atomically(out / "corpus.json", (json.dumps(counts, indent=2) + "\n").encode())
    report(f"corpus: {counts['train']:,} training tokens in {out}")


def load_tokens(path: Path) -> np.ndarray:
    """Map a token file into memory, uint16 [T]."""
    return np.memmap(path, dtype=np.uint16, mode="r")
