"""The cache of nearly constant answers: computed once, and again after a change of their dependencies."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from workbench.service.request_context import DISCONNECTED, DisconnectedError
from workbench.ui import methods_page
from workbench.ui.dependency_cache import DependencyCache, stamp


def test_an_answer_is_computed_once_and_again_after_it_expires() -> None:
    now, made = 0.0, []
    kept: DependencyCache[int] = DependencyCache(10.0, most=2, clock=lambda: now)

    def work() -> int:
        made.append(now)
        return len(made)

    assert [kept.get("a", work), kept.get("a", work), kept.get("b", work)] == [1, 1, 2]
    now = 11.0
    assert kept.get("a", work) == 3
    kept.get("c", work)
    kept.get("d", work)
    assert kept.get("a", work) == 6  # the cache has room for two


def test_a_failed_computation_is_repeated() -> None:
    kept: DependencyCache[int] = DependencyCache(10.0)
    with pytest.raises(ZeroDivisionError):
        kept.get("a", lambda: 1 // 0)
    assert kept.get("a", lambda: 1) == 1


def test_many_threads_wait_for_one_computation_and_callers_who_left_stop_waiting() -> None:
    kept: DependencyCache[int] = DependencyCache(10.0)
    begun, go, made = threading.Event(), threading.Event(), []

    def work() -> int:
        begun.set()
        go.wait(10)
        made.append(1)
        return 7

    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(kept.get("a", work))) for _ in range(8)]
    for thread in threads:
        thread.start()
    begun.wait(10)
    left = threading.Event()
    left.set()
    token = DISCONNECTED.set(left)
    try:
        with pytest.raises(DisconnectedError):
            kept.get("a", work)
    finally:
        DISCONNECTED.reset(token)
    go.set()
    for thread in threads:
        thread.join()
    assert (found, made) == ([7] * 8, [1])


def test_a_changed_file_changes_the_stamp(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("1")
    before = stamp(tmp_path)
    assert stamp(tmp_path) == before
    (tmp_path / "a.json").write_text("12")
    assert stamp(tmp_path) != before


def test_the_methods_page_computes_its_boards_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import gradio as gr

    made: list[str] = []
    answers: dict[str, object] = {}

    def note(name: str) -> dict[str, object]:
        made.append(name)
        return {"name": name}

    monkeypatch.setattr(methods_page, "all_boards", lambda: note("boards"))
    monkeypatch.setattr(methods_page, "compatibility", lambda client: note("matrix"))
    monkeypatch.setattr(methods_page, "add_page", lambda demo, title, module, found, decode: answers.update(
        {answer.__name__: answer for answer in found}))  # fmt: skip
    methods_page.add(gr.Blocks(), object())  # type: ignore[arg-type]
    for _ in range(30):
        for name in ("boards", "matrix"):
            assert answers[name]({}) == {"name": name}  # type: ignore[operator]
    assert made == ["boards", "matrix"]
