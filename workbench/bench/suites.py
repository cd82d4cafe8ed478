"""The two benchmarks of `workbench bench`: methods on prompts, and implementations at a forced acceptance rate."""

from __future__ import annotations

import dataclasses
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from workbench.bench import llamacpp
from workbench.bench.conditions import conditions_of_models
from workbench.bench.contenders import EngineContender, HuggingFaceContender
from workbench.bench.datasets import first_of_each_group
from workbench.bench.forced_acceptance import bare_copy, drafter_with_agreement, noisy_copy, random_drafter
from workbench.bench.interleaved_measurement import Progress, measure
from workbench.bench.prompts import BenchPrompt, with_follow_ups
from workbench.bench.report import BenchReport, build_runs
from workbench.bench.rows import BASELINE, BenchRow, build_groups, build_rows
from workbench.bench.sample import Contender, ContenderFailedError, Sample, sample_from_wire
from workbench.bench.study import JsonLines, Study, in_turn
from workbench.core.errors import MethodUnavailableError, PromptError
from workbench.core.sampling import SamplingParams
from workbench.decoders import ConfiguredMethod
from workbench.engine import Engine, Models, Request, Runner
from workbench.kernels.packed import has_bfloat16
from workbench.methods import registry
from workbench.models.machine import machine_facts

FORCED_LEVELS = (0.0, 0.5, 0.8, 1.0)


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Settings of a bench's measurement.

    Attributes:
        max_new_tokens: length limit of every generation.
        repeats: repetitions of every method and prompt.
        sampling: temperature and filters of every run.
        seed: seed of every generation.
        against_hf: whether to measure Hugging Face's `generate`, too.
        stock: whether to run Hugging Face's `generate` with transformers' own linear layers, as users of transformers
            do, instead of on the workbench's model objects, whose linear layers are packed on a CPU.
        against_llama: whether to measure llama.cpp, too, if it is installed.
        suite: name of the suite, for the report.
        per_group: number of prompts per group: the first ones that fit the context; 0 uses all.
    """

    max_new_tokens: int = 128
    repeats: int = 3
    sampling: SamplingParams = dataclasses.field(default_factory=SamplingParams)
    seed: int = 0
    against_hf: bool = False
    stock: bool = False
    against_llama: bool = False
    suite: str = ""
    per_group: int = 0


def bench_methods(
    models: Models,
    methods: Sequence[ConfiguredMethod],
    prompts: Sequence[BenchPrompt],
    plan: Plan,
    progress: Progress | None = None,
    resume: Path | None = None,
) -> BenchReport:
    """Measure methods, interleaved with plain decoding and optionally with Hugging Face's `generate`.

    Args:
        models: target, draft model and heads.
        methods: methods to measure besides plain decoding.
        prompts: prompts of the suite.
        plan: settings of the measurement.
        progress: function that is called before every run.
        resume: file of runs, JSON Lines. Each run is appended when it ends. Runs of a stopped measurement are not
            repeated if settings, code, weights and machine are the same.

    Raises:
        MethodUnavailableError: the models lack a part that a method needs.
        WorkbenchError: the file of runs cannot be read or written.
    """
    for configured in methods:
        reason = models.unsupported_reason(configured.method.needs)
        if reason:
            raise MethodUnavailableError(
                f"{configured.name} cannot run: {reason}", "Choose other methods with --method."
            )
    prompts, ids, left_out = _fitting(models, prompts, plan, progress)
    settings = _settings(models, plan, len(prompts))
    facts = machine_facts()
    failures: list[str] = []
    with ExitStack() as stack:
        contenders = _contenders(models, methods, plan)
        if plan.against_llama:
            problem = llamacpp.why_not(models)
            settings["llama.cpp"] = f"left out: {problem}" if problem else llamacpp.build_info()
            if not problem:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="workbench-gguf-"))
                peers = llamacpp.contenders(
                    models, methods, plan.max_new_tokens, plan.sampling, plan.seed, Path(folder)
                )
                contenders += stack.enter_context(peers)

        def left(contender: Contender, error: ContenderFailedError) -> None:
            failures.append(f"{contender.name} {error}")

        store = None if resume is None else _store(resume, models, contenders, ids, plan)
        samples, complete = measure(contenders, ids, plan.repeats, progress, left, store=store)
    settings["failed contenders"] = "; ".join(failures) or None
    settings["answers right"] = _right(models, samples, prompts) or None
    greedy = plan.sampling.greedy
    return BenchReport(
        settings=settings,
        machine=facts,
        rows=build_rows(samples, contenders, greedy),
        groups=build_groups(samples, contenders, prompts, greedy),
        complete=complete,
        runs=build_runs(samples, prompts),
        left_out=left_out,
    )


def _store(
    path: Path, models: Models, contenders: Sequence[Contender], ids: Sequence[list[int]], plan: Plan
) -> JsonLines[Sample]:
    """Return the file store of timed runs; stored runs count only with equal settings, code, weights and machine."""
    settings = conditions_of_models(models) | {
        "plan": dataclasses.asdict(plan),
        "contenders": {contender.name: contender.parameters for contender in contenders},
        "prompts": ids,
    }
    return JsonLines(path, settings, dataclasses.asdict, sample_from_wire)


def _right(models: Models, samples: Sequence[Sample], prompts: Sequence[BenchPrompt]) -> str:
    """Return the number of right answers of each contender as text; "" if no prompt has a checkable answer."""
    right: dict[str, list[bool]] = defaultdict(list)
    for sample in samples:
        if prompts[sample.prompt].answer:
            text = models.tokenizer.decode(sample.token_ids, skip_special_tokens=True)
            right[sample.contender].append(prompts[sample.prompt].is_right(text))
    return "; ".join(f"{name} {sum(answers)} of {len(answers)}" for name, answers in right.items())


def _fitting(
    models: Models, prompts: Sequence[BenchPrompt], plan: Plan, progress: Progress | None
) -> tuple[list[BenchPrompt], list[list[int]], dict[str, int]]:
    """Return the prompts that fit the context together with the answers, and their token ids.

    The third result is the number of omitted prompts by reason. Plain decoding answers the earlier messages of a
    conversation.

    Raises:
        PromptError: no prompt fits the context.
    """
    engine = Engine(models, record=False)
    limit = models.target.context - plan.max_new_tokens

    def answer(prompt: BenchPrompt) -> str | None:
        ids = prompt.encode(models.tokenizer)
        if len(ids) > limit:
            return None
        if progress is not None:
            progress(len(finished), n_answers, "generating the answers that precede follow-up messages")
        finished.append(prompt.name)
        request = Request(ids, registry.get(BASELINE).with_params(), plan.sampling, plan.max_new_tokens, plan.seed)
        return engine.generate(request).text.strip()

    fitting = [prompt for prompt in prompts if len(prompt.encode(models.tokenizer)) <= limit]
    if not fitting:
        raise PromptError(
            f"No prompt of the suite fits {models.target_name}: the model's context holds "
            f"{models.target.context} tokens, of which {plan.max_new_tokens} are reserved for the answer.",
            "Lower --max-new-tokens, or use another target.",
        )
    too_long = Counter(p.group for p in prompts) - Counter(p.group for p in fitting)
    selected = first_of_each_group(fitting, plan.per_group) if plan.per_group else fitting
    n_answers = sum(len(prompt.follow_ups) for prompt in selected)
    finished: list[str] = []
    turns = with_follow_ups(selected, answer)
    too_long += Counter(p.group for p in selected for _ in range(1 + len(p.follow_ups))) - Counter(
        p.group for p in turns
    )
    encoded = [(prompt, prompt.encode(models.tokenizer)) for prompt in turns]
    too_long += Counter(prompt.group for prompt, ids in encoded if len(ids) > limit)
    encoded = [(prompt, ids) for prompt, ids in encoded if len(ids) <= limit]
    why = f"longer than the {limit} tokens that the target's context leaves for a prompt"
    left_out = {f"{group}, {why}": n for group, n in too_long.items()}
    return [prompt for prompt, _ in encoded], [ids for _, ids in encoded], left_out


def bench_forced_acceptance(
    models: Models,
    prompts: Sequence[BenchPrompt],
    plan: Plan,
    depth: int = 5,
    levels: Sequence[float] = FORCED_LEVELS,
    progress: Progress | None = None,
) -> BenchReport:
    """Compare `draft-model` with Hugging Face's assisted generation, with the same models, dtype and draft length.

    The drafter is a random small model (acceptance about 0), copies of the target with noise in their weights, or an
    exact copy (acceptance 1). The report has a group of rows for each level of acceptance.
    """
    ids = [p.encode(models.tokenizer) for p in prompts]
    plan = dataclasses.replace(plan, against_hf=True)
    method = registry.get("draft-model").with_params(depth=depth)
    facts = machine_facts()
    rows: list[BenchRow] = []
    groups: dict[str, list[BenchRow]] = {}
    texts = _greedy_texts(models, ids, plan)

    def measure_level(level: float) -> tuple[str, list[BenchRow], bool]:
        drafter, reached = _drafter_of(models, level, texts)
        level_models = dataclasses.replace(
            models, drafter=Runner(drafter, models.target.context), drafter_name=f"forced-{level:g}", shared={}
        )
        contenders = _contenders(level_models, [method], plan)
        samples, is_complete = measure(contenders, ids, plan.repeats, progress)
        name = f"acceptance rate {level:g} (reached on these texts: {reached:.2f})"
        return name, build_rows(samples, contenders, plan.sampling.greedy), is_complete

    study = Study[float, tuple[str, list[BenchRow], bool]](list(levels), in_turn(measure_level))
    for _ in study.run(lambda: any(not is_complete for _, _, is_complete in study.results.values())):
        pass
    for level, (name, level_rows, _) in study.results.items():
        if level_rows:
            groups[name] = level_rows
            rows += [
                dataclasses.replace(r, method=f"{r.method} @ {level:g}") for r in level_rows if r.method == method.name
            ]
    complete = all(is_complete for _, _, is_complete in study.results.values())
    settings = _settings(models, plan, len(prompts)) | {"suite": "forced acceptance", "draft length": depth}
    return BenchReport(settings, facts, rows, groups, complete)


def _contenders(models: Models, methods: Sequence[ConfiguredMethod], plan: Plan) -> list[Contender]:
    """Return the contenders in order: plain decoding, the methods, the Hugging Face counterparts of the methods."""
    engine = Engine(models)
    methods = [registry.get(BASELINE).with_params(), *(m for m in methods if m.name != BASELINE)]
    contenders: list[Contender] = [
        EngineContender(engine, m, plan.sampling, plan.max_new_tokens, plan.seed) for m in methods
    ]
    if not plan.against_hf:
        return contenders
    model, assistant = models.target.model, models.drafter.model if models.drafter is not None else None
    hf_dtype = ""
    if plan.stock:
        model = bare_copy(model, packed=False)
        assistant = None if assistant is None else bare_copy(assistant, packed=False)
        if model.dtype == torch.bfloat16 and model.device.type == "cpu" and not has_bfloat16():
            model, assistant, hf_dtype = model.float(), assistant and assistant.float(), "float32"
    common: dict[str, Any] = {
        "model": model,
        "dtype": hf_dtype,
        "eos": sorted(models.eos),
        "max_new_tokens": plan.max_new_tokens,
        "sampling": plan.sampling,
        "seed": plan.seed,
    }
    contenders.append(HuggingFaceContender(**common))
    for configured in methods:
        if configured.name == "draft-model" and assistant is not None:
            contenders.append(
                HuggingFaceContender(**common, assistant=assistant, draft_tokens=int(configured.values["depth"]))
            )
            contenders.append(HuggingFaceContender(**common, assistant=assistant))
        if configured.name == "prompt-lookup":
            ngram = int(configured.values["ngram"])
            contenders.append(HuggingFaceContender(**common, draft_tokens=int(configured.values["depth"]), ngram=ngram))
    return contenders


def _greedy_texts(models: Models, ids: Sequence[list[int]], plan: Plan) -> list[tuple[list[int], list[int]]]:
    plain = EngineContender(Engine(models), registry.get(BASELINE).with_params(), SamplingParams(), plan.max_new_tokens)
    return [(prompt, plain.run(prompt).token_ids) for prompt in ids]


def _drafter_of(models: Models, level: float, texts: Sequence[tuple[list[int], list[int]]]) -> tuple[Any, float]:
    target = models.target.model
    if level <= 0:
        drafter = random_drafter(models.drafter.model if models.drafter is not None else target)
        return drafter, 0.0
    if level >= 1:
        return noisy_copy(target, 0.0), 1.0
    return drafter_with_agreement(target, level, texts)


def _settings(models: Models, plan: Plan, n_prompts: int) -> dict[str, Any]:
    drafter = models.drafter
    return {
        "suite": plan.suite or None,
        "target": models.target_name,
        "drafter": models.drafter_name,
        "dtype": str(models.target.weight_dtype).removeprefix("torch."),
        "drafter dtype": str(drafter.weight_dtype).removeprefix("torch.") if drafter else None,
        "device": str(models.target.device),
        "prompts": n_prompts,
        "repeats": plan.repeats,
        "new tokens at most": plan.max_new_tokens,
        "temperature": plan.sampling.temperature,
        "Hugging Face's linear layers": ("transformers' own" if plan.stock else "ours") if plan.against_hf else None,
    }


__all__ = ["Plan", "Sample", "bench_forced_acceptance", "bench_methods"]
