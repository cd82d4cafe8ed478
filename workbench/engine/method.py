"""A method: a named combination of parts, what it promises, where it comes from, and its parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from workbench.core.errors import UnknownNameError
from workbench.core.params import ParamSpec, params_of
from workbench.engine.parts import Drafter, Policy, Schedule, Verifier


class Promise(str, Enum):
    """What a method guarantees about its output."""

    EXACT = "exact"
    """The target's own distribution, whatever the drafter; greedy output is token for token the target's."""
    GREEDY_EXACT = "greedy-exact"
    """Exact when greedy; other laws are not promised."""
    APPROXIMATE = "approximate"
    """Samples deviate from the target's law by a stated knob; greedy output is the target's all the same."""
    SIMULATION = "simulation"
    """Uses knowledge no real drafter has: for teaching and tests. Its output is as exact as any; its speed is not."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where an idea comes from."""

    title: str
    authors: str
    year: int
    url: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class Method:
    """One entry of the registry.

    Attributes:
        name: kebab-case and permanent; traces carry it.
        title: for people.
        promise: see `Promise`.
        source: paper and, where there is one, section or algorithm.
        teaches: one sentence for the learner.
        drafter: with default parameters.
        verifier: with default parameters.
        policies: alternatives; the first is the default. With more than one, `policy` becomes a parameter.
        schedule: what runs when.
        idea: two sentences on how it works, for the methods page; empty: what the drafter's docstring says first.
        formula: the rule it stands on, in one line of plain text.
        differs: what it does otherwise than the paper, a sentence or two each: what, why, and what it may change.
    """

    name: str
    title: str
    promise: Promise
    source: Source
    teaches: str
    drafter: Drafter
    verifier: Verifier
    policies: tuple[Policy, ...]
    schedule: Schedule = field(default_factory=Schedule)
    idea: str = ""
    formula: str = ""
    differs: tuple[str, ...] = ()

    @property
    def needs(self) -> tuple[str, ...]:
        """What it takes besides the target."""
        return self.drafter.needs

    @property
    def params(self) -> dict[str, ParamSpec]:
        """All parameters by name: the policy's choice first, then policies, drafter, verifier.

        Raises:
            ValueError: two parts use one name for different parameters (a mistake in the registry).
        """
        found: dict[str, ParamSpec] = {}
        if len(self.policies) > 1:
            names = tuple(p.name for p in self.policies)
            found["policy"] = ParamSpec(
                "policy", "choice", names[0], choices=names, doc="how the draft length is decided"
            )
        for part in (*self.policies, self.drafter, self.verifier):
            for name, spec in params_of(part).items():
                users = [p.name for p in self.policies if name in params_of(p)]
                if part in self.policies and len(users) < len(self.policies):
                    spec = dataclasses.replace(spec, when=f"policy = {' or '.join(users)}")
                if name in found and found[name] != spec:
                    raise ValueError(f"{self.name}: two parts declare parameter {name!r} differently.")
                found[name] = spec
        return found

    def with_params(self, **values: Any) -> Configured:
        """The method with some parameters set, checked against their ranges.

        Raises:
            UnknownNameError: no such parameter.
            ParameterError: wrong type or out of range.
        """
        specs = self.params
        for name in values:
            if name not in specs:
                raise UnknownNameError.of(f"parameter of {self.name}", name, specs)
        full = {name: spec.parse(values.get(name, spec.default)) for name, spec in specs.items()}
        policy = next(p for p in self.policies if p.name == full.get("policy", self.policies[0].name))
        return Configured(
            self, _replace(self.drafter, full), _replace(self.verifier, full), _replace(policy, full), full
        )


@dataclass(frozen=True, slots=True)
class Configured:
    """A method with all parameters decided: what a row runs."""

    method: Method
    drafter: Drafter
    verifier: Verifier
    policy: Policy
    values: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The method's registry name."""
        return self.method.name

    @property
    def promise(self) -> Promise:
        """The method's promise."""
        return self.method.promise

    def changed(self, **values: Any) -> Configured:
        """The same method with other parameters; the rest stays."""
        return self.method.with_params(**{**self.values, **values})


def _replace(part: Any, values: Mapping[str, Any]) -> Any:
    mine = {name: values[name] for name in params_of(part) if name in values}
    return dataclasses.replace(part, **mine)
