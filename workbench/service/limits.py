"""Limits of a backend, per user and for all users together, and checks that refuse requests beyond these limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workbench.core.errors import CapacityError, ParameterError, PromptError
from workbench.service.users import LOCAL, address_of

RETRY_AFTER_S = 1
"""Time in seconds after which a client refused because of too many active runs may retry.

It is short because a run may end at any time.
"""
STOPS, STOP_CHARS = 16, 256
"""Maximum number of stop strings per request, and maximum number of characters per stop string."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that prevent one user from occupying the whole machine.

    Attributes:
        runs_per_user: running and waiting runs of one user.
        runs_per_address: running and waiting runs of one client address, over all of its users; None: as `runs`.
        max_new_tokens: new tokens per run.
        prompt_tokens: tokens per prompt, by the target's tokenizer.
        prompt_chars: characters per prompt, checked before tokenisation.
        runs: running and waiting runs of all users.
        requests_per_minute: runs, comparisons and other requests of one address; None: no limit.
        tokens_per_minute: prompt tokens and new tokens of one address; None: no limit.
        call_seconds_per_minute: CPU seconds of one address's calls from pages (`Client.charge_call`); None: no limit.
        run_s: time in seconds, from the request on, after which a run is ended; time for which it was suspended because
            of timed runs does not count. None: no limit.
        paused_s: time in seconds after which a paused run is cancelled, because it occupies a slot of the batch.
        kept_s: time in seconds for which an ended run stays available.
        kept_runs: number of ended runs that stay available; the oldest are dropped first.
        trace_bytes: memory of all traces in bytes; ended runs are dropped first, then the run with the largest trace
            is ended.
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
        """Refuse a prompt that is empty, too long, or neither text nor token ids.

        Raises:
            PromptError: the prompt is invalid.
        """
        if not isinstance(prompt, str | list | tuple):
            raise PromptError("The prompt is neither text nor token ids.", "Give a string or a list of integers.")
        if not len(prompt):
            raise PromptError("The prompt is empty.", "Write at least one word for the model to continue.")
        if isinstance(prompt, str):
            if len(prompt) > self.prompt_chars:
                raise PromptError(
                    f"The prompt has {len(prompt):,} characters, but the limit is {self.prompt_chars:,}.",
                    f"Shorten the prompt by {len(prompt) - self.prompt_chars:,} characters.",
                )
            try:
                prompt.encode()
            except UnicodeEncodeError:
                raise PromptError("The prompt contains a lone surrogate.", "Send valid Unicode text.") from None
            return
        if not all(isinstance(token, int) and not isinstance(token, bool) for token in prompt):
            raise PromptError("The prompt's token ids are not all whole numbers.", "Give a list of integers.")
        self.check_prompt_tokens(len(prompt))

    def check_prompt_tokens(self, n: int) -> None:
        """Refuse a prompt of too many tokens.

        Raises:
            PromptError: the prompt is too long; the error's remedy says how many tokens to remove.
        """
        if n > self.prompt_tokens:
            raise PromptError(
                f"The prompt has {n:,} tokens; the limit is {self.prompt_tokens:,}.",
                f"Shorten the prompt by {n - self.prompt_tokens:,} tokens or more.",
            )

    def check_tokens(self, max_new_tokens: int) -> None:
        """Refuse a number of new tokens that is not an integer or is out of range.

        Raises:
            ParameterError: the number is invalid; the error's remedy states the range.
        """
        if not isinstance(max_new_tokens, int) or isinstance(max_new_tokens, bool):
            raise ParameterError(f"max_new_tokens={max_new_tokens!r} is not a whole number.", "Use 1 or more.")
        if not 1 <= max_new_tokens <= self.max_new_tokens:
            raise ParameterError(
                f"max_new_tokens={max_new_tokens} is out of range.", f"Use 1 to {self.max_new_tokens}."
            )

    def check_stops(self, stop: Sequence[str]) -> None:
        """Refuse empty stop strings (which would end every text at once), too long ones, or too many.

        Raises:
            ParameterError: a stop string is invalid, or there are too many; the error's remedy states the limits.
        """
        if isinstance(stop, str) or len(stop) > STOPS or not all(isinstance(s, str) for s in stop):
            raise ParameterError(
                f"The stop strings are not a list of at most {STOPS} strings.", "Give a shorter list of strings."
            )
        if not all(0 < len(s) <= STOP_CHARS for s in stop):
            raise ParameterError(
                "A stop string is empty or too long.", f"Each stop string must have 1 to {STOP_CHARS} characters."
            )

    def check_room(self, user: str, active: Sequence[str]) -> None:
        """Refuse a new run if the user, the client address, or all users together have too many active runs.

        Args:
            user: key of the user (`workbench.service.users.user_key`).
            active: key of the user of each running or waiting run.

        Raises:
            CapacityError: a limit is reached; the message names it.
        """
        n_of_user = sum(other == user for other in active)
        if user != LOCAL and n_of_user >= self.runs_per_user:
            raise CapacityError(
                f"You have {n_of_user} running or waiting runs, which is the limit.",
                "Wait until a run ends, or stop one.",
                RETRY_AFTER_S,
            )
        n_of_address = sum(address_of(other) == address_of(user) for other in active)
        if user != LOCAL and self.runs_per_address is not None and n_of_address >= self.runs_per_address:
            raise CapacityError(
                f"Your address has {n_of_address} running or waiting runs, which is the limit.",
                "Wait until a run ends, or stop one.",
                RETRY_AFTER_S,
            )
        if len(active) >= self.runs:
            raise CapacityError(
                f"The server has {self.runs} running or waiting runs, which is the limit.",
                "Try again in a moment.",
                RETRY_AFTER_S,
            )
