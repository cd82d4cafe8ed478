"""Sound combinations of drafters with verifiers, policies and tree builders: the matrix of the methods page.

All of it follows from the parts' declarations; no method, verifier, policy or tree builder is named here.

"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from workbench.core.promise import Promise
from workbench.decoders.draft_verify.parts import Verifier
from workbench.decoders.method import Configured, Method
from workbench.methods import deviation

HOW = ("policy", "grower")
"""Choices listed in a cell: they change neither drafter nor verifier."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A method's combinations in one cell that have the same promise.

    Attributes:
        method: registry name.
        title: display name.
        verifier: value of the parameter `verifier`; empty if the method has one verifier only.
        promise: value of `Promise`.
        reason: why these drafts would not follow the target's distribution under this verifier, and the deviation;
            empty if they do.
        ways: by the name of a choice ("policy", "grower"), its values; a choice that the method lacks is left out.
        standing: status on the exactness board: that of the method's usual policy and grower, if they are among these
            ways; otherwise "shown" only if it is shown for every other policy with the usual grower, and the other way
            round, and "broken" if it is for one.
        policies: by policy, the board's status under this verifier with the usual grower.
        only: of "policy" and "grower", the name of the single one that the method has: that is no choice.
        greyed: whether the pages grey it out: a rule that is exact, but for other drafts than these. A rule that is
            approximate for all drafts is a choice like any other.
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
        """Plain JSON."""
        ways = {name: list(values) for name, values in self.ways.items()}
        named = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return named | {"ways": ways, "policies": dict(self.policies), "only": dict(self.only)}


def matrix(
    methods: Iterable[Method], standings: Mapping[str, str], choices: Mapping[tuple[str, str], str] | None = None
) -> dict[str, Any]:
    """Return drafters by verifiers: offers with promise and evidence, and reasons why others would be unsound.

    Args:
        methods: of the registry; those whose rounds do not draft are left out.
        standings: of the exactness board, by method.
        choices: that board's status of single choices, by `setting` and promise.

    Returns:
        `verifiers`, their names in the order of the registry; `rows`, each with the `drafter`'s class, the titles of
        its `methods` and a cell for every verifier: `offers`, and if there are none, the `reason` why it would be
        unsound (empty: it would be sound, and no method offers it), and whether the verifier is `approximate` for all
        drafts.
    """
    drafting = [method for method in methods if method.rounds is None or method.rounds.drafts]
    verifiers = {title(v): v for method in drafting for v in method.verifiers}
    by_drafter: dict[str, list[Method]] = {}
    for method in drafting:
        by_drafter.setdefault(type(method.drafter).__name__, []).append(method)
    rows: list[dict[str, Any]] = []
    for drafter, its in by_drafter.items():
        cells: list[dict[str, Any]] = []
        for name, verifier in verifiers.items():
            found = [offer for method in its for offer in offers(method, name, standings.get(method.name, ""), choices)]
            reason = "" if found else deviation.taught(its[0], verifier)
            apart = {"offers": [offer.to_wire() for offer in found], "reason": reason}
            cells.append(apart | {"approximate": not verifier.exact_for})
        rows.append({"drafter": drafter, "methods": [method.title for method in its], "cells": cells})
    return {"verifiers": list(verifiers), "rows": rows}


def title(verifier: Verifier) -> str:
    """Return a verifier's name; one that is never a choice may have none, and is named by its class."""
    return verifier.name or type(verifier).__name__


def offers(
    method: Method, verifier: str, standing: str, evidence: Mapping[tuple[str, str], str] | None = None
) -> list[Offer]:
    """Return a method's offers under the verifier of that title, one per promise; empty if it has no such verifier.

    Args:
        method: a method that drafts.
        verifier: its title.
        standing: of the method on the exactness board, which holds for its usual policy and grower.
        evidence: of single choices there, by `setting` and promise.
    """
    judges = [v for v in method.verifiers if title(v) == verifier]
    if not judges:
        return []
    usual = method.with_params()  # once: this is most of the work
    judge = judges[0]
    chosen = {"verifier": judge.name} if len(method.verifiers) > 1 else {}
    parts = dict(zip(HOW, (method.policies, method.tree_builders), strict=True))
    choices = [name for name, its in parts.items() if len(its) > 1]
    only = {name: its[0].name for name, its in parts.items() if len(its) == 1}
    found: dict[tuple[Promise, str, bool], list[dict[str, str]]] = {}
    seen: dict[tuple[Promise, str, bool], dict[str, str]] = {}
    told: dict[tuple[Promise, str, bool], list[tuple[bool, str]]] = {}  # of ways that change at most one choice
    for policy, grower in itertools.product(method.policies, method.tree_builders or (None,)):
        names = (policy.name, "" if grower is None else grower.name)
        how = {name: value for name, value in zip(HOW, names, strict=True) if name in choices}
        values = {**usual.values, **chosen, **how}
        made = replace(usual, verifier=judge, policy=policy, grower=grower, values=values)
        as_usual = is_usual(made)
        reason = deviation.of(made)
        key = made.promise, reason, as_usual
        found.setdefault(key, []).append(how)
        others = {name for name, value in how.items() if value != usual.values[name]}
        if len(others) > 1:
            continue
        said = (evidence or {}).get((setting(made), made.promise.value))
        said = said or _standing(method, made.promise, standing, as_usual)
        told.setdefault(key, []).append((not others, said))
        if "policy" in how and "grower" not in others:
            seen.setdefault(key, {})[how["policy"]] = said
    return [
        Offer(
            method.name,
            method.title,
            chosen.get("verifier", ""),
            promise.value,
            reason,
            {name: tuple(dict.fromkeys(how[name] for how in hows)) for name in choices},
            _together(told.get((promise, reason, as_usual), [])) or _standing(method, promise, standing, as_usual),
            seen.get((promise, reason, as_usual), {}),
            only,
            bool(reason and judge.exact_for),
        )
        for (promise, reason, as_usual), hows in found.items()
    ]


def is_usual(made: Configured) -> bool:
    """Return whether it has its method's usual verifier, policy and grower, which the exactness board tests."""
    method, grower = made.method, next(iter(made.method.tree_builders), None)
    pairs = (made.verifier, method.verifier), (made.policy, method.policies[0]), (made.grower, grower)
    return all((type(one), one and one.name) == (type(usual), usual and usual.name) for one, usual in pairs)


def setting(made: Configured) -> str:
    """Return a method and its changed parameters, as the exactness board names it: "draft-model, verifier=k-seq"."""
    return f"{made.name}, {changed(made)}"


def changed(made: Configured) -> str:
    """Return the parameters that are not at their defaults, as text."""
    specs = made.method.params  # once: it is computed at each access
    values = {k: v for k, v in made.values.items() if v != specs[k].default}
    return ", ".join(f"{k}={v}" for k, v in values.items()) or "defaults"


def _together(told: Sequence[tuple[bool, str]]) -> str:
    """Return one status for several ways: (whether it is the usual one, its status). Empty: there are none."""
    usual, all_of_them = [said for is_usual, said in told if is_usual], {said for _, said in told}
    if usual or len(all_of_them) < 2:
        return (*usual, *all_of_them, "")[0]
    return "broken" if "broken" in all_of_them else "unproven"


def _standing(method: Method, promise: Promise, standing: str, as_usual: bool) -> str:
    """Return the board's status of an offer; untested ones are unproven."""
    if promise is method.promise and as_usual:
        return standing
    return "unproven" if promise in (Promise.EXACT, method.promise) else "no promise"
