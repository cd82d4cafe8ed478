"""Render chat templates and track the origin of each character: the template itself, or a message.

If the template writes the text of a special token, that text must be encoded as the special token; inside a message it
must be encoded as plain text. After rendering, these cases look the same. So the template is rendered a second time
with strings that carry the origin of each character through Jinja's operators, filters and macros.
`apply_chat_template(sanitize_control_tokens=True)` of Transformers inserts markers instead, which changes the result of
templates that slice a message or test its beginning (`content.startswith("<think>")`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, SupportsIndex

from jinja2 import Template, filters, nodes, pass_eval_context
from jinja2.compiler import CodeGenerator, Frame

TEMPLATE, MESSAGE, UNKNOWN = "t", "m", "?"
"""Possible origins of a character in a rendered conversation. UNKNOWN: an operation did not preserve the origin."""


class TracedText(str):
    """String that stores the origin of each of its characters: the chat template, a message, or unknown.

    Attributes:
        _origins: one of TEMPLATE, MESSAGE and UNKNOWN per character. Jinja's sandbox prevents templates from reading
            it.
    """

    _origins: str

    def __new__(cls, text: str = "", origins: str = UNKNOWN) -> TracedText:
        """Create a traced text (string with origins) from one origin for all characters, or one for each character."""
        result = super().__new__(cls, text)
        result._origins = origins * len(result) if len(origins) == 1 else origins
        return result

    def __str__(self) -> str:
        return self

    def __getitem__(self, key: SupportsIndex | slice) -> TracedText:
        return TracedText(super().__getitem__(key), self._origins[key])

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))

    def __add__(self, other: str) -> TracedText:
        return joined((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> TracedText:
        return joined((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, times: SupportsIndex) -> TracedText:
        return TracedText(super().__mul__(times), self._origins * int(times))

    def __rmul__(self, times: SupportsIndex) -> TracedText:
        return self * times

    def __mod__(self, values: Any) -> TracedText:
        return TracedText(super().__mod__(values))

    def join(self, parts: Iterable[str], /) -> TracedText:
        """Join texts with this traced text (string with origins) as the separator; characters keep their origins."""
        texts = list(parts)
        return joined([piece for text in texts for piece in (self, text)][1:])

    def strip(self, chars: str | None = None, /) -> TracedText:
        """Return the traced text (string with origins) without white space, or without `chars`, at both ends."""
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None, /) -> TracedText:
        """Return the traced text (string with origins) without white space, or without `chars`, at the beginning."""
        return self[len(self) - len(super().lstrip(chars)) :]

    def rstrip(self, chars: str | None = None, /) -> TracedText:
        """Return the traced text (string with origins) without white space, or without `chars`, at the end."""
        return self[: len(super().rstrip(chars))]

    def removeprefix(self, prefix: str, /) -> TracedText:
        """Return the traced text (string with origins) without `prefix` at its start, as `str.removeprefix` does."""
        return self[len(prefix) :] if self.startswith(prefix) else self

    def removesuffix(self, suffix: str, /) -> TracedText:
        """Return the traced text (string with origins) without `suffix` at its end, as `str.removesuffix` does."""
        return self[: len(self) - len(suffix)] if suffix and self.endswith(suffix) else self

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """Split the traced text (string with origins) at a separator, or at white space, as `str.split` does."""
        return self._located(super().split(sep, maxsplit), len(sep or ""))

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """Split the traced text (string with origins) from its end, as `str.rsplit` does."""
        return self._located(super().rsplit(sep, maxsplit), len(sep or ""))

    def splitlines(self, keepends: bool = False) -> list[str]:
        """Split the traced text (string with origins) into lines, as `str.splitlines` does."""
        return self._located(super().splitlines(keepends), 0)

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        """Split the traced text (string with origins) at the first separator in three, as `str.partition` does."""
        return self._cut(self.find(sep), len(sep)) if sep in self else (self, TracedText(), TracedText())

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        """Split the traced text (string with origins) at the last separator in three, as `str.rpartition` does."""
        return self._cut(self.rfind(sep), len(sep)) if sep in self else (TracedText(), TracedText(), self)

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> TracedText:
        """Replace occurrences of `old` by `new` in the traced text (string with origins), as `str.replace` does."""
        if old:
            return TracedText(new, origins(new)).join(self.split(old, count))
        return self._changed(super().replace(old, new, count))

    def upper(self) -> TracedText:
        """Return the traced text (string with origins) in upper case."""
        return self._changed(super().upper())

    def lower(self) -> TracedText:
        """Return the traced text (string with origins) in lower case."""
        return self._changed(super().lower())

    def capitalize(self) -> TracedText:
        """Return the traced text (string with origins) with its first letter in upper case."""
        return self._changed(super().capitalize())

    def title(self) -> TracedText:
        """Return the traced text (string with origins) with each word's first letter in upper case."""
        return self._changed(super().title())

    def _located(self, parts: list[str], step: int) -> list[str]:
        """Return the parts of a split as slices of this traced text, so that their characters keep their origins.

        Args:
            parts: parts in order.
            step: number of characters between two parts, if they are not separated by white space.
        """
        slices: list[str] = []
        position = 0
        for part in parts:
            position = self.find(part, position)
            slices.append(self[position : position + len(part)])
            position += len(part) + step
        return slices

    def _cut(self, place: int, length: int) -> tuple[str, str, str]:
        return self[:place], self[place : place + length], self[place + length :]

    def _changed(self, text: str) -> TracedText:
        """Return `text`, a changed form of this traced text (string with origins), with origins.

        If the length is the same, each character keeps its origin. Otherwise all characters become MESSAGE if any of
        them was MESSAGE before, else UNKNOWN.
        """
        if len(text) == len(self):
            return TracedText(text, self._origins)
        return TracedText(text, MESSAGE if MESSAGE in self._origins else UNKNOWN)


def origins(text: str) -> str:
    """Return the origin of each character; UNKNOWN for a plain string."""
    return text._origins if isinstance(text, TracedText) else UNKNOWN * len(text)  # pyright: ignore[reportPrivateUsage]


def joined(parts: Iterable[Any]) -> TracedText:
    """Join values to one traced text (string with origins). Values that are not text are converted as in Jinja."""
    texts = [part if isinstance(part, str) else str(part) for part in parts]
    return TracedText("".join(texts), "".join(map(origins, texts)) or UNKNOWN)


def traced(value: Any, origin: str | Callable[[str], str]) -> Any:
    """Return a copy of nested data in which every string is a `TracedText` (a string with origins).

    Args:
        value: nested dicts, lists and strings.
        origin: origin of all characters, or a function from a string to its origin.
    """
    if isinstance(value, str):
        if isinstance(value, TracedText):
            return value
        return TracedText(value, origin if isinstance(origin, str) else origin(value))
    if isinstance(value, dict):
        return {key: traced(item, origin) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(traced(item, origin) for item in value)
    return value


def render(tokenizer: Any, messages: list[dict[str, Any]]) -> TracedText:
    """Render a conversation as `apply_chat_template` does, with generation prompt; track each character's origin.

    The text of a role counts as part of the template, which may build a special token from it (`'<|' + role + '|>'`).
    A role that itself contains a special token counts as part of a message.

    Args:
        tokenizer: a tokenizer of Transformers with a chat template.
        messages: messages with `role` and `content`.

    Raises:
        Exception: any exception, if the template cannot be rendered in this way.
    """
    special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]

    def of_role(text: str) -> str:
        return MESSAGE if any(content in text for content in special) else TEMPLATE

    rendered = _compiled(tokenizer.get_chat_template()).render(
        messages=[
            {key: traced(value, of_role if key == "role" else MESSAGE) for key, value in message.items()}
            for message in messages
        ],
        tools=None,
        documents=None,
        add_generation_prompt=True,
        **traced(tokenizer.special_tokens_map, TEMPLATE),
    )
    return TracedText(rendered, origins(rendered) or UNKNOWN)


class _TracingGenerator(CodeGenerator):
    """Jinja's code generator, changed so that template data, constants and the operator `~` give `TracedText`."""

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return f"environment.own({super()._output_const_repr(group)})"

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:
        self.write("environment.own(")
        super().visit_Const(node, frame)
        self.write(")")

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:
        self.write("environment.own(")
        super().visit_TemplateData(node, frame)
        self.write(")")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


@pass_eval_context
def _join(context: Any, values: Iterable[Any], d: str = "", attribute: str | int | None = None) -> Any:
    """Join values as Jinja's filter `join` does, so that the characters of the result keep their origins."""
    return filters.do_join(context, values, traced(d, TEMPLATE), attribute)


@lru_cache(maxsize=8)
def _compiled(template: str) -> Template:
    """Compile a chat template in Transformers' Jinja environment, with its sandbox, filters and globals."""
    from transformers.utils.chat_template_utils import _compile_jinja_template  # pyright: ignore[reportPrivateUsage]

    environment: Any = _compile_jinja_template(template).environment.overlay()
    environment.code_generator_class = _TracingGenerator
    environment.concat = joined
    environment.own = lambda value: traced(value, TEMPLATE)
    environment.filters = {**environment.filters, "join": _join}
    return environment.from_string(template)
