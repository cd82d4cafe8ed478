"""Compare two stored forms of one head or draft model, float16 and int8: τ on the same prompts, and the texts.

Greedy runs are deterministic, so that the two forms are compared prompt by prompt, on one machine in one session. The
text depends on the target alone and must not change.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workbench.bench import vision_suite
from workbench.bench.datasets import first_of_each_group, load_suite
from workbench.bench.headsboard import settings_by_head
from workbench.bench.prompts import BenchPrompt
from workbench.bench.statistics import ratio_of_quotients
from workbench.bench.vision_settings import questions
from workbench.core.errors import ModelError
from workbench.decoders import ConfiguredMethod
from workbench.engine import Engine, Request
from workbench.methods import registry
from workbench.models.bundle import config_of
from workbench.models.loading import HeadInfo, Models, load_models
from workbench.models.machine import describe_hardware, machine_facts
from workbench.trace import metrics
from workbench.trace.events import Trace

PROMPTS, TOKENS = 40, 64
"""Number of prompts on which τ with float16 and with int8 weights is compared, and length limit of a run in tokens."""
DRAFT, IMAGE_DRAFT = "draft-model", "vlm-draft"
"""Names of the methods with which a draft model is measured: for a text target, and for a target with images."""
Progress = Callable[[int, int], None]


def compare_storage(
    before: Path, after: Path, n_prompts: int = PROMPTS, max_new_tokens: int = TOKENS, progress: Progress | None = None
) -> dict[str, Any]:
    """Measure τ of the two stored forms of a head or a draft model on the same prompts.

    Args:
        before: folder of the first stored form, for example in float16.
        after: folder of the second stored form, for example in int8.
        n_prompts: number of prompts: of the suites `bundled` and `work`, or captions of held-out scenes for a target
            with images.
        max_new_tokens: length limit of a run, in tokens.
        progress: function that is called with (done, total) before each prompt.

    Returns:
        method, prompts, tokens, tau [before, after], ratio and its 95 % interval, same_text (prompts with one text in
        both forms), and the machine.

    Raises:
        ModelError: the folder has neither a head nor a draft model, or no method drafts with it.
    """
    config = config_of(before)
    if not (target := config.get("target")):
        raise ModelError(
            f"The configuration in {before} names no target.", "Give the folder of a head or of a draft model."
        )
    models = load_models(target, None, "cpu")
    forms = [_models_with(models, folder, label) for label, folder in (("before", before), ("after", after))]
    configured = _method_for(config.get("workbench_head"), forms[0])
    requests = _requests(models, configured, n_prompts, max_new_tokens)
    traces: list[tuple[Trace, Trace]] = []
    for i, request in enumerate(requests):
        if progress is not None:
            progress(i, len(requests))
        first, second = (Engine(form).generate(request(form)) for form in forms)
        traces.append((first, second))
    emitted, passes = (
        [[float(count(trace)) for trace in form] for form in zip(*traces, strict=True)]
        for count in (lambda t: metrics.count_emitted(t.rounds), lambda t: len(t.rounds))
    )
    ratio = ratio_of_quotients((emitted[1], passes[1]), (emitted[0], passes[0]))
    if ratio is None:
        raise ModelError(f"The measured runs of {before} have no decoding rounds.", "Allow more tokens per run.")
    return {
        "method": configured.method.name,
        "prompts": len(traces),
        "tokens": max_new_tokens,
        "tau": [round(sum(e) / sum(p), 4) for e, p in zip(emitted, passes, strict=True)],
        "ratio": [round(ratio[key], 4) for key in ("value", "low", "high") if ratio[key] is not None],
        "same_text": sum(a.token_ids == b.token_ids for a, b in traces),
        "machine": describe_hardware(machine_facts()),
    }


def _models_with(models: Models, folder: Path, label: str) -> Models:
    """Return the models with the head or draft model of a folder; `label` keeps two folders' cached nets apart."""
    config = config_of(folder)
    kind = config.get("workbench_head")
    if kind is None:
        return models.with_drafter(str(folder))
    return Models(
        models.target, models.tokenizer, models.target_name, processor=models.processor,
        heads={**models.heads, kind: HeadInfo(label, folder, config)},
    )  # fmt: skip


def _method_for(kind: str | None, models: Models) -> ConfiguredMethod:
    if kind is None:
        return registry.get(DRAFT if models.processor is None else IMAGE_DRAFT).with_params()
    if kind in (settings := settings_by_head(models)):
        return settings[kind]
    for method in registry.methods():
        if kind in method.needs:
            return method.with_params()
    raise ModelError(
        f"No method drafts with heads of the kind {kind}.", "`workbench methods` lists the kinds of heads."
    )


def _requests(
    models: Models, configured: ConfiguredMethod, n: int, max_new_tokens: int
) -> list[Callable[[Models], Request]]:
    """Return for each prompt a function that takes the models and returns the engine request."""
    if models.processor is not None:
        scenes = [question for question in questions(n, 0) if question.kind == "caption"]
        return [lambda form, scene=scene: vision_suite.request(form, scene, configured) for scene in scenes]
    ids = [prompt.encode(models.tokenizer) for prompt in _prompts(n)]
    return [lambda form, tokens=tokens: Request(tokens, configured, max_new_tokens=max_new_tokens) for tokens in ids]


def _prompts(n: int) -> list[BenchPrompt]:
    """Return `n` prompts: those of the suite `bundled`, then as many from each group of the suite `work` as needed."""
    prompts, work = load_suite("bundled"), load_suite("work")
    n = min(n, len(prompts) + len(work))
    per_group = next(k for k in itertools.count() if len(prompts) + len(first_of_each_group(work, k)) >= n)
    return [*prompts, *first_of_each_group(work, per_group)][:n]
