"""A short soak; `python tests/service/soak.py 5000` is the long one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from workbench.service import Backend, Limits

from .soak import HeldResources, soak, warm


@pytest.mark.slow
def test_mixed_requests_with_cancels_and_lost_followers_leave_nothing_behind(backend: Callable[..., Backend]) -> None:
    bench = backend(max_sequences=4, limits=Limits(kept_runs=5))
    warm(bench)
    before = HeldResources.measure(bench)
    ends = soak(bench, 96, users=8)
    after = HeldResources.measure(bench)
    assert sum(ends.values()) == 96
    assert {"finished", "cancelled", "forget", "PromptError", "UnknownNameError"} <= set(ends)
    assert (after.rows, after.slots, after.queued, after.active) == (0, 0, 0, 0)
    assert after.threads <= before.threads + 4  # loaders start when first needed
    assert after.files <= before.files
    assert len(bench._runs) <= 5
    assert bench.health()["status"] == "ok"
