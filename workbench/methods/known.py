"""Facts about methods without PyTorch: names, promises, needs and parameters, to check a request.

`catalogue.json` beside this file contains them; `workbench docs` writes it from the registry, the one place where a
method is declared. If the registry has been imported already it is used itself, and also if the file cannot have the
facts: for user-defined methods, and for declarations that changed since it was written.

"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.errors import UnknownNameError
from workbench.core.params import ParamSpec, params_of, split_values
from workbench.decoders.declarations import NEEDS
from workbench.methods import CATALOGUE, GROUP, OWN_METHODS

if TYPE_CHECKING:
    from workbench.decoders.method import Method

FILE = CATALOGUE
PROMISES = (
    "*exact*: the target's own distribution, whatever the drafter; *approximate*: deviates by a stated parameter; "
    "*simulation*: uses information that no real drafter has."
)
"""Meaning of the promises, for tables of methods."""
PLAIN = "autoregressive"
_REGISTRY = "workbench.methods.registry"
_SAMPLING = Path(__file__).resolve().parents[1] / "core" / "sampling.py"


def needed(needs: Sequence[str]) -> str:
    """Return a method's needs as text: `Part.needs` has the names, any other is a kind of trained head."""
    if not needs:
        return "nothing but the target"
    return ", ".join(NEEDS.get(need, f"{need} heads trained for the target") for need in needs)


LISTS = ("needs", "differs", "simulating")
"""Attributes that are lists in JSON and tuples here."""


@dataclass(frozen=True, slots=True)
class Known:
    """A method as data.

    Attributes:
        name: registry name.
        title: display name.
        promise: value of `workbench.decoders.method.Promise`.
        promises: the same for each of its verifiers, by name; empty if there is one only.
        unsound: by verifier and tree builder, why the two together would not be exact, and the deviation; for verifiers
            that are exact for some drafts, and pairs that are not.
        simulating: names of its policies that use information no real one has: with them, exact is a simulation.
        teaches: one sentence on what the method demonstrates.
        source: title, authors, year, url, where.
        needs: its needs besides the target.
        reads_target: whether the drafter reads the target's hidden states.
        blind: whether the drafter ignores images.
        idea: how it works, in a sentence or two; by default from the drafter's docstring.
        formula: its rule; may be empty.
        differs: differences from the paper, a sentence or two each.
        params: its parameters by name.
    """

    name: str
    title: str
    promise: str
    promises: Mapping[str, str]
    unsound: Mapping[str, Mapping[str, str]]
    simulating: tuple[str, ...]
    teaches: str
    source: dict[str, Any]
    needs: tuple[str, ...]
    reads_target: bool
    blind: bool
    idea: str
    formula: str
    differs: tuple[str, ...]
    params: Mapping[str, ParamSpec]

    @classmethod
    def of(cls, method: Method, costs: Mapping[str, Mapping[str, float]] | None = None) -> Known:
        """Return the facts about a registered method. `costs`: of unsound pairs, by default from the file."""
        s = method.source
        source = {"title": s.title, "authors": s.authors, "year": s.year, "url": s.url, "where": s.where}
        drafter = method.drafter
        idea = method.idea or (inspect.getdoc(drafter) or "").split("\n\n")[0].replace("\n", " ")
        return cls(
            method.name, method.title, method.promise.value, {v: p.value for v, p in method.promises.items()},
            _unsound(method, costs),
            tuple(policy.name for policy in method.policies if policy.simulates),
            method.teaches, source, method.needs, drafter.reads_target, drafter.blind, idea, method.formula,
            method.differs, method.params,
        )  # fmt: skip

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Known:
        """Return the inverse of `to_wire`."""
        params = [ParamSpec.from_wire(spec) for spec in wire["params"]]
        made: dict[str, Any] = {name: tuple(wire[name]) for name in LISTS}
        made["params"] = {spec.name: spec for spec in params}
        return cls(**wire | made)

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        wire = {name: getattr(self, name) for name in self.__dataclass_fields__}
        lists = {name: list(wire[name]) for name in LISTS}
        return wire | lists | {"params": [spec.to_wire() for spec in self.params.values()]}

    @property
    def draws_on_pictures(self) -> bool:
        """Whether it is made for prompts with images."""
        return "pictures" in self.needs

    @property
    def drafts(self) -> bool:
        """Whether it is more than plain decoding and no simulation."""
        return self.name != PLAIN and self.promise != "simulation"

    @property
    def is_training_free(self) -> bool:
        """Whether it drafts with the target alone: no draft model, no head."""
        return self.drafts and not set(self.needs) - {"trees"}

    def own(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values of this method's parameters alone, checked and converted.

        Raises:
            UnknownNameError: it has no such parameter.
            ParameterError: a value of the wrong type or out of range.
        """
        return split_values(f"parameter of {self.name}", self.params, {}, values)[0]

    def split(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return values of this method's parameters and of sampling's, checked and converted.

        Raises:
            UnknownNameError: neither has a parameter of that name.
            ParameterError: a value of the wrong type or out of range.
        """
        return split_values(f"parameter of {self.name}", self.params, sampling(), values)


@lru_cache(maxsize=256)
def describe(method: Method) -> Known:
    """Return the facts about a registered method, computed once: a method never changes, and pages need them often.

    Callers must not change the result.
    """
    return Known.of(method)


def methods() -> list[Known]:
    """Return all methods, in the order of the catalogue."""
    if _has_registry() or has_others() or is_stale():
        return list(_of_registry())
    return list(_written()[0].values())


def drafting_with(kind: str) -> list[str]:
    """Return names of the methods that use heads of this kind."""
    return [method.name for method in methods() if kind in method.needs]


def get(name: str) -> Known:
    """Return a method by name. The registry is imported only if the file cannot have it.

    That is so if the file is stale, lacks the name, or user code may have replaced the method, for example with another
    verifier (`register(…, replace=True)`).

    Raises:
        UnknownNameError: with the nearest known names.
    """
    if _has_registry() or has_others() or is_stale():
        from workbench.methods import registry

        return Known.of(registry.get(name))
    found = _written()[0]
    if name not in found:
        raise UnknownNameError.of("method", name, found)
    return found[name]


def check(name: str, values: Mapping[str, Any]) -> Known:
    """Return a method by name, after checking its parameters and sampling's.

    Raises:
        UnknownNameError: there is no such method or parameter.
        ParameterError: a value of the wrong type or out of range.
    """
    method = get(name)
    method.split(values)
    return method


def sampling() -> Mapping[str, ParamSpec]:
    """Return the sampling parameters, which all methods share."""
    if _has_registry() or is_stale():
        from workbench.core.sampling import SamplingParams

        return params_of(SamplingParams())
    return _written()[1]


def is_stale() -> bool:
    """Return whether a declaration has changed since the file was written; `workbench docs` updates it."""
    return _written()[2] != fingerprint()


def text() -> str:
    """Return the file's content for the current registry."""
    from workbench.core.sampling import SamplingParams
    from workbench.methods import deviation, registry

    costs = deviation.table(registry.of_catalogue())
    wire = {
        "about": "Written by `workbench docs` from the registry.",
        "fingerprint": fingerprint(),
        "sampling": [spec.to_wire() for spec in params_of(SamplingParams()).values()],
        "deviations": costs,
        "methods": [Known.of(method, costs).to_wire() for method in registry.of_catalogue()],
    }
    return json.dumps(wire, ensure_ascii=False, indent=1) + "\n"


@cache
def fingerprint() -> str:
    """Return a hash of all declarations: whole catalogue files, and the fields of every class of parts."""
    found = hashlib.sha256()
    folder = Path(__file__).parent
    for path in sorted([*folder.rglob("*.py"), _SAMPLING], key=lambda p: p.relative_to(folder.parent).as_posix()):
        if path.name not in (Path(__file__).name, "registry.py"):
            for line in _declarations(path):
                found.update(line.encode())
    return found.hexdigest()[:16]


def _declarations(path: Path) -> Iterator[str]:
    source = path.read_text(encoding="utf-8")
    if path.parent.name == "catalogue":
        yield source
        return
    lines = source.splitlines()
    for top in ast.parse(source).body:
        if isinstance(top, ast.ClassDef):
            yield f"class {top.name}"
            for node in top.body:
                if isinstance(node, ast.AnnAssign | ast.Assign):
                    yield "\n".join(lines[node.lineno - 1 : node.end_lineno])


def _unsound(method: Method, costs: Mapping[str, Mapping[str, float]] | None) -> dict[str, dict[str, str]]:
    from workbench.methods.deviation import taught

    judges = [verifier for verifier in method.verifiers if verifier.exact_for]
    told = {v.name: {g.name: taught(method, v, g, costs) for g in method.tree_builders} for v in judges}
    found = {verifier: {g: reason for g, reason in of.items() if reason} for verifier, of in told.items()}
    return {verifier: of for verifier, of in found.items() if of}


@cache
def _written() -> tuple[dict[str, Known], dict[str, ParamSpec], str]:
    wire: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}
    found = [Known.from_wire(method) for method in wire.get("methods", ())]
    shared = [ParamSpec.from_wire(spec) for spec in wire.get("sampling", ())]
    return {m.name: m for m in found}, {s.name: s for s in shared}, wire.get("fingerprint", "")


def _has_registry() -> bool:
    return _REGISTRY in sys.modules


def has_others() -> bool:
    """Return whether there may be methods besides those of the catalogue."""
    return bool(os.environ.get(OWN_METHODS, "").strip()) or _are_installed()


@cache
def _are_installed() -> bool:
    """Return whether an installed package adds methods; reads the metadata of all packages."""
    return bool(entry_points(group=GROUP))


def _of_registry() -> Iterator[Known]:
    from workbench.methods import registry

    return map(describe, registry.methods())
