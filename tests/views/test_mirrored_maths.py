"""Formulas that a page computes while a slider moves equal those of Python: one table of both.

Whole results have their own tests: figures of a run (`test_modules`), theory of a run (`test_theory`), speed-ups
(`test_speedup`), rules of the verifier bench (`test_verifiers`), a node tested again (`test_card`), and image counts
(`test_vision`).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from views.test_modules import ENV, needs_node

from workbench.core import rejection
from workbench.trace import metrics, theory
from workbench.trace.speedup import t_quantile
from workbench.trace.whatif.width import rank_of
from workbench.views import module_path, recorded_runs

P, Q = [0.5, 0.3, 0.15, 0.05], [0.1, 0.4, 0.3, 0.2]
RATES = (0.0, 0.35, 0.8, 1.0)


def wilson(k: int, n: int) -> dict[str, float]:
    low, high = metrics.wilson_interval(k, n)
    return {"low": low, "high": high}


def best_depth(rates: Sequence[float], cost: dict[str, float], beyond: float) -> dict[str, float]:
    """Express the page's costs, all in plain steps, by those of `theory.best_depth`."""
    found = theory.best_depth(
        rates, cost["level"], lambda n: cost["verify"] + cost["node"] * (n - 1), cost["other"], beyond
    )
    return {"depth": found.depth, "tau": found.tau, "speedup": found.speedup}


def gain(rate: float, depth: int, cost: float) -> dict[str, float]:
    tau = theory.expected_tau(rate, depth)
    return {"tau": tau, "speedup": theory.speedup(tau, depth * cost, 1.0, 0.0, 1.0)}


def residual(p: Sequence[float], q: Sequence[float]) -> list[float]:
    return rejection.residual(torch.tensor(p, dtype=torch.float64), torch.tensor(q, dtype=torch.float64)).tolist()


def at_temperature(probs: Sequence[float], temperature: float) -> list[float]:
    return torch.softmax(torch.tensor(probs, dtype=torch.float64).log() / temperature, dim=0).tolist()


COSTS = {"level": 0.1, "verify": 1.0, "node": 0.02, "other": 0.05}
TABLE: list[tuple[str, str, Callable[..., Any], list[tuple[Any, ...]]]] = [
    ("live/theory", "expectedTau", theory.expected_tau, [(a, k) for a in RATES for k in (1, 4, 12)]),
    ("live/theory", "tauByPosition", theory.tau_by_position, [([],), ([0.9, 0.6, 0.3],), ([1.0, 1.0],), ([0.0, 1.0],)]),
    ("live/theory", "acceptedProbs", theory.accepted_length_distribution, [([0.9, 0.6, 0.3],), ([0.0],), ([1.0] * 3,)]),
    ("live/theory", "bestDepth", best_depth, [([0.9, 0.7], COSTS, 0.5), ([0.1], COSTS, 0.1), ([1.0], COSTS, 1.0)]),
    ("learn/page", "gain", gain, [(a, k, c) for a in RATES for k in (1, 5) for c in (0.0, 0.3)]),
    ("shared/figures", "wilson", wilson, [(0, 5), (3, 7), (40, 40), (1, 200)]),
    ("shared/speedup", "tQuantile", t_quantile, [(1,), (2,), (9,), (40,), (7, 0.9)]),
    ("verifiers/distributions", "overlap", theory.single_draft_acceptance, [(P, Q), (Q, P), (P, P)]),
    ("verifiers/distributions", "residual", residual, [(P, Q), (Q, P), (P, P)]),
    ("verifiers/distributions", "atTemperature", at_temperature, [(P, 1.0), (P, 0.3), (Q, 1.7)]),
]
"""JavaScript module and function, the Python function, and the arguments of both."""


@needs_node
def test_every_formula_of_the_table_gives_the_same_in_the_page_and_in_python() -> None:
    calls = [[module_path(name).as_uri(), function, cases] for name, function, _, cases in TABLE]
    script = (
        "import { readFileSync } from 'node:fs';"
        "const of = async ([url, name, cases]) => {"
        " const found = (await import(url))[name]; return cases.map((given) => found(...given)); };"
        "console.log(JSON.stringify(await Promise.all(JSON.parse(readFileSync(0)).map(of))));"
    )
    node = subprocess.run(
        ["node", "--input-type=module", "-e", script], input=json.dumps(calls), capture_output=True, text=True,
        check=True, timeout=60, env=ENV,
    )  # fmt: skip
    for (_, name, ours, cases), seen in zip(TABLE, json.loads(node.stdout), strict=True):
        for given, value in zip(cases, seen, strict=True):
            # the page's Wilson interval uses 1.96 for the normal quantile 1.959964
            assert value == pytest.approx(ours(*given), rel=1e-4 if name == "wilson" else 1e-9, abs=1e-9), (name, given)


@needs_node
def test_the_best_draft_in_hindsight_has_the_rank_that_python_gives() -> None:
    traces = [recorded_runs.trace(name) for name in recorded_runs.names()]
    rounds = [r for each in traces for r in each.rounds if r.nodes.tokens and r.bonus is not None]
    script = (
        "import { readFileSync } from 'node:fs';"
        f"const {{ of }} = await import('{module_path('live/hindsight').as_uri()}');"
        "console.log(JSON.stringify(JSON.parse(readFileSync(0)).map(of)));"
    )
    node = subprocess.run(
        ["node", "--input-type=module", "-e", script], input=json.dumps([r.to_wire() for r in rounds]),
        capture_output=True, text=True, check=True, timeout=60, env=ENV,
    )  # fmt: skip
    states: set[str] = set()
    for r, found in zip(rounds, json.loads(node.stdout), strict=True):
        if found["state"] in ("saved", "beyond"):
            assert r.bonus is not None
            assert rank_of(r, found["place"], r.bonus) == (found["rank"] or 0)
        states.add(found["state"])
    assert states >= {"saved", "beyond", "unknown"}
