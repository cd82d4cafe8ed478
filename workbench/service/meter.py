"""Requests and tokens a minute of each address."""

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
SWEEP_S = 1.0
"""Seconds between two looks for such, which go through all of them."""


@dataclass(slots=True)
class Bucket:
    """What an address may still use: filled evenly up to a minute's worth. Below 0 it is in debt and has to wait."""

    per_minute: int
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
        limits: `requests_per_minute` and `tokens_per_minute`; None: not counted.
        clock: seconds.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = {"requests": limits.requests_per_minute, "tokens": limits.tokens_per_minute}
        self._buckets: dict[tuple[str, str], Bucket] = {}
        self._clock, self._swept = clock, -math.inf
        self._lock = threading.Lock()

    def let_in(self, user: str, n: int = 1, counted: bool = True) -> None:
        """Count requests, or only ask whether there is room for them; with n=0, whether tokens are owed.

        Raises:
            CapacityError: its address has made too many, or used too many tokens; it says when to come again.
        """
        with self._lock:
            requests, tokens = self._bucket(user, "requests"), self._bucket(user, "tokens")
            for bucket, least, what in ((requests, float(n), "requests"), (tokens, 0.0, "tokens")):
                if bucket is not None and bucket.level < least:
                    seconds = math.ceil(bucket.wait_s(least))
                    raise CapacityError(
                        f"Your address has used its {bucket.per_minute:,} {what} a minute.",
                        f"Try again in {seconds} s.",
                        retry_after_s=seconds,
                    )
            if requests is not None and counted:
                requests.level -= n

    def charge(self, user: str, tokens: int) -> None:
        """Count tokens; negative: give them back."""
        with self._lock:
            bucket = self._bucket(user, "tokens")
            if bucket is not None:
                bucket.level -= tokens

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
