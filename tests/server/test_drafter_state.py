"""Drafter state over HTTP: one user's text never drafts for another, for each method that keeps a state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import serving

from workbench.client import Workbench
from workbench.core.errors import MethodUnavailableError, ParameterError, UnknownNameError, WorkbenchError
from workbench.trace.events import Trace

KEPT = ("prompt-lookup", "suffix", "stand", "adaptive-trigram", "token-recycling", "lookahead-trie", "lookahead")
WARM = {"suffix": 6, "lookahead-trie": 3, "adaptive-trigram": 6, "token-recycling": 6, "stand": 0}
"""Methods with `warm`, and the number of tokens of the first user's text at the end of the second user's prompt."""
SECRET = "The magic word is zyxomma. The magic word is zyxomma. The magic word is"
N = 12


@pytest.fixture(scope="module")
def users() -> Iterator[tuple[Workbench, Workbench]]:
    """Yield two users of one app, each with their own connection."""
    url = serving.app().url
    with Workbench(url) as one, Workbench(url) as other:
        yield one, other


def drafts(trace: Trace) -> list[tuple[list[int], list[int]]]:
    """Return the drafted trees of all rounds."""
    return [(list(r.nodes.tokens), list(r.nodes.parents)) for r in trace.rounds]


def run(user: Workbench, method: str, prompt: Any = SECRET[-17:], warm: bool = False, **params: Any) -> Trace:
    """Generate for one user."""
    params |= {"warm": True} if warm else {}
    return user.generate(prompt, method, params=params, target="text-target", max_new_tokens=N, seed=5)


@pytest.mark.parametrize("method", KEPT)
def test_one_users_text_never_drafts_for_another(users: tuple[Workbench, Workbench], method: str) -> None:
    """The second user's drafts equal, token for token, those before the first user's run."""
    one, other = users
    before = run(other, method)
    theirs = run(one, method, SECRET, temperature=1.5)
    after = run(other, method)
    assert drafts(after) == drafts(before)
    secret = theirs.header.prompt_tokens[len(theirs.header.prompt_tokens) // 3 :][:6]
    said = [token for tokens, _ in drafts(after) for token in tokens]
    assert not any(said[i : i + len(secret)] == secret for i in range(len(said)))


@pytest.mark.parametrize("method", WARM)
def test_users_with_warm_share_the_state(users: tuple[Workbench, Workbench], method: str) -> None:
    """Otherwise the test above could not fail."""
    one, other = users
    prompt = f"Sharing is caring, said {method}"
    theirs = run(one, method, prompt, warm=True, temperature=1.5)
    begin = [*theirs.header.prompt_tokens, *theirs.token_ids[: WARM[method]]]
    alone, together = run(other, method, begin), run(other, method, begin, warm=True)
    assert drafts(together) != drafts(alone)
    assert together.token_ids == alone.token_ids
    if WARM[method] and method != "token-recycling":  # its table has the target's likeliest tokens, not the text
        assert theirs.token_ids[WARM[method]] in drafts(together)[0][0]


def test_a_state_can_be_reached_only_by_its_runs_id(users: tuple[Workbench, Workbench]) -> None:
    one, other = users
    mine = one.start(SECRET, "suffix", target="text-target", max_new_tokens=N, keeps=True)
    mine.wait(60)
    seen = mine.memory()
    assert seen["kind"] == "suffix"
    assert seen["entries"] > 0
    with pytest.raises(UnknownNameError):
        other.run("AAAAAAAAAAAAAAAA").memory()
    theirs = other.start(SECRET[-17:], "suffix", target="text-target", max_new_tokens=N, keeps=True)
    theirs.wait(60)
    assert not any("zyx" in top["before"] + top["after"] for top in theirs.memory()["top"])
    kept_nothing = one.start("Once", "suffix", target="text-target", max_new_tokens=2)
    kept_nothing.wait(60)
    with pytest.raises(WorkbenchError, match="has ended"):
        kept_nothing.memory("save")


def test_a_state_is_saved_over_http_and_loaded_into_the_next_run(users: tuple[Workbench, Workbench]) -> None:
    one, _ = users
    first = one.start(SECRET, "suffix", target="text-target", max_new_tokens=N, keeps=True)
    first.wait(60)
    file = first.memory("save")["data"]
    again = one.start(SECRET[-17:], "suffix", target="text-target", max_new_tokens=N, memory=file, keeps=True)
    assert drafts(again.wait(60)) != drafts(run(one, "suffix"))
    assert again.memory()["entries"] > first.memory()["entries"]
    with pytest.raises(WorkbenchError, match="Load the file of a saved state into the next run"):
        again.memory("load", file)
    for broken in (b"", file[:-1]):
        with pytest.raises(WorkbenchError, match="truncated"):
            one.start("Once", "suffix", target="text-target", max_new_tokens=2, memory=broken).wait(60)


def test_the_state_of_a_run_in_progress_is_reset_and_loaded(users: tuple[Workbench, Workbench]) -> None:
    one, _ = users
    run = one.start(SECRET, "token-recycling", target="text-target", max_new_tokens=40, paused=True)
    for n in range(1, 4):
        run.step()
        assert serving.wait_until(lambda n=n: len(run.since(0)["rounds"]) == n)
    full = run.memory()
    assert full["entries"] > 0
    assert full["made"] is None or full["made"]["round"] == 2
    file = run.memory("save")["data"]
    assert run.memory("reset")["entries"] == 0
    assert run.memory("load", file)["entries"] == full["entries"]
    with pytest.raises(WorkbenchError, match="damaged"):
        run.memory("load", file[:-1])
    run.cancel()


def test_only_an_uploaded_state_is_loaded_never_a_path_of_the_server(users: tuple[Workbench, Workbench]) -> None:
    one, _ = users
    run = one.start("Once", "suffix", target="text-target", max_new_tokens=8, paused=True)
    for data, said in (
        ("/etc/hostname", "base64"),
        ("x" * (12 << 20), "state|larger than .* allows"),
        (["AA=="], "state"),
        (7, "state"),
    ):
        with pytest.raises(WorkbenchError, match=said):
            one._backend.call("memory", run.id, "load", data)  # type: ignore[attr-defined]
    with pytest.raises(ParameterError):
        one._backend.call("memory", run.id, "wait", None)  # type: ignore[attr-defined]
    run.cancel()


def test_a_shared_state_cannot_be_reset_or_loaded_on_a_public_server(
    users: tuple[Workbench, Workbench], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend: Any = serving.app().bench._backend
    one, _ = users
    file = None
    for folders in (True, False):
        monkeypatch.setattr(backend._names, "folders", folders)
        run = one.start("Once", "suffix", params={"warm": True}, target="text-target", max_new_tokens=8, paused=True)
        run.step()
        assert serving.wait_until(lambda run=run: len(run.since(0)["rounds"]) == 1)
        file = run.memory("save")["data"]
        if folders:
            assert run.memory("reset")["shared"]
        else:
            for action in ("reset", "load"):
                with pytest.raises(MethodUnavailableError, match="shared by all users"):
                    run.memory(action, file)
        run.cancel()
