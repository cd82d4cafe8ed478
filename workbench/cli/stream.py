"""Print generated text in a terminal, with accepted, corrected and bonus tokens marked."""

from __future__ import annotations

import os
import re
import sys
from enum import Enum
from typing import Any

from rich.console import Console
from rich.style import Style
from rich.text import Text

from workbench.trace.events import Round
from workbench.trace.nodes import ACCEPTED
from workbench.trace.tokens import BONUS, CORRECTED, PLAIN

STYLES = {
    ACCEPTED: Style(color="#1F2328", bgcolor="#D9ECFC", underline=True),
    CORRECTED: Style(color="#1F2328", bgcolor="#F0ECDB", bold=True),
    BONUS: Style(color="#1F2328", bgcolor="#E6DEE8", italic=True),
}
"""Terminal style of accepted, corrected and bonus tokens: background colour and a text style.

The text style is for readers who cannot see colours.
"""
SIGNS = {ACCEPTED: "_", CORRECTED: "*", BONUS: "/"}
"""Character around an accepted, corrected or bonus token, in a terminal without colours and text styles."""
WORDS = {ACCEPTED: "accepted draft", CORRECTED: "corrected by the target", BONUS: "bonus token"}
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Pattern of control characters, which a terminal interprets instead of showing, such as escape sequences."""


class Marks(str, Enum):
    """How accepted, corrected and bonus tokens are marked in a terminal."""

    auto = "auto"
    colour = "colour"
    style = "style"
    text = "text"
    none = "none"

    def on(self, stream: Any) -> Marks:
        """Return how tokens are marked on a stream; `auto` depends on the terminal.

        The environment variable NO_COLOR (https://no-color.org) turns off the colours, not the marks.
        """
        if self is not Marks.auto:
            return self
        if not stream.isatty():
            return Marks.none
        if os.environ.get("TERM") == "dumb":
            return Marks.text
        return Marks.style if os.environ.get("NO_COLOR") else Marks.colour


def harmless(text: str) -> str:
    """Replace each control character, which a terminal would interpret, by its hexadecimal code in brackets."""
    return _CONTROL.sub(lambda found: f"\u2039{ord(found[0]):02X}\u203a", text)


class TokenPrinter:
    """Print the generated tokens of each round in a terminal as they arrive.

    Attributes:
        console: console to print to.
        marks: how tokens are marked on this console; never `auto`.
    """

    def __init__(self, marks: Marks = Marks.auto, stream: Any = None) -> None:
        stream = stream or sys.stdout
        self.marks = marks.on(stream)
        self.has_printed = False
        has_style = self.marks in (Marks.colour, Marks.style)
        self.console = Console(
            file=stream,
            force_terminal=has_style,
            color_system="truecolor" if has_style else None,
            no_color=self.marks is Marks.style,
            highlight=False,
        )

    def echo(self, prompt: str) -> None:
        """Print the prompt before the generated text if the output is a terminal; a pipe gets only the new text."""
        if self.console.file.isatty() and self.marks is not Marks.none:
            self.console.print(Text(harmless(prompt), Style(dim=True)), end="", soft_wrap=True)
            self.console.file.flush()

    def show(self, round_: Round) -> None:
        """Print the tokens of a decoding round. Tokens of plain decoding are not marked."""
        self.has_printed = True
        for token in round_.emitted:
            for piece in harmless(token.text).splitlines(keepends=True):
                line = piece.rstrip("\r\n")
                self._put(line, None if token.kind == PLAIN else token.kind)
                self.console.file.write(piece[len(line) :])
        self.console.file.flush()

    def _put(self, text: str, kind: str | None) -> None:
        if kind is None or self.marks is Marks.none or not text:
            self.console.file.write(text)
        elif self.marks is Marks.text:
            self.console.file.write(_signed(text, kind))
        else:
            self.console.print(Text(text, STYLES[kind]), end="", soft_wrap=True)

    def end(self, legend: bool = True) -> None:
        """End the last line of the text and, if tokens are marked, print a legend of the marks."""
        if not self.has_printed:
            return
        self.console.file.write("\n")
        if legend and self.marks is not Marks.none:
            for kind, word in WORDS.items():
                self._put(f" {word} ", kind)
                self.console.file.write("  ")
            self.console.file.write("\n")
        self.console.file.flush()


def _signed(text: str, kind: str) -> str:
    """Return a token's text between two characters that mark its kind; blanks at its ends stay outside."""
    core = text.strip() or text
    head, _, tail = text.partition(core)
    return f"{head}{SIGNS[kind]}{core}{SIGNS[kind]}{tail}"
