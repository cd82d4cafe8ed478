"""The trace states the rule by which each node was verified, and the rule reproduces the recorded values.

The models have at most eight tokens, so that the recorded most likely tokens are the whole distribution, in float64:
each rule is recomputed from distributions only, and its formula, as on the card, from the recorded inputs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import model_helpers
import pytest
import torch
from vision_model_helpers import IMAGE, noise_image, tiny_vision_models

from workbench.core.rejection import AcceptanceDecision
from workbench.core.rules import RATIO, RESIDUAL, Rule
from workbench.core.sampling import SamplingParams
from workbench.decoders import ConfiguredMethod
from workbench.decoders.draft_verify.parts import Verification
from workbench.engine import Engine, Models, Request
from workbench.engine.image_inputs import process_prompt
from workbench.methods import registry
from workbench.methods.verifiers.lossless import Lossless
from workbench.methods.verifiers.typical import TypicalAcceptance
from workbench.trace.events import Round, Trace
from workbench.trace.nodes import ACCEPTED, TopTokens

PROMPT = [3, 1, 4, 1, 5, 3, 1, 4, 1]
close = partial(pytest.approx, rel=1e-9, abs=1e-12)
SAMPLING = {"greedy": SamplingParams(), "sampled": SamplingParams(temperature=0.9)}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Six tokens, a drafter that is right often but far from always, untrained heads."""
    return model_helpers.make_small_models(6, heads=tmp_path_factory.mktemp("medusa"))


@pytest.fixture(scope="module")
def vision() -> Models:
    """Eight tokens; target and drafter read images."""
    return tiny_vision_models(vocabulary=8)


def generate(method: ConfiguredMethod, probs: str, text: Models, vision: Models, n: int = 40) -> Trace:
    options: dict[str, Any] = {"sampling": SAMPLING[probs], "max_new_tokens": n, "stop_at_eos": False, "seed": 4}
    if "pictures" not in method.method.needs:
        return Engine(text).generate(Request(PROMPT, method, **options))
    pictures = (noise_image(1),)
    prompt, inputs = process_prompt(vision, f"ab{IMAGE}cd", pictures)
    return Engine(vision).generate(Request(prompt, method, image_inputs=inputs, pil_images=pictures, **options))


# -- formulas as written, with the recorded inputs ---------------------------------------------------------------------


def value_at(r: Round, node: int, where: str) -> float:
    """Return the value of a symbol in a rule's formula."""
    nodes = r.nodes
    column, _, _ = where.partition(".")
    if where == "elders.p":
        return math.fsum(nodes.p[i] for i in range(node) if nodes.parents[i] == nodes.parents[node])
    if where in nodes.inputs:
        found = nodes.inputs[where][node]
    elif where == "token":
        found = nodes.tokens[node]
    else:
        found = getattr(nodes, column)[node] if where in ("p", "q") else r.params[where]
    assert found is not None, where
    return float(found)


def evaluated(formula: str, rule: Rule, r: Round, node: int) -> float:
    """Evaluate a formula with Python's own arithmetic."""
    for i, symbol in enumerate(sorted(rule.places, key=len, reverse=True)):
        formula = formula.replace(symbol, f"_{i}_") if len(symbol) > 1 or not symbol.isascii() else formula
    names = {f"_{i}_": value_at(r, node, rule.places[s])
             for i, s in enumerate(sorted(rule.places, key=len, reverse=True))
             if f"_{i}_" in formula}  # fmt: skip
    names |= {s: value_at(r, node, rule.places[s]) for s in rule.places if s.isascii() and len(s) == 1 and s in formula}
    python = formula.replace("·", "*").replace("−", "-").replace(" = ", " == ")
    return float(eval(python, {"__builtins__": {}, "min": min, "max": max, "exp": math.exp}, names))


def check(trace: Trace, method: ConfiguredMethod) -> int:
    """Check all conditions for a trace; return the number of tested nodes."""
    n_tested = check_formulas(trace)
    check_rules(trace, method)
    return n_tested


def check_formulas(trace: Trace) -> int:
    """Check that the stated rule gives each tested node's `accept`; return the number of tested nodes."""
    n_tested = 0
    for r in trace.rounds:
        for node, (name, accept) in enumerate(zip(r.nodes.rule, r.nodes.accept, strict=True)):
            assert (name is None) == (accept is None)
            if name is None:
                assert all(column[node] is None for column in r.nodes.inputs.values())
                continue
            rule = trace.header.rules[name]
            assert evaluated(rule.formula, rule, r, node) == close(accept), (name, node)
            for symbol, formula in rule.because.items():
                stated = value_at(r, node, rule.places[symbol])
                assert evaluated(formula, rule, r, node) == close(stated), (name, symbol)
            n_tested += 1
    return n_tested


# -- rules, from distributions only ------------------------------------------------------------------------------------


def to_distribution(top: TopTokens) -> dict[int, float]:
    return dict(zip(top.tokens, top.prob, strict=True))


def normalised(weights: dict[int, float]) -> dict[int, float]:
    total = math.fsum(weights.values())
    return {token: w / total for token, w in weights.items()} if total > 0 else weights


def expected_decision(r: Round, node: int, method: ConfiguredMethod) -> tuple[str, float, dict[str, float]]:
    """Return (rule, acceptance probability, inputs) of a node, as in the papers."""
    nodes, position = r.nodes, r.nodes.parents[node] + 1
    token, p = nodes.tokens[node], to_distribution(r.top_p[position])
    assert math.fsum(p.values()) == pytest.approx(1, abs=1e-9), (
        "the vocabulary is small enough to record the whole distribution"
    )
    if r.params["temperature"] == 0:
        best = max(p, key=lambda t: p[t])
        return "greedy", float(token == best), {"likeliest": best}
    if isinstance(method.verifier, TypicalAcceptance):
        entropy = -math.fsum(x * math.log(x) for x in p.values() if x > 0)
        threshold = min(method.values["epsilon"], method.values["delta"] * math.exp(-entropy))
        return "typical", float(p[token] > threshold), {"threshold": threshold, "entropy": entropy}
    elders = [i for i in range(node) if nodes.parents[i] == nodes.parents[node]]
    top_q = r.top_q[position] if r.top_q else None
    if top_q is None:
        elder_tokens = {nodes.tokens[i] for i in elders}
        share = 0.0 if token in elder_tokens else p[token] / (1 - math.fsum(p[t] for t in elder_tokens))
        return ("point-residual", share, {"residual": share}) if elders else ("point", p[token], {})
    q, left = to_distribution(top_q), p
    for elder in elders:  # (r − q)₊ after each rejection; a rejected token is not sampled again
        left = normalised({t: max(0.0, left[t] - q.get(t, 0.0)) for t in left})
        q = normalised({t: 0.0 if t == nodes.tokens[elder] else w for t, w in q.items()})
    if not elders:
        return "ratio", min(1.0, p[token] / q[token]), {}
    return "residual", min(1.0, left[token] / q[token]), {"residual": left[token], "q_left": q[token]}


def check_rules(trace: Trace, method: ConfiguredMethod) -> None:
    """Check that distributions give rule, probability and inputs of each tested node, and that the outcome follows."""
    for r in trace.rounds:
        for node, name in enumerate(r.nodes.rule):
            if name is None:
                continue
            rule, accept, inputs = expected_decision(r, node, method)
            assert name == rule
            assert r.nodes.accept[node] == close(accept)
            recorded = {n: column[node] for n, column in r.nodes.inputs.items() if column[node] is not None}
            assert recorded == close(inputs)
            u, chance = r.nodes.u[node], r.nodes.accept[node]
            if u is not None:
                assert chance is not None
                assert (u < chance) == (r.nodes.status[node] == ACCEPTED)
            elif rule == "greedy":
                assert bool(accept) == (r.nodes.status[node] == ACCEPTED)
            else:  # typical: an accepted node may lose to a longer path; a rejected one is never on the path
                assert accept or r.nodes.status[node] != ACCEPTED


@pytest.mark.parametrize(
    ("name", "probs"),
    [
        pytest.param(*one.values, probs, id=f"{one.id}-{probs}", marks=one.marks if i else ())
        for i, probs in enumerate(SAMPLING)
        for one in model_helpers.mark_non_representatives(
            [m.name for m in model_helpers.speculative_methods()],
            [m.with_params() for m in model_helpers.speculative_methods()],
        )
    ],
)
def test_stated_rules_give_the_recorded_values(name: str, probs: str, text: Models, vision: Models) -> None:
    method = registry.get(name).with_params()
    trace = generate(method, probs, text, vision)
    assert (check(trace, method) > 0) == (name != "autoregressive")
    assert Trace.from_wire(trace.to_wire()) == trace
    assert not any(
        rule is None
        for r in trace.rounds
        for rule, a in zip(r.nodes.rule, r.nodes.accept, strict=True)
        if a is not None
    )


def test_every_rule_occurs_and_a_switch_adds_its_rules(text: Models, vision: Models) -> None:
    met: set[str] = set()
    for name in ("draft-tree", "draft-tree-sampled", "medusa-typical"):
        met |= set(generate(registry.get(name).with_params(), "sampled", text, vision).header.rules)
    assert met == {"ratio", "residual", "point", "point-residual", "typical"}
    engine = Engine(text)
    row = engine.submit(Request(PROMPT, registry.get("draft-tree").with_params(), max_new_tokens=30, stop_at_eos=False))
    while row.trace is None or len(row.trace.rounds) < 2:
        engine.step()
    assert list(row.trace.header.rules) == ["greedy"]
    row.change(sampling=SamplingParams(temperature=1.0))
    while not engine.is_idle:
        engine.step()
    assert list(row.trace.header.rules)[:2] == ["greedy", "point"]


def test_custom_verifier_may_have_no_rule(text: Models, vision: Models) -> None:
    @dataclasses.dataclass(frozen=True)
    class Silent(Lossless):
        def rule(self, v: Verification) -> AcceptanceDecision:
            return dataclasses.replace(super().rule(v), explanation=None)

    method = registry.get("draft-model").with_params()
    trace = generate(dataclasses.replace(method, verifier=Silent()), "sampled", text, vision)
    assert trace.header.rules == {}
    assert {rule for r in trace.rounds for rule in r.nodes.rule} == {None}
    assert any(a is not None for r in trace.rounds for a in r.nodes.accept)


# -- mutations: a false statement in the trace is detected -------------------------------------------------------------

TREE, CHAIN, TYPICAL = "draft-tree-sampled", "draft-model", "medusa-typical"


def reasoned(ruling: AcceptanceDecision, **changed: Any) -> AcceptanceDecision:
    if ruling.explanation is None:  # an empty tree
        return ruling
    return dataclasses.replace(ruling, explanation=dataclasses.replace(ruling.explanation, **changed))


def other(
    ruling: AcceptanceDecision, name: str, change: Callable[[Mapping[str, torch.Tensor]], torch.Tensor]
) -> AcceptanceDecision:
    """Return the decision with another input of this name."""
    inputs = ruling.explanation.inputs if ruling.explanation else {}
    return reasoned(ruling, inputs={**inputs, name: change(inputs)}) if name in inputs else ruling


MUTATIONS: dict[str, tuple[str, Callable[[AcceptanceDecision], AcceptanceDecision]]] = {
    "accept has another value": (CHAIN, lambda r: dataclasses.replace(r, accept=r.accept * 0.99)),
    "every sibling is declared the first": (TREE, lambda r: reasoned(r, rules=(RATIO,))),
    "the first sibling is declared a later one": (TREE, lambda r: reasoned(r, rules=(RESIDUAL,))),
    "q is another one than in sampling": (CHAIN, lambda r: other(r, "q", lambda i: i["q"] / 2)),
    "q′ still contains the elders": (TREE, lambda r: other(r, "q_left", lambda i: i["q"])),
    "r is half as large": (TREE, lambda r: other(r, "residual", lambda i: i["residual"] / 2)),
    "the probability is recorded as the acceptance": (
        TYPICAL, lambda r: r if r.score is None else dataclasses.replace(r, accept=r.accept * r.score)
    ),
    "the entropy is that of another position": (TYPICAL, lambda r: other(r, "entropy", lambda i: i["entropy"].flip(0))),
}  # fmt: skip


@pytest.mark.parametrize("what", MUTATIONS)
def test_false_statement_is_detected(what: str, text: Models, vision: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    name, spoil = MUTATIONS[what]
    method = registry.get(name).with_params()
    kind = type(method.verifier)
    rule = kind.rule
    monkeypatch.setattr(kind, "rule", lambda self, v: spoil(rule(self, v)))
    trace = generate(method, "sampled", text, vision)
    with pytest.raises((AssertionError, ZeroDivisionError)):
        check(trace, method)


def test_reason_may_have_a_rule_per_node(text: Models, monkeypatch: pytest.MonkeyPatch, vision: Models) -> None:
    odd = dataclasses.replace(RATIO, name="odd", title="Odd")

    def mixed(self: Lossless, v: Verification) -> AcceptanceDecision:
        return reasoned(rule(self, v), rules=(RATIO, odd), rule_index=v.tree.tokens % 2)

    rule = Lossless.rule
    monkeypatch.setattr(Lossless, "rule", mixed)
    trace = generate(registry.get(CHAIN).with_params(), "sampled", text, vision)
    rules = {(name, t % 2) for r in trace.rounds for name, t in zip(r.nodes.rule, r.nodes.tokens, strict=True) if name}
    assert rules == {("ratio", 0), ("odd", 1)}
    assert check_formulas(trace) > 0
