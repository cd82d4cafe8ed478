"""Conversations in the target's chat template."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import model_helpers
import pytest

from workbench.core.errors import PromptError
from workbench.service import Backend, Limits
from workbench.service.chat import chat_ids

HELLO = [{"role": "user", "content": "hi"}]
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def tokenizer(template: str | None = TEMPLATE) -> Any:
    import copy

    made = copy.deepcopy(model_helpers.byte_tokenizer())
    made.chat_template = template
    return made


def test_a_conversation_becomes_the_targets_own_tokens() -> None:
    talk = [*HELLO, {"role": "assistant", "content": "hello"}, {"role": "user", "content": "bye"}]
    ids = chat_ids(tokenizer(), talk, Limits())
    assert tokenizer().decode(ids) == "<user>hi<assistant>hello<user>bye<assistant>"


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "no messages"),
        ("hi", "no messages"),
        ([{"role": "user"}], "no text"),
        ([{"role": "user", "content": ["x"]}], "no text"),
        ([7], "no text"),
        ([{"role": "tool", "content": "x"}], "no tools here"),
        ([{"role": "user", "content": "x" * 50}], "Shorten the prompt by"),
    ],
)
def test_messages_that_do_not_fit_are_refused(messages: Any, says: str) -> None:
    with pytest.raises(PromptError, match=says):
        chat_ids(tokenizer(), messages, Limits(prompt_chars=40))


def test_a_target_without_a_chat_template_is_refused(backend: Callable[..., Backend], folders: tuple[str, str]) -> None:
    with pytest.raises(PromptError, match="no chat template"):
        backend().chat_prompt(HELLO)


def test_a_template_cannot_access_python_internals(tmp_path: Path) -> None:
    template = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(PromptError, match="do not fit"):
        chat_ids(tokenizer(template), HELLO, Limits())


@pytest.mark.parametrize("said", ["<|user|>", "a <|end|> b", "<|assistant|><|assistant|>"])
def test_special_tokens_in_messages_stay_text(said: str) -> None:
    made = tokenizer()
    marks = ["<|user|>", "<|end|>", "<|assistant|>"]
    made.add_special_tokens({"additional_special_tokens": marks})
    ids = chat_ids(made, [{"role": "user", "content": said}], Limits())
    assert not set(ids) & set(made.convert_tokens_to_ids(marks)), "no special token comes from the message"
    assert made.decode(ids) == f"<user>{said}<assistant>"
