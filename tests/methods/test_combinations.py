"""The matrix of drafters and verifiers follows from the registry's declarations."""

from __future__ import annotations

import dataclasses

import model_helpers
import pytest

from workbench.core.promise import Promise
from workbench.decoders.method import Method
from workbench.methods import registry
from workbench.methods.combinations import matrix, offers, setting_name, title


@pytest.mark.parametrize("name", [method.name for method in model_helpers.speculative_methods()])
def test_each_verifier_lists_every_choice_of_a_method_once(name: str) -> None:
    method = registry.get(name)
    for verifier in method.verifiers:
        found = offers(method, title(verifier), "shown")
        for choice in ("policy", "grower"):
            allowed = set(method.params[choice].choices) if choice in method.params else set()
            assert {value for offer in found for value in offer.ways.get(choice, ())} == allowed
        for offer in found:
            assert bool(offer.reason) is (offer.promise == Promise.APPROXIMATE.value), (
                "an unsound choice must have a reason"
            )
    assert offers(method, "no such verifier", "shown") == []


def test_matrix_lists_every_method_at_its_drafter_and_verifiers() -> None:
    found = matrix(registry.methods(), {})
    cells = {
        (offer["method"], found["verifiers"][i], row["drafter"])
        for row in found["rows"]
        for i, cell in enumerate(row["cells"])
        for offer in cell["offers"]
    }
    drafting = model_helpers.speculative_methods()
    assert cells == {(m.name, title(v), type(m.drafter).__name__) for m in drafting for v in m.verifiers}
    assert {len(row["cells"]) for row in found["rows"]} == {len(found["verifiers"])}


def test_parameters_are_computed_once_per_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computing them once for each value took five seconds whenever the methods page was opened."""
    method, asked, params = registry.get("draft-model"), 0, Method.params

    def counted(self: Method) -> object:
        nonlocal asked
        asked += 1
        return params.__get__(self)

    monkeypatch.setattr(Method, "params", property(counted))
    assert offers(method, title(method.verifier), "shown")
    assert asked <= 1 + len(method.policies) * len(method.tree_builders)


def method_with_an_approximate_verifier() -> Method:
    return next(m for m in registry.methods() if Promise.APPROXIMATE in m.promises.values())


def test_a_single_part_is_shown_and_is_not_a_choice() -> None:
    for method in registry.methods():
        for offer in offers(method, title(method.verifier), "shown"):
            assert not set(offer.only) & set(offer.ways)
            for how, parts in (("policy", method.policies), ("grower", method.tree_builders)):
                assert offer.only.get(how, "") == (parts[0].name if len(parts) == 1 else "")


def test_empty_cell_states_why_the_pair_would_be_unsound() -> None:
    method = method_with_an_approximate_verifier()
    approximate = next(v for v in method.verifiers if method.unsound_reason(v))
    other = next(m.drafter for m in registry.methods() if type(m.drafter) is not type(method.drafter))
    alone = dataclasses.replace(method, name="alone", drafter=other, other_verifiers=())
    found = matrix([alone, method], {})
    cells = [row["cells"][found["verifiers"].index(title(approximate))] for row in found["rows"]]
    assert cells[0] == {"offers": [], "reason": alone.unsound_reason(approximate), "approximate": True}
    assert cells[0]["reason"]
    assert {offer["method"] for offer in cells[1]["offers"]} == {method.name}


def test_pairs_that_are_exact_for_other_tree_builders_are_greyed_out() -> None:
    """A verifier that is exact only for other tree builders is greyed out; one that is never exact is a choice."""
    method = registry.get("draft-tree-sampled")
    tree_builders = {grower.name: grower.siblings for grower in method.tree_builders}
    for verifier in method.other_verifiers:
        for offer in offers(method, title(verifier), "shown"):
            suited = {name for name, how in tree_builders.items() if how in verifier.exact_for}
            assert offer.greyed is (bool(verifier.exact_for) and not set(offer.ways["grower"]) <= suited)
            assert not offer.greyed or (offer.promise == "approximate" and offer.reason)
    assert {o.greyed for o in offers(method, "k-seq", "shown")} == {True, False}
    assert {o.greyed for o in offers(method, "lenient", "shown")} == {False}


def test_board_evidence_counts_only_for_the_promise_that_was_tested() -> None:
    method = method_with_an_approximate_verifier()
    found = [offer for verifier in method.verifiers for offer in offers(method, title(verifier), "shown")]
    shown = [offer for offer in found if offer.standing == "shown"]
    assert [offer.promise for offer in shown] == [method.promise.value]
    assert all(names == (method.params[how].default,) for offer in shown for how, names in offer.ways.items())
    others = {(offer.promise, offer.standing) for offer in found if offer not in shown}
    assert others <= {("exact", "unproven"), ("approximate", "no promise"), ("simulation", "no promise")}
    assert len(others) > 1


def test_policy_has_only_the_evidence_of_its_own_pair_and_promise() -> None:
    method = next(m for m in registry.methods() if "policy" in m.params and "verifier" in m.params)
    verifier = next(v for v in method.other_verifiers if not method.unsound_reason(v))
    policy = method.params["policy"].choices[1]
    configured = method.with_params(verifier=verifier.name, policy=policy)
    evidence = {
        (setting_name(configured), configured.promise.value): "broken",
        (setting_name(configured), "approximate"): "no promise",
    }
    standings = {name: s for o in offers(method, title(verifier), "shown", evidence) for name, s in o.policies.items()}
    assert set(standings) == set(method.params["policy"].choices)
    assert standings.pop(policy) == "broken"
    assert "broken" not in standings.values()


def test_standing_of_a_pair_and_of_its_other_settings() -> None:
    method = next(
        m for m in registry.methods() if len(m.policies) > 2 and len(m.tree_builders) > 2 and m.other_verifiers
    )
    other = next(v for v in method.other_verifiers if not method.unsound_reason(v))
    pair = method.with_params(verifier=other.name)
    (of_pair,) = [o for o in offers(method, title(other), "shown", {(setting_name(pair), "exact"): "shown"})
                  if method.params["policy"].default in o.ways["policy"] and o.promise == "exact"]  # fmt: skip
    assert of_pair.standing == "shown"
    singles = [method.with_params(**{name: value}) for name in ("policy", "grower")
               for value in method.params[name].choices[1:]]  # fmt: skip
    for word, wanted in (("shown", "shown"), ("broken", "broken"), ("", "unproven")):
        evidence = {(setting_name(one), one.promise.value): "shown" for one in singles}
        first = next(one for one in singles if one.promise is Promise.EXACT)
        evidence[setting_name(first), "exact"] = word
        _, others = [o for o in offers(method, title(method.verifier), "shown", evidence) if o.promise == "exact"]
        assert others.standing == wanted
