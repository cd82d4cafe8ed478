"""Swaps: replace a token in a target's answer by the draft model's token, and test whether the final answer changes.

Swaps are AutoJudge's labels for a judge of drafts. The target answers a problem greedily. At the first position where
the draft model's most probable token differs from the answer, the draft model's token replaces the answer's token, and
the target finishes the text. If the final answer is the same, the swap is harmless and stays in the text; if not, the
swap is wrong and is undone. The search continues after that position until the draft model agrees with the rest of the
text.

Source: Garipov et al. 2025, AutoJudge, arXiv:2504.20039, semi-greedy search. In the paper final answers are numbers;
here each task of the generators has its own kind of final answer: see `final_answer`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from workbench.core.errors import ParameterError
from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Models, Request
from workbench.methods import registry
from workbench.methods.tree_builders.chain import fit_vocabulary
from workbench.training.acceptance import compute_logits_and_states
from workbench.training.answers import encode_message
from workbench.training.generators import TASKS, Instance, is_exact_match
from workbench.training.loop import Report

NUMBERS = ("addition", "subtraction", "multiplication")
"""Generator tasks whose final answer is the last number of the text."""
OBJECTS = ("json", "extract")
"""Generator tasks whose final answer is a JSON object."""


@dataclass(frozen=True, slots=True)
class Swap:
    """One token of an answer, replaced by the draft model's token.

    Attributes:
        group: task of the problem.
        prefix: token ids before the swap: the prompt and the answer so far, with earlier harmless swaps.
        token: the draft model's token.
        is_wrong: whether the final answer changed, or is missing.
    """

    group: str
    prefix: tuple[int, ...]
    token: int
    is_wrong: bool


@dataclass
class _Search:
    """State of the search for swaps (replaced tokens) in one answer.

    Attributes:
        instance: problem that the target answers.
        prompt_ids: token ids of the prompt.
        answer: token ids of the answer, including EOS if it has one.
        final: the final answer of the target's own text.
        border: first position of the answer that has not been tested yet.
        best: the draft model's most probable token at each position of the answer; empty if the answer has changed
            since the last computation.
    """

    instance: Instance
    prompt_ids: list[int]
    answer: list[int] = field(default_factory=list[int])
    final: Hashable = None
    border: int = 0
    best: list[int] = field(default_factory=list[int])


def final_answer(instance: Instance, text: str) -> Hashable:
    """Return the final answer of a text, comparable with `==`; None if the text has no final answer.

    The final answer is the last number of a calculation, the JSON object of a record, or the whole text of a task with
    only one right answer. For a story or a program, the final answer is whether the text passes the task's checker.

    >>> final_answer(Instance("addition", "Add 1 and 2.", "", ""), "Ones: 1 + 2 = 3. Answer: 3")
    '3'
    """
    if instance.task in NUMBERS:
        return next(iter(re.findall(r"\d+", text)[-1:]), None)
    if instance.task in OBJECTS:
        try:
            return json.dumps(json.loads(text), sort_keys=True)
        except ValueError:
            return None
    if is_text(instance):
        return text.strip() or None
    return TASKS[instance.task].check(instance, text) or None


def is_text(instance: Instance) -> bool:
    """Return whether a problem's final answer is the whole text, so that every replaced token changes it."""
    task = TASKS[instance.task]
    return task.check is is_exact_match and instance.task not in (*NUMBERS, *OBJECTS)


def problems(groups: Sequence[str], count: int, seed: int, held_out: bool) -> list[Instance]:
    """Return the first `count` problems of each generator task in `groups`.

    Raises:
        ParameterError: a task does not exist.
    """
    for group in groups:
        if group not in TASKS:
            raise ParameterError(f"The option names the unknown task {group!r}.", f"Use one of: {', '.join(TASKS)}.")
    return [i for group in groups for i in islice(TASKS[group].stream(seed, held_out=held_out), count)]


def find_swaps(
    models: Models, instances: Iterable[Instance], tokens: int, rows: int, report: Report
) -> list[list[Swap]]:
    """Find the swaps in the target's answers: tokens that are replaced by the draft model's token.

    Return a list of swaps for each problem that the target answers.

    Args:
        models: target and draft model.
        instances: problems to search.
        tokens: length limit of an answer.
        rows: texts that the target finishes in one batch.
        report: function that receives progress lines.

    Raises:
        ParameterError: there is no draft model.
    """
    if models.drafter is None:
        raise ParameterError(
            f"Judge training needs a draft model: {models.drafter_problem}", "Set the option drafter to a draft model."
        )
    engine = Engine(models, max_sequences=rows, record=False)
    searches = [_Search(instance, encode_message(models.tokenizer, instance.prompt)) for instance in instances]
    answers = _generate_continuations(engine, [(search.prompt_ids, tokens) for search in searches])
    swaps = dict[int, list[Swap]]()
    for search, answer in zip(searches, answers, strict=True):
        search.answer, search.final = answer, final_answer(search.instance, _text(models, answer))
        if search.final is not None:
            swaps[id(search)] = []
    running = [search for search in searches if id(search) in swaps]
    report(f"judge: {len(running):,} of {len(searches):,} problems have a final answer")
    while running:
        mismatches = [(search, i) for search in running if (i := _mismatch(models, search)) is not None]
        texts = dict[int, list[int]]()
        requests = list[tuple[list[int], int]]()
        for search, i in mismatches:
            text = [*search.answer[:i], search.best[i]]
            limit = 0 if is_text(search.instance) or text[-1] in models.eos else tokens - len(text)
            texts[id(search)] = text
            requests.append(([*search.prompt_ids, *text], max(0, limit)))
        for (search, i), continuation in zip(mismatches, _generate_continuations(engine, requests), strict=True):
            text = [*texts[id(search)], *continuation]
            is_same = (
                not is_text(search.instance) and final_answer(search.instance, _text(models, text)) == search.final
            )
            prefix = (*search.prompt_ids, *search.answer[:i])
            swaps[id(search)].append(Swap(search.instance.task, prefix, search.best[i], not is_same))
            search.border = i + 1
            if is_same:
                search.answer, search.best = text, []
        running = [search for search, _ in mismatches]
        report(f"judge: {sum(map(len, swaps.values())):,} token replacements tested, {len(running):,} problems left")
    return list(swaps.values())


def _mismatch(models: Models, search: _Search) -> int | None:
    """Return the first untested position of an answer at which the draft model would generate a different token."""
    assert models.drafter is not None
    if not search.best:
        logits = compute_logits_and_states(models.drafter, [*search.prompt_ids, *search.answer])[0][
            len(search.prompt_ids) - 1 : -1
        ]
        search.best = fit_vocabulary(logits, models.target.vocab_size).argmax(1).tolist()
    positions = range(search.border, len(search.answer))
    return next((i for i in positions if search.best[i] != search.answer[i]), None)


def _generate_continuations(engine: Engine, requests: Sequence[tuple[list[int], int]]) -> list[list[int]]:
    """Return the tokens that the target generates after each text, greedily, up to each text's limit."""
    method = registry.get("autoregressive")
    order = sorted((i for i, (_, n) in enumerate(requests) if n), key=lambda i: len(requests[i][0]))
    traces = engine.generate_all(Request(requests[i][0], method, SamplingParams(), requests[i][1]) for i in order)
    continuations: list[list[int]] = [[] for _ in requests]
    for i, trace in zip(order, traces, strict=True):
        continuations[i] = trace.token_ids
    return continuations


def _text(models: Models, tokens: Sequence[int]) -> str:
    return models.tokenizer.decode(list(tokens), skip_special_tokens=True)
