"""The verdict follows from figures alone, in every direction; every method has its claim."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from workbench.bench import claims, text_claims
from workbench.bench.claims import (
    IN_DIRECTION,
    IN_SIZE,
    NOT_MEASURABLE,
    NOT_MEASURED,
    NOT_REPRODUCED,
    Claim,
    Measured,
    judge,
)
from workbench.core.errors import UnknownNameError
from workbench.methods import registry


def claim(low: float | None = 2.0, high: float | None = 3.0, **more: object) -> Claim:
    return dataclasses.replace(Claim("m", "speed-up", "s", low, high, "p", lambda: measured(1)), **more)


def measured(value: float, low: float | None = None, high: float | None = None) -> Measured:
    return Measured(value, value if low is None else low, value if high is None else high, 5, "here")


@pytest.mark.parametrize(
    ("what", "found", "verdict"),
    [
        (claim(), measured(2.5), IN_SIZE),
        (claim(), measured(1.6, 1.2, 2.0), IN_SIZE),  # a quarter below 2 is still the same size
        (claim(), measured(1.4, 1.1, 1.8), IN_DIRECTION),
        (claim(), measured(4.0, 3.5, 4.5), IN_DIRECTION),
        (claim(), measured(1.4, 0.9, 1.8), NOT_REPRODUCED),  # the interval holds 1
        (claim(), measured(0.8), NOT_REPRODUCED),
        (claim(), None, NOT_MEASURED),
        (claim(lacks="a head"), measured(2.5), NOT_MEASURABLE),
        (claim(measure=None), None, NOT_MEASURABLE),
        (claim(None, None), measured(1.05, 1.01, 1.1), IN_DIRECTION),
        (claim(None, None), measured(1.05, 0.99, 1.1), NOT_REPRODUCED),
        (claim(0.5, 0.5), measured(0.6, 0.5, 0.7), IN_SIZE),  # a claim may point downward
        (claim(0.5, 0.5), measured(0.9, 0.8, 0.95), IN_DIRECTION),
        (claim(0.5, 0.5), measured(0.9, 0.8, 1.05), NOT_REPRODUCED),
        (claim(1.0, 1.0, tolerance=0.05), measured(1.04), IN_SIZE),
        (claim(1.0, 1.0, tolerance=0.05), measured(1.06), NOT_REPRODUCED),
    ],
)
def test_the_verdict_follows_from_the_figures(what: Claim, found: Measured | None, verdict: str) -> None:
    assert judge(what, found) == verdict


def test_every_method_has_its_main_claim_and_every_claim_a_command() -> None:
    found = claims.claims()
    mains = {c.method for c in found if c.key == "main"}
    assert {c.method for c in text_claims.CLAIMS} >= set(registry.names()) - {
        m for m in registry.names() if _of_vision(m)
    }
    assert mains >= {c.method for c in text_claims.CLAIMS}
    assert len({c.name for c in found}) == len(found)
    for c in found:
        assert c.source
        assert c.setting
        assert (c.measure is None) <= bool(c.lacks), f"{c.name}: nothing measures it, and nothing says why"
        assert c.command.startswith(f"workbench claims --method {c.method}")
        assert (c.low is None) == (c.high is None)


def _of_vision(name: str) -> bool:
    needs = registry.get(name).needs
    return bool({"pictures", "sight"} & set(needs)) or bool(set(needs) - {"drafter", "medusa"})


def test_unknown_claims_name_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="draft-model/main"):
        claims.of("draft-model", "nobody")


def test_the_interval_is_the_bootstraps_and_covers() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(60):
        value, low, high = text_claims.interval(rng.normal(2.0, 1.0, 25).tolist(), np.mean)
        assert low <= value <= high
        covered += low <= 2.0 <= high
    assert 48 <= covered <= 60  # 95 % of 60 is 57; below 48 with probability 1e-4
    assert text_claims.interval([1.0, 3.0]) == (2.0, 1.0, 3.0)
    assert text_claims.interval([2.0] * 5) == (2.0, 2.0, 2.0)
