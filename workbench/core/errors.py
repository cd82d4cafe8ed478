"""Errors for people: what was wrong, with which value, and what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class WorkbenchError(Exception):
    """Base of every error a user can cause or mend. The message is one line and says what to do.

    `remedy` is kept apart from the message, so that the command line, the app and the API can show it their own way;
    `option` names what was asked wrongly ("target", "set"), where that is known before anything was done.
    """

    option: str = ""

    def __init__(self, message: str, remedy: str = "") -> None:
        self.message = message
        self.remedy = remedy
        super().__init__(f"{message} {remedy}".strip())


class PromptError(WorkbenchError):
    """The prompt is empty, or does not fit the context."""


class CapacityError(WorkbenchError):
    """The run does not fit the cache or the memory that is left, or its user has all that one may have.

    `retry_after_s`: whole seconds after which the same may be asked again, where that is known.
    """

    def __init__(self, message: str, remedy: str = "", retry_after_s: int | None = None) -> None:
        super().__init__(message, remedy)
        self.retry_after_s = retry_after_s


class OverdueError(WorkbenchError):
    """The run took longer than the server lets one take."""


class ContextError(CapacityError):
    """A text is longer than the positions that a model has."""


class UnknownNameError(WorkbenchError):
    """A method, parameter, target or preset that nobody registered."""

    @classmethod
    def of(cls, kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
        """Build the error with the nearest known names first."""
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else ""
        return cls(f"There is no {kind} {name!r}.", f"{hint} Known: {', '.join(names) or 'none'}.".strip())


class ParameterError(WorkbenchError):
    """A parameter of the wrong type or outside its range."""


class ModelError(WorkbenchError):
    """A model cannot be loaded or cannot be verified by the engine."""


class TokenizerMismatchError(ModelError):
    """Target and drafter do not share a vocabulary."""


class MethodUnavailableError(WorkbenchError):
    """The method needs something that the chosen models do not have."""


class NumericalError(WorkbenchError):
    """The target returned NaN logits for a request."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error says that there is no memory left.

    PyTorch's own class is known by its name, because this module is for processes without PyTorch, too; its CPU
    allocator has none, only words.
    """
    if isinstance(error, MemoryError):
        return True
    words = ("not enough memory", "can't allocate memory")
    said = type(error).__name__ == "OutOfMemoryError" or any(word in str(error) for word in words)
    return isinstance(error, RuntimeError) and said


def as_said(error: Exception) -> WorkbenchError:
    """What people are told of an error: itself where it was meant for them, else what it was and whom to tell."""
    if isinstance(error, WorkbenchError):
        return error
    if is_out_of_memory(error):
        return CapacityError("Out of memory.", "Use a shorter prompt, fewer tokens or fewer runs at once.")
    return WorkbenchError(f"{type(error).__name__}: {error}", "This is a bug; please report it.")
