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
"""Models that get new images during a run: target and drafter, or only the drafter."""
_FOR = {BOTH: "target and drafter", DRAFTER: "the drafter only"}


@dataclass(frozen=True, slots=True)
class ImageChange:
    """Change of a run's images from the next round on.

    Attributes:
        pil_images: new images, as many as the prompt has; each has the size of the image that it replaces.
        image_inputs: the target's tensors for the new images, with as many tokens as before.
        receiver: models that get the new images: BOTH, or DRAFTER, if the target continues to use the old images.
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


@dataclass(frozen=True, slots=True)
class ActiveSettings:
    """Method with its parameters, sampling parameters and models of a sequence, which are changed together."""

    configured_method: ConfiguredMethodProtocol
    sampling: SamplingParams
    models: Models


@dataclass(slots=True)
class Settings:
    """Settings of a sequence after requested changes.

    Attributes:
        active: method, sampling parameters and models after the changes.
        changes: changes that led to these settings, for the trace.
        image_changes: changes of images: at most one for both models, then one for the drafter only.
        refusals: errors of the requested changes that were left out.
    """

    active: ActiveSettings
    changes: list[Change] = field(default_factory=list)
    image_changes: list[ImageChange] = field(default_factory=list)
    refusals: list[WorkbenchError] = field(default_factory=list)

    def with_(self, change: SettingsChange) -> Settings:
        """Return the settings after one requested change, which is refused if any part of it is impossible."""
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
        image_change: ImageChange | None,
    ) -> None:
        """Apply a requested change to these settings in place.

        A new method keeps the values of parameters with the same meaning, if it allows these values.
        """
        if image_change is not None:
            change = Change("pictures", "as they were", f"changed for {_FOR[image_change.receiver]}")
            if change not in self.changes:  # several image changes before one round are recorded once
                self.changes.append(change)
            self.image_changes = [
                *(old for old in self.image_changes if image_change.receiver != BOTH and old.receiver == BOTH),
                image_change,
            ]
        configured, old_sampling, old_models = self.active.configured_method, self.active.sampling, self.active.models
        if models is not None and models is not old_models:
            if models.draft_model is not old_models.draft_model:
                self.changes.append(Change("drafter", old_models.draft_model_name, models.draft_model_name))
            self.changes += [Change("head", old, new) for old, new in changed_heads(old_models, models, method)]
        if method is not None and method.name != configured.name:
            self.changes.append(Change("method", configured.name, method.name))
            configured = method.with_params(**_carried_over_params(method, configured))
        if params:
            old_values, configured = configured.values, configured.with_changes(**params)
            new_values = configured.values
            self.changes += [
                Change(n, old_values.get(n), new_values[n]) for n in params if old_values.get(n) != new_values[n]
            ]
        if sampling is not None:
            for name in SAMPLING_NAMES:
                old, new = getattr(old_sampling, name), getattr(sampling, name)
                if old != new:
                    self.changes.append(Change(name, old, new))
            # A change of sampling without processors keeps the request's processors.
            sampling = replace(sampling, processors=sampling.processors or old_sampling.processors)
        self.active = ActiveSettings(configured, sampling or old_sampling, models or old_models)


def changed_heads(before: Models, after: Models, method: MethodProtocol | None) -> Iterator[tuple[str | None, str]]:
    """Yield (old name, new name) of the heads of a method that differ between two sets of models."""
    for kind in () if method is None else method.needs:
        old, new = before.heads.get(kind), after.heads.get(kind)
        if new is not None and new != old:
            yield None if old is None else old.name, new.name


def _carried_over_params(method: MethodProtocol, before: ConfiguredMethodProtocol) -> dict[str, Any]:
    """Return the parameter values that a sequence keeps when its method changes.

    A value is kept if the new method has a parameter with the same meaning and allows the value.

    Equal names are not enough: Lookahead's window counts columns, SWIFT's counts tokens. So the parameters'
    descriptions must be equal, too. Policy, tree builder and verifier are never kept, so that the new method's
    guarantee does not become weaker unless a user asks for it.
    """
    values, old_specs = {}, before.method.params
    for name, spec in method.params.items():
        is_same = name in old_specs and old_specs[name].doc == spec.doc
        if is_same and name not in ("policy", "grower", "verifier"):
            with contextlib.suppress(ParameterError):
                values[name] = spec.parse(before.values[name])
    return values
