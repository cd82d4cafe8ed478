"""A decoding method: a named combination of drafter, tree builder, verifier and policy.

A method has a guarantee, a source and parameters.
"""

from __future__ import annotations

import dataclasses
from collections import abc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from workbench.core.errors import ParameterError, UnknownNameError, WorkbenchError
from workbench.core.params import ParamSpec, params_of
from workbench.core.promise import Promise
from workbench.core.soundness import why_unsound
from workbench.decoders.declarations import Claim, Head, Recording, Setting, Testing, training_hint
from workbench.decoders.decoder_params import DecoderParams
from workbench.decoders.draft_verify.decoder import DraftVerify
from workbench.decoders.draft_verify.parts import Drafter, Part, Policy, TreeBuilder, Verifier, siblings_of

if TYPE_CHECKING:
    from workbench.core.sampling import SamplingParams
    from workbench.engine.decoder import Decoder, EngineContext
    from workbench.engine.request import Sequence
    from workbench.kernels.segment import CaptureSelection
    from workbench.models.loading import Models


@dataclass(frozen=True, slots=True)
class Source:
    """Publication (such as a paper) that describes a decoding method."""

    title: str
    authors: str
    year: int
    url: str
    where: str = ""


@dataclass(frozen=True)  # without slots, so that `params` can be cached
class Method:
    """Registered decoding method: drafter, verifier and other components, guarantee, source, texts and claims.

    Attributes:
        name: registry name, in kebab-case. It never changes, because traces contain it.
        title: display name.
        promise: guarantee about the output, see `Promise`.
        source: paper and, if there is one, section or algorithm.
        summary: one sentence for learners.
        drafter: drafter with default parameters.
        verifier: verifier with default parameters.
        policies: draft policies to choose from; the first is the default. With more than one, `policy` is a parameter
            of the method.
        tree_builders: tree builders to choose from, for a drafter that uses one; the first is the default. With more
            than one, `grower` is a parameter of the method.
        other_verifiers: alternatives to `verifier`. If there are any, `verifier` is a parameter of the method, and the
            guarantee depends on the chosen verifier: see `promises`.
        decoder_params: parameters of a special decoder, if the method does not use `DraftVerify`: see
            `decoder_params.py`. The special decoder defines how drafter, verifier and policy are used.
        idea: two to five sentences on how the method works, for the methods page; by default the drafter's docstring.
        formula: main rule of the method, in one line of plain text.
        differences: differences from the paper, each in one or two sentences with its reason and its possible effect.
        order: position of the method among the methods that come with the workbench, from 0.
        claims: claims of the method's paper, with functions that measure them.
        suites: settings of the method in benchmark suites, by the suite's name ("vision").
        recording: demo of the method in the gallery.
        head: trained head with which the method drafts, if it needs one.
        testing: facts for the tests that all methods have in common.
    """

    name: str
    title: str
    promise: Promise
    source: Source
    summary: str
    drafter: Drafter
    verifier: Verifier
    policies: tuple[Policy, ...]
    tree_builders: tuple[TreeBuilder, ...] = ()
    other_verifiers: tuple[Verifier, ...] = ()
    decoder_params: DecoderParams | None = None
    idea: str = ""
    formula: str = ""
    differences: tuple[str, ...] = ()
    order: int = 0
    claims: tuple[Claim, ...] = ()
    suites: Mapping[str, tuple[Setting, ...]] = field(default_factory=dict, hash=False)
    recording: Recording = field(default_factory=Recording)
    head: Head | None = None
    testing: Testing = field(default_factory=Testing)

    def __post_init__(self) -> None:
        """Fill in the method's name in its claims and suites, and drop claims and suites copied from another method.

        Raises:
            WorkbenchError: the method has no policy.
        """
        if not self.policies:
            message = f"The method {self.name!r} has no policy, so its draft length is undefined."
            raise WorkbenchError(
                message, "Give the method a policy: policies=(Fixed(),), from workbench.methods.policies.fixed."
            )
        owners = {
            declaration.method for declaration in (*self.claims, *(s for rows in self.suites.values() for s in rows))
        }
        if owners - {"", self.name}:
            claims, suites, recording = (), {}, Recording()
        else:
            own_claims = tuple(
                dataclasses.replace(c, method=self.name, needs=_both(self.needs, c.needs)) for c in self.claims
            )
            claims = (*own_claims, *(c for c in self._parts_claims if c.key not in {o.key for o in own_claims}))
            suites = {n: tuple(dataclasses.replace(s, method=self.name) for s in r) for n, r in self.suites.items()}
            recording = self.recording
        object.__setattr__(self, "claims", claims)
        object.__setattr__(self, "suites", suites)
        object.__setattr__(self, "recording", recording)

    @property
    def _parts_claims(self) -> Iterator[Claim]:
        """Yield the claims of tree builders, verifiers and policies that are measured with this method."""
        for part in self.parts:
            for claim in part.claims:
                if claim.method == self.name:
                    yield dataclasses.replace(claim, needs=_needs(self.drafter, part))

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the requirements (besides the target) of the method with default parameters.

        The requirements of the drafter come first.
        """
        return _needs(self.drafter, *self.tree_builders[:1], self.verifier, self.policies[0], self.decoder_params)

    @property
    def group(self) -> str:
        """Return the method's group in lists, by the origin of its drafts: one of `declarations.GROUPS`."""
        needs, drafter = set(self.needs) - {"trees"}, self.drafter
        if not self.is_speculative or drafter.is_empty:
            return "No draft"
        if self.promise is Promise.SIMULATION:
            return "Simulation"
        if self.recording.scene is not None:
            return "Images"
        if needs & {"drafter", "any-drafter"}:
            return "Draft model"
        if needs:
            return "Trained heads"
        return "The target itself" if drafter.reads_target or drafter.reuses_logits else "The text itself"

    @property
    def is_speculative(self) -> bool:
        """Return whether each round of the method drafts and verifies, one after the other or in parallel."""
        return self.decoder_params is None or self.decoder_params.is_speculative

    @property
    def verifiers(self) -> tuple[Verifier, ...]:
        """Return all verifiers that may be chosen for the method; the first is the default."""
        return (self.verifier, *self.other_verifiers)

    @property
    def promises(self) -> dict[str, Promise]:
        """Return the method's guarantee with each verifier, by the verifier's name; empty if it has only one verifier.

        The guarantee with the default verifier is `promise`. A verifier that is not exact for these drafts makes the
        method approximate; an exact verifier makes an approximate method exact.
        """
        if not self.other_verifiers:
            return {}
        sound = Promise.EXACT if self.promise is Promise.APPROXIMATE else self.promise
        alternatives = {v.name: Promise.APPROXIMATE if self.unsound_reason(v) else sound for v in self.other_verifiers}
        return {self.verifier.name: self.promise} | alternatives

    def unsound_reason(
        self,
        verifier: Verifier,
        drafter: Drafter | None = None,
        tree_builder: TreeBuilder | type[TreeBuilder] | None = None,
    ) -> str:
        """Return why sampled output with a verifier would not follow the target's distribution; "" if it does.

        Args:
            verifier: one of the method's verifiers.
            drafter: the method's drafter, configured; by default, with default parameters.
            tree_builder: tree builder of the drafts; by default the method's default one.
        """
        drafter, tree_builder = drafter or self.drafter, tree_builder or next(iter(self.tree_builders), None)
        siblings = siblings_of(drafter, tree_builder)
        return why_unsound(self.name, siblings, verifier.name or type(verifier).__name__, verifier.exact_for)

    @property
    def params(self) -> Mapping[str, ParamSpec]:
        """Return all parameters of the method by name, from policies, drafter, tree builders and verifiers.

        A parameter that chooses among alternative policies, tree builders or verifiers comes before their parameters.

        Raises:
            ValueError: the declaration of the method is wrong: one name is used for different parameters, or
                alternatives lack distinct names.
        """
        return self._params

    @cached_property
    def _params(self) -> Mapping[str, ParamSpec]:
        """Return all parameters of the method by name. They are cached, because a request reads them several times."""
        specs_by_name: dict[str, ParamSpec] = {}
        kinds = {kind for kind, _, _ in self._parts}
        for kind, parts, doc in self._parts:
            names = tuple(part.name for part in parts)
            if len(parts) > 1:
                if not all(names) or len(set(names)) < len(names):
                    raise ValueError(
                        f"The method {self.name} offers alternatives for its {kind} with equal names: {names}."
                    )
                specs_by_name[kind] = ParamSpec(kind, "choice", names[0], choices=names, doc=doc)
            specs_of_parts = [params_of(part) for part in parts]
            for specs in specs_of_parts:
                for name, spec in specs.items():
                    users = [part for part, part_specs in zip(names, specs_of_parts, strict=True) if name in part_specs]
                    if len(users) < len(parts):
                        spec = dataclasses.replace(spec, when=f"{kind} = {' or '.join(users)}")
                    if name in kinds or (name in specs_by_name and specs_by_name[name] != spec):
                        raise ValueError(
                            f"Two parts of the method {self.name} declare the parameter {name!r} differently."
                        )
                    specs_by_name[name] = spec
        return specs_by_name

    @property
    def parts(self) -> tuple[Part, ...]:
        """Return all drafters, tree builders, verifiers and policies of the method, including alternatives."""
        return tuple(part for _, parts, _ in self._parts for part in parts)

    @property
    def _parts(self) -> tuple[tuple[str, abc.Sequence[Part], str], ...]:
        """Return the alternatives for each component: policy, drafter, tree builder, verifier, decoder parameters.

        Each entry is (kind of component, alternatives, description of the choice).
        """
        rounds = () if self.decoder_params is None else (("rounds", (self.decoder_params,), ""),)
        return (
            ("policy", self.policies, "policy that chooses the draft length"),
            ("drafter", (self.drafter,), ""),
            *((("grower", self.tree_builders, "tree builder"),) if self.tree_builders else ()),
            ("verifier", self.verifiers, "verifier: rule that accepts drafts"),
            *rounds,
        )

    def with_params(self, **values: Any) -> ConfiguredMethod:
        """Return the method with values for its parameters, which are checked against their ranges.

        Raises:
            UnknownNameError: the method has no such parameter.
            ParameterError: a value has the wrong type or is out of range.
        """
        specs = self.params
        for name in values:
            if name not in specs:
                raise UnknownNameError.of(f"parameter of {self.name}", name, specs)
        param_values = {name: spec.parse(values.get(name, spec.default)) for name, spec in specs.items()}
        chosen_parts = {
            PART_FIELDS.get(kind, kind): _replace(
                next(p for p in parts if p.name == param_values.get(kind, parts[0].name)), param_values
            )
            for kind, parts, _ in self._parts
        }
        return ConfiguredMethod(self, **chosen_parts, values=param_values)


PART_FIELDS = {"grower": "tree_builder", "rounds": "decoder_params"}
"""Fields of `ConfiguredMethod` whose parameters have another name in links, traces and on the command line.

Keys are the parameters' names, values the fields.
"""


@dataclass(frozen=True, slots=True)
class ConfiguredMethod:
    """Decoding method with values for all parameters, with which a sequence runs.

    Drafter, tree builder, verifier and policy have their final parameters; `values` has the value of every parameter by
    name.
    """

    method: Method
    drafter: Drafter
    verifier: Verifier
    policy: Policy
    values: Mapping[str, Any]
    tree_builder: TreeBuilder | None = None
    decoder_params: DecoderParams | None = None

    def captured_layers(self, models: Models) -> set[int]:
        """Return the indices of the target layers whose hidden states the method needs from a verification.

        Raises:
            ParameterError: a layer is needed that the target does not have.
        """
        layers = {
            layer for part in (self.drafter, self.verifier, self.policy) for layer in part.captured_layers(models)
        }
        if invalid := [layer for layer in sorted(layers) if not 0 <= layer < models.target.n_layers]:
            raise ParameterError(
                f"{self.method.title} reads layer {invalid[0]} of the target, but the target has only layers 0 "
                f"to {models.target.n_layers - 1}.",
                "Choose another target, or another layer.",
            )
        return layers

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the requirements of the method besides the target, such as a draft model.

        The requirements of the drafter come first.
        """
        return _needs(self.drafter, self.tree_builder, self.verifier, self.policy, self.decoder_params)

    @property
    def is_speculative(self) -> bool:
        """Return whether each round of the method drafts and verifies, one after the other or in parallel."""
        return self.method.is_speculative

    @property
    def is_unbounded(self) -> bool:
        """Return whether prompt and generated text together may be longer than the target's context."""
        return self.decoder_params is not None and self.decoder_params.is_unbounded

    @property
    def decoder_kind(self) -> type:
        """Return the kind of decoder that the method needs; an engine has one decoder of each kind."""
        return DraftVerify if self.decoder_params is None else type(self.decoder_params)

    def decoder(self, context: EngineContext) -> Decoder:
        """Create a decoder for this method, of kind `decoder_kind`."""
        return DraftVerify(context) if self.decoder_params is None else self.decoder_params.decoder(context)

    @property
    def keeps_greedy(self) -> bool:
        """Return whether the method's greedy output equals the greedy output of the target alone."""
        return self.verifier.keeps_greedy and (self.decoder_params is None or self.decoder_params.keeps_greedy)

    def make_ready(self, models: Models) -> None:
        """Do the drafter's slow preparation for given models, once.

        The backend calls this in any thread, before it queues or changes a run.
        """
        self.drafter.make_ready(models)

    def notice(self) -> str:
        """Return a note that is shown to the user before a run with this method starts; "" if there is none."""
        return self.drafter.notice()

    def captures(self, models: Models) -> CaptureSelection:
        """Return which hidden states of the target prefill captures for the drafter."""
        return self.drafter.captures(models)

    def unsupported_reason(self, sequence: Sequence, models: Models, sampling: SamplingParams) -> str:
        """Return why the method cannot decode a sequence with the given models and sampling; "" if it can."""
        return self.missing_requirements(models) or (
            "" if self.decoder_params is None else self.decoder_params.unsupported_reason(sequence, sampling)
        )

    def missing_requirements(self, models: Models) -> str:
        """Return the method's requirements that the given models do not meet, as text; "" if they meet all.

        For a missing head, the text has the command that trains it.
        """
        messages, head = [models.unsupported_reason(self.needs)], self.method.head
        if head is not None and head.kind not in models.heads:
            if head.train is not None:
                messages.append(f"Train a head: workbench train {head.recipe}.")
            elif head.is_for_any_target and models.target_name:
                messages.append(training_hint(head.kind, models.target_name))
        heads = [part.head for part in (self.verifier, self.policy) if part.head is not None]
        absent = [head.recipe for head in heads if head.kind not in models.heads]
        messages += [f"Train a head: workbench train {recipe} --set target={models.target_name}." for recipe in absent]
        return " ".join(filter(None, messages))

    @property
    def name(self) -> str:
        """Return the name of the method in the registry."""
        return self.method.name

    @property
    def promise(self) -> Promise:
        """Return the method's guarantee with the chosen verifier and the chosen parameters of drafter and tree builder.

        A policy that uses unavailable information makes an exact method a simulation.
        """
        promise = self.method.promise
        if is_other := self.verifier.name != self.method.verifier.name:
            promise = Promise.EXACT if promise is Promise.APPROXIMATE else promise
        promise = Promise.APPROXIMATE if (is_other or promise is Promise.EXACT) and self.unsound_reason else promise
        return Promise.SIMULATION if self.policy.simulates and promise is Promise.EXACT else promise

    @property
    def simulates(self) -> bool:
        """Return whether the method uses information that is unavailable in practice.

        Its speed is then unrealistic.
        """
        return self.policy.simulates or self.method.promise is Promise.SIMULATION

    @property
    def unsound_reason(self) -> str:
        """Return why sampled output of this method does not follow the target's distribution; "" if it does."""
        return self.method.unsound_reason(self.verifier, self.drafter, self.policy.tree_builder or self.tree_builder)

    def with_changes(self, **values: Any) -> ConfiguredMethod:
        """Return the same method with some parameter values changed."""
        return self.method.with_params(**{**self.values, **values})


def _both(needs: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    """Return the requirements of a method and the additional requirements of a claim, without duplicates."""
    return tuple(dict.fromkeys([*needs, *more]))


def _needs(*parts: Part | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(need for part in parts if part is not None for need in part.needs))


def _replace(part: Any, values: Mapping[str, Any]) -> Any:
    own_values = {name: values[name] for name in params_of(part) if name in values}
    return dataclasses.replace(part, **own_values)
