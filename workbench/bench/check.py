"""Promises put to the test: greedy output against Hugging Face's, sampled output against the exact law."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from PIL import ImageDraw
from PIL.Image import Image
from PIL.Image import new as new_image
from torch import Tensor

from workbench.bench.families import family
from workbench.bench.forced import noisy_copy
from workbench.bench.goodness import MIN_EXPECTED, chi_square, count_firsts, joint_law, total_variation
from workbench.bench.worlds import tiny_models
from workbench.core.errors import MethodUnavailableError, ParameterError, WorkbenchError
from workbench.core.params import ParamSpec
from workbench.core.sampling import SamplingParams, law
from workbench.engine import Engine, Request
from workbench.engine.method import Configured, Method, Promise
from workbench.engine.models import Models
from workbench.engine.pictures import read
from workbench.engine.runner import Runner

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
HEAD_TEMPERATURES = (1.0, 2.0, 4.0, 8.0, 16.0)
HEAD_CELLS = 8
"""Trained heads fit their own target only, which may be sure of its first words: a law of one cell tests nothing."""
TINY_PROMPT = (3, 1, 4, 1, 5, 3, 1, 4, 1)
FAMILY_PROMPT = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 1, 4, 1)
"""These repeat themselves, so that methods that copy have something to propose."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is continued: token ids, and for targets that read pictures what their processor made of both.

    Attributes:
        ids: token ids, vision tokens among them.
        images: the processor's dict, or None.
        pictures: the pictures themselves, for drafters that read them by themselves.
        given: the prompt as it was before the pictures took their places; `ids` without pictures.
    """

    ids: Sequence[int]
    images: dict[str, Tensor] | None = None
    pictures: tuple[Image, ...] = ()
    given: Sequence[int] | str = ()

    def request(self, configured: Configured, sampling: SamplingParams | None = None, **options: Any) -> Request:
        """A request that continues it."""
        return Request(
            self.given or list(self.ids),
            configured,
            sampling or SamplingParams(),
            images=self.images,
            pictures=self.pictures,
            **options,
        )


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
        kind: "greedy", "families", "law" or "availability".
        figures: the evidence as numbers: `equal` of `tried` texts over `prompts` or `families`; or `statistic`,
            `freedom`, `p_value`, `runs` and `total_variation` of a law.
    """

    method: str
    promise: str
    claim: str
    verdict: str
    detail: str
    seconds: float = 0.0
    kind: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


def check_method(
    method: Method,
    models: Models,
    prompts: Sequence[Sequence[int] | Prompt],
    max_new_tokens: int = 24,
    runs: int = 1000,
    families: Sequence[str] = (),
) -> Iterator[Finding]:
    """Test one method.

    Args:
        method: from the registry.
        models: target in float64, with its drafter and heads.
        prompts: token ids, or prompts with pictures; parameter corners are tried on the first.
        max_new_tokens: length of greedy texts.
        runs: samples of each sampling test.
        families: tiny random models of these families are decoded greedily too, where the method needs no trained head.
    """
    reason = models.why_not(method.needs)
    if reason:
        yield Finding(method.name, method.promise.value, "availability", SKIPPED, reason, kind="availability")
        return
    yield check_greedy(method, models, prompts, max_new_tokens)
    bare = not set(method.needs) - {"drafter"} and _prompt(prompts[0]).images is None
    if families and bare:
        yield check_families(method, models.tokenizer, families, max_new_tokens)
    if method.promise is Promise.GREEDY_EXACT:
        return
    if not bare:
        yield check_law(method, models, given_law(models, prompts[0], runs // 3), runs // 3, prompts[0])
        return
    tiny = tiny_models(models.tokenizer)
    with _one_thread():
        for which in LAWS:
            yield check_law(method, tiny, which, runs)


def picture_prompts(models: Models) -> list[Prompt]:
    """Two drawings, each with a request, for a target that reads pictures."""
    found = []
    for text, shapes in (
        ("What is in this picture?", [("red", (8, 8, 30, 30)), ("blue", (36, 34, 58, 56))]),
        ("Describe the picture.", [("green", (10, 34, 34, 58))]),
    ):
        picture = new_image("RGB", (64, 64), "white")
        for colour, box in shapes:
            ImageDraw.Draw(picture).ellipse(box, fill=colour)
        asked = models.processor.apply_chat_template(
            [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}],
            add_generation_prompt=True,
        )
        given, images = read(models, asked, [picture])
        found.append(Prompt(images["input_ids"][0].tolist(), images, (picture,), given))
    return found


def _prompt(given: Sequence[int] | Prompt) -> Prompt:
    return given if isinstance(given, Prompt) else Prompt(given)


def check_families(method: Method, tokenizer: Any, names: Sequence[str], max_new_tokens: int = 24) -> Finding:
    """Greedy tokens against Hugging Face's, with the defaults, on a tiny random model of each family."""
    start = time.perf_counter()
    same, wrong = [], ""
    with _one_thread():
        for name in names:
            target = family(name, seed=1)
            models = Models(Runner(target), tokenizer, name)
            if "drafter" in method.needs:
                models.drafter, models.drafter_name = Runner(noisy_copy(target, 0.2)), "noisy-copy"
            found = check_greedy(method, models, [FAMILY_PROMPT], max_new_tokens, with_corners=False)
            if found.figures["equal"] == found.figures["tried"]:
                same.append(name)
            else:
                wrong = wrong or f"; {name}: {found.detail}"
    figures = {"equal": len(same), "tried": len(names), "families": list(names)}
    detail = f"{len(same)} of {len(names)} families equal{wrong}"
    claim = "greedy text equals Hugging Face's in every family"
    return _finding(method, claim, len(same) == len(names), detail, start, "families", figures)


def check_greedy(
    method: Method,
    models: Models,
    prompts: Sequence[Sequence[int] | Prompt],
    max_new_tokens: int = 24,
    with_corners: bool = True,
) -> Finding:
    """Greedy tokens against Hugging Face's `generate` on the same model, for defaults and all parameter corners."""
    start = time.perf_counter()
    engine = Engine(models, record=False)
    given = [_prompt(prompt) for prompt in prompts]
    wanted = [greedy_reference(models, prompt, max_new_tokens) for prompt in given]
    others = corners(method) if with_corners else []
    cases = [(method.with_params(), i) for i in range(len(prompts))] + [(c, 0) for c in others]
    same, wrong, refused = 0, "", []
    for configured, i in cases:
        row = engine.submit(given[i].request(configured, max_new_tokens=max_new_tokens))
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
    figures = {"equal": same, "tried": tried, "prompts": len(prompts), "tokens": max_new_tokens}
    return _finding(method, "greedy text equals Hugging Face's", same == tried, detail, start, "greedy", figures)


def check_law(
    method: Method, models: Models, which: Law, runs: int, prompt: Sequence[int] | Prompt = TINY_PROMPT
) -> Finding:
    """Sampled first tokens against their exact joint law.

    The runs are shared out among the defaults and every other choice of a parameter (a policy, say): all of them
    promise the same law.
    """
    start = time.perf_counter()
    given = _prompt(prompt)
    exact = _exact(models, which, given)
    settings = [method.with_params(), *corners(method, kinds=("choice",))]
    samples: list[list[int]] = []
    for i, configured in enumerate(settings):
        samples += sample_many(configured, models, which, -(-runs // len(settings)), prompt, first_seed=i * runs)
    counts = count_firsts(samples, which.n_tokens)
    fit = chi_square(counts, exact)
    apart = total_variation(counts, exact)
    distance = f"; total variation {apart:.3f}" if not _promises(method) else ""
    detail = f"{len(samples)} runs, {fit}{distance}"
    figures = {
        "statistic": fit.statistic,
        "freedom": fit.freedom,
        "p_value": fit.p_value,
        "runs": len(samples),
        "total_variation": apart,
        "impossible": len(fit.impossible),
    }
    claim = f"sampling law ({which.name})"
    if fit.fits() and not fit.freedom:
        detail = f"the target leaves no choice to draw from: {detail}"
        return Finding(method.name, method.promise.value, claim, SKIPPED, detail, time.perf_counter() - start, "law")
    return _finding(method, claim, fit.fits(ALPHA), detail, start, "law", figures)


def given_law(models: Models, prompt: Sequence[int] | Prompt, runs: int) -> Law:
    """The law that a trained head is put to: truncation makes it small, and heat gives it cells where it has too few.

    The temperature is the lowest of `HEAD_TEMPERATURES` at which at least `HEAD_CELLS` outcomes are expected often
    enough in `runs` samples to count on their own; the highest where none has.
    """
    for temperature in HEAD_TEMPERATURES:
        name = f"given target, temperature {temperature:g}, top-k 3, first 3 tokens"
        found = Law(name, SamplingParams(temperature=temperature, top_k=3), 3)
        exact = _exact(models, found, _prompt(prompt))
        if sum(runs * p >= MIN_EXPECTED for p in exact.values()) >= HEAD_CELLS:
            break
    return found


def _exact(models: Models, which: Law, prompt: Prompt) -> dict[tuple[int, ...], float]:
    """The joint law of the first tokens after a prompt."""
    pixels = _pixels(prompt, models)
    return joint_law(models.target.model, prompt.ids, which.n_tokens, lambda x: law(x[None], which.sampling)[0], pixels)


def sample_many(
    configured: Configured,
    models: Models,
    which: Law,
    runs: int,
    prompt: Sequence[int] | Prompt = TINY_PROMPT,
    first_seed: int = 0,
) -> list[list[int]]:
    """`runs` independent generations, many at once, with the seeds from `first_seed` on."""
    engine = Engine(models, max_rows=BATCH, record=False)
    length = which.n_tokens + 2
    rows = [
        engine.submit(
            _prompt(prompt).request(
                configured, which.sampling, max_new_tokens=length, seed=first_seed + i, stop_at_eos=False
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


def greedy_reference(models: Models, prompt: Sequence[int] | Prompt, max_new_tokens: int) -> list[int]:
    """What Hugging Face's own greedy `generate` writes."""
    given = _prompt(prompt)
    ids = torch.tensor([list(given.ids)], device=models.target.device)
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
            **_pixels(given, models),
        )
    return out[0, len(given.ids) :].tolist()


def _pixels(prompt: Prompt, models: Models) -> dict[str, Tensor]:
    """What the target's own forward takes besides token ids."""
    given = {k: v for k, v in (prompt.images or {}).items() if k not in ("input_ids", "attention_mask")}
    target = models.target
    return {k: v.to(target.device, target.dtype if v.is_floating_point() else None) for k, v in given.items()}


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


def _finding(
    method: Method, claim: str, good: bool, detail: str, start: float, kind: str, figures: dict[str, Any]
) -> Finding:
    verdict = MEASURED if not _promises(method) else PASS if good else FAIL
    return Finding(
        method.name, method.promise.value, claim, verdict, detail, time.perf_counter() - start, kind, figures
    )


def _promises(method: Method) -> bool:
    return method.promise in (Promise.EXACT, Promise.GREEDY_EXACT)
