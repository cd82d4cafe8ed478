"""Properties of every registered method in every setting: its greedy text is the target's, and runs end correctly.

Every registered method is tested automatically. All requests of a test run as sequences of one engine, so that a test
takes seconds and its sequences share a batch. Sampled distributions are tested in test_round_distributions.py and
test_exact_sampling.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import model_helpers
import pytest
import torch
from transformers import LogitsProcessor, NoRepeatNGramLogitsProcessor

from workbench.core.params import ParamSpec
from workbench.core.sampling import SamplingParams
from workbench.decoders import Method
from workbench.engine import Engine, Models, Request, Runner, Sequence
from workbench.methods import registry
from workbench.trace.metrics import summary

pytestmark = [pytest.mark.unchecked, pytest.mark.usefixtures("temporary_disk_cache")]
PROMPT = model_helpers.repeating_prompt(13, period=5)
N_LAYERS = 3
SAMPLED = SamplingParams(temperature=0.9, top_k=20)
LENGTH = 24
SETTINGS = 14
"""Number of settings of a method that are used within one text."""

every_method = pytest.mark.parametrize("method", model_helpers.text_methods(), ids=lambda method: method.name)
Greedy = Callable[..., list[int]]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory, device: str) -> Models:
    """Return a target, a drafter of medium quality, and heads."""
    return model_helpers.make_models("llama", noise=0.15, device=device, heads=tmp_path_factory.mktemp("medusa"))


@pytest.fixture(scope="module")
def copy_models(llama: Models) -> Models:
    """Return the same target with a copy of it as drafter: each draft path is accepted completely."""
    return with_copy(llama)


def with_copy(models: Models, context: int | None = None) -> Models:
    """Return the models with a copy of the target as drafter, and with this context length if one is given."""
    model = models.target.model
    target = models.target if context is None else Runner(model, context)
    return dataclasses.replace(
        models, target=target, drafter=Runner(model_helpers.noisy_copy(model, 0.0), context), shared={}
    )


@pytest.fixture(scope="module")
def greedy(llama: Models) -> Greedy:
    """Return a cached function for Hugging Face's greedy text: (prompt, tokens, options of `generate`) → token ids."""

    @cache
    def write(prompt: tuple[int, ...], n: int, options: tuple[tuple[str, Any], ...]) -> list[int]:
        return model_helpers.hf_greedy(llama.target.model, prompt, n, **dict(options))

    return lambda prompt, n, **options: write(tuple(prompt), n, tuple(options.items()))


# -- settings ---------------------------------------------------------------------------------------------------------


def values_of(spec: ParamSpec) -> list[Any]:
    """Return both ends of a parameter's range, limited to the layers of a tiny model, or all of its choices."""
    if spec.kind == "choice":
        return list(spec.choices)
    if spec.kind == "bool":
        return [False, True]
    assert spec.ge is not None
    assert spec.le is not None
    highest = N_LAYERS if spec.name == "exit_layer" else spec.le
    return [type(spec.default)(v) for v in (spec.ge, highest)]


def corners(method: Method) -> list[dict[str, Any]]:
    """Return settings to test: the defaults, each own parameter of the drafter at each end, and all numbers at one end.

    Policies, tree builders and verifiers are the same parts in every method: each value of their parameters is tested
    in the first and in the last method of the catalogue that has it. `test_lossless.py` tests random settings of every
    method.
    """
    sets = [{name: v} for name, spec in method.params.items() for v in values_of(spec) if is_tried(method, name, v)]
    sets += [{n: values_of(s)[end] for n, s in method.params.items() if s.kind != "choice"} for end in (0, -1)]
    return [{}, *(s for s in sets if s and method.with_params(**s).verifier.keeps_greedy)]


def is_tried(method: Method, name: str, value: Any) -> bool:
    """Return whether a parameter is the drafter's own, or this method is the first or last one with that value."""
    if name in {field.name for field in dataclasses.fields(method.drafter)}:
        return True
    doc, same = method.params[name].doc, [m for m in model_helpers.text_methods() if name in m.params]
    if method.params[name].kind == "choice":
        same = [m for m in same if value in m.params[name].choices]
    else:
        same = [m for m in same if m.params[name].doc == doc]
    return method.name in (same[0].name, same[-1].name)


def next_method(method: Method) -> Method:
    """Return another method, to switch from and to: the next one of the catalogue."""
    methods = model_helpers.text_methods()
    return methods[(methods.index(method) + 1) % len(methods)]


# -- greedy text ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Case:
    """A request and its expected result.

    Attributes:
        request: request with greedy decoding.
        tokens: all emitted tokens.
        reason: reason for which the run ends.
        text: decoded text; None: not checked.
    """

    request: Request
    tokens: list[int]
    reason: str = "length"
    text: str | None = None

    def wrong(self, row: Sequence) -> str:
        """Return a description of the first difference from the expected result; empty if there is none."""
        assert row.trace is not None
        footer = row.trace.footer
        if row.error is not None or footer.reason != self.reason:
            return f"ended with {footer.reason!r}, not {self.reason!r}: {row.error}"
        if row.trace.token_ids != self.tokens:
            return f"emitted {row.trace.token_ids}, not {self.tokens}"
        if summary(row.trace)["tokens"] != len(self.tokens):
            return "the summary counts other tokens"
        return "" if self.text in (None, footer.text) else f"reads {footer.text!r}, not {self.text!r}"


def failing_cases(models: Models, cases: Mapping[str, Case]) -> dict[str, str]:
    """Run all cases in one engine; return the failures by name, including slots that were not released."""
    engine = Engine(models, max_sequences=len(cases))
    rows = {name: engine.submit(case.request) for name, case in cases.items()}
    while not engine.is_idle:
        engine.step()
    found = {name: wrong for name, case in cases.items() if (wrong := case.wrong(rows[name]))}
    return found | ({} if are_slots_released(models) else {"a row": "its slots in a cache were not released"})


def are_slots_released(models: Models) -> bool:
    """Return whether all models have released the slots of all sequences."""
    return not models.target.slots and (models.drafter is None or not models.drafter.slots)


class Wander(LogitsProcessor):
    """Logits processor that forbids the token (sum of the history modulo the vocabulary size), and the next one."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        size = scores.shape[1]
        forbidden = input_ids.sum(1) % size
        return scores.scatter(1, torch.stack([forbidden, (forbidden + 1) % size], 1), -torch.inf)


PROCESSORS: dict[str, LogitsProcessor] = {"own": Wander(), "Hugging Face's": NoRepeatNGramLogitsProcessor(2)}


@every_method
def test_greedy_text_is_hugging_faces_in_every_setting(method: Method, llama: Models, greedy: Greedy) -> None:
    """Token for token in float64: at the ends of its parameters' ranges, and with penalties and logits processors.

    Penalties and processors depend on the path of each node.
    """
    text = greedy(PROMPT, LENGTH)
    cases = {f"{values}": Case(Request(PROMPT, method.with_params(**values), max_new_tokens=20), text[:20])
             for values in corners(method)}  # fmt: skip
    cases["one token"] = Case(Request([7], method, max_new_tokens=16), greedy([7], 16))
    shaped = SamplingParams(repetition_penalty=1.6)
    cases["penalty"] = Case(Request(PROMPT, method, shaped, 20), greedy(PROMPT, 20, repetition_penalty=1.6))
    for name, processor in PROCESSORS.items():
        wanted = greedy(PROMPT, 20, logits_processor=(processor,))
        assert wanted != text[:20]
        cases[name] = Case(Request(PROMPT, method, SamplingParams(processors=(processor,)), 20), wanted)
    assert failing_cases(llama, cases) == {}


@every_method
def test_text_can_end_inside_an_accepted_path(method: Method, copy_models: Models, greedy: Greedy) -> None:
    """At the length limit, and at stop strings across token borders: accepted tokens after the end are not emitted."""
    text, decode = greedy(PROMPT, LENGTH), copy_models.tokenizer.decode
    cases = {f"{n} tokens": Case(Request(PROMPT, method, max_new_tokens=n), text[:n]) for n in (1, 2, 3, 7)}
    written = decode(text)
    for first, last in ((0, 1), (4, 6), (3, 9)):
        stop = decode(text[first:last])
        kept = next(text[:n] for n in range(1, LENGTH + 1) if stop in decode(text[:n]))
        request = Request(PROMPT, method, max_new_tokens=LENGTH, stop=("§never§", stop))
        cases[f"stop {stop!r}"] = Case(request, kept, "stop-string", written[: written.index(stop)])
    assert failing_cases(copy_models, cases) == {}


@every_method
def test_nothing_follows_the_end_of_text_inside_a_tree(
    method: Method, copy_models: Models, greedy: Greedy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The EOS token is the first token, in the first draft, or later; the methods take these cases in turn."""
    text = greedy(PROMPT, LENGTH)
    end = text[(0, 3, 10)[model_helpers.text_methods().index(method) % 3]]
    wanted = text[: text.index(end) + 1]
    assert greedy(PROMPT, LENGTH, eos=end) == wanted
    monkeypatch.setattr(copy_models.target.model.generation_config, "eos_token_id", end)
    request = Request(PROMPT, method, max_new_tokens=LENGTH)
    goes_on = dataclasses.replace(request, stop_at_eos=False)
    assert failing_cases(copy_models, {"ends": Case(request, wanted, "eos"), "goes on": Case(goes_on, text)}) == {}


def test_the_end_of_text_is_the_last_node_of_its_path(
    copy_models: Models, greedy: Greedy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EOS within a chain of five draft tokens: there is no bonus token after it."""
    text = greedy(PROMPT, LENGTH)
    monkeypatch.setattr(copy_models.target.model.generation_config, "eos_token_id", text[3])
    last = Engine(copy_models).generate(Request(PROMPT, registry.get("draft-model"), max_new_tokens=LENGTH)).rounds[-1]
    assert (text.index(text[3]) + 1) % 5
    assert last.bonus is None
    assert last.emitted[-1].node == last.path[-1]


@every_method
def test_generation_up_to_the_end_of_the_context(method: Method, llama: Models, greedy: Greedy) -> None:
    short, cases = with_copy(llama, context=32), {}
    for length in (31, 20):
        prompt = model_helpers.repeating_prompt(length)
        cases[f"{length}"] = Case(Request(prompt, method, max_new_tokens=50), greedy(prompt, 32 - length))
    assert failing_cases(short, cases) == {}
    trace = Engine(short).generate(cases["31"].request)
    assert "cut from 50" in trace.footer.warnings[0]


# -- changes in mid-run, and seeds ------------------------------------------------------------------------------------


@every_method
def test_switching_to_a_method_changing_settings_and_leaving_it(method: Method, llama: Models, greedy: Greedy) -> None:
    """Greedy text stays the target's whichever settings drafted its parts, and every setting has rounds.

    The settings are the defaults, each choice, and all numbers at one end; single numbers are tested above.
    """
    settings = [s for s in corners(method) if len(s) != 1 or method.params[next(iter(s))].kind in ("choice", "bool")]
    for first in range(0, len(settings), SETTINGS):  # one text has enough rounds for this number of settings
        changes_of_one_run(method, settings[first : first + SETTINGS], llama, greedy)


def changes_of_one_run(method: Method, settings: list[dict[str, Any]], llama: Models, greedy: Greedy) -> None:
    """Switch from another method to these settings, to that method once between them, and back to it at the end."""
    other, engine = next_method(method), Engine(llama)
    row = engine.submit(Request(PROMPT, other, max_new_tokens=200))
    steps = [(method, values) for values in settings]
    steps.insert(len(steps) // 2, (other, {}))
    for step in [*steps, (other, {})]:
        for _ in range(2 if row.trace and row.trace.rounds else 3):
            engine.step()
        row.change(method=step[0], params=step[1])
    engine.step()
    assert row.trace is not None
    assert row.trace.footer.error == ""
    assert len(row.trace.rounds) > 2 * len(steps), "it ended before all settings were used"
    assert {r.method for r in row.trace.rounds} == {method.name, other.name}
    assert row.trace.token_ids == greedy(PROMPT, 200)[: len(row.trace.token_ids)]
    assert not any(note.startswith("A change was refused") for r in row.trace.rounds for note in r.notes)
    row.cancel()
    engine.step()
    assert are_slots_released(llama)


@every_method
def test_a_seed_reproduces_a_sampled_run(method: Method, llama: Models) -> None:
    engine = Engine(llama)
    rows = [engine.submit(Request(PROMPT, method, SAMPLED, LENGTH, seed)) for seed in (5, 5, 6)]
    while not engine.is_idle:
        engine.step()
    first, again, other = (row.trace.token_ids for row in rows if row.trace)
    assert first == again
    assert first != other
