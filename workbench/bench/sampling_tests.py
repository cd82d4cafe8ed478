"""Tests of sampled tokens against the target's exact joint distribution, one test per setting of a method."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.bench.finding import (
    FAIL,
    MEASURED,
    NEVER_RAN,
    PASS,
    SKIPPED,
    Finding,
    Prompt,
    boundary_settings,
    describe_setting,
)
from workbench.bench.goodness import (
    MIN_EXPECTED,
    Fit,
    chi_square,
    count_firsts,
    holm,
    joint_distribution,
    total_variation,
    variation_by_chance,
)
from workbench.bench.tiny_models import tiny_models
from workbench.core.errors import MethodUnavailableError, ParameterError, WorkbenchError
from workbench.core.params import params_of
from workbench.core.promise import Promise
from workbench.core.sampling import SamplingParams, to_probs
from workbench.decoders.method import ConfiguredMethod, Method
from workbench.engine import Engine
from workbench.models.loading import Models

ALPHA = 1e-4
"""Probability that the sampling test calls a correct method wrong, for any number of tested settings (Holm)."""
BATCH = 48


@dataclass(frozen=True, slots=True)
class SamplingTest:
    """A sampling test: sampling parameters, and number of first tokens to compare with their exact joint distribution.

    Attributes:
        name: description of the test.
        sampling: sampling parameters of all runs.
        n_tokens: number of first tokens that are compared.
        has_close_drafter: whether drafter and target are similar: most drafts are then accepted, so that late
            rejections and rounds without a rejection are tested too.
    """

    name: str
    sampling: SamplingParams
    n_tokens: int
    has_close_drafter: bool = False

    def build_models(self, tokenizer: Any) -> Models:
        """Return the tiny target and drafter for the sampling test of methods that need no trained head."""
        return tiny_models(tokenizer, 6, 2, shares=(0.9, 0.1)) if self.has_close_drafter else tiny_models(tokenizer)


SAMPLING_TESTS = (
    SamplingTest("whole vocabulary, first 2 tokens", SamplingParams(temperature=1.0), 2),
    SamplingTest("temperature 0.7, top-k 2, first 4 tokens", SamplingParams(temperature=0.7, top_k=2), 4),
    SamplingTest(
        "whole vocabulary, first 4 tokens, similar drafter", SamplingParams(temperature=1.0), 4, has_close_drafter=True
    ),
)
HEAD_TEMPERATURES = (1.0, 2.0, 4.0, 8.0, 16.0)
HEAD_CELLS = 8
"""Required number of outcomes in a sampling test of trained heads. Heads can only be tested with their own target,
whose first tokens may be almost certain. A single possible outcome would test nothing."""
TINY_PROMPT = (3, 1, 4, 1, 5, 3, 1, 4, 1)
"""Token ids of a prompt that repeats itself, so that methods that copy from the text can draft."""


def check_distribution(
    method: Method,
    models: Models,
    test: SamplingTest,
    runs: int,
    prompt: Sequence[int] | Prompt = TINY_PROMPT,
    only_setting: ConfiguredMethod | None = None,
    seconds: float = math.inf,
) -> Finding:
    """Test sampled first tokens against their exact joint distribution.

    The defaults and every other choice with the same promise (a policy, for example) are tested separately: in one
    common test, correct choices would hide a choice with a wrong distribution. The p-values are corrected for the
    number of tests (Holm), so that a failure is a false alarm with probability `ALPHA`. Choices that promise less are
    not tested, but listed.

    Args:
        method: method from the registry. An approximate method gets a measured distance, since it does not promise the
            distribution; any other method passes or fails.
        models: models to run on.
        test: sampling parameters, and number of first tokens.
        runs: samples of each setting.
        prompt: token ids, or a prompt with images.
        only_setting: the only setting that is tested, for its own promise; None: the defaults and the choices.
        seconds: time in seconds after which no other setting is started; the defaults are always tested. The result
            reports the number of settings that were left out.
    """
    start = time.perf_counter()
    parsed, claim = Prompt.of(prompt), f"sampling distribution ({test.name})"
    exact = exact_distribution(models, test, parsed)
    fits: dict[str, Fit] = {}
    variations: dict[str, float] = {}
    refused: list[str] = []
    left_out = 0
    settings, weaker = settings_by_promise(method) if only_setting is None else ([only_setting], [])
    promise = (only_setting or method).promise
    for i, configured in enumerate(settings):
        if i and time.perf_counter() - start > seconds:
            left_out = len(settings) - i
            break
        try:
            samples = sample_many(configured, models, test, runs, parsed, first_seed=i * runs)
        except (ParameterError, MethodUnavailableError) as error:
            refused.append(f"{describe_setting(configured)} ({error})")
            continue
        counts = count_firsts(samples, test.n_tokens)
        fits[describe_setting(configured)] = chi_square(counts, exact)
        variations[describe_setting(configured)] = total_variation(counts, exact)

    def found(verdict: str, detail: str, figures: dict[str, object]) -> Finding:
        text = f"{detail}; refused: {', '.join(refused)}" if refused else detail
        text += f"; no promised distribution, not tested: {', '.join(map(describe_setting, weaker))}" if weaker else ""
        text += f"; the time limit left {left_out} of {len(settings)} settings untested" if left_out else ""
        duration = time.perf_counter() - start
        return Finding(method.name, promise.value, claim, verdict, text, duration, "distribution", figures)

    if not fits:
        return found(FAIL, NEVER_RAN, {})
    adjusted = dict(zip(fits, holm([0.0 if fit.impossible else fit.p_value for fit in fits.values()]), strict=True))
    worst = min(adjusted, key=lambda name: (not fits[name].impossible, adjusted[name]))
    broken = [name for name, p in adjusted.items() if fits[name].impossible or p < ALPHA]
    fit = fits[worst]
    figures = {
        "statistic": fit.statistic,
        "freedom": fit.freedom,
        "p_value": fit.p_value if fit.impossible else adjusted[worst],
        "runs": runs,
        "tests": len(fits),
        "setting": worst,
        "total_variation": variations[worst],
        "by_chance": variation_by_chance(exact, runs),
        "impossible": len(fit.impossible),
        "settings": {name: {"p_value": fits[name].p_value, "adjusted": adjusted[name]} for name in fits},
        "settings_left_out": left_out,
    }
    detail = f"{runs} sampled runs{_among(len(fits), worst, adjusted[worst])}: {fit}"
    if all(not result.freedom and not result.impossible for result in fits.values()):
        return found(SKIPPED, f"the target's distribution has a single outcome: {detail}", {})
    if promise is Promise.APPROXIMATE:
        by_chance = f"{figures['by_chance']:.3f} expected by chance"
        return found(MEASURED, f"{detail}; total variation {variations[worst]:.3f} ({by_chance})", figures)
    if broken:
        return found(FAIL, detail + (f"; broken with {', '.join(broken)}" if len(fits) > 1 else ""), figures)
    return found(PASS, detail, figures)


def settings_by_promise(method: Method) -> tuple[list[ConfiguredMethod], list[ConfiguredMethod]]:
    """Return the settings with the method's promise (such as exact output), and those with another promise.

    The settings are the defaults, and copies that change one parameter with choices. The first list also has each exact
    verifier with each numeric parameter at the low end of its range: some errors occur only at such a bound, which is
    rarely reached with the default.
    """
    settings = [method.with_params(), *boundary_settings(method, kinds=("choice",))]
    matching, weaker = ([c for c in settings if (c.promise is method.promise) is is_same] for is_same in (True, False))
    lowest = [method.with_params(**values) for values in low_ends(method)]
    return matching + [c for c in lowest if c.promise is method.promise is not Promise.APPROXIMATE], weaker


def low_ends(method: Method) -> Iterator[dict[str, Any]]:
    """Yield settings: each exact verifier, with each of its numeric parameters at the low end of its range in turn."""
    for verifier in (v for v in method.verifiers if v.exact_for):
        base: dict[str, Any] = {"verifier": verifier.name} if method.other_verifiers else {}
        for name, spec in params_of(verifier).items():
            if spec.kind in ("int", "float") and spec.ge not in (None, spec.default):
                yield base | {name: spec.ge}


def _among(tests: int, worst: str, p: float) -> str:
    """Return a note for a test result: number of settings and the one with the worst fit; empty for one setting."""
    return (
        ""
        if tests == 1
        else (f" of each of {tests} settings; worst fit with {worst} (p = {p:.2g} after Holm's correction)")
    )


def head_sampling_test(models: Models, prompt: Sequence[int] | Prompt, runs: int) -> SamplingTest:
    """Return the sampling test of a trained head: the first three tokens with top-k 3, so that they have few outcomes.

    The temperature is the lowest of `HEAD_TEMPERATURES` at which at least `HEAD_CELLS` outcomes have a large enough
    expected count in `runs` samples; the highest temperature if no temperature is sufficient.
    """
    for temperature in HEAD_TEMPERATURES:
        name = f"given target, temperature {temperature:g}, top-k 3, first 3 tokens"
        test = SamplingTest(name, SamplingParams(temperature=temperature, top_k=3), 3)
        exact = exact_distribution(models, test, Prompt.of(prompt))
        if sum(runs * p >= MIN_EXPECTED for p in exact.values()) >= HEAD_CELLS:
            break
    return test


def exact_distribution(models: Models, test: SamplingTest, prompt: Prompt) -> dict[tuple[int, ...], float]:
    """Return the target's joint distribution of the first tokens after a prompt, with the sampling of the test."""
    pixels = prompt.pixels(models)
    return joint_distribution(
        models.target.model, prompt.ids, test.n_tokens, lambda x: to_probs(x[None], test.sampling)[0], pixels
    )


def sample_many(
    configured: ConfiguredMethod,
    models: Models,
    test: SamplingTest,
    runs: int,
    prompt: Sequence[int] | Prompt = TINY_PROMPT,
    first_seed: int = 0,
) -> list[list[int]]:
    """Return `runs` independent generations, in large batches, with the seeds from `first_seed` on.

    Raises:
        ParameterError: the target refuses the setting.
        MethodUnavailableError: the method cannot run on this target.
        WorkbenchError: one of the runs failed.
    """
    engine = Engine(models, max_sequences=BATCH, record=False)
    length = test.n_tokens + 2
    sequences = [
        engine.submit(
            Prompt.of(prompt).request(
                configured, test.sampling, max_new_tokens=length, seed=first_seed + i, stop_at_eos=False
            )
        )
        for i in range(runs)
    ]
    while not engine.is_idle:
        engine.step()
    failed = next((sequence for sequence in sequences if sequence.trace.footer.error), None)
    if failed is not None:
        if isinstance(failed.error, (ParameterError, MethodUnavailableError)):
            raise failed.error
        raise WorkbenchError(failed.trace.footer.error)
    return [sequence.trace.token_ids for sequence in sequences]
