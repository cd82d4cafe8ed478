"""Combinations of drafters with verifiers, policies and tree builders, for the matrix on the methods page.

The matrix is computed from the declarations of methods, verifiers, policies and tree builders. This module names none
of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from workbench.core.promise import Promise
from workbench.decoders.draft_verify.parts import Verifier
from workbench.decoders.method import ConfiguredMethod, Method
from workbench.methods import deviation

CELL_CHOICES = ("policy", "grower")
"""Parameters whose values are listed in a cell of the matrix of drafters by verifiers: policy and tree builder."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Policies and tree builders that one method combines with one verifier under the same guarantee about the output.

    An offer is an entry of a cell in the matrix of drafters by verifiers.

    Attributes:
        method: registry name.
        title: display name.
        verifier: value of the parameter `verifier`; empty if the method has one verifier only.
        promise: guarantee about the output, a value of `Promise`.
        reason: why the output would not follow the target's distribution with this verifier, and the deviation; empty
            if it does.
        ways: names of the policies ("policy") and tree builders ("grower") in these combinations. If the method has
            only one policy or only one tree builder, that key is left out.
        standing: result of the exactness tests. If the combinations include the method's default policy and tree
            builder, the result of these defaults. Otherwise the common result of all combinations with at most one
            non-default policy or tree builder. If their results differ: "broken" if one of them is broken, else
            "unproven".
        policies: result of the exactness tests of the method with each policy, by the policy's name; with this verifier
            and the default tree builder.
        only: name of the policy ("policy") or tree builder ("grower") if the method has only one.
        greyed: whether the pages show the combinations in grey, because the verifier is exact for other drafts than
            this method's. Verifiers that are approximate for all drafts are not greyed.
    """

    method: str
    title: str
    verifier: str
    promise: str
    reason: str
    ways: Mapping[str, Sequence[str]]
    standing: str
    policies: Mapping[str, str]
    only: Mapping[str, str]
    greyed: bool = False

    def to_wire(self) -> dict[str, Any]:
        """Return the combinations in one cell of the matrix of drafters by verifiers as JSON values."""
        ways = {name: list(values) for name, values in self.ways.items()}
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return fields | {"ways": ways, "policies": dict(self.policies), "only": dict(self.only)}


def matrix(
    methods: Iterable[Method], standings: Mapping[str, str], choices: Mapping[tuple[str, str], str] | None = None
) -> dict[str, Any]:
    """Return the matrix of drafters by verifiers: the methods that combine each pair, or why the pair is not exact.

    Args:
        methods: methods of the registry; those that do not draft are left out.
        standings: result of each method's exactness tests, by registry name.
        choices: results of the exactness tests of methods with one non-default policy, tree builder or verifier, by
            (`setting_name`, guarantee about the output).

    Returns:
        `verifiers`: names in the order of the registry. `rows`: for each drafter class, `drafter` (name of the class),
            `methods` (titles) and `cells`, one per verifier. A cell has `offers` (see `Offer`); `reason`: if there are
            no offers, why the verifier would not be exact for the drafter (empty: it would be exact, but no method
            offers the pair);
            `approximate`: whether the verifier is approximate for all drafts.
    """
    drafting = [method for method in methods if method.is_speculative]
    verifiers = {title(v): v for method in drafting for v in method.verifiers}
    by_drafter: dict[str, list[Method]] = {}
    for method in drafting:
        by_drafter.setdefault(type(method.drafter).__name__, []).append(method)
    rows: list[dict[str, Any]] = []
    for drafter, drafter_methods in by_drafter.items():
        cells: list[dict[str, Any]] = []
        for name, verifier in verifiers.items():
            cell_offers = [
                offer
                for method in drafter_methods
                for offer in offers(method, name, standings.get(method.name, ""), choices)
            ]
            reason = "" if cell_offers else deviation.explain_unsound(drafter_methods[0], verifier)
            cell = {"offers": [offer.to_wire() for offer in cell_offers], "reason": reason}
            cells.append(cell | {"approximate": not verifier.exact_for})
        rows.append({"drafter": drafter, "methods": [method.title for method in drafter_methods], "cells": cells})
    return {"verifiers": list(verifiers), "rows": rows}


def title(verifier: Verifier) -> str:
    """Return a verifier's name, or its class name if it has none."""
    return verifier.name or type(verifier).__name__


def offers(
    method: Method, verifier: str, standing: str, evidence: Mapping[tuple[str, str], str] | None = None
) -> list[Offer]:
    """Return a method's combinations with one verifier, grouped by guarantee; empty if the method lacks this verifier.

    Args:
        method: a method that drafts.
        verifier: name of the verifier, as `title` returns it.
        standing: result of the exactness tests of the method with its default verifier, policy and tree builder.
        evidence: results of the exactness tests of the method with one non-default policy, tree builder or verifier,
            by (`setting_name`, guarantee about the output).
    """
    matches = [v for v in method.verifiers if title(v) == verifier]
    if not matches:
        return []
    default = method.with_params()  # computed once, because it takes most of the time
    rule = matches[0]
    verifier_choice = {"verifier": rule.name} if len(method.verifiers) > 1 else {}
    parts = dict(zip(CELL_CHOICES, (method.policies, method.tree_builders), strict=True))
    choices = [name for name, alternatives in parts.items() if len(alternatives) > 1]
    only = {name: alternatives[0].name for name, alternatives in parts.items() if len(alternatives) == 1}
    combinations: dict[tuple[Promise, str, bool], list[dict[str, str]]] = {}
    policy_statuses: dict[tuple[Promise, str, bool], dict[str, str]] = {}
    # Statuses only of combinations with at most one non-default choice.
    statuses: dict[tuple[Promise, str, bool], list[tuple[bool, str]]] = {}
    for policy, grower in itertools.product(method.policies, method.tree_builders or (None,)):
        names = (policy.name, "" if grower is None else grower.name)
        combo = {name: value for name, value in zip(CELL_CHOICES, names, strict=True) if name in choices}
        values = {**default.values, **verifier_choice, **combo}
        configured = replace(default, verifier=rule, policy=policy, tree_builder=grower, values=values)
        is_default = has_default_parts(configured)
        reason = deviation.explain_configured(configured)
        key = configured.promise, reason, is_default
        combinations.setdefault(key, []).append(combo)
        non_default = {name for name, value in combo.items() if value != default.values[name]}
        if len(non_default) > 1:
            continue
        status = (evidence or {}).get((setting_name(configured), configured.promise.value))
        status = status or _standing(method, configured.promise, standing, is_default)
        statuses.setdefault(key, []).append((not non_default, status))
        if "policy" in combo and "grower" not in non_default:
            policy_statuses.setdefault(key, {})[combo["policy"]] = status
    return [
        Offer(
            method.name,
            method.title,
            verifier_choice.get("verifier", ""),
            promise.value,
            reason,
            {name: tuple(dict.fromkeys(combo[name] for combo in combos)) for name in choices},
            _combine_statuses(statuses.get((promise, reason, is_default), []))
            or _standing(method, promise, standing, is_default),
            policy_statuses.get((promise, reason, is_default), {}),
            only,
            bool(reason and rule.exact_for),
        )
        for (promise, reason, is_default), combos in combinations.items()
    ]


def has_default_parts(configured: ConfiguredMethod) -> bool:
    """Return whether a method is configured with its default verifier, policy and tree builder."""
    method, grower = configured.method, next(iter(configured.method.tree_builders), None)
    pairs = (
        (configured.verifier, method.verifier),
        (configured.policy, method.policies[0]),
        (configured.tree_builder, grower),
    )
    return all((type(part), part and part.name) == (type(usual), usual and usual.name) for part, usual in pairs)


def setting_name(configured: ConfiguredMethod) -> str:
    """Return a configured method's name in the table of exactness tests, such as "draft-model, verifier=k-seq"."""
    return f"{configured.name}, {changed_params(configured)}"


def changed_params(configured: ConfiguredMethod) -> str:
    """Return the parameters with non-default values, as "name=value" separated by commas; "defaults" if none."""
    specs = configured.method.params
    values = {k: v for k, v in configured.values.items() if v != specs[k].default}
    return ", ".join(f"{k}={v}" for k, v in values.items()) or "defaults"


def _combine_statuses(pairs: Sequence[tuple[bool, str]]) -> str:
    """Combine the results of exactness tests ("shown", "broken", …) of several combinations to one status.

    If the default combination is given, the result is its status. Otherwise the result is the status that all
    combinations have in common. If their statuses differ, the result is "broken" if one of them is "broken", else
    "unproven".

    Args:
        pairs: (whether the combination is the default, status) of each combination. If there are none, "" is returned.
    """
    usual, statuses = [status for is_usual, status in pairs if is_usual], {status for _, status in pairs}
    if usual or len(statuses) < 2:
        return (*usual, *statuses, "")[0]
    return "broken" if "broken" in statuses else "unproven"


def _standing(method: Method, promise: Promise, standing: str, as_usual: bool) -> str:
    """Return the exactness result of a combination of verifier, policy and tree builder that was not tested itself.

    Args:
        method: method of the combination.
        promise: guarantee of the combination.
        standing: result of the method with its default verifier, policy and tree builder.
        as_usual: whether the combination has the default verifier, policy and tree builder.
    """
    if promise is method.promise and as_usual:
        return standing
    return "unproven" if promise in (Promise.EXACT, method.promise) else "no promise"
