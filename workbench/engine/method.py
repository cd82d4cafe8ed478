"""A method: a named combination of parts, what it promises, where it comes from, and its parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from workbench.core.errors import ParameterError, UnknownNameError, WorkbenchError
from workbench.core.params import ParamSpec, params_of
from workbench.core.soundness import why_unsound
from workbench.engine.declarations import Claim, Head, Recording, Setting
from workbench.engine.decoder import OwnRounds
from workbench.engine.parts import Drafter, Grower, Part, Policy, Verifier, siblings_of

if TYPE_CHECKING:
    from workbench.models.loading import Models


class Promise(str, Enum):
    """What a method guarantees about its output."""

    EXACT = "exact"
    """The target's own distribution, whatever the drafter; greedy output is token for token the target's."""
    GREEDY_EXACT = "greedy-exact"
    """Exact when greedy; other laws are not promised."""
    APPROXIMATE = "approximate"
    """Samples deviate from the target's law by a stated knob; greedy output is the target's all the same, unless the
    verifier says otherwise (`Verifier.keeps_greedy`)."""
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
        growers: ways in which its drafts may grow, for a drafter that follows one; the first is the default. With more
            than one, `grower` becomes a parameter.
        other_verifiers: what may judge instead of `verifier`. With any, `verifier` becomes a parameter, and the promise
            follows from the one that is chosen: see `promises`.
        rounds: how it writes where it does not draft and verify in turn: see `engine/decoder.py`. What its other parts
            are for is then this part's to say.
        idea: two to five sentences on how it works, for the methods page; by default the drafter's docstring.
        formula: the rule it stands on, in one line of plain text.
        differs: what it does otherwise than the paper, a sentence or two each: what, why, and what it may change.
        place: where it stands among the methods that come with the workbench, from 0.
        claims: what its paper claims, and what measures it here.
        suites: its rows in the suites that measure each method at settings of its own, by the suite's name ("vision").
        recording: what the gallery shows of it.
        head: the trained net that it drafts with, where it needs one.
    """

    name: str
    title: str
    promise: Promise
    source: Source
    teaches: str
    drafter: Drafter
    verifier: Verifier
    policies: tuple[Policy, ...]
    growers: tuple[Grower, ...] = ()
    other_verifiers: tuple[Verifier, ...] = ()
    rounds: OwnRounds | None = None
    idea: str = ""
    formula: str = ""
    differs: tuple[str, ...] = ()
    place: int = 0
    claims: tuple[Claim, ...] = ()
    suites: Mapping[str, tuple[Setting, ...]] = field(default_factory=dict, hash=False)
    recording: Recording = field(default_factory=Recording)
    head: Head | None = None

    def __post_init__(self) -> None:
        """Say in what it declares whose it is; a method derived from another one takes over nothing of that."""
        if not self.policies:
            said = f"The method {self.name!r} names no policy, so its draft length is undefined."
            raise WorkbenchError(said, "Give it one: policies=(Fixed(),), of workbench.methods.policies.fixed.")
        whose = {declared.method for declared in (*self.claims, *(s for rows in self.suites.values() for s in rows))}
        if whose - {"", self.name}:
            claims, suites, recording = (), {}, Recording()
        else:
            own = tuple(dataclasses.replace(c, method=self.name, needs=_both(self.needs, c.needs)) for c in self.claims)
            claims = (*own, *(c for c in self._parts_claims if c.key not in {o.key for o in own}))
            suites = {n: tuple(dataclasses.replace(s, method=self.name) for s in r) for n, r in self.suites.items()}
            recording = self.recording
        object.__setattr__(self, "claims", claims)
        object.__setattr__(self, "suites", suites)
        object.__setattr__(self, "recording", recording)

    @property
    def _parts_claims(self) -> Iterator[Claim]:
        """What its parts' papers claim, where they are measured with it."""
        for part in self.parts:
            for claim in part.claims:
                if claim.method == self.name:
                    yield dataclasses.replace(claim, needs=_needs(self.drafter, part))

    @property
    def needs(self) -> tuple[str, ...]:
        """What its parts take besides the target, the drafter's first; of alternatives, what the default one takes."""
        return _needs(self.drafter, *self.growers[:1], self.verifier, self.policies[0], self.rounds)

    @property
    def verifiers(self) -> tuple[Verifier, ...]:
        """All that may judge; the first is the default."""
        return (self.verifier, *self.other_verifiers)

    @property
    def promises(self) -> dict[str, Promise]:
        """What it guarantees with each verifier, by the verifier's name; empty where there is one only.

        With the default that is `promise`. Another one that is not exact for these drafts makes it approximate; one
        that is makes what was approximate exact.
        """
        if not self.other_verifiers:
            return {}
        sound = Promise.EXACT if self.promise is Promise.APPROXIMATE else self.promise
        others = {v.name: Promise.APPROXIMATE if self.unsound(v) else sound for v in self.other_verifiers}
        return {self.verifier.name: self.promise} | others

    def unsound(
        self, verifier: Verifier, drafter: Drafter | None = None, grower: Grower | type[Grower] | None = None
    ) -> str:
        """Why its drafts, judged by `verifier`, would not follow the target's law; "" if they do. Greedy text does.

        Args:
            verifier: one of its own.
            drafter: its drafter with other parameters than the defaults.
            grower: another way of growing than the default one.
        """
        drafter, grower = drafter or self.drafter, grower or next(iter(self.growers), None)
        siblings = siblings_of(drafter, grower)
        return why_unsound(self.name, siblings, verifier.name or type(verifier).__name__, verifier.exact_for)

    @property
    def params(self) -> dict[str, ParamSpec]:
        """All parameters by name: policies, drafter, growers, verifiers; first of alternatives, which one is chosen.

        Raises:
            ValueError: two parts use one name for different parameters, or alternatives have no names of their own (a
                mistake in the registry).
        """
        found: dict[str, ParamSpec] = {}
        kinds = {kind for kind, _, _ in self._parts}
        for kind, parts, doc in self._parts:
            names = tuple(part.name for part in parts)
            if len(parts) > 1:
                if not all(names) or len(set(names)) < len(names):
                    raise ValueError(f"{self.name}: its alternatives for {kind} need distinct names, not {names}.")
                found[kind] = ParamSpec(kind, "choice", names[0], choices=names, doc=doc)
            declared = [params_of(part) for part in parts]
            for specs in declared:
                for name, spec in specs.items():
                    users = [part for part, theirs in zip(names, declared, strict=True) if name in theirs]
                    if len(users) < len(parts):
                        spec = dataclasses.replace(spec, when=f"{kind} = {' or '.join(users)}")
                    if name in kinds or (name in found and found[name] != spec):
                        raise ValueError(f"{self.name}: two parts declare parameter {name!r} differently.")
                    found[name] = spec
        return found

    @property
    def parts(self) -> tuple[Part, ...]:
        """All of its parts, alternatives among them."""
        return tuple(part for _, parts, _ in self._parts for part in parts)

    @property
    def _parts(self) -> tuple[tuple[str, Sequence[Part], str], ...]:
        """Its parts by kind: the alternatives, and what choosing among them decides."""
        rounds = () if self.rounds is None else (("rounds", (self.rounds,), ""),)
        return (
            ("policy", self.policies, "policy for the draft length"),
            ("drafter", (self.drafter,), ""),
            *((("grower", self.growers, "tree builder"),) if self.growers else ()),
            ("verifier", self.verifiers, "verifier: rule that accepts drafts"),
            *rounds,
        )

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
        chosen = {
            kind: _replace(next(p for p in parts if p.name == full.get(kind, parts[0].name)), full)
            for kind, parts, _ in self._parts
        }
        return Configured(self, **chosen, values=full)


@dataclass(frozen=True, slots=True)
class Configured:
    """A method with all parameters decided: what a row runs."""

    method: Method
    drafter: Drafter
    verifier: Verifier
    policy: Policy
    values: Mapping[str, Any]
    grower: Grower | None = None
    rounds: OwnRounds | None = None

    def taps(self, models: Models) -> set[int]:
        """Indices of the target's layers whose residual streams its parts read of a verification.

        Raises:
            ParameterError: the target has no such layer.
        """
        found = {layer for part in (self.drafter, self.verifier, self.policy) for layer in part.taps(models)}
        if beyond := [layer for layer in sorted(found) if not 0 <= layer < models.target.n_layers]:
            raise ParameterError(
                f"{self.method.title} reads layer {beyond[0]} of a target that has {models.target.n_layers}, from 0.",
                "Choose another target, or another layer.",
            )
        return found

    @property
    def needs(self) -> tuple[str, ...]:
        """What its parts take besides the target, the drafter's first."""
        return _needs(self.drafter, self.grower, self.verifier, self.policy, self.rounds)

    @property
    def drafts(self) -> bool:
        """Whether its rounds draft and verify, be it in an order of their own."""
        return self.rounds is None or self.rounds.drafts

    @property
    def name(self) -> str:
        """The method's registry name."""
        return self.method.name

    @property
    def promise(self) -> Promise:
        """The method's promise with the chosen verifier, for drafts as drafter and grower make them when so set.

        With a policy that simulates, what would be exact is a simulation.
        """
        promise = self.method.promise
        if is_other := self.verifier.name != self.method.verifier.name:
            promise = Promise.EXACT if promise is Promise.APPROXIMATE else promise
        promise = Promise.APPROXIMATE if (is_other or promise is Promise.EXACT) and self.unsound else promise
        return Promise.SIMULATION if self.policy.simulates and promise is Promise.EXACT else promise

    @property
    def simulates(self) -> bool:
        """Whether a part of it knows what no real one could: its speed is nobody's, whatever its text is."""
        return self.policy.simulates or self.method.promise is Promise.SIMULATION

    @property
    def unsound(self) -> str:
        """Why what it writes would not follow the target's law; "" if it does. Greedy text does."""
        return self.method.unsound(self.verifier, self.drafter, self.policy.grows or self.grower)

    def changed(self, **values: Any) -> Configured:
        """The same method with other parameters; the rest stays."""
        return self.method.with_params(**{**self.values, **values})


def _both(needs: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    """What a method takes, and what a claim of it names besides, each once."""
    return tuple(dict.fromkeys([*needs, *more]))


def _needs(*parts: Part | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(need for part in parts if part is not None for need in part.needs))


def _replace(part: Any, values: Mapping[str, Any]) -> Any:
    mine = {name: values[name] for name in params_of(part) if name in values}
    return dataclasses.replace(part, **mine)
