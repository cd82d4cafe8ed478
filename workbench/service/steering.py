"""What is asked of a run that goes on: to be another from its next round on, or to be explained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from workbench.core.errors import CapacityError, MethodUnavailableError, PromptError, WorkbenchError
from workbench.core.sampling import SamplingParams
from workbench.engine import Models, keeping
from workbench.engine.chosen import Chosen
from workbench.engine.owned import owned_of
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

ANSWER_S = 20.0
"""Seconds that whoever asks for a drafter's state waits for the moment between two rounds."""


class Steering:
    """Changes and explanations of runs.

    Args:
        names: which models are meant.
        pool: models that are loaded.
        load: loads others and waits for them.
        let_in: counts a request of a user.
        turns: an explanation waits while a run is timed.
        wake: lets a sleeping engine look again.
    """

    def __init__(
        self,
        names: Names,
        pool: ModelPool,
        load: Callable[[Pair], Models],
        let_in: Callable[[str], None],
        turns: Turns,
        wake: Callable[[], None],
    ) -> None:
        self._wake = wake
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
        elif chosen is not None:
            other = self._pool.get(pair)  # with heads that were promoted since the run began

        def checked(configured: Chosen, sampling: SamplingParams, models: Models | None) -> dict[str, Any]:
            now = chosen or configured.method
            mine, sampling = split_params(now, params or {}, sampling)
            changed = configured.changed(**mine) if now is configured.method else now.with_params(**mine)
            reason = models.why_not if models is not None else choices.static_reasons(*pair)
            if why := reason(changed.needs):
                raise MethodUnavailableError(f"{now.title} cannot run: {why}")
            swap = swapped(models, run.request, pictures, sees) if pictures and models is not None else None
            run.trace_bytes += picture_bytes((), None if swap is None else swap.images)
            run.planned = changed, sampling, pair
            return {"method": chosen, "params": mine, "sampling": sampling, "models": models, "swap": swap}

        def hand_over(row: Row) -> None:
            settings = row.asked()
            row.change(**checked(settings.configured, settings.sampling, other or settings.models))

        (configured, sampling, _), models = run.planned, other or self._pool.get(pair)
        if run.row is None:
            checked(configured, sampling, models)
        if models is not None and (chosen is not None or other is not None):  # here, where no run waits for it
            now = chosen or configured.method
            now.with_params(**split_params(now, params or {}, sampling)[0]).drafter.make_ready(models)
        run.tell(hand_over)

    def memory(self, run: Run, action: str, data: bytes | None) -> dict[str, Any]:
        """Look at, save, load or empty what a run's drafter remembers: see `workbench.client.RunHandle.memory`."""
        if run.row is None:
            return _left_by(run, action)
        if action != "look":  # packing and unpacking is done between everybody's rounds
            self._let_in(run.user)

        def do(row: Row) -> dict[str, Any]:
            self._check_own(row, action)
            saved = {"data": keeping.save(row)} if action == "save" else {}
            if action == "load":
                keeping.load(row, data or b"")
            elif action == "reset":
                keeping.reset(row)
            loaded = self._pool.target(row.models.target_name)
            assert loaded is not None, "the run holds its models"
            return keeping.look(row, loaded.engine.token_text) | saved

        done = run.row.errands.ask(do)
        self._wake()
        try:
            return done.result(ANSWER_S)
        except TimeoutError:
            done.cancel()
            raise CapacityError("The run has no moment for that.", "Ask again once it goes on.") from None

    def _check_own(self, row: Row, action: str) -> None:
        """What strangers share, none of them may fill or empty for the others."""
        state = owned_of(row.state)
        if state is not None and state.shared and action in ("load", "reset") and not self._names.folders:
            said = "What this drafter remembers is shared with others here."
            raise MethodUnavailableError(said, "Start the run without warm: what it remembers is then its own.")

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


def _left_by(run: Run, action: str) -> dict[str, Any]:
    """What an ended run has left behind.

    Raises:
        WorkbenchError: it has not begun, or keeps nothing.
    """
    if not run.ended:
        raise WorkbenchError("The run has not begun.", "Ask again in a moment.")
    if run.left is None or action not in ("look", "save"):
        raise WorkbenchError("The run has ended, and its drafter with it.", "Load the file into the next run.")
    if action == "look":
        return run.left.look
    if run.left.data is None:
        raise MethodUnavailableError(run.left.why or "Nothing was kept.", "Choose another drafter.")
    return run.left.look | {"data": run.left.data}
