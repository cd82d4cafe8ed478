"""Promises put to the test: greedy output against Hugging Face's, sampled output against the exact law."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from workbench.bench.goodness import chi_square, count_firsts, joint_law, total_variation
from workbench.bench.worlds import tiny_models
from workbench.core.errors import MethodUnavailableError, ParameterError, WorkbenchError
from workbench.core.params import ParamSpec
from workbench.core.sampling import SamplingParams, law
from workbench.engine import Engine, Request
from workbench.engine.method import Configured, Method, Promise
from workbench.engine.models import Models

PASS, FAIL, MEASURED, SKIPPED = "pass", "fail", "measured", "skipped"
ALPHA = 1e-4
"""Probability that a method that keeps its promise fails one sampling test."""
BATCH = 48


@dataclass(frozen=True, slots=True)
class Law:
    """A sampling test: how to sample, and how many first tokens are compared with their exact joint law."""

    name: str
    sampling: SamplingParams
    n_tokens: int


LAWS = (
    Law("whole vocabulary, first 2 tokens", SamplingParams(temperature=1.0), 2),
    Law("temperature 0.7, top-k 2, first 4 tokens", SamplingParams(temperature=0.7, top_k=2), 4),
)
HEAD_LAW = Law("given target, top-k 3, first 3 tokens", SamplingParams(temperature=1.0, top_k=3), 3)
"""Trained heads fit their own target only: there the law is made small by truncation."""
TINY_PROMPT = (3, 1, 4, 1, 5, 3, 1, 4, 1)
"""It repeats itself, so that methods that copy have something to propose."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the verdict.

    Attributes:
        method: registry name.
        promise: what it promises.
        claim: what was put to the test.
        verdict: "pass", "fail", "measured" (no promise to keep: the figure is reported) or "skipped".
        detail: the evidence, in a few words.
        seconds: how long the test took.
    """

    method: str
    promise: str
    claim: str
    verdict: str
    detail: str
    seconds: float = 0.0


def check_method(
    method: Method, models: Models, prompts: Sequence[Sequence[int]], max_new_tokens: int = 24, runs: int = 1000
) -> Iterator[Finding]:
    """Test one method.

    Args:
        method: from the registry.
        models: target in float64, with its drafter and heads.
        prompts: token ids; parameter corners are tried on the first.
        max_new_tokens: length of greedy texts.
        runs: samples of each sampling test.
    """
    reason = models.why_not(method.needs)
    if reason:
        yield Finding(method.name, method.promise.value, "availability", SKIPPED, reason)
        return
    yield check_greedy(method, models, prompts, max_new_tokens)
    if method.promise is Promise.GREEDY_EXACT:
        return
    if set(method.needs) - {"drafter"}:
        yield check_law(method, models, HEAD_LAW, runs // 3, prompts[0])
        return
    tiny = tiny_models(models.tokenizer)
    with _one_thread():
        for which in LAWS:
            yield check_law(method, tiny, which, runs)


def check_greedy(method: Method, models: Models, prompts: Sequence[Sequence[int]], max_new_tokens: int = 24) -> Finding:
    """Greedy tokens against Hugging Face's `generate` on the same model, for defaults and all parameter corners."""
    start = time.perf_counter()
    engine = Engine(models, record=False)
    wanted = [greedy_reference(models, prompt, max_new_tokens) for prompt in prompts]
    cases = [(method.with_params(), i) for i in range(len(prompts))] + [(c, 0) for c in corners(method)]
    same, wrong, refused = 0, "", []
    for configured, i in cases:
        row = engine.submit(Request(list(prompts[i]), configured, max_new_tokens=max_new_tokens))
        while not engine.idle:
            engine.step()
        got = row.trace.token_ids if row.trace else []
        if isinstance(row.error, (ParameterError, MethodUnavailableError)):
            refused.append(_setting(configured))
        elif row.error is not None:
            wrong = wrong or f"{_setting(configured)} ended with: {row.error}"
        elif got == wanted[i]:
            same += 1
        elif not wrong:
            at = next((k for k, (a, b) in enumerate(zip(got, wanted[i], strict=False)) if a != b), len(got))
            wrong = f"prompt {i + 1} with {_setting(configured)} differs at token {at + 1}"
    tried = len(cases) - len(refused)
    detail = f"{same} of {tried} texts equal" + (f"; {wrong}" if wrong else "")
    detail += f"; refused on this target: {', '.join(refused)}" if refused else ""
    return _finding(method, "greedy text equals Hugging Face's", same == tried, detail, start)


def check_law(method: Method, models: Models, which: Law, runs: int, prompt: Sequence[int] = TINY_PROMPT) -> Finding:
    """Sampled first tokens against their exact joint law.

    The runs are shared out among the defaults and every other choice of a parameter (a policy, say): all of them
    promise the same law.
    """
    start = time.perf_counter()
    exact = joint_law(models.target.model, prompt, which.n_tokens, lambda x: law(x[None], which.sampling)[0])
    settings = [method.with_params(), *corners(method, kinds=("choice",))]
    samples: list[list[int]] = []
    for i, configured in enumerate(settings):
        samples += sample_many(configured, models, which, -(-runs // len(settings)), prompt, first_seed=i * runs)
    counts = count_firsts(samples, which.n_tokens)
    fit = chi_square(counts, exact)
    distance = f"; total variation {total_variation(counts, exact):.3f}" if not _promises(method) else ""
    detail = f"{len(samples)} runs, {fit}{distance}"
    return _finding(method, f"sampling law ({which.name})", fit.fits(ALPHA), detail, start)


def sample_many(
    configured: Configured,
    models: Models,
    which: Law,
    runs: int,
    prompt: Sequence[int] = TINY_PROMPT,
    first_seed: int = 0,
) -> list[list[int]]:
    """`runs` independent generations, many at once, with the seeds from `first_seed` on."""
    engine = Engine(models, max_rows=BATCH, record=False)
    rows = [
        engine.submit(
            Request(
                list(prompt),
                configured,
                which.sampling,
                max_new_tokens=which.n_tokens + 2,
                seed=first_seed + i,
                stop_at_eos=False,
            )
        )
        for i in range(runs)
    ]
    while not engine.idle:
        engine.step()
    failed = next((row.trace.footer.error for row in rows if row.trace and row.trace.footer.error), "")
    if failed:
        raise WorkbenchError(failed)
    return [row.trace.token_ids for row in rows if row.trace]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Tiny models are faster without threads that wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def greedy_reference(models: Models, prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """What Hugging Face's own greedy `generate` writes."""
    ids = torch.tensor([list(prompt)], device=models.target.device)
    eos = sorted(models.eos)
    model: Any = models.target.model
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            eos_token_id=eos or None,
            pad_token_id=eos[0] if eos else 0,
        )
    return out[0, len(prompt) :].tolist()


def corners(method: Method, kinds: Sequence[str] = ("int", "float", "bool", "choice")) -> list[Configured]:
    """The method with each parameter in turn at each end of its range, or at each other choice."""
    found = []
    for name, spec in method.params.items():
        if spec.kind in kinds:
            found += [method.with_params(**{name: v}) for v in _ends(spec) if v != spec.default]
    return found


def _ends(spec: ParamSpec) -> list[Any]:
    if spec.kind == "choice":
        return list(spec.choices)
    if spec.kind == "bool":
        return [False, True]
    cast = int if spec.kind == "int" else float
    return [cast(v) for v in (spec.ge, spec.le) if v is not None]


def _setting(configured: Configured) -> str:
    changed = {k: v for k, v in configured.values.items() if v != configured.method.params[k].default}
    return ", ".join(f"{k}={v}" for k, v in changed.items()) or "defaults"


def _finding(method: Method, claim: str, good: bool, detail: str, start: float) -> Finding:
    verdict = MEASURED if not _promises(method) else PASS if good else FAIL
    return Finding(method.name, method.promise.value, claim, verdict, detail, time.perf_counter() - start)


def _promises(method: Method) -> bool:
    return method.promise in (Promise.EXACT, Promise.GREEDY_EXACT)
