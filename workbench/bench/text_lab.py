"""Measurements for the papers' claims about text methods: on a target, with its own draft model and heads.

Runs are greedy unless the claim is about sampling, on the bundled prompts, with the target's chat template if it has
one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from workbench.bench.claims import Measurement, Scale, speedup_figure
from workbench.bench.contenders import EngineContender
from workbench.bench.datasets import first_of_each_group
from workbench.bench.interleaved_measurement import measure
from workbench.bench.prompts import CLAIM_PROMPTS, BenchPrompt, load_prompts
from workbench.bench.statistics import (
    Quotient,
    Rates,
    average_rate,
    geometric_mean,
    mean,
    rates,
    ratio_of_quotients,
    ratio_of_sums,
)
from workbench.bench.verifiable_problems import all_problems
from workbench.bench.verifiers_on_drafts import (
    VerifierSetup,
    acceptance_probability,
    distributions_of,
    expected_tau,
)
from workbench.core.sampling import SamplingParams
from workbench.decoders import ConfiguredMethod
from workbench.decoders.draft_verify.parts import Verifier
from workbench.engine import Engine, Models, Request, datastore_builder, load_models
from workbench.engine.datastore import CARD, open_store, tokenizer_hash
from workbench.kernels.disk_cache import cache_folder
from workbench.methods import registry
from workbench.methods.dynamic_exit.drafter import head_in_layers
from workbench.models.bundle import DEFAULT_TARGET
from workbench.models.model_index import SMOLLM2
from workbench.models.names import bundled_drafter
from workbench.trace import metrics, theory
from workbench.trace.events import Round
from workbench.trace.speedup import speedup

ALL = ("stories", "chat", "code", "maths", "copy", "json", "lists")
TARGETS = (DEFAULT_TARGET, SMOLLM2.name)
"""Names of targets with different vocabularies, each with a draft model."""
BATCH_SIZE = 16
"""Number of runs that share a batch, in measurements that are not timed."""
MIN_COPIED_SHARE = 0.75
"""Smallest share of an answer's n-grams found in the prompt for which the answer counts as copied."""
EXCLUDED_FOLDERS = ("encodings", "pydoc_data", "site-packages", "test")
"""Folders of Python's standard library that the code datastore leaves out: tables, texts, third-party code, and parts
that are not installed everywhere."""


@lru_cache(maxsize=1)
def _models(target: str, dtype: str) -> Models:
    return load_models(target, "auto", "cpu", dtype)


@lru_cache(maxsize=1)
def _models_with_drafter(target: str, dtype: str, drafter: str) -> Models:
    return _models(target, dtype).with_drafter(drafter)


def code_datastore(models: Models) -> Path:
    """Return the folder of a datastore of Python's standard library, for a target's tokenizer; build it if needed.

    The standard library is code that exists on every machine, and no bundled prompt is from it.

    Raises:
        WorkbenchError: the datastore cannot be written or read.
    """
    library = Path(sysconfig.get_path("stdlib"))
    files = [
        file
        for file in sorted((*library.glob("*.py"), *library.glob("*/*.py")))
        if file.parent.name not in EXCLUDED_FOLDERS
    ]
    tokenizer_id = tokenizer_hash(models.tokenizer)[:8]
    folder = cache_folder() / f"store-python-{platform.python_version()}-{tokenizer_id}"
    if not (folder / CARD).is_file():
        datastore_builder.build(files, folder, models.tokenizer, models.target_name)
    return folder


def tokens_per_layer(rounds: Sequence[Round], layers: int, head: float) -> float:
    """Return the tokens emitted per layer computed, over rounds that draft from early layers.

    Args:
        rounds: rounds of a method that drafts with the target's layers up to the signal "exit layer", or up to the
            parameter `exit_layer`.
        layers: number of layers of the target.
        head: cost of the LM head, in layers.
    """
    exits = [r.signals.get("exit layer") or r.params.get("exit_layer", 0) for r in rounds]
    computed = sum(layers + head + r.draft_forwards * (e + head) for r, e in zip(rounds, exits, strict=True))
    return metrics.count_emitted(rounds) / computed


def copied_share(prompt: Sequence[int], answer: Sequence[int], n: int = 4) -> float:
    """Return the share of an answer's n-grams that occur in the prompt; 0 for an answer of fewer than n tokens.

    Example:
        >>> copied_share([1, 2, 3, 4, 5], [9, 2, 3, 4, 5], n=2)
        0.75
    """
    prompt_grams = set(zip(*(prompt[i:] for i in range(n)), strict=False))
    hits = [gram in prompt_grams for gram in zip(*(answer[i:] for i in range(n)), strict=False)]
    return sum(hits) / len(hits) if hits else 0.0


@lru_cache(maxsize=2)
def _copied_shares(scale: Scale, prompts: tuple[BenchPrompt, ...]) -> list[float]:
    """Return for each prompt the share of the target's own greedy answer that is copied from it (`copied_share`)."""
    models = _models(scale.target, scale.dtype)
    plain = registry.get("autoregressive").with_params()
    texts = [p.encode(models.tokenizer) for p in prompts]
    engine = Engine(models, BATCH_SIZE, record=False)
    traces = engine.generate_all(Request(ids, plain, SamplingParams(), max_new_tokens=scale.tokens) for ids in texts)
    return [
        copied_share(ids, [e.token for r in trace.rounds for e in r.emitted])
        for ids, trace in zip(texts, traces, strict=True)
    ]


@lru_cache(maxsize=1)
def _models_with_noise(target: str, dtype: str, weight_noise: float) -> Models:
    """Return the models with noise in the target's matrices, so that the trained heads fit the target less well."""
    models = load_models(target, None, "cpu", dtype)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in models.target.model.parameters():
            if weight.dim() > 1:
                noise = torch.randn(weight.shape, generator=generator)
                weight.add_((weight_noise * weight.float().std() * noise).to(weight))
    return models


@dataclass(frozen=True, slots=True)
class TextLab:
    """Measurements of the quantities in papers' claims about one method, on a text target.

    Attributes:
        method: registry name of the method.
        scale: the target and the size of the measurement.
        groups: kinds of prompts; those of `workbench.bench.verifiable_problems` are problems whose answers a program
            checks.
        reads_code: use `code_datastore` as the datastore instead of the bundled one.
        other_vocabulary_drafter: draft model with a different vocabulary, used instead of the target's own draft model;
            "": the target's own.
        weight_noise: noise added to the target's matrices after its heads were trained, as a share of their standard
            deviation.
        only_copied: use only prompts whose text the target copies in its answer: see `copied_share`.
    """

    method: str
    scale: Scale
    groups: Sequence[str] = ALL
    reads_code: bool = False
    other_vocabulary_drafter: str = ""
    weight_noise: float = 0.0
    only_copied: bool = False

    def on_groups(self, *groups: str) -> TextLab:
        """Return a copy of this `TextLab` that measures on prompts of these kinds only."""
        return dataclasses.replace(self, groups=groups)

    def with_code(self) -> TextLab:
        """Return a copy of this `TextLab` whose drafters use a datastore of code."""
        return dataclasses.replace(self, reads_code=True)

    def with_trajectories(self, n: int) -> TextLab:
        """Return a copy of this `TextLab` with `n` successive sampled runs per prompt, on one nth of the prompts."""
        per_group = max(1, self.scale.per_group // n)
        return dataclasses.replace(self, scale=dataclasses.replace(self.scale, per_group=per_group, draws=n))

    def on_copied_answers(self) -> TextLab:
        """Return a copy of this `TextLab` with only those prompts that ask for a copy and that the target copies."""
        return dataclasses.replace(self, groups=("copy",), only_copied=True)

    def with_other_vocabulary_drafter(self) -> TextLab:
        """Return a copy of this `TextLab` with the draft model of another family, which has a different vocabulary."""
        drafters = [
            drafter for target in TARGETS if target != self.scale.target and (drafter := bundled_drafter(target))
        ]
        return dataclasses.replace(self, other_vocabulary_drafter=drafters[0])

    def with_weight_noise(self, weight_noise: float) -> TextLab:
        """Return a copy of this `TextLab` with noise in the target's weights, so that its heads fit it less well."""
        return dataclasses.replace(self, weight_noise=weight_noise)

    @property
    def models(self) -> Models:
        """Return the target with its draft model and its heads."""
        key = self.scale.target, self.scale.dtype
        if self.weight_noise:
            return _models_with_noise(*key, self.weight_noise)
        return (
            _models_with_drafter(*key, self.other_vocabulary_drafter)
            if self.other_vocabulary_drafter
            else _models(*key)
        )

    @property
    def setting(self) -> str:
        """Return a description of the models and prompts of the measurement, in words."""
        is_all, scale, models = tuple(self.groups) == ALL, self.scale, self.models
        prompts = "all bundled prompts" if is_all else f"bundled prompts: {', '.join(self.groups)}"
        if is_all and self._max_per_group:
            prompts = f"bundled prompts, at most {self._max_per_group} of each group"
        prompts += (
            f", only those whose answers are copied by at least {MIN_COPIED_SHARE:.0%} from the prompt"
            if self.only_copied
            else ""
        )
        dtype = str(models.target.weight_dtype).removeprefix("torch.")
        parts = [part for part, value in (("drafter", models.drafter), ("heads", models.heads)) if value]
        parts = [f"{self.other_vocabulary_drafter} as drafter"] if self.other_vocabulary_drafter else parts
        drafting = f" with {'' if self.other_vocabulary_drafter else 'its own '}{' and '.join(parts)}" if parts else ""
        if self.weight_noise:
            drafting += (
                f", each weight matrix changed after training by noise of {self.weight_noise:.0%} of its "
                f"standard deviation"
            )
        if self.reads_code:
            size = len(open_store(code_datastore(models)))
            drafting += (
                f", datastore of the standard library of Python {platform.python_version()} ({size / 1e6:.1f} M tokens)"
            )
        return f"{scale.target}{drafting}, {dtype}, {prompts}, at most {scale.tokens} tokens"

    def speed(self, **params: Any) -> Measurement:
        """Measure the speed-up (`workbench.trace.speedup`) of the method with these parameters over plain decoding."""
        plain_rates, method_rates = self._rates([registry.get("autoregressive").with_params(), self._with(params)])
        return speedup_figure(speedup(method_rates, plain_rates), f"{self._for_timing().setting}, greedy")

    def speed_over(
        self,
        own_params: Mapping[str, Any],
        other_settings: Sequence[Mapping[str, Any]],
        temperature: float = 0.0,
        other: str = "",
    ) -> Measurement:
        """Measure tokens per second relative to the fastest of several other settings, on the same prompts.

        Args:
            own_params: parameters of this method.
            other_settings: parameters of each other setting. The fastest setting has the largest geometric mean over
                prompts; as it is the best of several, its measured speed is likely too high.
            temperature: temperature of all settings.
            other: registry name of the other settings' method; "": this method.
        """
        other_method = registry.get(other or self.method)
        method_rates, *other_rates = self._rates(
            [self._with(own_params), *(other_method.with_params(**params) for params in other_settings)], temperature
        )
        best = max(
            range(len(other_settings)),
            key=lambda i: (average := average_rate(other_rates[i])) is not None and average.value,
        )
        label = (f"{other}, " if other else "") + ", ".join(
            f"{name}={value}" for name, value in other_settings[best].items()
        )
        decoding = f"temperature {temperature}" if temperature else "greedy"
        reference = f"over {label}" + (f", the fastest of {len(other_settings)}" if len(other_settings) > 1 else "")
        return speedup_figure(
            speedup(method_rates, other_rates[best]), f"{self._for_timing().setting}, {decoding}, {reference}"
        )

    def _for_timing(self) -> TextLab:
        """Return a copy of this `TextLab` with the number of prompts per kind that is used for claims about time."""
        return dataclasses.replace(self, scale=dataclasses.replace(self.scale, per_group=self.scale.timed_per_group))

    def _with(self, params: Mapping[str, Any]) -> ConfiguredMethod:
        return registry.get(self.method).with_params(**params)

    def _rates(self, settings: Sequence[ConfiguredMethod], temperature: float = 0.0) -> list[Rates]:
        """Return the tokens per second of each setting of a method, measured in turns on all prompts."""
        engine, scale, sampling = Engine(self.models), self.scale, SamplingParams(temperature=temperature)
        contenders = [
            EngineContender(engine, setting, sampling, scale.tokens, label=str(i)) for i, setting in enumerate(settings)
        ]
        with self.using_datastore():
            samples, _ = measure(contenders, self._for_timing().prompts(), scale.repeats)
        return [rates(s for s in samples if s.contender == contender.name) for contender in contenders]

    def accepted_over(
        self, setup: VerifierSetup, other_setup: VerifierSetup, siblings: int, temperature: float = 1.0
    ) -> Measurement:
        """Measure the probability that one of several drafts for a position is accepted, relative to another verifier.

        The result is the geometric mean over prompts. Both verifiers use the same distributions, p of the target and q
        of the draft model, along a text of the target, and the same drafts, sampled from q. Given the drafts, the
        probabilities are computed exactly.

        Args:
            setup: a verifier (None: the optimal-transport bound), and the sampling of the drafts.
            other_setup: the verifier to compare with, in the same form.
            siblings: number of drafts per position.
            temperature: temperature of both distributions.
        """
        ratios, n = [], 0
        for distributions in distributions_of(self.models, self.prompts(), self.scale.tokens, temperature):
            n += len(distributions)
            accept_probs = [acceptance_probability(distributions, rule, siblings) for rule in (setup, other_setup)]
            ratios.append(accept_probs[0] / accept_probs[1])
        note = (
            f"temperature {temperature}, {n} positions with {siblings} drafted tokens each; geometric mean over prompts"
        )
        return Measurement.of(geometric_mean(ratios), f"{self.setting}, {note}")

    def tau(self, **params: Any) -> Measurement:
        """Measure τ (tokens emitted / target passes) of the method with these parameters, as the mean over prompts."""
        taus = [metrics.tau(rounds) or 0.0 for rounds in self.rounds(self.method, params)]
        return Measurement.of(mean(taus), f"{self.setting}, greedy; mean over prompts")

    def drafted_per_pass(self, **params: Any) -> Measurement:
        """Measure the number of drafted tokens per pass of the drafter, over the rounds of all prompts."""
        by_prompt = self.rounds(self.method, params)
        drafted = [sum(len(r.nodes) for r in rounds) for rounds in by_prompt]
        passes = [sum(r.draft_forwards for r in rounds) for rounds in by_prompt]
        return Measurement.of(ratio_of_sums(drafted, passes), f"{self.setting}, greedy; over all rounds")

    def accepted_per_pass_over(self, own_params: Mapping[str, Any], other_params: Mapping[str, Any]) -> Measurement:
        """Measure accepted tokens per pass of the drafter with `own_params`, relative to `other_params`."""

        def quotient(params: Mapping[str, Any]) -> Quotient:
            by_prompt = self.rounds(self.method, params)
            passes = [sum(r.draft_forwards for r in rounds) for rounds in by_prompt]
            return [metrics.count_accepted(rounds) for rounds in by_prompt], passes

        ratio = ratio_of_quotients(quotient(own_params), quotient(other_params))
        return Measurement.of(ratio, f"{self.setting}, greedy; over all rounds")

    def tau_over(
        self, other: str, own_params: Mapping[str, Any], other_params: Mapping[str, Any], temperature: float
    ) -> Measurement:
        """Measure τ relative to another method on the same prompts and seeds, as the geometric mean over prompts.

        Args:
            other: registry name of the other method.
            own_params: parameters of this method.
            other_params: parameters of the other method.
            temperature: temperature of both methods.
        """
        runs = (self.rounds(m, p, temperature) for m, p in ((self.method, own_params), (other, other_params)))
        ratios = [(metrics.tau(a) or 1) / (metrics.tau(b) or 1) for a, b in zip(*runs, strict=True)]
        decoding = f"temperature {temperature}, {self.scale.draws} sampled runs per prompt" if temperature else "greedy"
        return Measurement.of(geometric_mean(ratios), f"{self.setting}, {decoding}; geometric mean over prompts")

    def tokens_per_layer_over(
        self, other: str, own_params: Mapping[str, Any], other_params: Mapping[str, Any]
    ) -> Measurement:
        """Measure tokens per computed layer relative to another early-exit method, as the geometric mean over prompts.

        A round computes all layers once to verify, and the layers before the exit once per draft pass. Each pass also
        computes the LM head, which counts as `head_in_layers` layers. Source: Zarch et al. 2025, DEL, arXiv:2504.05598
        (tokens per layer).
        """
        target = self.models.target
        ratios = [
            tokens_per_layer(a, target.n_layers, head_in_layers(target))
            / tokens_per_layer(b, target.n_layers, head_in_layers(target))
            for a, b in zip(self.rounds(self.method, own_params), self.rounds(other, other_params), strict=True)
        ]
        return Measurement.of(geometric_mean(ratios), f"{self.setting}, greedy; geometric mean over prompts")

    def tau_of_same_drafts(self, verifier: Verifier, params: Mapping[str, Any], temperature: float) -> Measurement:
        """Measure the expected τ of a verifier relative to the token-by-token verifier, on the same drafted chains.

        Args:
            verifier: verifier for chains.
            params: parameters of the method.
            temperature: temperature of texts and distributions.
        """
        pairs = expected_tau(
            self.models, self.prompts(), self.scale.draws, self.scale.tokens, verifier, params, temperature
        )
        note = (
            f"temperature {temperature}, {self.scale.draws} sampled runs per prompt, expected value over the "
            f"same drafts"
        )
        return Measurement.of(
            geometric_mean([a / b for a, b in pairs]), f"{self.setting}, {note}; geometric mean over prompts"
        )

    def at_matched_accuracy(
        self,
        settings: Sequence[Mapping[str, Any]],
        exact: Mapping[str, Any],
        temperature: float = 0.0,
        other: str = "",
    ) -> Measurement:
        """Measure τ of an approximate verifier relative to the exact one, at the most lenient setting that passes.

        A setting passes if it retains enough of the exact verifier's right answers. Settings are tried in order until
        one does not pass. This fixed sequence of tests needs no correction for multiple testing. If the first setting
        does not pass, the result of this setting is returned.

        Args:
            settings: parameters of the approximate verifier, the strictest first.
            exact: parameters of the exact verifier.
            temperature: temperature of both verifiers, which use the same seeds.
            other: registry name of the method with the exact verifier; "": this method.
        """
        result: Measurement | None = None
        for setting in settings:
            measured = self._with_answers(setting, exact, temperature, other)
            result = measured if result is None or measured.keeps_answers else result
            if not measured.keeps_answers:
                break
        assert result is not None
        return result

    def _with_answers(
        self, own_params: Mapping[str, Any], exact: Mapping[str, Any], temperature: float, other: str
    ) -> Measurement:
        """Measure τ and right answers of a verifier, each relative to the exact verifier.

        For τ the ratio is the geometric mean over prompts.
        """
        prompts = self._select_prompts()
        runs = [self._draws(m, p, temperature) for m, p in ((self.method, own_params), (other or self.method, exact))]
        right = [
            [
                sum(p.is_right(self._text(rounds)) for rounds in draws)
                for p, draws in zip(prompts, by_prompt, strict=True)
            ]
            for by_prompt in runs
        ]
        taus, exact_taus = (
            [metrics.tau([r for rounds in draws for r in rounds]) or 1 for draws in by_prompt] for by_prompt in runs
        )
        n = len(prompts) * (self.scale.draws if temperature else 1)
        words = ", ".join(f"{name}={value}" for name, value in own_params.items())
        decoding = f"temperature {temperature:g}" if temperature else "greedy"
        counts = f"{sum(right[0])} of {n} answers correct, {sum(right[1])} with the exact verifier"
        gain = Measurement.of(
            geometric_mean([a / b for a, b in zip(taus, exact_taus, strict=True)]),
            f"{self.setting}, {decoding}, {words or 'defaults'}; geometric mean over prompts; {counts}",
        )
        answers = Measurement.of(ratio_of_sums(*right), gain.setting)
        return dataclasses.replace(gain, answers={"value": answers.value, "low": answers.low, "high": answers.high})

    def tau_over_closed_form(self, **params: Any) -> Measurement:
        """Measure τ / E[τ] over all rounds; E[τ] is `theory.expected_tau` at each prompt's acceptance rate."""
        emitted, expected = [], []
        for rounds in self.rounds(self.method, params):
            drafting = [r for r in rounds if len(r.nodes)]
            rate = params.get("acceptance", metrics.acceptance_rate(rounds))
            if rate is not None and drafting:
                emitted.append(metrics.count_emitted(drafting))
                expected.append(sum(theory.expected_tau(rate, max(r.nodes.depth)) for r in drafting))
        return Measurement.of(ratio_of_sums(emitted, expected), f"{self.setting}, greedy; over all rounds")

    def rounds(self, method: str, params: Mapping[str, Any], temperature: float = 0.0) -> list[list[Round]]:
        """Return a list of rounds for each prompt; the rounds of the prompt's sampled runs are concatenated."""
        return [[r for rounds in draws for r in rounds] for draws in self._draws(method, params, temperature)]

    def _draws(self, method: str, params: Mapping[str, Any], temperature: float) -> list[list[list[Round]]]:
        """Return the rounds of each prompt's sampled runs; the result is cached, since claims share runs.

        Runs whose state carries over from one request to the next (parameter `warm`) depend on earlier runs, and are
        not cached.
        """
        key = tuple(sorted(params.items()))
        return (_run if params.get("warm") else _run_once)(self, method, key, temperature)

    @contextlib.contextmanager
    def using_datastore(self) -> Iterator[None]:
        """Inside the `with` block, make drafters use the intended datastore, regardless of the environment variable."""
        before = os.environ.pop(datastore_builder.ENV, None)
        try:
            if self.reads_code:
                os.environ[datastore_builder.ENV] = str(code_datastore(self.models))
            yield
        finally:
            os.environ.pop(datastore_builder.ENV, None)
            if before is not None:
                os.environ[datastore_builder.ENV] = before

    def prompts(self) -> list[list[int]]:
        """Return the token ids of the prompts on which the method is measured."""
        return [p.encode(self.models.tokenizer) for p in self._select_prompts()]

    def _select_prompts(self) -> list[BenchPrompt]:
        available = (*load_prompts(), *load_prompts(CLAIM_PROMPTS), *all_problems())
        selected = [p for p in available if p.group in self.groups]
        if self.only_copied:
            selected = [
                p
                for p, share in zip(selected, _copied_shares(self.scale, tuple(selected)), strict=True)
                if share >= MIN_COPIED_SHARE
            ]
        return first_of_each_group(selected, self._max_per_group) if self._max_per_group else selected

    def _text(self, rounds: Sequence[Round]) -> str:
        """Return the text of the tokens that a run's rounds emitted."""
        return self.models.tokenizer.decode([e.token for r in rounds for e in r.emitted], skip_special_tokens=True)

    @property
    def _max_per_group(self) -> int:
        """Return the largest number of prompts of each kind (0: no limit); with fewer kinds, each has more prompts."""
        return self.scale.per_group * len(ALL) // len(self.groups) if set(self.groups) <= set(ALL) else 0


def _run(lab: TextLab, method: str, params: tuple[tuple[str, Any], ...], temperature: float) -> list[list[list[Round]]]:
    """Run a method on the prompts of a `TextLab`; return the rounds by prompt and sampled run.

    Runs are batched, which does not change their tokens, unless state carries over between requests (`warm`).
    """
    scale, sampling = lab.scale, SamplingParams(temperature=temperature)
    configured = registry.get(method).with_params(**dict(params))
    engine = Engine(lab.models, 1 if dict(params).get("warm") else BATCH_SIZE, record=False)
    prompts, draws = lab.prompts(), 1 if sampling.greedy else scale.draws
    # Every run has its own seed: with one seed, all would sample the same tokens.
    requests = [
        Request(ids, configured, sampling, max_new_tokens=scale.tokens, seed=i + draw * len(prompts))
        for i, ids in enumerate(prompts)
        for draw in range(draws)
    ]
    with lab.using_datastore():
        rounds = [list(trace.rounds) for trace in engine.generate_all(requests)]
    return [rounds[i : i + draws] for i in range(0, len(rounds), draws)]


_run_once = lru_cache(maxsize=16)(_run)
