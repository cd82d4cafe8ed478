"""The verdict follows from figures alone, in every direction; every method has its claim."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.bench import claims, claimsboard
from workbench.bench.claims import (
    BUNDLED,
    COLUMNS,
    IN_DIRECTION,
    IN_SIZE,
    NOT_MEASURABLE,
    NOT_MEASURED,
    NOT_REPRODUCED,
    Claim,
    Measured,
    judge,
)
from workbench.bench.statistics import mean
from workbench.core.errors import UnknownNameError
from workbench.engine.declared import KINDS
from workbench.methods import registry


def claim(low: float | None = 2.0, high: float | None = 3.0, **more: object) -> Claim:
    return dataclasses.replace(Claim("speed-up", "s", low, high, "p", lambda lab: measured(1), method="m"), **more)


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


def test_what_is_missing_yet_is_not_measurable_until_it_was_measured() -> None:
    assert judge(claim(), None, "no heads yet") == NOT_MEASURABLE
    assert judge(claim(), measured(2.5), "no heads yet") == IN_SIZE


def test_every_method_has_its_claim_and_every_claim_a_command() -> None:
    found = claims.claims()
    assert {c.method for c in found} == set(registry.names())
    assert {c.method for c in found if c.key == "main"} == set(registry.names())
    assert len({c.row(column) for c in found for column in claims.COLUMNS}) == 2 * len(found)
    for c in found:
        assert c.source
        assert c.setting
        assert (c.measure is None) <= bool(c.lacks), f"{c.name}: nothing measures it, and nothing says why"
        assert c.command().startswith(f"workbench claims --method {c.method}")
        assert c.command("smollm2") == f"{c.command()} --target smollm2"
        assert (c.low is None) == (c.high is None)


def test_what_a_column_lacks_is_said_from_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_MODELS", str(tmp_path))
    known = {c.name: c for c in claims.claims()}
    assert known["prompt-lookup/main"].lacking("smollm2") == ""
    assert known["msd/main"].lacking("smollm2") == "a method for pictures"
    assert known["draft-tree/main"].lacking("smollm2") == "no draft model for smollm2 yet"
    assert known["medusa/main"].lacking("smollm2") == "no medusa heads for smollm2 yet"
    assert known["medusa/main"].lacking() == "no medusa heads for text-target yet"
    (tmp_path / "heads").mkdir()
    heads = {"workbench_head": "medusa", "target": "smollm2"}
    (tmp_path / "heads" / "config.json").write_text(json.dumps(heads))
    assert known["medusa/main"].lacking("smollm2") == ""
    assert known["medusa/main"].lacking() == "no medusa heads for text-target yet"


def test_targets_have_columns_of_their_own_and_the_board_says_why_a_row_does_not_hold() -> None:
    machine = {"cpu": "C", "cores": 2, "torch": "2", "transformers": "5", "date": "d", "load": 0.5}
    other = machine | {"cpu": "D", "load": 0.1}

    def saved(value: float, on: dict[str, Any], date: str = "2026") -> dict[str, Any]:
        return {"measured": dataclasses.asdict(measured(value)), "date": date, "commit": "abc", "machine": on}

    (claim,) = claims.of("prompt-lookup")
    looked_into, why = claim.why

    kept = {"prompt-lookup/main": saved(0.9, machine, looked_into), "prompt-lookup/main@smollm2": saved(2.5, other)}
    rows = {row["name"]: row for row in claimsboard.rows(kept)}
    row = rows["prompt-lookup/main"]
    (there,) = row["elsewhere"]
    assert (row["verdict"], there["verdict"]) == (NOT_REPRODUCED, IN_SIZE)
    assert row["why"] == f"{why} It holds on smollm2."
    assert there["why"] == ""
    assert rows["draft-model/main"]["elsewhere"][0]["verdict"] in (NOT_MEASURED, NOT_MEASURABLE)
    text = claimsboard.markdown(list(rows.values()))
    line = next(x for x in text.splitlines() if x.startswith("| `prompt-lookup`"))
    *_, here, elsewhere, _ = line.split(" | ")
    assert here.startswith(
        f"**not reproduced**<br>**0.9 (0.9–0.9, n = 5)** here; {looked_into}, abc, machine 1, load 0.5<br>*Why:*"
    )
    assert elsewhere == "**reproduced in size**<br>**2.5 (2.5–2.5, n = 5)** here; 2026, abc, machine 2, load 0.1"
    assert text.endswith(
        "Machine 1: C, 2 cores; torch 2, transformers 5.\nMachine 2: D, 2 cores; torch 2, transformers 5.\n"
    )
    for since in (saved(2.5, machine, looked_into), saved(0.8, machine)):  # it holds; it was measured since
        again = claimsboard.rows({"prompt-lookup/main": since})
        assert next(row for row in again if row["name"] == "prompt-lookup/main")["why"] == ""


def test_a_figure_on_another_target_has_a_reason_of_its_own() -> None:
    (claim,) = claims.of("prompt-lookup")
    both = dataclasses.replace(claim, why=("today", "here"), why_on={"smollm2": ("2026", "there")})

    def why(column: str, value: float, date: str) -> str:
        return claimsboard.of(both, measured(value), column, {"date": date, "machine": {}})["why"]

    assert (why(BUNDLED, 0.9, "today"), why("smollm2", 0.9, "2026")) == ("here", "there")
    assert (why("smollm2", 0.9, "today"), why("smollm2", 2.5, "2026"), why("other", 0.9, "2026")) == ("", "", "")
    assert claimsboard.of(claim, measured(0.9), "smollm2", {"date": claim.why[0]})["why"] == ""
    assert not {"why", "why_on"} & set(both.to_wire())


def test_every_reason_is_of_a_kind_and_of_a_figure() -> None:
    known = claims.claims()
    assert {column for claim in known for column in claim.why_on} <= set(COLUMNS) - {BUNDLED}
    reasons = [why for claim in known for why in (claim.why, *claim.why_on.values()) if any(why)]
    assert len(reasons) > 3
    assert all(date.endswith(" UTC") and why.startswith(KINDS) for date, why in reasons)


def test_unknown_claims_name_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="draft-model/main"):
        claims.of("draft-model", "nobody")


def test_the_interval_is_the_bootstraps_and_covers() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(60):
        found = Measured.of(mean(rng.normal(2.0, 1.0, 25).tolist()), "here")
        assert found.low <= found.value <= found.high
        covered += found.low <= 2.0 <= found.high
    assert 48 <= covered <= 60  # 95 % of 60 is 57; below 48 with probability 1e-4
    assert Measured.of(mean([1.0, 3.0]), "here") == Measured(2.0, 1.0, 3.0, 2, "here")
    assert Measured.of(mean([2.0] * 5), "here") == Measured(2.0, 2.0, 2.0, 5, "here")
