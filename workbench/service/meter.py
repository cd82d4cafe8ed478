"""Requests, tokens and processor seconds per minute of each address."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from workbench.core.errors import CapacityError
from workbench.service.limits import Limits
from workbench.service.users import LOCAL, address_of

MINUTE_S = 60.0
MANY = 4096
"""Addresses that are remembered before those with nothing to remember are forgotten."""
REQUESTS, TOKENS, SECONDS = "requests", "tokens", "processor seconds"
"""What is counted."""
SWEEP_S = 1.0
"""Seconds between two looks for such, which go through all of them."""


@dataclass(slots=True)
class Bucket:
    """What an address may still use: filled evenly up to a minute's worth. Below 0 it is in debt and has to wait."""

    per_minute: float
    level: float
    at: float

    def fill(self, now: float) -> None:
        """Take in what has come since."""
        self.level = min(self.per_minute, self.level + (now - self.at) * self.per_minute / MINUTE_S)
        self.at = now

    def wait_s(self, least: float) -> float:
        """Seconds until there is so much in it."""
        return max(0.0, (least - self.level) * MINUTE_S / self.per_minute)


class Meter:
    """Counts what addresses use. Thread-safe. The user of a private backend is not counted.

    A request needs a whole request in the bucket. Tokens are charged in advance, prompt and all new tokens that were
    asked for, and those that were never made are given back: a request is let in as long as no debt is left from
    earlier ones, so that even one that is larger than a minute's worth is answered.

    Args:
        limits: `requests_per_minute`, `tokens_per_minute`, `call_seconds_per_minute`; None: not counted.
        clock: seconds.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._most: dict[str, float | None] = {
            REQUESTS: limits.requests_per_minute,
            TOKENS: limits.tokens_per_minute,
            SECONDS: limits.call_seconds_per_minute,
        }
        self._buckets: dict[tuple[str, str], Bucket] = {}
        self._clock, self._swept = clock, -math.inf
        self._lock = threading.Lock()

    def let_in(self, user: str, n: int = 1, counted: bool = True) -> None:
        """Count requests, or only ask whether there is room for them; with n=0, whether tokens are owed.

        Raises:
            CapacityError: its address has made too many, or used too many tokens; it says when to come again.
        """
        with self._lock:
            requests = self._bucket(user, REQUESTS)
            _refuse_below(requests, float(n), REQUESTS)
            _refuse_below(self._bucket(user, TOKENS), 0.0, TOKENS)
            if requests is not None and counted:
                requests.level -= n

    def check(self, user: str, what: str) -> None:
        """Refuse an address that owes something.

        Args:
            user: key of who asks.
            what: `REQUESTS`, `TOKENS` or `SECONDS`.

        Raises:
            CapacityError: it owes some; the error says when to come again.
        """
        with self._lock:
            _refuse_below(self._bucket(user, what), 0.0, what)

    def charge(self, user: str, amount: float, what: str = TOKENS) -> None:
        """Count what an address has used; a negative amount is given back."""
        with self._lock:
            bucket = self._bucket(user, what)
            if bucket is not None:
                bucket.level -= amount

    def _bucket(self, user: str, what: str) -> Bucket | None:
        per_minute = self._most[what]
        if per_minute is None or user == LOCAL:
            return None
        now = self._clock()
        if len(self._buckets) >= MANY and now - self._swept >= SWEEP_S:
            self._swept = now
            self._forget(now)
        bucket = self._buckets.setdefault((address_of(user), what), Bucket(per_minute, per_minute, now))
        bucket.fill(now)
        return bucket

    def _forget(self, now: float) -> None:
        """A full bucket says no more than none."""
        for bucket in self._buckets.values():
            bucket.fill(now)
        self._buckets = {key: bucket for key, bucket in self._buckets.items() if bucket.level < bucket.per_minute}


def _refuse_below(bucket: Bucket | None, least: float, what: str) -> None:
    """Raise a `CapacityError` where a bucket holds less than that."""
    if bucket is not None and bucket.level < least:
        seconds = max(1, math.ceil(bucket.wait_s(least)))
        raise CapacityError(
            f"Your address has used its {bucket.per_minute:,} {what} a minute.",
            f"Try again in {seconds} s.",
            retry_after_s=seconds,
        )
