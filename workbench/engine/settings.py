"""Settings of a sequence, and changes requested during its run. A change is applied completely or refused."""

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
from workbench.engine.method_protocols import ConfiguredMethodProtocol, MethodProtocol
from workbench.trace.events import Change

if TYPE_CHECKING:
    from PIL.Image import Image

    from workbench.models.loading import Models

SAMPLING_NAMES = tuple(params_of(SamplingParams()))
BOTH, DRAFTER = "both", "drafter"
"""Receivers of an image change during a run."""
_FOR = {BOTH: "target and drafter", DRAFTER: "the drafter only"}


@dataclass(frozen=True, slots=True)
class ImageChange:
    """Change of images from the next round on.

    Attributes:
        pil_images: new images, as many as the prompt has; each has the size of the image that it replaces.
        image_inputs: the target's tensors for the new images, with as many tokens as before.
        receiver: BOTH, or DRAFTER: the target then continues to use the old images.
    """

    pil_images: tuple[Image, ...]
    image_inputs: dict[str, Tensor]
    receiver: str = BOTH


@dataclass(frozen=True, slots=True)
class SettingsChange:
    """One requested change of a sequence's settings, with the arguments of `Sequence.change`."""

    method: MethodProtocol | None
    params: dict[str, Any]
    sampling: SamplingParams | None
    models: Models | None
    image_change: ImageChange | None


@dataclass(slots=True)
class Settings:
    """Method, sampling parameters and models of a sequence, with the changes that led to them and refused changes."""

    configured_method: ConfiguredMethodProtocol
    sampling: SamplingParams
    models: Models
    changes: list[Change]
    image_changes: list[ImageChange] = field(
        default_factory=list
    )  # at most one for both models, then one for the drafter only
    refusals: list[WorkbenchError] = field(default_factory=list)

    def with_(self, change: SettingsChange) -> Settings:
        """Return the settings after one requested change; a change with an impossible part is refused as a whole."""
        settings = dataclasses.replace(self, changes=[*self.changes], image_changes=[*self.image_changes])
        try:
            settings._apply(change.method, change.params, change.sampling, change.models, change.image_change)
        except WorkbenchError as error:
            return dataclasses.replace(self, refusals=[*self.refusals, error])
        return settings

    def _apply(
        self,
        method: MethodProtocol | None,
        params: dict[str, Any],
        sampling: SamplingParams | None,
        models: Models | None,
        swap: ImageChange | None,
    ) -> None:
        """Apply a change in place. A new method keeps values of parameters with the same meaning, if it allows them."""
        if swap is not None:
            change = Change("pictures", "as they were", f"changed for {_FOR[swap.receiver]}")
            if change not in self.changes:  # several image changes before one round are recorded once
                self.changes.append(change)
            self.image_changes = [
                *(old for old in self.image_changes if swap.receiver != BOTH and old.receiver == BOTH),
                swap,
            ]
        if models is not None and models is not self.models:
            if models.draft_model is not self.models.draft_model:
                self.changes.append(Change("drafter", self.models.draft_model_name, models.draft_model_name))
            self.changes += [Change("head", old, new) for old, new in changed_heads(self.models, models, method)]
            self.models = models
        if method is not None and method.name != self.configured_method.name:
            self.changes.append(Change("method", self.configured_method.name, method.name))
            self.configured_method = method.with_params(**_carried_over_params(method, self.configured_method))
        if params:
            old_values = self.configured_method.values
            self.configured_method = self.configured_method.with_changes(**params)
            new_values = self.configured_method.values
            self.changes += [
                Change(n, old_values.get(n), new_values[n]) for n in params if old_values.get(n) != new_values[n]
            ]
        if sampling is not None:
            for name in SAMPLING_NAMES:
                old, new = getattr(self.sampling, name), getattr(sampling, name)
                if old != new:
                    self.changes.append(Change(name, old, new))
            # A change of sampling without processors keeps the request's processors.
            self.sampling = replace(sampling, processors=sampling.processors or self.sampling.processors)


def changed_heads(before: Models, after: Models, method: MethodProtocol | None) -> Iterator[tuple[str | None, str]]:
    """Yield (old name, new name) of each of a method's heads that differs between two sets of models."""
    for kind in () if method is None else method.needs:
        old, new = before.heads.get(kind), after.heads.get(kind)
        if new is not None and new != old:
            yield None if old is None else old.name, new.name


def _carried_over_params(method: MethodProtocol, before: ConfiguredMethodProtocol) -> dict[str, Any]:
    """Return the parameter values that a new method keeps: those with the same meaning that it allows.

    Equal names are not enough: Lookahead's window counts columns, SWIFT's counts tokens. So the descriptions must be
    equal, too. Policy, tree builder and verifier are never kept, so that the new method's guarantee does not become
    weaker unless a user asks for it.
    """
    values, old_specs = {}, before.method.params
    for name, spec in method.params.items():
        is_same = name in old_specs and old_specs[name].doc == spec.doc
        if is_same and name not in ("policy", "grower", "verifier"):
            with contextlib.suppress(ParameterError):
                values[name] = spec.parse(before.values[name])
    return values
