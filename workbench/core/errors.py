"""Errors that users see: each message names the problem, the value and the next step."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class WorkbenchError(Exception):
    """Base class of errors that a user can cause or fix.

    Attributes:
        message: one line that describes the problem.
        remedy: the suggested fix, separate so that the command line, the app and the API can format it.
        option: name of the option with a wrong value ("target", "set"), if known before the run starts; else "".
    """

    option: str = ""

    def __init__(self, message: str, remedy: str = "") -> None:
        self.message = message
        self.remedy = remedy
        super().__init__(f"{message} {remedy}".strip())


def system_reason(error: OSError) -> str:
    """Return the operating system's reason for an error, such as "No space left on device".

    Python sets `strerror` only for errors with a number; libraries also raise `OSError` with a text or without any.
    """
    return error.strerror or str(error) or type(error).__name__


class PromptError(WorkbenchError):
    """Raised for a prompt that is empty or does not fit the context."""


class CapacityError(WorkbenchError):
    """Raised if a run does not fit into the KV cache or the free memory, or if its user has reached a quota.

    Attributes:
        retry_after_s: whole seconds after which the request may be retried, or None if unknown.
    """

    def __init__(self, message: str, remedy: str = "", retry_after_s: int | None = None) -> None:
        super().__init__(message, remedy)
        self.retry_after_s = retry_after_s


class OverdueError(WorkbenchError):
    """Raised if a run exceeds the server's time limit."""


class ContextError(CapacityError):
    """Raised for a text with more tokens than the model has positions."""


class UnknownNameError(WorkbenchError):
    """Raised for a method, parameter, target or preset name that is not registered."""

    @classmethod
    def of(cls, kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
        """Return the error for an unknown name, with up to three similar known names as a suggestion.

        Args:
            kind: noun for the message, such as "method" or "target".
            name: the unknown name.
            known: all known names.
        """
        names = sorted(known)
        similar = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(map(repr, similar))}?" if similar else ""
        return cls(f"There is no {kind} {name!r}.", f"{hint} Known: {', '.join(names) or 'none'}.".strip())


class ParameterError(WorkbenchError):
    """Raised for a parameter of the wrong type or outside its range."""


class ModelError(WorkbenchError):
    """Raised if a model or trained heads cannot be loaded, or do not work in this engine."""


class TokenizerMismatchError(ModelError):
    """Raised if target and drafter do not share a vocabulary."""


class MethodUnavailableError(WorkbenchError):
    """Raised if the chosen models do not meet a method's requirements, or if the method does not support a request."""


class NumericalError(WorkbenchError):
    """Raised if the target returns NaN logits for a request."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error means that memory ran out.

    PyTorch's class is matched by name, because this module must work without PyTorch. PyTorch's CPU allocator raises a
    plain RuntimeError, which is matched by its message.
    """
    if isinstance(error, MemoryError):
        return True
    messages = ("not enough memory", "can't allocate memory")
    matches = type(error).__name__ == "OutOfMemoryError" or any(message in str(error) for message in messages)
    return isinstance(error, RuntimeError) and matches


def to_workbench_error(error: Exception) -> WorkbenchError:
    """Convert any error to a `WorkbenchError` for users. The remedy of an unknown error asks for a bug report."""
    if isinstance(error, WorkbenchError):
        return error
    if is_out_of_memory(error):
        return CapacityError("Out of memory.", "Use a shorter prompt, fewer tokens or fewer runs at once.")
    return WorkbenchError(f"{type(error).__name__}: {error}", "This is a bug; please report it.")
