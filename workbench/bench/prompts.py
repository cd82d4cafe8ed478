"""Prompts of benchmarks: the bundled prompts, or those of a file of JSON Lines."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.core.errors import PromptError
from workbench.trace.files import read_regular

BUNDLED = Path(__file__).with_name("prompts.jsonl")
ARITHMETIC = Path(__file__).with_name("arithmetic.jsonl")
"""File of arithmetic problems with one numeric answer each; the bundled models were not trained on these problems."""
CLAIM_PROMPTS = Path(__file__).with_name("claim_prompts.jsonl")
"""File of more prompts of the bundled kinds, for measuring papers' claims.

`workbench.training.claim_prompts` writes this file.
"""


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One prompt of a bench, with its name, its kind and, if known, the right answer.

    Attributes:
        name: short name in reports.
        group: kind of the requested text; rows are also reported by group.
        prompt: text of the prompt.
        chat: whether the prompt is a user's message, to which the tokenizer's chat template is applied if there is one.
        follow_ups: the user's later messages of the same conversation, for `with_follow_ups`.
        before: the conversation before the prompt, user and assistant in turn, user first.
        question: number of the question to which the prompt belongs, if the suite numbers its questions.
        turn: index of the message in the conversation, from 0.
        category: category that the suite gives to the prompt, if it is finer than `group`.
        answer: right answer, compared with the last number or the first JSON object of a text; empty if a program
            cannot check answers.
    """

    name: str
    prompt: str
    group: str = "all"
    chat: bool = False
    follow_ups: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    question: int | None = None
    turn: int = 0
    category: str = ""
    answer: str = ""

    def encode(self, tokenizer: Any) -> list[int]:
        """Return the prompt's token ids; a user's message gets the tokenizer's chat template if there is one."""
        turns = [*self.before, self.prompt]
        if self.chat and getattr(tokenizer, "chat_template", None):
            messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)]
            text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            return list(tokenizer(text, add_special_tokens=False)["input_ids"])
        return list(tokenizer("\n".join(turns))["input_ids"])

    def is_right(self, text: str) -> bool:
        """Return whether the answer is the last number of a text, or its first JSON object, in any order of fields.

        Example:
            >>> BenchPrompt("sum", "What is 1 + 2?", answer="3").is_right("1 + 2 = 3.")
            True
            >>> BenchPrompt("record", "As JSON: a is 1, b is 2", answer='{"a": 1, "b": 2}').is_right('{"b": 2, "a": 1}')
            True
        """
        if self.answer.startswith("{"):
            return first_object(text) == json.loads(self.answer)
        return bool(self.answer) and re.findall(r"\d+", text.replace(",", ""))[-1:] == [self.answer]


def first_object(text: str) -> Any:
    """Return the first JSON object of a text; None if there is no valid one."""
    try:
        return json.JSONDecoder().raw_decode(text, text.find("{") if "{" in text else len(text))[0]
    except json.JSONDecodeError:
        return None


def with_follow_ups(prompts: Sequence[BenchPrompt], answer: Callable[[BenchPrompt], str | None]) -> list[BenchPrompt]:
    """Return each user message of each conversation as a separate prompt, which contains the earlier conversation.

    The answers come from one method, so that all methods continue the same conversation.

    Args:
        prompts: prompts with or without `follow_ups`.
        answer: function: prompt → the assistant's answer; None ends the conversation there.
    """
    expanded = []
    for prompt in prompts:
        expanded.append(dataclasses.replace(prompt, follow_ups=()))
        for turn, text in enumerate(prompt.follow_ups, 1):
            last, reply = expanded[-1], answer(expanded[-1])
            if reply is None:
                break
            before = (*last.before, last.prompt, reply)
            name = f"{prompt.name}/{turn + 1}"
            expanded.append(dataclasses.replace(last, name=name, prompt=text, before=before, turn=turn))
    return expanded


def load_prompts(path: Path | None = None) -> list[BenchPrompt]:
    """Read JSON Lines of objects with `prompt`, and optionally `name`, `group`, `chat` and `answer`.

    Args:
        path: the file; None: the bundled set.

    Raises:
        PromptError: the file is missing, empty, or a line is not such an object.
    """
    path = path or BUNDLED
    try:
        lines = read_regular(path, or_pipe=True).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "the file is not UTF-8 text"
        raise PromptError(f"The prompts cannot be read from {path}: {reason}.", "Give a JSON Lines file.") from None
    return _of_lines(lines, str(path))


def read_prompts(text: str) -> list[BenchPrompt]:
    r"""Parse prompts that a user typed or pasted: one message per line, or JSON Lines in `load_prompts`' format.

    Raises:
        PromptError: the text is empty, or a line of JSON is not such an object.

    Example:
        >>> [p.prompt for p in read_prompts("Why does it rain?\n\nTell me a story.")]
        ['Why does it rain?', 'Tell me a story.']
    """
    lines = text.splitlines()
    if text.lstrip().startswith("{"):
        return _of_lines(lines, "the text")
    numbered = [(i, line.strip()) for i, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise PromptError("There is no prompt.", "Write one prompt per line, or choose a file.")
    return [BenchPrompt(f"line {i}", line, chat=True) for i, line in numbered]


def _of_lines(lines: Sequence[str], path: str) -> list[BenchPrompt]:
    prompts = [_parse(line, number, path) for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise PromptError(f"{path} contains no prompts.", 'Write one object per line: {"prompt": "Once upon a time"}')
    return prompts


def _parse(line: str, number: int, path: str) -> BenchPrompt:
    try:
        row = json.loads(line)
        text = row["prompt"]
    except (json.JSONDecodeError, KeyError, TypeError):
        text = None
    if not isinstance(text, str) or not text:
        raise PromptError(
            f"Line {number} of {path} is not an object with a text under 'prompt'.",
            'Write one object per line: {"prompt": "Once upon a time"}',
        )
    name = str(row.get("name") or f"prompt-{number}")
    group, answer = str(row.get("group") or "all"), str(row.get("answer") or "")
    return BenchPrompt(name, text, group, bool(row.get("chat", False)), answer=answer)


def groups_of(prompts: Sequence[BenchPrompt]) -> list[str]:
    """Return the names of the groups of these prompts, in order of appearance."""
    return list(dict.fromkeys(p.group for p in prompts))
