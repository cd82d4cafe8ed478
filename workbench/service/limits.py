"""What one user, and all users together, may ask of a backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workbench.core.errors import CapacityError, ParameterError, PromptError
from workbench.service.users import LOCAL, address_of

SOON_S = 1
"""Seconds after which to ask again for a place: any run may end at any time."""
STOPS, STOP_CHARS = 16, 256
"""Stop strings in one request, and characters in each."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that keep one user from taking the machine away from the others.

    Attributes:
        runs_per_user: runs of one user that run or wait at once.
        runs_per_address: of all users at one address, whatever they call themselves; None: as many as of all.
        max_new_tokens: of one run.
        prompt_tokens: of one prompt, once the target's tokenizer has seen it.
        prompt_chars: of one prompt, before that.
        runs: runs of all users that run or wait at once.
        requests_per_minute: of one address: runs, comparisons and what else is computed for it; None: not counted.
        tokens_per_minute: of one address, prompts and new tokens; None: not counted.
        call_seconds_per_minute: processor seconds of one address's page calls (`Client.let_call`); None: not counted.
        run_s: seconds a run may take from the request on, those left out in which it stands still for a comparison;
            then it is ended. None: as long as it takes.
        paused_s: seconds a run may stay paused, which keeps its row from others; then it is cancelled.
        kept_s: seconds an ended run can still be fetched.
        kept_runs: ended runs that are kept; the oldest go first.
        trace_bytes: memory of all traces together; ended runs go first, then the run with the largest trace is ended.
    """

    runs_per_user: int = 4
    runs_per_address: int | None = None
    max_new_tokens: int = 4096
    prompt_tokens: int = 4096
    prompt_chars: int = 200_000
    runs: int = 64
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    call_seconds_per_minute: float | None = None
    run_s: float | None = None
    paused_s: float = 900.0
    kept_s: float = 900.0
    kept_runs: int = 256
    trace_bytes: int = 1 << 30

    def check_prompt(self, prompt: str | Sequence[int]) -> None:
        """Refuse a prompt that is empty, too long, or not a prompt.

        Raises:
            PromptError: with what to do.
        """
        if not isinstance(prompt, str | list | tuple):
            raise PromptError("The prompt is neither text nor token ids.", "Give a string or a list of integers.")
        if not len(prompt):
            raise PromptError("The prompt is empty.", "Write at least one word for the model to continue.")
        if isinstance(prompt, str):
            if len(prompt) > self.prompt_chars:
                raise PromptError(
                    f"The prompt has {len(prompt):,} characters; {self.prompt_chars:,} is the limit.",
                    f"Shorten it by {len(prompt) - self.prompt_chars:,} characters.",
                )
            return
        if not all(isinstance(token, int) and not isinstance(token, bool) for token in prompt):
            raise PromptError("The prompt's token ids are not all whole numbers.", "Give a list of integers.")
        self.check_prompt_tokens(len(prompt))

    def check_prompt_tokens(self, n: int) -> None:
        """Refuse a prompt of too many tokens.

        Raises:
            PromptError: with how much to leave out.
        """
        if n > self.prompt_tokens:
            raise PromptError(
                f"The prompt has {n:,} tokens; {self.prompt_tokens:,} is the limit.",
                f"Shorten it by {n - self.prompt_tokens:,} tokens or more.",
            )

    def check_tokens(self, max_new_tokens: int) -> None:
        """Refuse a length that is no length, or beyond the limit.

        Raises:
            ParameterError: with the range.
        """
        if not isinstance(max_new_tokens, int) or isinstance(max_new_tokens, bool):
            raise ParameterError(f"max_new_tokens={max_new_tokens!r} is not a whole number.", "Use 1 or more.")
        if not 1 <= max_new_tokens <= self.max_new_tokens:
            raise ParameterError(
                f"max_new_tokens={max_new_tokens} is out of range.", f"Use 1 to {self.max_new_tokens}."
            )

    def check_stops(self, stop: Sequence[str]) -> None:
        """Refuse stop strings that would end every text at once, or too many of them.

        Raises:
            ParameterError: with what is allowed.
        """
        if isinstance(stop, str) or len(stop) > STOPS or not all(isinstance(s, str) for s in stop):
            raise ParameterError("The stop strings are not a short list of strings.", f"Give at most {STOPS}.")
        if not all(0 < len(s) <= STOP_CHARS for s in stop):
            raise ParameterError("A stop string is empty or too long.", f"Each must have 1 to {STOP_CHARS} characters.")

    def check_room(self, user: str, active: Sequence[str]) -> None:
        """Refuse one run more than allowed.

        Args:
            user: key as `workbench.service.users.user_key` makes it; see `address_of`.
            active: the users of all runs that run or wait.

        Raises:
            CapacityError: with whose limit it is.
        """
        mine = sum(other == user for other in active)
        if user != LOCAL and mine >= self.runs_per_user:
            raise CapacityError(
                f"You have {mine} runs running or waiting, which is the limit.",
                "Wait for one to end, or stop one.",
                SOON_S,
            )
        there = sum(address_of(other) == address_of(user) for other in active)
        if user != LOCAL and self.runs_per_address is not None and there >= self.runs_per_address:
            raise CapacityError(
                f"{there} runs come from your address, which is the limit.",
                "Wait for one to end, or stop one.",
                SOON_S,
            )
        if len(active) >= self.runs:
            raise CapacityError(f"All {self.runs} places are taken.", "Try again in a moment.", SOON_S)
