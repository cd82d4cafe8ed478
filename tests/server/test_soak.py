"""A short soak of the whole app; the long one is `python tests/server/soak.py`."""

from __future__ import annotations

from contextlib import closing

import pytest
import serving

from .soak import HeldResources, Report, Soak, problems


@pytest.mark.slow
def test_many_users_leave_nothing_behind() -> None:
    with closing(Soak(serving.app().url)) as soak:
        report = soak.run(requests=30, users=4)
    assert not problems(report), report
    assert sum(report.ends.values()) == 30
    assert {"finished", "cancelled"} <= set(report.ends)


def test_leftover_resources_are_problems() -> None:
    before, fine = HeldResources(0, 0, 20, 12, 500.0), {"finished": 3, "err: ParameterError": 1, "left": 1}
    assert not problems(Report(5, 1.0, fine, before, HeldResources(0, 0, 22, 13, 600.0), None))
    assert problems(Report(5, 1.0, fine, before, HeldResources(1, 0, 20, 12, 500.0), None))
    assert problems(Report(5, 1.0, fine, before, HeldResources(0, 1, 20, 12, 500.0), None))
    assert problems(Report(5, 1.0, fine, before, HeldResources(0, 0, 40, 12, 500.0), None))
    assert problems(Report(5, 1.0, fine, before, HeldResources(0, 0, 20, 40, 500.0), None))
    assert problems(Report(5, 1.0, fine | {"follow: rounds are missing": 1}, before, before, None))
    assert problems(Report(5, 1.0, fine | {"cancel: unexpected KeyError: x": 1}, before, before, None))
