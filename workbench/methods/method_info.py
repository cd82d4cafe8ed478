"""Metadata of decoding methods that are available without PyTorch, for example to check requests.

The metadata are names, guarantees about the output, requirements and parameters. A file in the user's cache folder
contains them. The first process that needs them after a declaration has changed writes the file from the registry. If
the registry has been imported already, or if there are user-defined methods, which the file cannot contain, the
registry is used instead of the file.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
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
from workbench.kernels import disk_cache
from workbench.methods import GROUP, OWN_METHODS

if TYPE_CHECKING:
    from workbench.decoders.method import Method

CACHE = "catalogue.json"
"""Name of the file with the metadata of all methods in the user's cache folder."""
PROMISES = (
    "*exact*: the target's own distribution, whatever the drafter; *approximate*: deviates from it by an amount that "
    "a parameter sets; *simulation*: uses information that no real drafter has."
)
"""Meaning of each guarantee about a method's output, in Markdown, as a legend for tables of methods."""
PLAIN = "autoregressive"
_REGISTRY = "workbench.methods.registry"
_SAMPLING = Path(__file__).resolve().parents[1] / "core" / "sampling.py"


def describe_needs(needs: Sequence[str]) -> str:
    """Return the requirements of a decoding method as text.

    Args:
        needs: requirements as in `Part.needs`. A name that is not in `declarations.NEEDS` is a type of trained head.
    """
    if not needs:
        return "nothing but the target"
    return ", ".join(NEEDS.get(need, f"{need} heads trained for the target") for need in needs)


LISTS = ("needs", "differs", "simulating")
"""Attributes of `MethodInfo` that are tuples in Python and lists in JSON."""


@dataclass(frozen=True, slots=True)
class MethodInfo:
    """Metadata of a decoding method as plain data.

    Attributes:
        name: registry name.
        title: display name.
        promise: value of `workbench.decoders.method.Promise`.
        promises: promise with each verifier, by the verifier's name; empty if the method has only one verifier.
        unsound: why the output is not exact, with its deviation, by verifier and tree builder. Contains only inexact
            pairs of a verifier and a tree builder, and only verifiers that are exact for some drafts.
        simulating: names of policies that use information that is not available in practice. Such a policy makes an
            exact method a simulation.
        teaches: one sentence on what the method demonstrates.
        source: bibliographic fields of the paper: "title", "authors", "year", "url", "where".
        needs: requirements besides the target.
        reads_target: whether the drafter reads the target's hidden states.
        blind: whether the drafter ignores images.
        idea: explanation of the method in a sentence or two; by default the first paragraph of the drafter's docstring.
        formula: main formula of the method; may be empty.
        differs: differences from the paper, a sentence or two each.
        params: parameters by name.
        group: heading under which lists show the method, one of `declarations.GROUPS`.
        head: type of the method's trained head, if `workbench train KIND --target MODEL` trains such heads for any
            target; else empty.
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
    group: str
    head: str

    @classmethod
    def of(cls, method: Method, costs: Mapping[str, Mapping[str, float]] | None = None) -> MethodInfo:
        """Return the metadata of a registered method.

        Args:
            method: method of the registry.
            costs: deviations of inexact verifiers, as `deviation.table` returns them; by default `deviations()`.
        """
        s = method.source
        source = {"title": s.title, "authors": s.authors, "year": s.year, "url": s.url, "where": s.where}
        drafter, head = method.drafter, method.head
        idea = method.idea or (inspect.getdoc(drafter) or "").split("\n\n")[0].replace("\n", " ")
        return cls(
            method.name, method.title, method.promise.value, {v: p.value for v, p in method.promises.items()},
            _unsound(method, costs),
            tuple(policy.name for policy in method.policies if policy.simulates),
            method.summary, source, method.needs, drafter.reads_target, drafter.ignores_images, idea, method.formula,
            method.differences, method.params, method.group, head.kind if head and head.is_for_any_target else "",
        )  # fmt: skip

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> MethodInfo:
        """Create the metadata of a method from the JSON values that `to_wire` returned."""
        params = [ParamSpec.from_wire(spec) for spec in wire["params"]]
        fields: dict[str, Any] = {name: tuple(wire[name]) for name in LISTS}
        fields["params"] = {spec.name: spec for spec in params}
        return cls(**wire | fields)

    def to_wire(self) -> dict[str, Any]:
        """Return the metadata of the method as JSON values."""
        wire = {name: getattr(self, name) for name in self.__dataclass_fields__}
        lists = {name: list(wire[name]) for name in LISTS}
        return wire | lists | {"params": [spec.to_wire() for spec in self.params.values()]}

    @property
    def reads_images(self) -> bool:
        """Return whether the method is made for prompts with images."""
        return "pictures" in self.needs

    @property
    def drafts(self) -> bool:
        """Return whether the method really drafts, that is, it is neither plain decoding nor a simulation."""
        return self.name != PLAIN and self.promise != "simulation"

    @property
    def is_training_free(self) -> bool:
        """Return whether the method drafts with the target alone: no draft model, no head."""
        return self.drafts and not set(self.needs) - {"trees"}

    def check_params(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Check and convert the values of a decoding method's parameters.

        Raises:
            UnknownNameError: the method has no such parameter.
            ParameterError: a value has the wrong type or is out of range.
        """
        return split_values(f"parameter of {self.name}", self.params, {}, values)[0]

    def split(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Check and convert the values of a decoding method's parameters and of the sampling parameters.

        Returns:
            Values of the method's parameters, and values of the sampling parameters.

        Raises:
            UnknownNameError: neither the method nor sampling has a parameter of that name.
            ParameterError: a value has the wrong type or is out of range.
        """
        return split_values(f"parameter of {self.name}", self.params, sampling(), values)


@lru_cache(maxsize=256)
def describe(method: Method) -> MethodInfo:
    """Return the metadata of a registered method. They are computed once per method, because pages need them often.

    Callers must not change the result.
    """
    return MethodInfo.of(method)


def methods() -> list[MethodInfo]:
    """Return the metadata of all methods, in the order of the catalogue."""
    if _has_registry() or has_user_methods() or is_stale():
        return list(_of_registry())
    return list(_cached().methods.values())


def drafting_with(kind: str) -> list[str]:
    """Return the names of the methods that draft with trained heads of one type, such as "medusa"."""
    return [method.name for method in methods() if kind in method.needs]


def trainable_heads() -> list[str]:
    """Return the types of heads (KIND) that `workbench train KIND --target MODEL` trains for any target."""
    return list(dict.fromkeys(method.head for method in methods() if method.head))


def get(name: str) -> MethodInfo:
    """Return the metadata of the decoding method with the given name.

    The registry is imported only if the file with the metadata cannot be used: it is stale or lacks the name, or user
    code may have replaced the method, for example with another verifier (`register(…, replace=True)`).

    Raises:
        UnknownNameError: no method has this name; the message lists the nearest known names.
    """
    if _has_registry() or has_user_methods() or is_stale():
        return MethodInfo.of(_registry().get(name))
    by_name = _cached().methods
    if name not in by_name:
        raise UnknownNameError.of("method", name, by_name)
    return by_name[name]


def check(name: str, values: Mapping[str, Any]) -> MethodInfo:
    """Check a decoding method's name, its parameters and the sampling parameters, and return its metadata.

    Raises:
        UnknownNameError: there is no such method or parameter.
        ParameterError: a value has the wrong type or is out of range.
    """
    method = get(name)
    method.split(values)
    return method


def sampling() -> Mapping[str, ParamSpec]:
    """Return the sampling parameters, which all decoding methods share, with their types and ranges."""
    if _has_registry() or is_stale():
        from workbench.core.sampling import SamplingParams

        return params_of(SamplingParams())
    return _cached().sampling


def is_stale() -> bool:
    """Return whether the cache file with the metadata of methods is missing, damaged or out of date."""
    return not _cached().methods


@cache
def deviations() -> Mapping[str, Mapping[str, float]]:
    """Return the deviation of each inexact verifier's output, see `deviation.table`. This may take seconds."""
    return save()["deviations"] if is_stale() else _cached().deviations


def save() -> dict[str, Any]:
    """Return the metadata of all methods, and write them to the user's cache folder.

    The file is not written if there may be user-defined methods, which it cannot contain.
    """
    content = facts()
    if not has_user_methods():
        disk_cache.write(CACHE, content)
        _cached.cache_clear()
    return content


def facts() -> dict[str, Any]:
    """Return the metadata of all methods as JSON values for the cache file, computed from the current registry."""
    from workbench.core.sampling import SamplingParams
    from workbench.methods import deviation, registry

    costs = deviation.table(registry.catalogue_methods())
    return {
        "fingerprint": fingerprint(),
        "sampling": [spec.to_wire() for spec in params_of(SamplingParams()).values()],
        "deviations": costs,
        "methods": [MethodInfo.of(method, costs).to_wire() for method in registry.catalogue_methods()],
    }


@cache
def fingerprint() -> str:
    """Return a hash of the declarations of all methods: `__init__` files, and the class fields of all other files."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for path in sorted([*folder.rglob("*.py"), _SAMPLING], key=lambda p: p.relative_to(folder.parent).as_posix()):
        if path.name not in (Path(__file__).name, "registry.py"):
            for line in _declarations(path):
                digest.update(line.encode())
    return digest.hexdigest()[:16]


def _declarations(path: Path) -> Iterator[str]:
    source = path.read_text(encoding="utf-8")
    if path.name == "__init__.py":
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
    from workbench.methods.deviation import explain_unsound

    verifiers = [verifier for verifier in method.verifiers if verifier.exact_for]
    reasons = {v.name: {g.name: explain_unsound(method, v, g, costs) for g in method.tree_builders} for v in verifiers}
    unsound = {
        verifier: {g: reason for g, reason in by_builder.items() if reason} for verifier, by_builder in reasons.items()
    }
    return {verifier: by_builder for verifier, by_builder in unsound.items() if by_builder}


@dataclass(frozen=True, slots=True)
class _Facts:
    """Metadata of all methods, as read from the file in the user's cache folder."""

    methods: Mapping[str, MethodInfo]
    sampling: Mapping[str, ParamSpec]
    deviations: Mapping[str, Mapping[str, float]]


@cache
def _cached() -> _Facts:
    """Read the cache file with the metadata of methods, once per process.

    The result is empty if the file is missing, damaged or out of date.
    """
    wire = disk_cache.read(CACHE)
    if wire.get("fingerprint") != fingerprint():
        return _Facts({}, {}, {})
    try:
        entries = [MethodInfo.from_wire(method) for method in wire["methods"]]
        shared = [ParamSpec.from_wire(spec) for spec in wire["sampling"]]
        return _Facts({m.name: m for m in entries}, {spec.name: spec for spec in shared}, wire["deviations"])
    except (KeyError, TypeError, ValueError, AttributeError):  # damaged
        return _Facts({}, {}, {})


def _registry() -> Any:
    """Import the method registry, and rewrite the cache file with the metadata of methods if it is out of date."""
    from workbench.methods import registry

    if is_stale():
        save()
    return registry


def _has_registry() -> bool:
    return _REGISTRY in sys.modules


def has_user_methods() -> bool:
    """Return whether there may be user-defined methods besides those of the catalogue."""
    return bool(os.environ.get(OWN_METHODS, "").strip()) or _are_installed()


@cache
def _are_installed() -> bool:
    """Return whether an installed package adds decoding methods. This reads the metadata of all packages."""
    return bool(entry_points(group=GROUP))


def _of_registry() -> Iterator[MethodInfo]:
    return map(describe, _registry().methods())
