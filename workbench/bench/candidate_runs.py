"""Search for the fastest method: all run on the same prompts, and clearly slower ones are dropped after each pass.

The remaining time goes to the methods that may still be the fastest: a `Study` whose next run depends on the results so
far. The contenders determine where the runs happen: in this process (module `recommend`), or on a backend shared with
other users (module `advice`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from statistics import median
from typing import Any

from workbench.bench.recommendation import RankedMethod, Recommendation
from workbench.bench.sample import Sample
from workbench.bench.statistics import Totals, acceptance_of, rates, tau_of
from workbench.bench.study import END, FAIL, Run, Study, in_turn, interleaved_runs, rotate
from workbench.core.errors import WorkbenchError
from workbench.methods.method_info import MethodInfo
from workbench.trace.speedup import speedup

WARM_UP = 12
"""Number of tokens that each method generates in each of two warm-up runs, before anything is measured.

The first run includes compiling and loading, the second shows how long a run takes.
"""
WARM_UP_SHARE = 0.4
"""Share of the time for finding the fastest method after which no further method is warmed up."""
MIN_CONTENDERS = 3
"""Smallest number of methods to measure, even if their first pass over the prompts takes longer than the given time."""
IMPLAUSIBLE_FACTOR = 1.5
"""Factor above which a result is implausible.

A run of plain decoding this many times slower than the median was disturbed by other work. A speed-up this many times
larger than τ is refused: a round takes at least about as long as a plain step, so the speed-up cannot exceed τ.
"""
REPEAT_CONTEXT = 3
"""Number of preceding tokens that are looked up in the earlier text, to predict the next token."""

RunGenerator = Generator[str, None, Sample]
"""Type of a measured run as a generator: it yields reasons for waiting, and returns the `Sample` of the run."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A method with its settings that is measured for a recommendation, and the function that runs it.

    Attributes:
        name: name of the method.
        title: title of the method for display.
        params: non-default parameters of the method.
        run: function (index of a prompt, repeat) → run; repeat None is the warm-up, of at most `WARM_UP` tokens.
    """

    name: str
    title: str
    params: Mapping[str, Any]
    run: Callable[[int, int | None], RunGenerator]


class CandidateRuns:
    """Measurement of several contenders (methods with their settings), the first of which is plain decoding.

    Args:
        contenders: at least two contenders.
        prompts: number of prompts.
        tokens: length limit of a measured run.

    Attributes:
        samples: by the name of a contender, its timed runs.
        dropped_after: by the name of a contender, the pass (from 1) after which the contender was dropped.
        failed: by the name of a contender that could not run, the error message.
        passes: number of passes over all prompts, including an unfinished one.
        done: number of finished runs.
    """

    def __init__(self, contenders: Sequence[Candidate], prompts: int, tokens: int) -> None:
        self.contenders, self._prompts, self._tokens = list(contenders), prompts, tokens
        self._per_token = dict[str, float]()  # in seconds, after warm-up
        self.samples: dict[str, list[Sample]] = {each.name: [] for each in contenders}
        self.dropped_after, self.failed, self.passes, self.done = dict[str, int](), dict[str, str](), 0, 0

    @property
    def plain(self) -> list[Sample]:
        """Return the timed runs of plain decoding, the first contender."""
        return self.samples[self.contenders[0].name]

    def run(
        self, is_over: Callable[[], bool], remaining: Callable[[], float]
    ) -> Generator[tuple[str, str], None, None]:
        """Measure the contenders until `is_over` returns True or only one method besides plain decoding is left.

        All finished runs count.

        Every contender is warmed up. If one pass of all contenders over the prompts takes longer than the available
        time, only as many contenders as fit are measured: those that were fastest in the warm-up.

        Args:
            is_over: function that is called between runs.
            remaining: function that returns the seconds left.

        Yields:
            (name of the current run, ""), before it begins; then (name, reason) while it waits.

        Raises:
            WorkbenchError: plain decoding cannot run.
        """
        by_name = {contender.name: contender for contender in self.contenders}
        study = Study[Run, Sample](
            self._choose_runs(is_over, remaining),
            in_turn(lambda run: by_name[run.contender].run(run.prompt, None if run.is_warm_up else run.repeat),
                    WorkbenchError),
            contender=lambda run: run.contender,
        )  # fmt: skip
        with contextlib.closing(study.run()) as events:
            for kind, run, payload in events:
                if kind == END:
                    self._add(run, payload)
                elif kind == FAIL and run.contender == self.contenders[0].name:
                    raise payload
                elif kind == FAIL:
                    self.failed[run.contender] = str(payload)
                    self.samples[run.contender].clear()
                else:
                    text = "warm-up" if run.is_warm_up else f"prompt {run.prompt + 1}/{self._prompts}"
                    yield f"{text} · {run.contender}", payload

    def _add(self, run: Run, sample: Sample) -> None:
        self.done += 1
        if not run.is_warm_up:
            self.samples[run.contender].append(sample)
        elif sample.token_ids:
            self._per_token[run.contender] = sample.seconds / len(sample.token_ids)

    def _choose_runs(self, is_over: Callable[[], bool], remaining: Callable[[], float]) -> Iterator[Run]:
        """Yield the next run: first the warm-up runs of all contenders, then passes over the prompts.

        After each pass, contenders that are clearly slower than the best one get no further runs.
        """
        end_s = remaining() * (1 - WARM_UP_SHARE)
        for contender in self.contenders:
            is_plain = contender is self.contenders[0]
            for i in range(2):
                if not is_over() and (is_plain or remaining() > end_s):
                    yield Run(contender.name, 0, i - 2)
        active = self._shortlist(remaining())
        for number in count():
            self.passes = number + 1
            names = rotate([contender.name for contender in active], number)
            for run in interleaved_runs(names, self._prompts, 1):
                if is_over():
                    return
                yield replace(run, repeat=number)
            if is_over():
                return
            active = [contender for contender in active if contender.name not in self.failed]
            for contender in self._slower_than_best(active):
                self.dropped_after[contender.name] = self.passes
            active = [contender for contender in active if contender.name not in self.dropped_after]
            if len(active) <= 2:
                return

    def _shortlist(self, seconds: float) -> list[Candidate]:
        """Return plain decoding and the contenders that were fastest in the warm-up, as many as fit the time."""
        plain, *others = self.contenders
        warm = [e for e in others if e.name in self._per_token and e.name not in self.failed]
        run_s = {e.name: self._per_token[e.name] * self._tokens for e in (plain, *warm) if e.name in self._per_token}
        spent, fits = run_s.get(plain.name, 0.0) * self._prompts, set[str]()
        for contender in sorted(warm, key=lambda e: run_s[e.name]):
            spent += run_s[contender.name] * self._prompts
            if spent <= seconds or len(fits) < MIN_CONTENDERS:
                fits.add(contender.name)
        return [plain, *(e for e in others if e.name in fits)]

    @property
    def unreached(self) -> list[str]:
        """Return the names of the methods that did not run because the time was too short."""
        return [e.name for e in self.contenders[1:] if not self.samples[e.name] and e.name not in self.failed]

    @property
    def disturbed(self) -> set[tuple[int, int]]:
        """Return (prompt, repeat) of the runs of plain decoding that are slower than the median / `IMPLAUSIBLE_FACTOR`.

        Other work on the machine must have disturbed such a run.
        """
        plain = rates(self.plain)
        typical = median(plain.values()) if plain else 0.0
        return {key for key, rate in plain.items() if rate * IMPLAUSIBLE_FACTOR < typical}

    def _paired_runs(
        self, contender: Candidate, disturbed: Collection[tuple[int, int]]
    ) -> tuple[list[Sample], list[Sample]]:
        """Return the undisturbed runs of a contender and of plain decoding with the same prompt and repeat."""
        runs = self.samples[contender.name]
        keys = {(s.prompt, s.repeat) for s in runs} & {(s.prompt, s.repeat) for s in self.plain}.difference(disturbed)
        paired, plain = ([s for s in side if (s.prompt, s.repeat) in keys] for side in (runs, self.plain))
        return paired, plain

    def _slower_than_best(self, active: Sequence[Candidate]) -> list[Candidate]:
        """Return the methods that are clearly slower than the best method: the intervals of the speed-ups are disjoint.

        Plain decoding, the reference, is never returned. A method with an impossible speed-up is not the best method.
        """
        choices = {choice.method: choice for choice in self._choices(active[1:])}
        possible = [choice.speedup for choice in choices.values() if not _is_impossible(choice)]
        best = max((s.low for s in possible if s is not None and s.low is not None), default=0.0)
        highs = {name: choice.speedup and choice.speedup.high for name, choice in choices.items()}
        return [e for e in active if (high := highs.get(e.name)) is not None and high < best]

    def ranking(self) -> tuple[list[RankedMethod], list[str]]:
        """Return the results of the measured methods, fastest first, and the names of methods with impossible results.

        The results exclude plain decoding. A result is impossible if the speed-up is above `IMPLAUSIBLE_FACTOR` · τ:
        then runs of plain decoding were disturbed.
        """
        choices = self._choices(self.contenders[1:])
        possible = [choice for choice in choices if not _is_impossible(choice)]
        refused = [choice.method for choice in choices if _is_impossible(choice)]
        return sorted(possible, key=lambda choice: -choice.speedup.value if choice.speedup else 0.0), refused

    def recommendation(
        self,
        target: str,
        names: Sequence[str],
        ids: Mapping[int, Sequence[int]],
        seconds: float,
        complete: bool,
        machine: dict[str, Any],
    ) -> Recommendation:
        """Return the recommendation that follows from the results so far.

        Args:
            target: name of the target.
            names: names of all prompts.
            ids: token ids by the index of a prompt.
            seconds: time spent on measuring, in seconds.
            complete: whether the measurement ended by itself.
            machine: description of the machine.
        """
        ranking, refused = self.ranking()
        return Recommendation(
            target, [names[i] for i in sorted({s.prompt for s in self.plain})], ranking,
            repeated_share(ids, self.plain), seconds, self.passes, complete, machine, self.failed, len(names),
            self.unreached, len(self.disturbed), refused,
        )  # fmt: skip

    def _choices(self, contenders: Iterable[Candidate]) -> list[RankedMethod]:
        """Return the metrics of the given contenders, without those that have no measured speed-up yet."""
        disturbed = self.disturbed
        choices = [self._choice(contender, disturbed) for contender in contenders]
        return [choice for choice in choices if choice.speedup is not None]

    def _choice(self, contender: Candidate, disturbed: Collection[tuple[int, int]]) -> RankedMethod:
        """Return a method's speed-up over plain decoding, τ and costs, from runs of the same prompts and repeats."""
        runs, plain_runs = self._paired_runs(contender, disturbed)
        totals, plain_totals = Totals.of(runs), Totals.of(plain_runs)
        rounds, plain_rounds = totals.ms_per_round("decode"), plain_totals.ms_per_round("decode")
        return RankedMethod(
            contender.name, contender.title, dict(contender.params),
            speedup(rates(runs), rates(plain_runs)), tau_of(runs), acceptance_of(runs),
            rounds / plain_rounds if rounds and plain_rounds else None,
            totals.ms_per_round("draft"), totals.ms_per_round("verify"), self.dropped_after.get(contender.name, 0),
        )  # fmt: skip


def _is_impossible(choice: RankedMethod) -> bool:
    """Return whether a measured speed-up is too far above τ to be real.

    A round takes at least about as long as a step of plain decoding, so the speed-up cannot exceed τ.
    """
    return (
        choice.speedup is not None and choice.tau is not None and choice.speedup.value > IMPLAUSIBLE_FACTOR * choice.tau
    )


def is_candidate(method: MethodInfo) -> bool:
    """Return whether a method may be recommended: it drafts, is exact, and accepts prompts without images."""
    return method.drafts and method.promise == "exact" and not {"pictures", "sight"} & set(method.needs)


def measuring_params(method: MethodInfo) -> dict[str, Any]:
    """Return the parameters for measuring a method: a policy that plans by measured costs, if the method has one."""
    policy = method.params.get("policy")
    return {"policy": "planned"} if policy and "planned" in (policy.choices or ()) else {}


def repeated_share(prompts: Mapping[int, Sequence[int]], plain: Iterable[Sample]) -> float | None:
    """Return the share of generated tokens that a look-up of the preceding `REPEAT_CONTEXT` tokens would predict.

    The look-up finds the latest earlier occurrence of these tokens, and predicts the token that followed there.

    Args:
        prompts: token ids by index.
        plain: runs of plain decoding.
    """
    first = {s.prompt: s.token_ids for s in reversed(list(plain))}
    hits = n = 0
    for prompt, generated in first.items():
        text, latest = [*prompts[prompt], *generated], dict[tuple[int, ...], int]()
        for i in range(REPEAT_CONTEXT, len(text)):
            before = tuple(text[i - REPEAT_CONTEXT : i])
            if i >= len(prompts[prompt]):
                hits, n = hits + (latest.get(before) == text[i]), n + 1
            latest[before] = text[i]
    return hits / n if n else None
