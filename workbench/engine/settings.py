"""What a row runs with, and changes that people ask for while it runs: each is taken in whole, or refused."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from workbench.core.errors import ParameterError, WorkbenchError
from workbench.core.params import params_of
from workbench.core.sampling import SamplingParams
from workbench.engine.configured import Choice, Chosen
from workbench.trace.events import Change

if TYPE_CHECKING:
    from PIL.Image import Image

    from workbench.models.loading import Models

SAMPLING_NAMES = tuple(params_of(SamplingParams()))
BOTH, DRAFTER = "both", "drafter"
"""Who sees a picture that is changed in mid-run."""
_FOR = {BOTH: "target and drafter", DRAFTER: "the drafter only"}


@dataclass(frozen=True, slots=True)
class Swap:
    """Other pictures from the next round on.

    Attributes:
        pictures: as many as the prompt has, each of the size of the one it replaces.
        images: the target's tensors for them, with as many tokens as before.
        sees: BOTH, or DRAFTER: then the target goes on with what it has read.
    """

    pictures: tuple[Image, ...]
    images: dict[str, Tensor]
    sees: str = BOTH


@dataclass(frozen=True, slots=True)
class Ask:
    """One request for change, as `Row.change` takes it."""

    method: Choice | None
    params: dict[str, Any]
    sampling: SamplingParams | None
    models: Models | None
    swap: Swap | None


@dataclass(slots=True)
class Settings:
    """What a row runs with, how that differs from before, and what was asked for and cannot be."""

    configured: Chosen
    sampling: SamplingParams
    models: Models
    changes: list[Change]
    swaps: list[Swap] = field(default_factory=list)  # at most one for both, then one for the drafter alone
    refused: list[WorkbenchError] = field(default_factory=list)

    def with_(self, ask: Ask) -> Settings:
        """One request for change taken in, whole or, where some of it cannot be, not at all."""
        then = dataclasses.replace(self, changes=[*self.changes], swaps=[*self.swaps])
        try:
            then._apply(ask.method, ask.params, ask.sampling, ask.models, ask.swap)
        except WorkbenchError as error:
            return dataclasses.replace(self, refused=[*self.refused, error])
        return then

    def _apply(
        self,
        method: Choice | None,
        params: dict[str, Any],
        sampling: SamplingParams | None,
        models: Models | None,
        swap: Swap | None,
    ) -> None:
        """A change of method keeps the parameters that mean the same and fit."""
        if swap is not None:
            change = Change("pictures", "as they were", f"changed for {_FOR[swap.sees]}")
            if change not in self.changes:  # several strokes before one round are one change
                self.changes.append(change)
            self.swaps = [*(old for old in self.swaps if swap.sees != BOTH and old.sees == BOTH), swap]
        if models is not None and models is not self.models:
            if models.writer is not self.models.writer:
                self.changes.append(Change("drafter", self.models.writer_name, models.writer_name))
            self.changes += [Change("head", old, new) for old, new in other_heads(self.models, models, method)]
            self.models = models
        if method is not None and method.name != self.configured.name:
            self.changes.append(Change("method", self.configured.name, method.name))
            self.configured = method.with_params(**_kept(method, self.configured))
        if params:
            before = self.configured.values
            self.configured = self.configured.changed(**params)
            after = self.configured.values
            self.changes += [Change(n, before.get(n), after[n]) for n in params if before.get(n) != after[n]]
        if sampling is not None:
            for name in SAMPLING_NAMES:
                old, new = getattr(self.sampling, name), getattr(sampling, name)
                if old != new:
                    self.changes.append(Change(name, old, new))
            # A change of temperature says nothing of processors: what the request asked for stays.
            self.sampling = replace(sampling, processors=sampling.processors or self.sampling.processors)


def other_heads(before: Models, after: Models, chosen: Choice | None) -> Iterator[tuple[str | None, str]]:
    """Names of the heads that a method drafts with, before and after, where these are others."""
    for kind in () if chosen is None else chosen.needs:
        old, new = before.heads.get(kind), after.heads.get(kind)
        if new is not None and new != old:
            yield None if old is None else old.name, new.name


def _kept(method: Choice, before: Chosen) -> dict[str, Any]:
    """The values that the method takes over: of parameters that mean the same to both, where it allows them.

    A name alone is not enough: Lookahead's window counts columns, SWIFT's counts tokens. What a parameter means is what
    its description says. Which policy, grower and verifier decide is the new method's to say: its promise is not
    weakened unasked.
    """
    kept, known = {}, before.method.params
    for name, spec in method.params.items():
        alike = name in known and known[name].doc == spec.doc
        if alike and name not in ("policy", "grower", "verifier"):
            with contextlib.suppress(ParameterError):
                kept[name] = spec.parse(before.values[name])
    return kept
