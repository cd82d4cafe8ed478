"""Measurements for the papers' claims about drafting with images: on the bundled vision-language models.

τ is measured with greedy decoding on captions of held-out scenes; every drafter drafts to the same depth. A
ratio of two settings is computed scene by scene.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from workbench.bench import vision_suite
from workbench.bench.claims import Measurement, speedup_figure
from workbench.bench.contenders import EngineContender
from workbench.bench.interleaved_measurement import measure
from workbench.bench.statistics import Quotient, mean, rates, ratio_of_quotients
from workbench.bench.vision_settings import DEPTH, SceneQuestion
from workbench.core.sampling import SamplingParams
from workbench.decoders.declarations import Setting
from workbench.engine import Engine, Models, Request
from workbench.methods import registry
from workbench.models.loading import load_models
from workbench.scenes.held import CAPTION_TOKENS
from workbench.trace import metrics
from workbench.trace.events import Trace
from workbench.trace.speedup import speedup

SCENES, TIMED, REPEATS = 100, 12, 3
"""Number of scenes for a claim about token counts and for a claim about speed, and number of timed runs per scene."""


@lru_cache(maxsize=1)
def _models() -> Models:
    return load_models(vision_suite.TARGET, None, "cpu")


@lru_cache(maxsize=1)
def _captions() -> list[SceneQuestion]:
    return [question for question in vision_suite.questions(SCENES, 0) if question.kind == "caption"]


@lru_cache(maxsize=32)
def _traces(name: str) -> list[Trace]:
    return vision_suite.traces_of(_setting(name), _models(), _captions())


def _setting(name: str) -> Setting:
    return next(s for s in vision_suite.settings() if s.name == name)


def _note(scenes: int, over: str) -> str:
    return f"vision-target, {scenes} captions of held-out scenes, greedy, {DEPTH} levels{over}"


class _ImageContender(EngineContender):
    """Contender (compared method) that answers questions about images."""

    def request(self, prompt: SceneQuestion) -> Request:
        return vision_suite.request(self.engine.models, prompt, self.configured)


@dataclass(frozen=True, slots=True)
class VisionLab:
    """Measurements of one method in the settings of the vision suite, named like the rows of the vision board.

    Attributes:
        method: registry name of the method.
    """

    method: str

    @property
    def setting(self) -> str:
        """Return a description of the vision-language models and the prompts of the measurement, in words."""
        return _note(SCENES, "")

    @property
    def facts(self) -> Mapping[str, str]:
        """Return the caption words that state facts of an image, such as colours; see `metrics.acceptance_by_kind`."""
        return vision_suite.FACTS

    def traces(self, name: str) -> list[Trace]:
        """Return the traces of the setting `name`: one run for each held-out scene (image)."""
        return _traces(name)

    def mean(self, values: Sequence[float]) -> Measurement:
        """Return the measurement of a metric as the mean over scenes, given one value per scene."""
        return Measurement.of(mean(values), f"{self.setting}; mean over scenes")

    def ratio_of_quotients(self, numerator: Quotient, denominator: Quotient) -> Measurement:
        """Return (Σ a / Σ b) / (Σ c / Σ d) with its confidence interval; the sums are over scenes (images).

        Args:
            numerator: values a and b of each scene.
            denominator: values c and d of each scene.
        """
        return Measurement.of(ratio_of_quotients(numerator, denominator), f"{self.setting}; over all rounds")

    def tau(self, name: str) -> Measurement:
        """Measure τ of the setting `name` as the mean over scenes."""
        return self.mean(self._taus(name))

    def tau_over(self, other: str, name: str) -> Measurement:
        """Measure τ of the setting `name` relative to the setting `other`, scene by scene."""
        ratios = [a / b for a, b in zip(self._taus(name), self._taus(other), strict=True)]
        ratio = self.mean(ratios)
        return Measurement(ratio.value, ratio.low, ratio.high, ratio.n, f"{ratio.setting}; {name} over {other}")

    def speed(self, name: str) -> Measurement:
        """Measure the speed-up of the setting `name` over plain decoding; see `workbench.trace.speedup`.

        Each scene counts as a prompt.
        """
        method = registry.get(self.method).with_params(depth=DEPTH, **_setting(name).params)
        plain = registry.get("autoregressive").with_params()
        engine = Engine(_models(), record=False)
        contenders = [
            _ImageContender(engine, configured, SamplingParams(), CAPTION_TOKENS) for configured in (plain, method)
        ]
        samples = measure(contenders, _captions()[:TIMED], REPEATS)[0]
        plain_rates, method_rates = (rates(s for s in samples if s.contender == c.name) for c in contenders)
        return speedup_figure(speedup(method_rates, plain_rates), _note(TIMED, ", decoding only"))

    def _taus(self, name: str) -> list[float]:
        return [metrics.tau(trace.rounds) or 0.0 for trace in self.traces(name)]
