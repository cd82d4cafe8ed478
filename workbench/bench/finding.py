"""Prompts, settings and results of the tests of a method's promise, such as exact output (greedy and sampled)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL.Image import Image
from torch import Tensor

from workbench.core.params import ParamSpec
from workbench.core.sampling import SamplingParams
from workbench.decoders.method import ConfiguredMethod, Method
from workbench.engine import Request
from workbench.methods import combinations
from workbench.models.loading import Models

PASS, FAIL, MEASURED, SKIPPED = "pass", "fail", "measured", "skipped"
NEVER_RAN, NEVER_DRAFTED = "never ran", "never drafted"
"""Reasons why a test without errors fails: the method never ran, or it never drafted, so that nothing was tested."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt: token ids, and for targets that read images the processor's output.

    Attributes:
        ids: token ids, including vision tokens.
        images: the processor's dict, or None.
        pil_images: the images as PIL objects, for drafters with an image processor of their own.
        raw_prompt: the prompt before vision tokens were inserted; empty without images.
    """

    ids: Sequence[int]
    images: dict[str, Tensor] | None = None
    pil_images: tuple[Image, ...] = ()
    raw_prompt: Sequence[int] | str = ()

    @classmethod
    def of(cls, prompt: Sequence[int] | Prompt) -> Prompt:
        """Convert token ids to a `Prompt`; a `Prompt` is returned unchanged."""
        return prompt if isinstance(prompt, Prompt) else cls(prompt)

    def request(self, configured: ConfiguredMethod, sampling: SamplingParams | None = None, **options: Any) -> Request:
        """Return an engine request that continues this prompt with a configured method."""
        return Request(
            self.raw_prompt or list(self.ids),
            configured,
            sampling or SamplingParams(),
            image_inputs=self.images,
            pil_images=self.pil_images,
            **options,
        )

    def pixels(self, models: Models) -> dict[str, Tensor]:
        """Return the image inputs of the target's forward pass, such as pixel values; {} without images."""
        inputs = {k: v for k, v in (self.images or {}).items() if k not in ("input_ids", "attention_mask")}
        target = models.target
        return {k: v.to(target.device, target.dtype if v.is_floating_point() else None) for k, v in inputs.items()}


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one test of a method's promise about its output.

    Attributes:
        method: registry name of the method.
        promise: promise of the tested method, such as "exact".
        claim: statement that was tested.
        verdict: "pass", "fail" (including a test that tested nothing), "measured" (nothing was promised: the measured
            value is reported) or "skipped".
        detail: the evidence, in a few words.
        seconds: duration of the test.
        kind: "greedy", "families", "distribution" (of sampled tokens), "availability", or "reference" (there is
            no reference output to compare with).
        figures: the evidence as numbers: `equal` of `tried` texts over `prompts` or `families`, with `drafted` tokens;
            or for a distribution the `statistic`, `freedom` and `p_value` of the setting with the worst fit among
            `tests` settings of `runs` samples each, the p-value corrected for their number, and its `total_variation`.
    """

    method: str
    promise: str
    claim: str
    verdict: str
    detail: str
    seconds: float = 0.0
    kind: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


def boundary_settings(
    method: Method, kinds: Sequence[str] = ("int", "float", "bool", "choice")
) -> list[ConfiguredMethod]:
    """Return copies of the method that each set one parameter to an end of its range, or to another of its choices.

    Some parameters have an effect only for certain values of a second one (`ParamSpec.when`). Copies that vary them
    also set the second one to the first such value.
    """
    settings = []
    for name, spec in method.params.items():
        if spec.kind in kinds:
            parent, _, alternatives = spec.when.partition(" = ")
            parent_setting = {parent: alternatives.split(" or ")[0]} if alternatives else {}
            settings += [method.with_params(**parent_setting, **{name: v}) for v in _ends(spec) if v != spec.default]
    return settings


def spread_order(settings: Sequence[ConfiguredMethod]) -> list[ConfiguredMethod]:
    """Reorder the settings so that the first k, for any k, are spread evenly over the whole list."""
    n = len(settings)
    step = next((k for k in range(round(n * 0.618), n) if math.gcd(k, n) == 1), 1)  # golden-section steps spread evenly
    return [settings[i * step % n] for i in range(n)]


def _ends(spec: ParamSpec) -> list[Any]:
    if spec.kind == "choice":
        return list(spec.choices)
    if spec.kind == "bool":
        return [False, True]
    cast = int if spec.kind == "int" else float
    return [cast(v) for v in (spec.ge, spec.le) if v is not None]


def describe_setting(configured: ConfiguredMethod) -> str:
    """Return the non-default parameters of a configured method in words."""
    return combinations.changed_params(configured)
