"""The two benches: methods on prompts, and implementations at a forced acceptance."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from workbench.bench.contenders import Contender, EngineContender, HuggingFaceContender, Sample
from workbench.bench.forced import bare_copy, drafter_with_agreement, noisy_copy, random_drafter
from workbench.bench.machine import machine_facts
from workbench.bench.prompts import BenchPrompt
from workbench.bench.report import BASELINE, BenchReport, BenchRow, build_groups, build_rows
from workbench.bench.runner import Progress, measure
from workbench.core.errors import MethodUnavailableError
from workbench.core.sampling import SamplingParams
from workbench.engine import Configured, Engine, Models, Runner
from workbench.methods import registry

FORCED = (0.0, 0.5, 0.8, 1.0)


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """How to measure.

    Attributes:
        max_new_tokens: length limit of every generation.
        repeats: repetitions of every method and prompt.
        sampling: temperature and filters.
        seed: seed of every generation.
        against_hf: measure Hugging Face's `generate` too.
        stock: let Hugging Face run on transformers' own linear layers, as its users have them, instead of on the same
            model objects, whose linear layers are packed on a CPU.
    """

    max_new_tokens: int = 128
    repeats: int = 3
    sampling: SamplingParams = dataclasses.field(default_factory=SamplingParams)
    seed: int = 0
    against_hf: bool = False
    stock: bool = False


def bench_methods(
    models: Models,
    methods: Sequence[Configured],
    prompts: Sequence[BenchPrompt],
    plan: Plan,
    progress: Progress | None = None,
) -> BenchReport:
    """Measure methods, interleaved with plain decoding and, if wanted, with Hugging Face's `generate`.

    Raises:
        MethodUnavailableError: the models lack what a method needs.
    """
    for configured in methods:
        reason = models.why_not(configured.method.needs)
        if reason:
            raise MethodUnavailableError(f"{configured.name} cannot run: {reason}", "Leave it out with --method.")
    contenders = _contenders(models, methods, plan)
    ids = [p.encode(models.tokenizer) for p in prompts]
    facts = machine_facts()
    samples, complete = measure(contenders, ids, plan.repeats, progress)
    greedy = plan.sampling.greedy
    return BenchReport(
        settings=_settings(models, plan, len(prompts)),
        machine=facts,
        rows=build_rows(samples, contenders, greedy),
        groups=build_groups(samples, contenders, prompts, greedy),
        complete=complete,
    )


def bench_forced_acceptance(
    models: Models,
    prompts: Sequence[BenchPrompt],
    plan: Plan,
    depth: int = 5,
    levels: Sequence[float] = FORCED,
    progress: Progress | None = None,
) -> BenchReport:
    """`draft-model` against Hugging Face's assisted generation with the same pair, dtype and draft length.

    The drafter is a random small model (acceptance about 0), copies of the target with noise in their weights, or an
    exact copy (acceptance 1). Rows are reported by level.
    """
    ids = [p.encode(models.tokenizer) for p in prompts]
    plan = dataclasses.replace(plan, against_hf=True)
    method = registry.get("draft-model").with_params(depth=depth)
    facts = machine_facts()
    rows: list[BenchRow] = []
    groups: dict[str, list[BenchRow]] = {}
    complete = True
    texts = _greedy_texts(models, ids, plan)
    for level in levels:
        if not complete:
            break
        drafter, reached = _drafter_of(models, level, texts)
        paired = dataclasses.replace(
            models, drafter=Runner(drafter, models.target.context), drafter_name=f"forced-{level:g}", shared={}
        )
        contenders = _contenders(paired, [method], plan)
        samples, complete = measure(contenders, ids, plan.repeats, progress)
        name = f"acceptance {level:g} (reached on these texts: {reached:.2f})"
        found = build_rows(samples, contenders, plan.sampling.greedy)
        if found:
            groups[name] = found
            rows += [dataclasses.replace(r, method=f"{r.method} @ {level:g}") for r in found if r.method == method.name]
    settings = _settings(models, plan, len(prompts)) | {"suite": "forced acceptance", "draft length": depth}
    return BenchReport(settings, facts, rows, groups, complete)


def _contenders(models: Models, methods: Sequence[Configured], plan: Plan) -> list[Contender]:
    """Plain decoding first, then the methods, then their counterparts at Hugging Face."""
    engine = Engine(models)
    methods = [registry.get(BASELINE).with_params(), *(m for m in methods if m.name != BASELINE)]
    found: list[Contender] = [
        EngineContender(engine, m, plan.sampling, plan.max_new_tokens, plan.seed) for m in methods
    ]
    if not plan.against_hf:
        return found
    model, assistant = models.target.model, models.drafter.model if models.drafter is not None else None
    if plan.stock:
        model = bare_copy(model, packed=False)
        assistant = None if assistant is None else bare_copy(assistant, packed=False)
    common: dict[str, Any] = {
        "model": model,
        "eos": sorted(models.eos),
        "max_new_tokens": plan.max_new_tokens,
        "sampling": plan.sampling,
        "seed": plan.seed,
    }
    found.append(HuggingFaceContender(**common))
    for configured in methods:
        if configured.name == "draft-model" and assistant is not None:
            found.append(
                HuggingFaceContender(**common, assistant=assistant, draft_tokens=int(configured.values["depth"]))
            )
        if configured.name == "prompt-lookup":
            ngram = int(configured.values["ngram"])
            found.append(HuggingFaceContender(**common, draft_tokens=int(configured.values["depth"]), ngram=ngram))
    return found


def _greedy_texts(models: Models, ids: Sequence[list[int]], plan: Plan) -> list[tuple[list[int], list[int]]]:
    plain = EngineContender(Engine(models), registry.get(BASELINE).with_params(), SamplingParams(), plan.max_new_tokens)
    return [(prompt, plain.run(prompt).token_ids) for prompt in ids]


def _drafter_of(models: Models, level: float, texts: Sequence[tuple[list[int], list[int]]]) -> tuple[Any, float]:
    target = models.target.model
    if level <= 0:
        small = random_drafter(models.drafter.model if models.drafter is not None else target)
        return small, 0.0
    if level >= 1:
        return noisy_copy(target, 0.0), 1.0
    return drafter_with_agreement(target, level, texts)


def _settings(models: Models, plan: Plan, n_prompts: int) -> dict[str, Any]:
    drafter = models.drafter
    return {
        "target": models.target_name,
        "drafter": models.drafter_name,
        "dtype": str(models.target.dtype).removeprefix("torch."),
        "drafter dtype": str(drafter.dtype).removeprefix("torch.") if drafter else None,
        "device": str(models.target.device),
        "prompts": n_prompts,
        "repeats": plan.repeats,
        "new tokens at most": plan.max_new_tokens,
        "temperature": plan.sampling.temperature,
        "Hugging Face's linear layers": ("transformers' own" if plan.stock else "ours") if plan.against_hf else None,
    }


__all__ = ["Plan", "Sample", "bench_forced_acceptance", "bench_methods"]
