"""Tests of methods' promises: equal greedy output (compared with Hugging Face's), exact distribution of samples."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from PIL import ImageDraw
from PIL.Image import new as new_image

from workbench.bench.families import family
from workbench.bench.finding import (
    FAIL,
    NEVER_DRAFTED,
    NEVER_RAN,
    PASS,
    SKIPPED,
    Finding,
    Prompt,
    boundary_settings,
    describe_setting,
    spread_order,
)
from workbench.bench.forced_acceptance import noisy_copy
from workbench.bench.sampling_tests import (
    SAMPLING_TESTS,
    TINY_PROMPT,
    SamplingTest,
    check_distribution,
    head_sampling_test,
    sample_many,
    settings_by_promise,
)
from workbench.bench.text_comparison import first_difference
from workbench.core.errors import MethodUnavailableError, ParameterError
from workbench.core.promise import Promise
from workbench.decoders.declarations import DRAFTERS
from workbench.decoders.method import ConfiguredMethod, Method
from workbench.engine import Engine
from workbench.engine.image_inputs import process_prompt
from workbench.methods.common.empty_drafter import EmptyDrafter
from workbench.models.loading import Models
from workbench.models.masked_lm import MASKED_LM
from workbench.models.runner import Runner
from workbench.trace.metrics import count_drafted

FAMILY_PROMPT = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 1, 4, 1)
"""Token ids of a prompt that repeats itself, so that methods that copy from the text can draft."""
NO_REFERENCE = "a masked-diffusion model has no left-to-right plain decoding that its text could be compared with"


def check_method(
    method: Method,
    models: Models,
    prompts: Sequence[Sequence[int] | Prompt],
    max_new_tokens: int = 24,
    runs: int = 1000,
    families: Sequence[str] = (),
    seconds: float = math.inf,
) -> Iterator[Finding]:
    """Test whether one method keeps its promise (such as exact output) about greedy texts and sampled tokens.

    Greedy text is not compared if the default parameters do not preserve it, as in beam search. Nothing is compared for
    a masked-diffusion model, which has no plain decoding.

    Args:
        method: method from the registry.
        models: target in float64, with its drafter and heads.
        prompts: token ids, or prompts with images; settings with extreme parameters are tested on the first prompt.
        max_new_tokens: length of greedy texts.
        runs: samples per setting in each sampling test; methods with trained heads, which are slower, get a third.
        families: families whose tiny random models are also decoded greedily, if the method needs no trained head.
        seconds: time budget, in equal shares for greedy text, the families if there are any, and sampled tokens; if it
            is too short for all tests, only a sample of settings, families and runs is tested, and the result says so.
    """
    reason = models.unsupported_reason(method.needs)
    if reason:
        yield Finding(method.name, method.promise.value, "availability", SKIPPED, reason, kind="availability")
        return
    if MASKED_LM in method.needs:
        yield Finding(method.name, method.promise.value, "reference", SKIPPED, NO_REFERENCE, kind="reference")
        return
    keeps_greedy = method.with_params().keeps_greedy
    bare = not set(method.needs) - {"drafter", "trees"} and Prompt.of(prompts[0]).images is None
    share = seconds / (3 if families and bare else 2)
    if keeps_greedy:
        yield check_greedy(method, models, prompts, max_new_tokens, seconds=share)
    if keeps_greedy and families and bare:
        yield check_families(method, models.tokenizer, families, max_new_tokens, share)
    if method.promise is Promise.GREEDY_EXACT:
        return
    if not bare:
        n_runs = affordable_runs(method, models, prompts[0], runs // 3, share)
        test = head_sampling_test(models, prompts[0], n_runs)
        yield _note_fewer_runs(
            check_distribution(method, models, test, n_runs, prompts[0], seconds=share), n_runs, runs // 3
        )
        return
    with one_thread():
        for test in SAMPLING_TESTS:
            tiny = test.build_models(models.tokenizer)
            test_share = share / len(SAMPLING_TESTS)
            n_runs = affordable_runs(method, tiny, TINY_PROMPT, runs, test_share, test)
            yield _note_fewer_runs(
                check_distribution(method, tiny, test, n_runs, TINY_PROMPT, seconds=test_share), n_runs, runs
            )


def _note_fewer_runs(finding: Finding, n_runs: int, runs: int) -> Finding:
    """Return the result of a sampling test, with a note if there was only time for a part of the runs."""
    if n_runs >= runs:
        return finding
    detail = f"{finding.detail}; the time limit allowed only {n_runs:,} of {runs:,} runs"
    figures = finding.figures | {"runs_left_out": runs - n_runs} if finding.figures else finding.figures
    return dataclasses.replace(finding, detail=detail, figures=figures)


def image_prompts(models: Models) -> list[Prompt]:
    """Return two prompts with a synthetic image each, for a target that reads images."""
    prompts = []
    for text, shapes in (
        ("What is in this picture?", [("red", (8, 8, 30, 30)), ("blue", (36, 34, 58, 56))]),
        ("Describe the picture.", [("green", (10, 34, 34, 58))]),
    ):
        image = new_image("RGB", (64, 64), "white")
        for colour, box in shapes:
            ImageDraw.Draw(image).ellipse(box, fill=colour)
        text_prompt = models.processor.apply_chat_template(
            [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}],
            add_generation_prompt=True,
        )
        original, images = process_prompt(models, text_prompt, [image])
        prompts.append(Prompt(images["input_ids"][0].tolist(), images, (image,), original))
    return prompts


def check_families(
    method: Method, tokenizer: Any, names: Sequence[str], max_new_tokens: int = 24, seconds: float = math.inf
) -> Finding:
    """Compare the default setting's greedy tokens with Hugging Face's, on a tiny random model of each family.

    After `seconds` no further family is started; the result names the families that were left out.
    """
    start, default = time.perf_counter(), method.with_params()
    equal, difference, refused, n_drafted, left_out = [], "", [], 0, list[str]()
    with one_thread():
        for number, name in enumerate(names):
            if number and time.perf_counter() - start > seconds:
                left_out = list(names[number:])
                break
            target = family(name, seed=1)
            models = Models(Runner(target), tokenizer, name)
            if DRAFTERS & set(method.needs):
                models.drafter, models.drafter_name = Runner(noisy_copy(target, 0.2)), "noisy-copy"
            result = _Greedy.of(default, models, [FAMILY_PROMPT], max_new_tokens, ())
            n_drafted += result.drafted
            if not result.tried:
                refused.append(name)
            elif result.equal == result.tried:
                equal.append(name)
            else:
                difference = difference or f"; {name}: {result.detail}"
    tried = len(names) - len(refused) - len(left_out)
    figures = {
        "equal": len(equal),
        "tried": tried,
        "families": list(names[: len(names) - len(left_out)]),
        "drafted": n_drafted,
    }
    detail = f"{len(equal)} of {tried} families equal{difference}"
    detail += f"; refused: {', '.join(refused)}" if refused else ""
    detail += f"; no time for {', '.join(left_out)}" if left_out else ""
    claim = "greedy text equals Hugging Face's in every family"
    return _make_finding(default, claim, len(equal) == tried, detail, start, "families", figures)


def check_greedy(
    method: Method,
    models: Models,
    prompts: Sequence[Sequence[int] | Prompt],
    max_new_tokens: int = 24,
    others: Sequence[ConfiguredMethod] | None = None,
    seconds: float = math.inf,
    main_setting: ConfiguredMethod | None = None,
) -> Finding:
    """Compare greedy tokens with Hugging Face's `generate` on the same model, for the defaults and for other settings.

    The other settings, by default each parameter at each end of its range, use the first prompt. Approximate methods
    and simulations must pass this test too; only settings that do not keep greedy text are left out
    (`ConfiguredMethod.keeps_greedy`). A method that refused every setting, or that drafted nothing in any text, has not
    been tested and fails.

    Args:
        method: method from the registry.
        models: models with the target in float64.
        prompts: token ids, or prompts with images.
        max_new_tokens: length of the texts.
        others: settings besides the defaults; None: each parameter at each end of its range.
        seconds: time after which no other setting is started. Their fixed order alternates between
            parameters, so that the tested ones are a sample of all.
        main_setting: the setting that is tested on every prompt; None: the defaults.
    """
    start, main_setting = time.perf_counter(), main_setting or method.with_params()
    settings = boundary_settings(method) if others is None else others
    settings = [c for c in settings if c.keeps_greedy and not models.unsupported_reason(c.needs)]
    result = _Greedy.of(main_setting, models, prompts, max_new_tokens, settings, seconds)
    figures = {
        "equal": result.equal,
        "tried": result.tried,
        "prompts": len(prompts),
        "tokens": max_new_tokens,
        "drafted": result.drafted,
        "settings": 1 + len(settings),
        "settings_left_out": result.left_out,
    }
    is_equal = result.equal == result.tried
    return _make_finding(
        main_setting, "greedy text equals Hugging Face's", is_equal, result.detail, start, "greedy", figures
    )


@dataclass(frozen=True, slots=True)
class _Greedy:
    """Result of a greedy test: counts of equal, compared and skipped texts and of drafted tokens, and a description."""

    equal: int
    tried: int
    drafted: int
    detail: str
    left_out: int = 0

    @classmethod
    def of(
        cls,
        main_setting: ConfiguredMethod,
        models: Models,
        prompts: Sequence[Sequence[int] | Prompt],
        length: int,
        others: Sequence[ConfiguredMethod],
        seconds: float = math.inf,
    ) -> _Greedy:
        engine, deadline = Engine(models, record=False), time.perf_counter() + seconds
        inputs = [Prompt.of(prompt) for prompt in prompts]
        references = [greedy_reference(models, prompt, length) for prompt in inputs]
        cases = [(main_setting, i) for i in range(len(prompts))] + [(c, 0) for c in spread_order(others)]
        n_equal, n_drafted, difference, refused, left_out = 0, 0, "", [], 0
        for number, (configured, i) in enumerate(cases):
            if number >= len(prompts) and time.perf_counter() > deadline:
                left_out = len(cases) - number
                break
            sequence = engine.submit(inputs[i].request(configured, max_new_tokens=length))
            while not engine.is_idle:
                engine.step()
            token_ids = sequence.trace.token_ids
            n_drafted += count_drafted(sequence.trace.rounds)
            if isinstance(sequence.error, (ParameterError, MethodUnavailableError)):
                refused.append(describe_setting(configured))
            elif sequence.error is not None:
                difference = difference or f"{describe_setting(configured)} ended with: {sequence.error}"
            elif (position := first_difference(token_ids, references[i])) is None:
                n_equal += 1
            elif not difference:
                difference = f"prompt {i + 1} with {describe_setting(configured)} differs at token {position + 1}"
        tried = len(cases) - len(refused) - left_out
        detail = f"{n_equal} of {tried} texts are equal" + (f"; {difference}" if difference else "")
        if left_out:
            detail += (
                f"; the time limit allowed only {len(others) - left_out} of {len(others)} settings besides the defaults"
            )
        detail += f"; refused on this target: {', '.join(refused)}" if refused else ""
        return cls(n_equal, tried, n_drafted, detail, left_out)


TRIAL, LEAST = 16, 96
"""Number of trial runs that estimate the time of a run, and smallest number of runs of a sampling test."""


def affordable_runs(
    method: Method,
    models: Models,
    prompt: Sequence[int] | Prompt,
    runs: int,
    seconds: float,
    test: SamplingTest = SAMPLING_TESTS[1],
) -> int:
    """Return the number of runs per setting for which a sampling test takes at most `seconds` on this target.

    A few trial runs are timed first. The number is at most `runs` and at least `LEAST`.
    """
    if seconds == math.inf or runs <= LEAST:
        return runs
    start = time.perf_counter()
    try:
        sample_many(method.with_params(), models, test, TRIAL, prompt)
    except (ParameterError, MethodUnavailableError):
        return LEAST  # the test itself reports the refusal
    seconds_per_run = (time.perf_counter() - start) / TRIAL
    return max(LEAST, min(runs, int(seconds / (seconds_per_run * len(settings_by_promise(method)[0])))))


def _make_finding(
    configured: ConfiguredMethod,
    claim: str,
    passed: bool,
    detail: str,
    start: float,
    kind: str,
    figures: dict[str, Any],
) -> Finding:
    """Return the result of a greedy test; the test fails if no text was compared or no token was drafted."""
    if not figures["tried"]:
        passed, detail = False, f"{NEVER_RAN}: {detail}"
    elif passed and not figures["drafted"] and not isinstance(configured.drafter, EmptyDrafter):
        passed, detail = False, f"{NEVER_DRAFTED}, so that this was plain decoding: {detail}"
    seconds = time.perf_counter() - start
    verdict = PASS if passed else FAIL
    return Finding(configured.name, configured.promise.value, claim, verdict, detail, seconds, kind, figures)


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit PyTorch to one thread inside the `with` block: with tiny models, several threads are slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def greedy_reference(models: Models, prompt: Sequence[int] | Prompt, max_new_tokens: int) -> list[int]:
    """Return the new token ids of greedy decoding with Transformers' `generate`; `models.shared` caches the result."""
    parsed = Prompt.of(prompt)
    key = ("greedy", id(models.target), *parsed.ids, max_new_tokens)
    cache = models.shared if parsed.images is None else {}
    if key not in cache:
        ids, eos = torch.tensor([list(parsed.ids)], device=models.target.device), sorted(models.eos)
        options = {"max_new_tokens": max_new_tokens, "do_sample": False, "eos_token_id": eos or None}
        options |= {"pad_token_id": eos[0] if eos else 0, **parsed.pixels(models)}
        model: Any = models.target.model
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        cache[key] = tuple(out[0, len(parsed.ids) :].tolist())
    return list(cache[key])
