"""Generated text in a terminal, each token marked by where it came from: in colour, by style, or by characters."""

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
"""The project's palette: ink on the tint of the status, and a second sign beside the colour."""
SIGNS = {ACCEPTED: "_", CORRECTED: "*", BONUS: "/"}
"""Where there is neither colour nor style: around the token, as plain mail marks underlined, bold and italic words."""
WORDS = {ACCEPTED: "accepted draft", CORRECTED: "corrected by the target", BONUS: "bonus token"}
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What a terminal obeys instead of showing: escape sequences, the C1 set, changes of direction."""


class Marks(str, Enum):
    """How tokens are marked."""

    auto = "auto"
    colour = "colour"
    style = "style"
    text = "text"
    none = "none"

    def on(self, stream: Any) -> Marks:
        """What `auto` means on a stream: NO_COLOR (https://no-color.org) takes the colours, not the marks."""
        if self is not Marks.auto:
            return self
        if not stream.isatty():
            return Marks.none
        if os.environ.get("TERM") == "dumb":
            return Marks.text
        return Marks.style if os.environ.get("NO_COLOR") else Marks.colour


def harmless(text: str) -> str:
    """Text with the characters that steer a terminal written as their codes."""
    return _CONTROL.sub(lambda found: f"\u2039{ord(found[0]):02X}\u203a", text)


class TokenPrinter:
    """Prints rounds as they come.

    Attributes:
        console: where to.
        marks: how tokens are marked, decided for this stream.
    """

    def __init__(self, marks: Marks = Marks.auto, stream: Any = None) -> None:
        stream = stream or sys.stdout
        self.marks = marks.on(stream)
        self.has_printed = False
        styled = self.marks in (Marks.colour, Marks.style)
        self.console = Console(
            file=stream,
            force_terminal=styled,
            color_system="truecolor" if styled else None,
            no_color=self.marks is Marks.style,
            highlight=False,
        )

    def echo(self, prompt: str) -> None:
        """The prompt before the text that continues it, on a terminal only: a pipe gets the text alone."""
        if self.console.file.isatty() and self.marks is not Marks.none:
            self.console.print(Text(harmless(prompt), Style(dim=True)), end="", soft_wrap=True)
            self.console.file.flush()

    def show(self, round_: Round) -> None:
        """Print the tokens of a round. Those of plain decoding are not marked."""
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
        """End the last line and, where tokens are marked, say what the marks mean."""
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
    """The words of a token between its signs, the blanks around them outside; a blank token keeps them inside."""
    inside = text.strip() or text
    head, _, tail = text.partition(inside)
    return f"{head}{SIGNS[kind]}{inside}{SIGNS[kind]}{tail}"
