"""What measures the papers' claims about text methods: on a target, with its own draft model and heads.

Measurements run greedily on the bundled prompts, in the target's chat format where it has one, unless the claim is
about sampling.
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

from workbench.bench import same_drafts, several_drafts
from workbench.bench.answerable import answered
from workbench.bench.claims import Measured, Scale, of_speedup
from workbench.bench.contenders import EngineContender
from workbench.bench.contest import measure
from workbench.bench.datasets import first_of_each_group
from workbench.bench.prompts import MORE, BenchPrompt, load_prompts
from workbench.bench.several_drafts import Way
from workbench.bench.statistics import (
    Quotient,
    Rates,
    geometric_mean,
    mean,
    rates,
    ratio_of_quotients,
    ratio_of_sums,
    typical,
)
from workbench.core.sampling import SamplingParams
from workbench.engine import Configured, Engine, Models, Request, datastore_builder, load_models
from workbench.engine.datastore import CARD, open_store, tokenizer_hash
from workbench.engine.parts import Verifier
from workbench.kernels.disk_cache import cache_folder
from workbench.methods import registry
from workbench.methods.drafters.dynamic_exit import head_in_layers
from workbench.models.bundle import DEFAULT_TARGET
from workbench.models.names import own_drafter
from workbench.models.published import SMOLLM2
from workbench.trace import metrics, theory
from workbench.trace.events import Round
from workbench.trace.speedup import speedup

ALL = ("stories", "chat", "code", "maths", "copy", "json", "lists")
FAMILIES = (DEFAULT_TARGET, SMOLLM2.name)
"""Targets of different vocabularies, each with a draft model."""
AT_ONCE = 16
"""Runs that share a batch where time does not count."""
COPIED = 0.75
"""Share of an answer's n-grams that stand in the prompt, from which on the answer counts as copied."""
NO_CODE = ("encodings", "pydoc_data", "site-packages", "test")
"""Of Python's library, folders of tables, of texts, and of what is not its own or not installed everywhere."""


@lru_cache(maxsize=1)
def _models(target: str, dtype: str) -> Models:
    return load_models(target, "auto", "cpu", dtype)


@lru_cache(maxsize=1)
def _drafted_by(target: str, dtype: str, stranger: str) -> Models:
    return _models(target, dtype).with_drafter(stranger)


def store_of_code(models: Models) -> Path:
    """Folder of a store of the running Python's own library, for a target's tokenizer; made at its first use.

    Python's library is code that every machine has, and none of the bundled prompts is from it.

    Raises:
        WorkbenchError: it cannot be written or read.
    """
    library = Path(sysconfig.get_path("stdlib"))
    files = [
        file for file in sorted((*library.glob("*.py"), *library.glob("*/*.py"))) if file.parent.name not in NO_CODE
    ]
    which = tokenizer_hash(models.tokenizer)[:8]
    folder = cache_folder() / f"store-python-{platform.python_version()}-{which}"
    if not (folder / CARD).is_file():
        datastore_builder.build(files, folder, models.tokenizer, models.target_name)
    return folder


def tokens_a_layer(rounds: Sequence[Round], layers: int, head: float) -> float:
    """Return the tokens of rounds that draft from early layers / the layers that they computed.

    Args:
        rounds: of a method whose drafts leave the target after "exit layer" (a signal) or `exit_layer` (a parameter).
        layers: of the target.
        head: cost of the LM head, in layers.
    """
    exits = [r.signals.get("exit layer") or r.params.get("exit_layer", 0) for r in rounds]
    computed = sum(layers + head + r.draft_forwards * (e + head) for r, e in zip(rounds, exits, strict=True))
    return metrics.emitted(rounds) / computed


def copies(prompt: Sequence[int], answer: Sequence[int], n: int = 4) -> float:
    """Return the share of an answer's n-grams that stand in its prompt; 0 for a shorter answer.

    Example:
        >>> copies([1, 2, 3, 4, 5], [9, 2, 3, 4, 5], n=2)
        0.75
    """
    known = set(zip(*(prompt[i:] for i in range(n)), strict=False))
    found = [gram in known for gram in zip(*(answer[i:] for i in range(n)), strict=False)]
    return sum(found) / len(found) if found else 0.0


@lru_cache(maxsize=2)
def _copies(scale: Scale, prompts: tuple[BenchPrompt, ...]) -> list[float]:
    """Return for each prompt how much of the target's own greedy answer is copied from it."""
    models = _models(scale.target, scale.dtype)
    plain = registry.get("autoregressive").with_params()
    texts = [p.encode(models.tokenizer) for p in prompts]
    engine = Engine(models, AT_ONCE, record=False)
    traces = engine.generate_all(Request(ids, plain, SamplingParams(), max_new_tokens=scale.tokens) for ids in texts)
    return [
        copies(ids, [e.token for r in trace.rounds for e in r.emitted])
        for ids, trace in zip(texts, traces, strict=True)
    ]


@lru_cache(maxsize=1)
def _shifted(target: str, dtype: str, share: float) -> Models:
    """A target that its heads were not trained for, since its matrices have moved at random; its own copy."""
    models = load_models(target, None, "cpu", dtype)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in models.target.model.parameters():
            if weight.dim() > 1:
                noise = torch.randn(weight.shape, generator=generator)
                weight.add_((share * weight.float().std() * noise).to(weight))
    return models


@dataclass(frozen=True, slots=True)
class TextLab:
    """Measures one method at a scale.

    Attributes:
        method: its registry name.
        scale: the target and how much.
        groups: kinds of prompts; those of `workbench.bench.answerable` are problems whose answers a program checks.
        reads_code: drafters that read a store read `store_of_code` instead of the bundled one.
        stranger: drafts in place of the target's own draft model, in tokens of its own; "": that one does.
        shift: by how much the target's matrices have moved since its heads were trained, as a share of their spread.
        copied: only prompts that the target answers by copying: see `copies`.
    """

    method: str
    scale: Scale
    groups: Sequence[str] = ALL
    reads_code: bool = False
    stranger: str = ""
    shift: float = 0.0
    copied: bool = False

    def on(self, *groups: str) -> TextLab:
        """The same on prompts of these kinds alone."""
        return dataclasses.replace(self, groups=groups)

    def with_code(self) -> TextLab:
        """The same with a store of code to draft from."""
        return dataclasses.replace(self, reads_code=True)

    def trajectories(self, n: int) -> TextLab:
        """Return the same with n sampled runs of each prompt, one after the other, and as many runs in all."""
        per_group = max(1, self.scale.per_group // n)
        return dataclasses.replace(self, scale=dataclasses.replace(self.scale, per_group=per_group, draws=n))

    def on_copied(self) -> TextLab:
        """Return the same on the prompts that ask for copies, and that the target does answer by copying."""
        return dataclasses.replace(self, groups=("copy",), copied=True)

    def estranged(self) -> TextLab:
        """The same with the draft model of another family, whose vocabulary is another one."""
        others = [drafter for target in FAMILIES if target != self.scale.target and (drafter := own_drafter(target))]
        return dataclasses.replace(self, stranger=others[0])

    def shifted(self, share: float) -> TextLab:
        """The same with a target whose weights are no longer those that its heads were trained for."""
        return dataclasses.replace(self, shift=share)

    @property
    def models(self) -> Models:
        """The target, its draft model and its heads."""
        which = self.scale.target, self.scale.dtype
        if self.shift:
            return _shifted(*which, self.shift)
        return _drafted_by(*which, self.stranger) if self.stranger else _models(*which)

    @property
    def setting(self) -> str:
        """Models and prompts in words."""
        every, scale, models = tuple(self.groups) == ALL, self.scale, self.models
        which = "all bundled prompts" if every else f"bundled prompts: {', '.join(self.groups)}"
        if every and self._most_of_each:
            which = f"bundled prompts, at most {self._most_of_each} of each kind"
        which += f", those that the target answers by copying (at least {COPIED:.0%})" if self.copied else ""
        dtype = str(models.target.stored).removeprefix("torch.")
        own = [what for what, there in (("drafter", models.drafter), ("heads", models.heads)) if there]
        own = [f"{self.stranger} as drafter"] if self.stranger else own
        drafting = f" with {'' if self.stranger else 'its own '}{' and '.join(own)}" if own else ""
        if self.shift:
            drafting += f", every matrix moved by noise of {self.shift:.0%} of its spread since they were trained"
        if self.reads_code:
            size = len(open_store(store_of_code(models)))
            drafting += f", store of Python {platform.python_version()}'s library ({size / 1e6:.1f} M tokens)"
        return f"{scale.target}{drafting}, {dtype}, {which}, at most {scale.tokens} tokens"

    def speed(self, **params: Any) -> Measured:
        """The speed-up over plain decoding; see `workbench.trace.speedup`."""
        plain, mine = self._rates([registry.get("autoregressive").with_params(), self._with(params)])
        return of_speedup(speedup(mine, plain), f"{self._when_timed().setting}, greedy")

    def speed_over(
        self, mine: Mapping[str, Any], others: Sequence[Mapping[str, Any]], temperature: float = 0.0, of: str = ""
    ) -> Measured:
        """Tokens a second / those of the best of other settings, of this method or of another, all on the same prompts.

        Args:
            mine: parameters.
            others: of each other setting; the best is the one with the largest geometric mean over prompts, which
                favours it by what chance adds to the best of several.
            temperature: of all.
            of: registry name of the other settings' method; none: this one.
        """
        theirs_of = registry.get(of or self.method)
        own, *theirs = self._rates(
            [self._with(mine), *(theirs_of.with_params(**params) for params in others)], temperature
        )
        best = max(range(len(others)), key=lambda i: (found := typical(theirs[i])) is not None and found.value)
        named = (f"{of}, " if of else "") + ", ".join(f"{name}={value}" for name, value in others[best].items())
        drawn = f"temperature {temperature}" if temperature else "greedy"
        beside = f"beside {named}" + (f", the fastest of {len(others)}" if len(others) > 1 else "")
        return of_speedup(speedup(own, theirs[best]), f"{self._when_timed().setting}, {drawn}, {beside}")

    def _when_timed(self) -> TextLab:
        """Return the same on as many prompts of each kind as claims about time are measured on."""
        return dataclasses.replace(self, scale=dataclasses.replace(self.scale, per_group=self.scale.timed_per_group))

    def _with(self, params: Mapping[str, Any]) -> Configured:
        return registry.get(self.method).with_params(**params)

    def _rates(self, settings: Sequence[Configured], temperature: float = 0.0) -> list[Rates]:
        """Tokens a second of each, measured in turns on all prompts."""
        engine, scale, sampling = Engine(self.models), self.scale, SamplingParams(temperature=temperature)
        contenders = [
            EngineContender(engine, setting, sampling, scale.tokens, label=str(i)) for i, setting in enumerate(settings)
        ]
        with self.stored():
            samples, _ = measure(contenders, self._when_timed().prompts(), scale.repeats)
        return [rates(s for s in samples if s.contender == contender.name) for contender in contenders]

    def accepted_over(self, mine: Way, other: Way, siblings: int, temperature: float = 1.0) -> Measured:
        """Chance that a place accepts one of several drafts / that by another rule, geometric mean over prompts.

        Both read the same pairs of laws, p of the target and q of the draft model, at the places of text that the
        method wrote. Drafts are drawn from q anew; given them, chances are computed and not drawn.

        Args:
            mine: a verifier, None for the optimal-transport bound, and how drafts are drawn.
            other: the same.
            siblings: drafts for the place.
            temperature: of both laws.
        """
        ratios, n = [], 0
        for laws in several_drafts.laws_of(self.models, self.prompts(), self.scale.tokens, temperature):
            n += len(laws)
            chances = [several_drafts.accepted(laws, rule, siblings) for rule in (mine, other)]
            ratios.append(chances[0] / chances[1])
        drawn = f"temperature {temperature}, {n} places, {siblings} drafts each; geometric mean over prompts"
        return Measured.of(geometric_mean(ratios), f"{self.setting}, {drawn}")

    def tau(self, **params: Any) -> Measured:
        """τ: tokens emitted / target passes of each prompt, mean over prompts."""
        found = [metrics.tau(rounds) or 0.0 for rounds in self.rounds(self.method, params)]
        return Measured.of(mean(found), f"{self.setting}, greedy; mean over prompts")

    def drafted_a_pass(self, **params: Any) -> Measured:
        """Tokens drafted / passes of the drafter, over the rounds of all prompts."""
        found = self.rounds(self.method, params)
        drafted = [sum(len(r.nodes) for r in rounds) for rounds in found]
        passes = [sum(r.draft_forwards for r in rounds) for rounds in found]
        return Measured.of(ratio_of_sums(drafted, passes), f"{self.setting}, greedy; over all rounds")

    def accepted_a_pass_over(self, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> Measured:
        """Accepted tokens / passes of the drafter, and that / the same with other parameters, over all rounds."""

        def quotient(params: Mapping[str, Any]) -> Quotient:
            found = self.rounds(self.method, params)
            passes = [sum(r.draft_forwards for r in rounds) for rounds in found]
            return [metrics.accepted(rounds) for rounds in found], passes

        ratio = ratio_of_quotients(quotient(mine), quotient(theirs))
        return Measured.of(ratio, f"{self.setting}, greedy; over all rounds")

    def tau_over(self, other: str, mine: Mapping[str, Any], theirs: Mapping[str, Any], temperature: float) -> Measured:
        """τ / τ of another method on the same prompts and seeds, geometric mean over prompts.

        Args:
            other: its registry name.
            mine: parameters of this method.
            theirs: parameters of the other.
            temperature: of both.
        """
        both = (self.rounds(m, p, temperature) for m, p in ((self.method, mine), (other, theirs)))
        ratios = [(metrics.tau(a) or 1) / (metrics.tau(b) or 1) for a, b in zip(*both, strict=True)]
        drawn = f"temperature {temperature}, {self.scale.draws} draws a prompt" if temperature else "greedy"
        return Measured.of(geometric_mean(ratios), f"{self.setting}, {drawn}; geometric mean")

    def tokens_a_layer_over(self, other: str, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> Measured:
        """Return tokens / layers computed, over the same of another early-exit method: geometric mean over prompts.

        A round computes all layers once to verify, and those before the exit once for each pass of the draft; the LM
        head counts as `head_in_layers`, each time. Source: Zarch et al. 2025, DEL, arXiv:2504.05598 (tokens per layer).
        """
        target = self.models.target
        ratios = [
            tokens_a_layer(a, target.n_layers, head_in_layers(target))
            / tokens_a_layer(b, target.n_layers, head_in_layers(target))
            for a, b in zip(self.rounds(self.method, mine), self.rounds(other, theirs), strict=True)
        ]
        return Measured.of(geometric_mean(ratios), f"{self.setting}, greedy; geometric mean over prompts")

    def tau_of_same_drafts(self, mine: Verifier, params: Mapping[str, Any], temperature: float) -> Measured:
        """τ that a verifier expects of the method's chains / τ of one token after the other, on the same drafts.

        Args:
            mine: the verifier.
            params: of the method.
            temperature: of texts and laws.
        """
        both = same_drafts.expected_tau(
            self.models, self.prompts(), self.scale.draws, self.scale.tokens, mine, params, temperature
        )
        drawn = f"temperature {temperature}, {self.scale.draws} draws a prompt, expected of the same drafts"
        return Measured.of(geometric_mean([a / b for a, b in both]), f"{self.setting}, {drawn}; geometric mean")

    def at_matched_accuracy(
        self,
        settings: Sequence[Mapping[str, Any]],
        exact: Mapping[str, Any],
        temperature: float = 0.0,
        other: str = "",
    ) -> Measured:
        """Return τ of an approximate rule / τ of the exact one, at its laxest setting that keeps the answers.

        Settings are tried in order until one does not keep the answers. This fixed sequence of tests needs no
        correction for their number. If the first does not, its figure is returned.

        Args:
            settings: parameters of the approximate rule, the strictest first.
            exact: parameters of the exact rule.
            temperature: of both, with the same seeds.
            other: registry name of the method with the exact rule; "": this one.
        """
        found: Measured | None = None
        for setting in settings:
            now = self._with_answers(setting, exact, temperature, other)
            found = now if found is None or now.keeps_answers else found
            if not now.keeps_answers:
                break
        assert found is not None
        return found

    def _with_answers(
        self, mine: Mapping[str, Any], exact: Mapping[str, Any], temperature: float, other: str
    ) -> Measured:
        """Return τ / τ of the exact rule, geometric mean over prompts, and the right answers of the same runs."""
        asked = self._asked()
        both = [self._draws(m, p, temperature) for m, p in ((self.method, mine), (other or self.method, exact))]
        right = [
            [sum(p.is_right(self._text(rounds)) for rounds in draws) for p, draws in zip(asked, found, strict=True)]
            for found in both
        ]
        own, theirs = ([metrics.tau([r for rounds in draws for r in rounds]) or 1 for draws in found] for found in both)
        n = len(asked) * (self.scale.draws if temperature else 1)
        words = ", ".join(f"{name}={value}" for name, value in mine.items())
        drawn = f"temperature {temperature:g}" if temperature else "greedy"
        of = f"{sum(right[0])} against {sum(right[1])} of {n} answers right"
        gain = Measured.of(
            geometric_mean([a / b for a, b in zip(own, theirs, strict=True)]),
            f"{self.setting}, {drawn}, {words or 'defaults'}; geometric mean over prompts; {of}",
        )
        kept = Measured.of(ratio_of_sums(*right), gain.setting)
        return dataclasses.replace(gain, answers={"value": kept.value, "low": kept.low, "high": kept.high})

    def tau_over_closed_form(self, **params: Any) -> Measured:
        """τ / E[τ] of equation 1 at the acceptance rate of each prompt, over the rounds of all prompts."""
        emitted, expected = [], []
        for rounds in self.rounds(self.method, params):
            drafting = [r for r in rounds if len(r.nodes)]
            rate = params.get("acceptance", metrics.acceptance_rate(rounds))
            if rate is not None and drafting:
                emitted.append(metrics.emitted(drafting))
                expected.append(sum(theory.expected_tau(rate, max(r.nodes.depth)) for r in drafting))
        return Measured.of(ratio_of_sums(emitted, expected), f"{self.setting}, greedy; over all rounds")

    def rounds(self, method: str, params: Mapping[str, Any], temperature: float = 0.0) -> list[list[Round]]:
        """The rounds of every prompt; those of its draws one after the other."""
        return [[r for rounds in draws for r in rounds] for draws in self._draws(method, params, temperature)]

    def _draws(self, method: str, params: Mapping[str, Any], temperature: float) -> list[list[list[Round]]]:
        """Return the rounds of every draw of every prompt; several claims compare with the same runs, which are kept.

        State that goes on from one request to the next (`warm`) depends on what ran before: nothing of it is kept.
        """
        given = tuple(sorted(params.items()))
        return (_run if params.get("warm") else _run_once)(self, method, given, temperature)

    @contextlib.contextmanager
    def stored(self) -> Iterator[None]:
        """While it lasts, drafters find the store that is meant, whatever the environment names."""
        before = os.environ.pop(datastore_builder.ENV, None)
        try:
            if self.reads_code:
                os.environ[datastore_builder.ENV] = str(store_of_code(self.models))
            yield
        finally:
            os.environ.pop(datastore_builder.ENV, None)
            if before is not None:
                os.environ[datastore_builder.ENV] = before

    def prompts(self) -> list[list[int]]:
        """Token ids of the prompts that it measures on."""
        return [p.encode(self.models.tokenizer) for p in self._asked()]

    def _asked(self) -> list[BenchPrompt]:
        every = (*load_prompts(), *load_prompts(MORE), *answered())
        found = [p for p in every if p.group in self.groups]
        if self.copied:
            found = [p for p, copied in zip(found, _copies(self.scale, tuple(found)), strict=True) if copied >= COPIED]
        return first_of_each_group(found, self._most_of_each) if self._most_of_each else found

    def _text(self, rounds: Sequence[Round]) -> str:
        """What they wrote."""
        return self.models.tokenizer.decode([e.token for r in rounds for e in r.emitted], skip_special_tokens=True)

    @property
    def _most_of_each(self) -> int:
        """Prompts of each kind at most, so that a claim about few kinds has as many as one about all; 0: no limit."""
        return self.scale.per_group * len(ALL) // len(self.groups) if set(self.groups) <= set(ALL) else 0


def _run(lab: TextLab, method: str, params: tuple[tuple[str, Any], ...], temperature: float) -> list[list[list[Round]]]:
    """Run a method on a lab's prompts. Runs share batches, which changes no token, unless they are `warm`."""
    scale, sampling = lab.scale, SamplingParams(temperature=temperature)
    configured = registry.get(method).with_params(**dict(params))
    engine = Engine(lab.models, 1 if dict(params).get("warm") else AT_ONCE, record=False)
    prompts, draws = lab.prompts(), 1 if sampling.greedy else scale.draws
    # every run has a seed of its own, or all would draw alike
    requests = [
        Request(ids, configured, sampling, max_new_tokens=scale.tokens, seed=i + draw * len(prompts))
        for i, ids in enumerate(prompts)
        for draw in range(draws)
    ]
    with lab.stored():
        rounds = [list(trace.rounds) for trace in engine.generate_all(requests)]
    return [rounds[i : i + draws] for i in range(0, len(rounds), draws)]


_run_once = lru_cache(maxsize=16)(_run)
