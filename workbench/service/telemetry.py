"""Metrics over all users for the operator of a server, in Prometheus' text format. No label contains user text."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from workbench.service.run import Run
from workbench.trace.events import Round
from workbench.trace.metrics import count_tested

SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)


@dataclass(slots=True)
class Tally:
    """Counters of one decoding method, summed over the rounds of all runs.

    The time of a batched forward pass is divided among the sequences of the batch, except in `decode_seconds`: tokens /
    decode_seconds is the speed of a run in tokens per second, alone or in a batch.
    """

    rounds: int = 0
    tokens: int = 0
    drafted: int = 0
    tested: int = 0
    accepted: int = 0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    overhead_seconds: float = 0.0
    decode_seconds: float = 0.0


HELP = {
    "rounds": "Draft-verify rounds.",
    "tokens": "Tokens emitted by runs.",
    "drafted": "Tokens proposed by drafters.",
    "tested": "Drafted tokens that were tested by a verifier.",
    "accepted": "Drafted tokens that were accepted by a verifier.",
    "draft_seconds": "Seconds in forward passes of drafters.",
    "verify_seconds": "Seconds in verification passes of targets.",
    "overhead_seconds": "Seconds outside of model forward passes, from the end of prefill to the last token, "
    "including time between rounds.",
    "decode_seconds": "Seconds from the end of prefill to the last token, not divided among the sequences of a batch.",
}


class Telemetry(Collector):
    """Collector of all metrics. Counting a round takes about a microsecond; each scrape converts counts to metrics.

    Args:
        health: function that returns the backend's state, such as `Backend.health`; called at each scrape.
    """

    def __init__(self, health: Callable[[], dict[str, Any]]) -> None:
        self._health = health
        self._tallies: defaultdict[str, Tally] = defaultdict(Tally)
        self._ended: Counter[tuple[str, str]] = Counter()
        self._events: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._registry = CollectorRegistry(auto_describe=False)
        self._run_s, self._queue_s, self._load_s = (
            Histogram(f"workbench_{name}_seconds", doc, buckets=SECONDS, registry=self._registry)
            for name, doc in (
                ("run", "Seconds from the start of a run to its end, without pauses."),
                ("queue", "Seconds from the start of a run until it joins the batch, including loading of models."),
                ("load", "Seconds for loading models, including downloads."),
            )
        )
        self._registry.register(self)

    # -- counting ------------------------------------------------------------------------------------------------

    def round(self, record: Round, before: Round | None = None) -> None:
        """Count a decoding round of a run.

        Args:
            record: the round to count, from the trace.
            before: previous round of the same run; the time between the two rounds counts as host overhead. None:
                `record` is the run's first round.
        """
        idle_s = max(0.0, record.started_s - (before.started_s + before.seconds if before else 0.0))
        tally = self._tallies[record.method]
        tally.rounds += 1
        tally.tokens += len(record.emitted)
        tally.drafted += len(record.nodes)
        tally.tested += count_tested([record])
        tally.accepted += len(record.path)
        tally.draft_seconds += record.shared.get("draft_s", record.draft_s)
        tally.verify_seconds += record.shared.get("verify_s", record.verify_s)
        tally.overhead_seconds += record.shared.get("overhead_s", record.overhead_s)
        tally.overhead_seconds += idle_s / record.shared.get("rows", 1)
        tally.decode_seconds += idle_s + record.seconds

    def started(self, run: Run) -> None:
        """Count a run that has joined the batch in the metrics."""
        assert run.started_at is not None
        self._queue_s.observe(run.started_at - run.created)

    def ended(self, run: Run) -> None:
        """Count a run that has ended in the metrics."""
        self._ended[run.method, run.state] += 1
        if run.ended_at is not None:
            self._run_s.observe(run.ended_at - run.created - run.paused_s)

    def models(self, event: str, seconds: float) -> None:
        """Count a load or an eviction of models.

        Args:
            event: "load" or "evict".
            seconds: duration of the load or eviction.
        """
        self._events[event] += 1
        if event == "load":
            self._load_s.observe(seconds)

    def error(self, error: BaseException) -> None:
        """Count a refused or failed request in the metrics."""
        self._errors[type(error).__name__] += 1

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Context manager that counts an error raised within it in the metrics."""
        try:
            yield
        except Exception as error:
            self.error(error)
            raise

    # -- exposing ------------------------------------------------------------------------------------------------

    def text(self) -> str:
        """Return all collected metrics in Prometheus' text format."""
        return generate_latest(self._registry).decode()

    def collect(self) -> Iterable[Metric]:
        """Yield all collected metrics; the Prometheus registry calls this."""
        tallies = {name: dataclasses.replace(tally) for name, tally in list(self._tallies.items())}
        for field, doc in HELP.items():
            values = {(name,): getattr(tally, field) for name, tally in tallies.items()}
            yield _counter(field, doc, ("method",), values)
        tau = {(name,): t.tokens / t.rounds for name, t in tallies.items() if t.rounds}
        yield _gauge("mean_accepted_length", "Emitted tokens / rounds, since the server's start.", ("method",), tau)
        rate = {(name,): t.accepted / t.tested for name, t in tallies.items() if t.tested}
        yield _gauge(
            "acceptance_rate", "Accepted / tested drafted tokens, since the server's start.", ("method",), rate
        )
        yield _counter("runs_ended", "Number of ended runs, by final state.", ("method", "state"), dict(self._ended))
        yield _counter("errors", "Number of refused or failed requests.", ("kind",), _one(self._errors))
        yield _counter(
            "model_events",
            "Number of times that models were loaded or evicted from memory.",
            ("event",),
            _one(self._events),
        )
        health = self._health()
        yield _gauge("runs", "Number of active runs, by state.", ("state",), _one(health["runs"]))
        yield _gauge("rows", "Number of sequences in the batch.", (), {(): health["rows"]})
        yield _gauge("queue_length", "Number of runs that wait to join the batch.", (), {(): health["queue"]})
        yield _gauge("models", "Number of models in memory.", (), {(): health["models"]})
        yield _gauge("memory_bytes", "Memory in bytes, by use.", ("of",), _one(health["memory"]))
        yield _gauge("up", "1 if the engine runs rounds, else 0.", (), {(): float(health["status"] == "ok")})
        yield _gauge("uptime_seconds", "Seconds since the server's start.", (), {(): health["uptime_s"]})


def _one(values: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    return {(name,): value for name, value in list(values.items())}


def _counter(name: str, doc: str, labels: tuple[str, ...], values: Mapping[Any, float]) -> Metric:
    return _filled(CounterMetricFamily(f"workbench_{name}", doc, labels=labels), values)


def _gauge(name: str, doc: str, labels: tuple[str, ...], values: Mapping[Any, float]) -> Metric:
    return _filled(GaugeMetricFamily(f"workbench_{name}", doc, labels=labels), values)


def _filled(family: Any, values: Mapping[Any, float]) -> Metric:
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family
