"""Load: admission bounds concurrent runs. A running one keeps its sequence to its end; others wait or are refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from workbench.core.errors import CapacityError
from workbench.service import Backend, Limits
from workbench.service.users import user_key

from .conftest import PROMPT, wait_until

METHODS = ("autoregressive", "prompt-lookup", "draft-model", "draft-tree", "suffix", "token-recycling",
           "lookahead-trie", "jacobi", "lookahead", "aggressive")  # fmt: skip
ROWS, PLACES, USERS = 4, 24, 40


def test_forty_users_of_ten_methods_get_sequences_in_turn_and_none_is_preempted(
    backend: Callable[..., Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = backend(max_sequences=ROWS, limits=Limits(runs=PLACES, runs_per_address=PLACES))
    made.load()
    loaded = made._pool.target(made._names.target)
    assert loaded is not None
    submitted = []
    submit = loaded.engine.submit
    monkeypatch.setattr(loaded.engine, "submit", lambda request: submitted.append(request) or submit(request))
    refused, runs = [], []

    def ask(i: int) -> None:
        user, method = user_key(f"203.0.113.{i}"), METHODS[i % len(METHODS)]
        try:
            runs.append(made.start(PROMPT, method, max_new_tokens=12, user=user, paused=i < ROWS))
        except CapacityError as error:
            refused.append(error)

    for i in range(USERS):
        ask(i)
    wait_until(lambda: made.health()["runs"]["paused"] == ROWS)
    health = made.health()
    assert (health["rows"], health["queue"]) == (ROWS, PLACES - ROWS)
    assert len(refused) == USERS - PLACES
    assert all(error.retry_after_s for error in refused)
    assert [made.queue_position(run) for run in runs[ROWS:]] == [(i + 1, PLACES - ROWS) for i in range(PLACES - ROWS)]
    for run in runs[:ROWS]:
        run.resume()
    most = 0
    while not all(run.ended for run in runs):
        most = max(most, made.health()["rows"])
        runs[-1].wait() if runs[-2].ended else next(run for run in runs if not run.ended).wait()
    assert most <= ROWS
    assert Counter(run.state for run in runs) == {"finished": PLACES}
    assert all(sum(len(r.emitted) for r in run.wait().rounds) == 12 for run in runs)
    assert len(submitted) == len({id(request) for request in submitted}) == PLACES, (
        "no run was preempted and prefilled again"
    )
