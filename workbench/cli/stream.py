"""Generated text in a terminal, coloured by where each token came from."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

from rich.console import Console
from rich.style import Style
from rich.text import Text

from workbench.trace.events import ACCEPTED, BONUS, CORRECTED, Round

STYLES = {
    ACCEPTED: Style(color="#1F2328", bgcolor="#D9ECFC", underline=True),
    CORRECTED: Style(color="#1F2328", bgcolor="#F0ECDB", bold=True),
    BONUS: Style(color="#1F2328", bgcolor="#E6DEE8", italic=True),
}
"""The project's palette: ink on the tint of the status, and a second sign beside the colour."""
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What a terminal obeys instead of showing: escape sequences, the C1 set, changes of direction."""


def wants_colour(stream: Any = None) -> bool:
    """Colour goes to terminals only, and not where NO_COLOR is set (https://no-color.org)."""
    stream = stream or sys.stdout
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()


def harmless(text: str) -> str:
    """Text with the characters that steer a terminal written as their codes."""
    return _CONTROL.sub(lambda found: f"\u2039{ord(found[0]):02X}\u203a", text)


class TokenPrinter:
    """Prints rounds as they come.

    Attributes:
        console: where to.
        coloured: whether tokens are marked; plain text otherwise.
    """

    def __init__(self, coloured: bool | None = None, stream: Any = None) -> None:
        stream = stream or sys.stdout
        self.coloured = wants_colour(stream) if coloured is None else coloured
        self.has_printed = False
        self.console = Console(
            file=stream,
            force_terminal=self.coloured,
            color_system="truecolor" if self.coloured else None,
            highlight=False,
        )

    def show(self, round_: Round) -> None:
        """Print the tokens of a round. A round without a draft is plain decoding and is not marked."""
        self.has_printed = True
        if not self.coloured:
            self.console.file.write(harmless("".join(e.text for e in round_.emitted)))
            self.console.file.flush()
            return
        marked = len(round_.nodes) > 0
        for token in round_.emitted:
            for piece in harmless(token.text).splitlines(keepends=True):
                style = STYLES[token.kind] if marked else Style()
                line = piece.rstrip("\r\n")
                self.console.print(Text(line, style), end="", soft_wrap=True)
                self.console.file.write("\n" if len(line) < len(piece) else "")
        self.console.file.flush()

    def end(self) -> None:
        """End the last line and, where tokens are marked, say what the marks mean."""
        if not self.has_printed:
            return
        self.console.file.write("\n")
        if self.coloured:
            words = {ACCEPTED: "accepted draft", CORRECTED: "corrected by the target", BONUS: "bonus token"}
            self.console.print(Text("  ").join(Text(f" {words[kind]} ", style) for kind, style in STYLES.items()))
        self.console.file.flush()
