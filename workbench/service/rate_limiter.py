"""Limit the requests, tokens and CPU seconds per minute of each client address."""

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
"""Number of stored rate-limit buckets above which full ones are deleted: a missing bucket counts as full."""
REQUESTS, TOKENS, SECONDS = "requests", "tokens", "CPU seconds"
"""Names of the quantities that are limited per minute and client address."""
SWEEP_S = 1.0
"""Minimum time in seconds between two searches for full rate-limit buckets, each of which visits all buckets."""


@dataclass(slots=True)
class Bucket:
    """Rate-limit bucket of a client address for one limited quantity, refilled evenly up to one minute's allowance.

    If the level of the bucket is below 0, the address has to wait.
    """

    per_minute: float
    level: float
    at: float

    def fill(self, now: float) -> None:
        """Refill the rate-limit bucket for the time since the last refill."""
        self.level = min(self.per_minute, self.level + (now - self.at) * self.per_minute / MINUTE_S)
        self.at = now

    def wait_s(self, least: float) -> float:
        """Return the seconds until the level of the rate-limit bucket reaches `least`."""
        return max(0.0, (least - self.level) * MINUTE_S / self.per_minute)


class RateLimiter:
    """Enforce the rate limits of client addresses. Thread-safe. The user of a private backend has no limits.

    A request is refused while the request bucket of its address holds less than 1. Tokens are charged in advance for
    the prompt and for `max_new_tokens`; unused tokens are refunded at the end of the run. A request is accepted while
    the token bucket of its address is not below 0, so even a request larger than one minute's allowance is answered.

    Args:
        limits: `requests_per_minute`, `tokens_per_minute`, `call_seconds_per_minute`; None: no limit.
        clock: function that returns the time in seconds.
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

    def admit_request(self, user: str, n: int = 1, counted: bool = True) -> None:
        """Count requests of a user's client address, and refuse them if they exceed its rate limits.

        Args:
            user: key of the user.
            n: number of requests; 0: check only whether the address has used too many tokens.
            counted: whether to count the requests; False: only check the limits.

        Raises:
            CapacityError: the address has made too many requests or used too many tokens; the error has the time after
                which to retry.
        """
        with self._lock:
            requests = self._bucket(user, REQUESTS)
            _refuse_below(requests, float(n), REQUESTS)
            _refuse_below(self._bucket(user, TOKENS), 0.0, TOKENS)
            if requests is not None and counted:
                requests.level -= n

    def check(self, user: str, what: str) -> None:
        """Raise an error if a client address has used more than its allowance of a quantity.

        Args:
            user: key of the user.
            what: the limited quantity: `REQUESTS`, `TOKENS` or `SECONDS`.

        Raises:
            CapacityError: the address has used more than its allowance; the error has the time after which to retry.
        """
        with self._lock:
            _refuse_below(self._bucket(user, what), 0.0, what)

    def charge(self, user: str, amount: float, what: str = TOKENS) -> None:
        """Charge a client address for requests, tokens or CPU seconds that it has used.

        Args:
            user: key of a user at the address.
            amount: amount to charge; a negative amount is a refund.
            what: the limited quantity: `REQUESTS`, `TOKENS` or `SECONDS`.
        """
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
            self._drop_full(now)
        bucket = self._buckets.setdefault((address_of(user), what), Bucket(per_minute, per_minute, now))
        bucket.fill(now)
        return bucket

    def _drop_full(self, now: float) -> None:
        """Drop full rate-limit buckets, because a missing bucket counts as full."""
        for bucket in self._buckets.values():
            bucket.fill(now)
        self._buckets = {key: bucket for key, bucket in self._buckets.items() if bucket.level < bucket.per_minute}


def _refuse_below(bucket: Bucket | None, least: float, what: str) -> None:
    """Raise a `CapacityError` if the level of a rate-limit bucket is below `least`."""
    if bucket is not None and bucket.level < least:
        seconds = max(1, math.ceil(bucket.wait_s(least)))
        raise CapacityError(
            f"Your address has reached its limit of {bucket.per_minute:,} {what} per minute.",
            f"Try again in {seconds} s.",
            retry_after_s=seconds,
        )
