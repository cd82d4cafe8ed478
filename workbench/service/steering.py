"""What is asked of a run that goes on: to be another from its next round on, or to be explained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from workbench.core.errors import MethodUnavailableError, PromptError
from workbench.core.sampling import SamplingParams
from workbench.engine import Models
from workbench.engine.chosen import Chosen
from workbench.engine.request import Row
from workbench.engine.settings import BOTH
from workbench.engine.vision.attribution import explain
from workbench.engine.vision.reading import swapped
from workbench.methods import registry
from workbench.service import choices
from workbench.service.caller import watch
from workbench.service.fairlock import FairLock
from workbench.service.modelpool import ModelPool
from workbench.service.names import Names, Pair
from workbench.service.params import split_params
from workbench.service.pictures import decode_all, picture_bytes
from workbench.service.run import Run
from workbench.service.turns import Turns


class Steering:
    """Changes and explanations of runs.

    Args:
        names: which models are meant.
        pool: models that are loaded.
        load: loads others and waits for them.
        let_in: counts a request of a user.
        turns: an explanation waits while a run is timed.
    """

    def __init__(
        self,
        names: Names,
        pool: ModelPool,
        load: Callable[[Pair], Models],
        let_in: Callable[[str], None],
        turns: Turns,
    ) -> None:
        self._names, self._pool, self._load, self._let_in, self._turns = names, pool, load, let_in, turns
        self._turn = FairLock()

    def change(
        self,
        run: Run,
        method: str | None,
        params: dict[str, Any] | None,
        drafter: str | None,
        images: Sequence[Any] = (),
        sees: str = BOTH,
    ) -> None:
        """Check a change against what the run will then be, and hand it to the row. Loads a new draft model."""
        pictures = decode_all(images)
        if pictures and (run.ended or not run.request.pictures):
            raise PromptError("The run has no pictures that could be changed.", "Start a run with pictures.")
        run.trace_bytes += picture_bytes(pictures)
        chosen = registry.get(method) if method else None
        pair: Pair = run.planned[2]
        other: Models | None = None
        if drafter:
            pair = self._names.pair(pair[0], drafter)
            run.holds.add(pair)
            other = self._pool.get(pair) or self._load(pair)

        def checked(configured: Chosen, sampling: SamplingParams, models: Models | None) -> dict[str, Any]:
            now = chosen or configured.method
            mine, sampling = split_params(now, params or {}, sampling)
            changed = configured.changed(**mine) if now is configured.method else now.with_params(**mine)
            reason = models.why_not if models is not None else choices.static_reasons(*pair)
            if why := reason(changed.needs):
                raise MethodUnavailableError(f"{now.title} cannot run: {why}")
            swap = swapped(models, run.request, pictures, sees) if pictures and models is not None else None
            run.planned = changed, sampling, pair
            return {"method": chosen, "params": mine, "sampling": sampling, "models": models, "swap": swap}

        def hand_over(row: Row) -> None:
            settings = row.asked()
            row.change(**checked(settings.configured, settings.sampling, other or settings.models))

        if run.row is None:
            configured, sampling, _ = run.planned
            checked(configured, sampling, other or self._pool.get(pair))
        run.tell(hand_over)

    def explain(self, run: Run) -> dict[str, Any]:
        """On which parts of its pictures the text of a run leans; kept in its trace. In the caller's thread.

        One is worked out at a time, addresses by turns, and none while a run is timed; `run.explained` says how far it
        is. It is broken off when its caller leaves.

        Raises:
            PromptError: the run has no pictures, or no tokens yet.
            CapacityError: it is too long, or the address of its user asks for too much.
            LeftError: the caller left.
        """
        if run.trace is None or run.request.images is None:
            raise PromptError("There is nothing to explain yet.", "Start a run with pictures, and wait for a token.")
        configured, pair = run.in_force
        models = self._pool.get(pair) or self._load(pair)

        gone = watch()
        self._let_in(run.user)

        def told(done: float) -> None:
            gone()
            run.explained = done

        told(0.0)
        try:
            with self._turn.hold(run.user, gone), self._turns.beside():
                run.trace.attribution = explain(models, run.request, run.trace, configured.drafter, told)
        finally:
            run.explained = None
        return run.trace.attribution
