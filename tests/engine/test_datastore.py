"""Datastores: order and lookups compared with a search one by one, kills during a build, damaged files."""

from __future__ import annotations

import itertools
import json
import os
import signal
from pathlib import Path

import model_helpers
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from workbench.core.errors import ModelError, TokenizerMismatchError, WorkbenchError
from workbench.engine import datastore_builder
from workbench.engine.datastore import CARD, ORDERED, SUFFIXES, TOKENS, Card, Datastore, dtype_of, open_store
from workbench.engine.datastore_builder import build, own_texts, sort_suffixes, store_of

END = 5
TEXT = "The store of a small town sells apples, äpfel and pommes.\n" * 9


def store_from(*texts: list[int], vocabulary: int = END) -> Datastore:
    ids = [token for text in texts for token in (*text, vocabulary)]
    starts = [(str(i), sum(len(t) + 1 for t in texts[:i])) for i in range(len(texts))]
    tokens = np.array(ids, dtype_of(vocabulary))
    return Datastore(Card(len(ids), vocabulary, "", texts=starts), tokens, sort_suffixes(tokens))


letters = st.lists(st.integers(0, 2), min_size=1, max_size=60)


@settings(deadline=None, max_examples=100)
@given(letters, letters, st.sampled_from([END, 70_000, 2**16 - 1]))
@example([0] * 28, [0] * 10, END)  # one suffix is a prefix of another, which continues with token 0
def test_suffixes_are_sorted(a: list[int], b: list[int], vocabulary: int) -> None:
    store = store_from(a, b * 3, vocabulary=vocabulary)
    text = store.tokens.tolist()
    assert store.suffixes.tolist() == sorted(range(len(text)), key=lambda i: (text[i : i + ORDERED], i))


@settings(deadline=None, max_examples=150)
@given(letters, letters, letters, st.integers(1, 16), st.integers(1, 4))
def test_longest_match_equals_a_search_one_by_one(
    a: list[int], b: list[int], context: list[int], longest: int, shortest: int
) -> None:
    store = store_from(a, b)
    text, hit = store.tokens.tolist(), store.find(context, longest, shortest)
    found = {
        n: [i for i in range(len(text) - n) if text[i : i + n] == context[-n:]]
        for n in range(shortest, min(longest, len(context)) + 1)
    }
    wanted = max((n for n, places in found.items() if places), default=0)
    assert hit.matched == wanted
    if wanted:
        assert sorted(store.suffixes[hit.first : hit.end].tolist()) == found[wanted]
        places, rows = store.following(hit, 4, 512)
        for place, row in zip(places.tolist(), rows.tolist(), strict=True):
            behind = text[place + wanted : place + wanted + 4]
            behind = behind[: behind.index(END)] if END in behind else behind
            assert row == [*behind, *[END] * (4 - len(behind))], "no continuation crosses the end of a text"


def test_many_occurrences_are_sampled_from_all_texts() -> None:
    store = store_from([0, 1] * 500 + [0, 2] * 500)
    places, rows = store.following(store.find([0], 16), 1, 10)
    assert len(places) == 10
    assert rows[:, 0].tolist() == [1] * 5 + [2] * 5


# -- building ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datastore_builder, "PIECE", 100)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    found = [tmp_path / "a.txt", tmp_path / "b.txt"]
    found[0].write_text(TEXT)
    found[1].write_text("ä" * 777)  # no line ends, and every other byte is inside a character
    return found


@pytest.mark.usefixtures("small_pieces")
def test_datastore_contains_all_of_its_texts(tmp_path: Path, files: list[Path]) -> None:
    tokenizer = model_helpers.byte_tokenizer()
    store = build(files, tmp_path / "s", tokenizer, "tiny")
    found = "".join(tokenizer.decode([t]) if t < 257 else "|" for t in store.tokens.tolist() if t == 257 or t < 129)
    assert found == "".join(c for c in TEXT if c < "\x80") + "||"
    whole = bytes(t - 1 for t in store.tokens.tolist() if t < 257)
    assert whole.decode() == TEXT + "ä" * 777
    assert store.card.texts == [("a.txt", 0), ("b.txt", len(TEXT.encode()) + 1)]
    assert store.text_at(5) == "a.txt"
    assert store.text_at(len(store) - 1) == "b.txt"
    assert sorted(p.name for p in (tmp_path / "s").iterdir()) == sorted([CARD, TOKENS, SUFFIXES])
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def build_and_be_killed(at: int, files: list[Path], out: Path) -> int:
    """Build in a process that kills itself at the `at`th progress call; return the signal that ended it."""
    if child := os.fork():
        return os.WTERMSIG(os.waitpid(child, 0)[1])
    calls = itertools.count(1)

    def report(done: int, total: int, what: str) -> None:
        if next(calls) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    build(files, out, model_helpers.byte_tokenizer(), "tiny", report)
    os._exit(0)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("at", [4, 17])
def test_killed_build_resumes(at: int, tmp_path: Path, files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed during tokenisation (4) or sorting (17): finished work is not repeated."""
    out = tmp_path / "s"
    assert build_and_be_killed(at, files, out) == signal.SIGKILL
    assert not out.exists()
    kept = len(list((tmp_path / ".s.building").glob("piece-*.npy")))
    read: list[str] = []
    encode = datastore_builder.encode_text
    monkeypatch.setattr(
        datastore_builder, "encode_text", lambda tokenizer, text: read.append(text) or encode(tokenizer, text)
    )
    store = build(files, out, model_helpers.byte_tokenizer(), "tiny")
    whole = len(read) + kept
    assert kept >= 3
    assert (len(read) == 0) == (at == 17)
    read.clear()
    again = build(files, tmp_path / "t", model_helpers.byte_tokenizer(), "tiny")
    assert len(read) == whole
    assert again.tokens.tobytes() == store.tokens.tobytes()
    assert again.suffixes.tobytes() == store.suffixes.tobytes()


@pytest.mark.usefixtures("small_pieces")
def test_changed_file_restarts_the_build(tmp_path: Path, files: list[Path]) -> None:
    def stop(done: int, total: int, what: str) -> None:
        if done or what == "sorting":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(files, tmp_path / "s", model_helpers.byte_tokenizer(), "tiny", stop)
    assert list((tmp_path / ".s.building").glob("piece-*.npy"))
    files[0].write_text("other")
    store = build(files[:1], tmp_path / "s", model_helpers.byte_tokenizer(), "tiny")
    assert bytes(t - 1 for t in store.tokens[:-1].tolist()) == b"other"


def test_invalid_inputs_of_a_build_are_refused(tmp_path: Path, files: list[Path]) -> None:
    tokenizer = model_helpers.byte_tokenizer()
    (tmp_path / "bad").write_bytes(b"\xff\xfe" * 9)
    with pytest.raises(WorkbenchError, match="is not UTF-8 text"):
        build([tmp_path / "bad"], tmp_path / "s", tokenizer, "tiny")
    with pytest.raises(WorkbenchError, match="nowhere"):
        build([tmp_path / "nowhere"], tmp_path / "s", tokenizer, "tiny")
    (tmp_path / "none").touch()
    with pytest.raises(WorkbenchError, match="no text"):
        build([tmp_path / "none"], tmp_path / "s", tokenizer, "tiny")
    build(files, tmp_path / "t", tokenizer, "tiny")
    with pytest.raises(WorkbenchError, match="--force"):
        build(files, tmp_path / "t", tokenizer, "tiny")
    with pytest.raises(WorkbenchError, match="another folder"):  # --force replaces datastores only
        build(files, tmp_path, tokenizer, "tiny", replace=True)
    assert len(build(files[:1], tmp_path / "t", tokenizer, "tiny", replace=True)) == len(TEXT.encode()) + 1


# -- reading ----------------------------------------------------------------------------------------------------------


def spoil(folder: Path, how: str) -> None:
    card = json.loads((folder / CARD).read_text())
    if how == "cut tokens":
        (folder / TOKENS).write_bytes((folder / TOKENS).read_bytes()[:-1])
    elif how == "cut suffixes":
        (folder / SUFFIXES).write_bytes((folder / SUFFIXES).read_bytes()[:300])
    elif how == "other array":
        np.save(folder / TOKENS, np.arange(len(np.load(folder / TOKENS))))
    elif how == "fewer tokens":
        np.save(folder / TOKENS, np.load(folder / TOKENS)[:-9])
    elif how == "fewer suffixes":
        np.save(folder / SUFFIXES, np.load(folder / SUFFIXES)[:-9])
    elif how == "pickle":
        np.save(folder / TOKENS, np.array([{}], object), allow_pickle=True)
    elif how == "no card":
        (folder / CARD).unlink()
    elif how == "foreign":
        (folder / CARD).write_text('{"format": "another", "version": 1}')
    elif how == "no json":
        (folder / CARD).write_bytes((folder / CARD).read_bytes()[:-9])
    elif how == "no sizes":
        (folder / CARD).write_text(json.dumps(card | {"tokens": "many"}))


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (OSError("the disk is gone"), "the disk is gone"),
        (OSError(), "OSError"),
        (OSError(28, "No space left"), "No space left"),
    ],
    ids=["a text", "nothing", "a number"],
)
def test_error_without_strerror_is_reported(
    error: OSError, why: str, tmp_path: Path, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`OSError.strerror` is None unless the error was created with a number."""

    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(datastore_builder, "_put", fails)
    with pytest.raises(WorkbenchError, match=rf"store cannot be used: {why}\.") as refused:
        build(files, tmp_path / "store", model_helpers.byte_tokenizer(), "tiny")
    assert "None" not in refused.value.message


@pytest.mark.parametrize(
    "how",
    ["cut tokens", "cut suffixes", "other array", "fewer tokens", "fewer suffixes", "pickle", "no card", "foreign",
     "no json", "no sizes"],
)  # fmt: skip
def test_damaged_datastore_is_refused_with_a_remedy(how: str, tmp_path: Path, files: list[Path]) -> None:
    build(files, tmp_path / "s", model_helpers.byte_tokenizer(), "tiny")
    spoil(tmp_path / "s", how)
    with pytest.raises(ModelError, match="datastore build"):
        open_store(tmp_path / "s")


def test_invalid_positions_in_a_suffix_array_are_harmless() -> None:
    """For a manipulated suffix array, a position beyond the text reads as the end of the text."""
    good = store_from([0, 1, 0, 1, 2])
    bad = Datastore(good.card, good.tokens, np.array([10**6, -7, 2**31 - 1, 0, 3, 1], np.int32))
    for context in ([0], [1], [0, 1]):
        hit = bad.find(context, 16)
        if hit:
            assert bad.following(hit, 3, 8)[1].max() <= END


def test_datastore_of_another_tokenizer_is_refused(
    tmp_path: Path, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    models = model_helpers.make_small_models(noise=None)
    build(files, tmp_path / "s", model_helpers.byte_tokenizer(), "tiny")
    build(files, tmp_path / "t", models.tokenizer, "letters")
    monkeypatch.setenv(datastore_builder.ENV, str(tmp_path / "s"))
    with pytest.raises(TokenizerMismatchError, match="datastore build FILES… --out FOLDER --target tiny-llama"):
        store_of(models, own=True)
    assert store_of(models, own=False).card.vocabulary == 6
    monkeypatch.setenv(datastore_builder.ENV, f"{tmp_path / 's'}:{tmp_path / 't'}")
    assert store_of(models, own=True).card.target == "letters", "the first one that fits is used"


def test_bundled_texts_exist_and_are_small() -> None:
    assert datastore_builder.OWN_TEXTS.stat().st_size <= 300 << 10
    store = own_texts(model_helpers.byte_tokenizer(), "tiny")
    assert store.card.texts[0] == ("README.md", 0)
    assert len(store.card.texts) > 50
    for name, start in store.card.texts[1:]:
        assert store.tokens[start - 1] == 257, f"a text ends before {name}"
