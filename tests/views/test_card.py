"""The node card, computed in Node.js and in Python: printed equations hold, and what-if values follow from the trace.

Traces of every rule come from models with six tokens, whose complete distributions are recorded."""

from __future__ import annotations

import json
import math
import subprocess
from typing import Any

import model_helpers
import pytest
from views.test_modules import ENV, needs_node

from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Request
from workbench.methods import registry
from workbench.trace.events import Trace
from workbench.views import module_path, recorded_runs

RUNS = [
    ("draft-model", 0.9),
    ("draft-tree", 0.9),
    ("draft-tree-sampled", 0.9),
    ("medusa-typical", 0.9),
    ("draft-tree", 0.0),
]
RULES = {"ratio", "residual", "point", "point-residual", "typical", "greedy"}
MOVES: list[dict[str, Any]] = [
    {"temperature": 0.9}, {"temperature": 0.4}, {"temperature": 1.7}, {"temperature": 0.0},
    {"temperature": 0.9, "params": {"epsilon": 0.4, "delta": 0.9}}, {"temperature": 1.3, "params": {"epsilon": 0.02}},
]  # fmt: skip
SCRIPT = """
import { readFileSync } from "node:fs";
const { modules, traces, moves } = JSON.parse(readFileSync(0));
const [formula, acceptanceRule, retest] = await Promise.all(modules.map((m) => import(m))), out = [];
for (const [t, { header, rounds }] of traces.entries()) for (const [r, round] of rounds.entries()) {
  for (const [node, accept] of round.nodes.accept.entries()) {
    if (accept === null) continue;
    const nodeRule = acceptanceRule.ruleOf(round, node, header.rules), { rule, values } = nodeRule;
    const equation = (f, v) => acceptanceRule.equation(f, nodeRule, v, round, node, formula, JSON.stringify);
    const because = Object.entries(rule.because).map(([s, f]) => equation(f, values[s]));
    const equations = [equation(rule.formula, accept), ...because];
    const start = retest.recorded(round, node, rule), play = moves.map((move) => {
      const params = Object.fromEntries(Object.entries(start.params).map(([k, v]) => [k, move.params?.[k] ?? v]));
      return retest.testAgain(round, node, header.rules, { ...start, ...move, params, K: 3 });
    });
    out.push({ t, r, node, equations, play });
  }
}
console.log(JSON.stringify(out));
"""


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Trace]:
    """Return a run for each acceptance rule."""
    models, found = model_helpers.make_small_models(6, heads=tmp_path_factory.mktemp("medusa")), []
    for name, temperature in RUNS:
        asked = Request(
            [3, 1, 4, 1, 5, 3, 1, 4, 1], registry.get(name).with_params(), SamplingParams(temperature), 40, 4
        )
        found.append(Engine(models).generate(asked))
    assert {rule for trace in found for rule in trace.header.rules} == RULES
    return found


def cards_of(traces: list[Trace]) -> list[dict[str, Any]]:
    """Return the cards that the page's modules compute for every tested node."""
    given = {
        "modules": [module_path(name).as_uri() for name in ("live/formula", "live/acceptancerule", "live/retest")],
        "traces": [trace.to_wire() for trace in traces], "moves": MOVES,
    }  # fmt: skip
    node = subprocess.run(
        ["node", "--input-type=module", "-e", SCRIPT], input=json.dumps(given), capture_output=True, text=True,
        check=True, timeout=60, env=ENV,
    )  # fmt: skip
    return json.loads(node.stdout)


@pytest.fixture(scope="module")
def cards(traces: list[Trace]) -> list[dict[str, Any]]:
    """Return the cards of these traces."""
    return cards_of(traces)


def computed(filled: str) -> float:
    """Compute an equation from its printed numbers."""
    for raised, plain in zip("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789", strict=True):
        filled = filled.replace(raised, plain)
    python = filled.replace("·10-", "e-").replace("·", "*").replace("−", "-").replace(" = ", " == ")
    return float(eval(python.replace("“", "").replace("”", ""), {"__builtins__": {}, "min": min, "exp": math.exp}))


def check_equations(cards: list[dict[str, Any]], traces: list[Trace], how_many: int) -> set[str | None]:
    """Check that the first `how_many` equations of every card hold as printed. Return the rules that occur."""
    met = set()
    for card in cards:
        nodes = traces[card["t"]].rounds[card["r"]].nodes
        met.add(nodes.rule[card["node"]])
        for equation in card["equations"][:how_many]:
            assert equation is not None, "the rule does not give the recorded value"
            printed, power = equation["result"].partition("·")[::2]
            unit = 10.0 ** -len(printed.partition(".")[2]) * (computed(f"1·{power}") if power else 1)
            assert abs(computed(equation["filled"]) - computed(equation["result"])) <= unit / 2 * (1 + 1e-9)
        first = card["equations"][0]
        assert computed(first["result"]) == pytest.approx(nodes.accept[card["node"]], rel=0.05)
        assert first["holds"] in (None, bool(nodes.accept[card["node"]]))
    return met


@needs_node
def test_every_printed_equation_is_true_to_the_digits_printed(cards: list[dict[str, Any]], traces: list[Trace]) -> None:
    assert check_equations(cards, traces, 2) == RULES


@needs_node
def test_every_printed_equation_of_the_recordings_is_true() -> None:
    """Recordings in float32 with whole vocabularies: only the first equation; the test above checks all in float64."""
    shown = [recorded_runs.trace(name) for name in recorded_runs.names()]
    assert check_equations(cards_of(shown), shown, 1) == RULES


def with_temperature(probs: dict[int, float], power: float) -> dict[int, float]:
    raised = {token: p**power for token, p in probs.items()}
    return {token: p / math.fsum(raised.values()) for token, p in raised.items()}


def residual_distribution(r: dict[int, float], q: dict[int, float]) -> dict[int, float]:
    left = {t: max(0.0, r[t] - q[t]) for t in r}
    total = math.fsum(left.values())
    return {t: w / total for t, w in left.items()} if total > 1e-12 else r


def expected(trace: Trace, r: int, node: int, move: dict[str, Any]) -> tuple[float, dict[int, float], float]:
    """Return (acceptance, residual distribution, acceptance rate) of a node at another temperature or threshold."""
    of, before = trace.rounds[r], trace.rounds[r].params["temperature"]
    nodes, place, token = of.nodes, of.nodes.parents[node] + 1, of.nodes.tokens[node]
    p = dict(zip(of.top_p[place].tokens, of.top_p[place].prob, strict=True))
    to = move["temperature"]
    if to == 0:  # if the run's temperature was 0, the card shows the model's own probabilities
        best = max(p, key=lambda t: p[t])
        left = {t: float(t == best) for t in p} if before else p
        return float(token == best), left, float(token == best)
    p = with_temperature(p, (before or 1) / to)
    elders = [i for i in range(node) if nodes.parents[i] == nodes.parents[node]]
    if nodes.rule[node] == "typical":
        values = {**of.params, **move.get("params", {})}
        entropy = -math.fsum(x * math.log(x) for x in p.values() if x > 0)
        passed = float(p[token] > min(values["epsilon"], values["delta"] * math.exp(-entropy)))
        return passed, p, passed
    probs = of.top_q[place] if of.top_q else None
    if probs is None:
        held = {nodes.tokens[i] for i in elders}
        left = {t: 0.0 if t in held else w for t, w in p.items()}
        share = left[token] / math.fsum(left.values())
        after = {t: 0.0 if t == token else w for t, w in left.items()}
        total = math.fsum(after.values())
        return share, {t: w / total for t, w in after.items()}, share
    q = with_temperature(dict(zip(probs.tokens, probs.prob, strict=True)), before / to)
    for elder in elders:
        p = residual_distribution(p, q)
        rest = {t: 0.0 if t == nodes.tokens[elder] else w for t, w in q.items()}
        q = {t: w / math.fsum(rest.values()) for t, w in rest.items()}
    return min(1.0, p[token] / q[token]), residual_distribution(p, q), math.fsum(min(p[t], q[t]) for t in p)


@needs_node
def test_what_if_values_of_the_card_equal_pythons(cards: list[dict[str, Any]], traces: list[Trace]) -> None:
    for card in cards:
        trace, node = traces[card["t"]], card["node"]
        for move, seen in zip(MOVES, card["play"], strict=True):
            accept, left, rate = expected(trace, card["r"], node, move)
            assert seen["accept"] == pytest.approx(accept, rel=1e-6, abs=1e-9), (trace.header.method, move)
            u, kept = trace.rounds[card["r"]].nodes.u[node], seen["accepted"]
            assert kept == (bool(accept) if seen["compares"] else None if u is None else u < seen["accept"])
            found = {row["token"]: row["residual"] for row in seen["rows"]}
            assert found == pytest.approx(left, rel=1e-6, abs=1e-9), (trace.header.method, move)
            assert seen["mass"]["p"] == pytest.approx(1)
            assert seen["expected"] == pytest.approx(sum(rate**i for i in range(4)))
            assert math.isclose(sum(found.values()) + seen["rest"]["residual"], 1, abs_tol=1e-6)


def test_the_card_contains_no_rules_formula() -> None:
    """A user's verifier needs no change in the card: it has only the formulas that depend on temperature."""
    for name in ("live/card", "live/acceptancerule", "live/formula", "live/retestcard"):
        text = module_path(name).read_text(encoding="utf-8")
        assert not any(f'"{rule}"' in text for rule in RULES)
