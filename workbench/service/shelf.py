"""Models: loaded once, shared by all runs, and given up by least recent use when memory runs short."""

from __future__ import annotations

import contextlib
import gc
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from workbench.core.errors import CapacityError, ModelError, UnknownNameError, WorkbenchError, is_out_of_memory
from workbench.core.panics import no_panic
from workbench.engine import Engine, Models, Runner, load_models
from workbench.engine.models import find_heads
from workbench.engine.pretrained import resolve_device, resolve_dtype
from workbench.engine.runner import SCRATCH
from workbench.service import hub, memory
from workbench.service.desk import Desk
from workbench.service.memory import Need
from workbench.service.names import Pair
from workbench.service.progress import BUILDING, CALIBRATING, READING, Progress, megabytes
from workbench.service.turns import Turns

log = logging.getLogger("workbench.service")

SHORTEST = 128
"""Tokens of context below which a model is not worth loading."""
CHUNK = 8 << 20
_BUILDING = threading.Lock()
"""Of the process, not of a shelf: transformers changes PyTorch's default dtype while it builds a model."""


class Shelf:
    """What is loaded. Thread-safe; builds one pair of models at a time, while others may be downloading.

    Args:
        options: device, dtype and drafter_dtype for `load_models`.
        max_rows: of each engine.
        memory_bytes: for weights and caches of all models; None: a share of the device's memory.
        holds: how many runs need each pair now.
        told: called with "load" or "evict" and seconds after each.
        turns: building waits while a run is timed; downloads do not.
    """

    def __init__(
        self,
        options: dict[str, Any],
        max_rows: int,
        memory_bytes: int | None,
        holds: Callable[[], Counter[Pair]],
        told: Callable[[str, float], None],
        turns: Turns,
    ) -> None:
        self._options, self._max_rows, self._holds, self._told = options, max_rows, holds, told
        self._limit, self._turns = memory_bytes, turns
        self._desks: dict[str, Desk] = {}
        self._lock = threading.Lock()

    # -- what is there -------------------------------------------------------------------------------------------

    def desks(self) -> list[Desk]:
        """All targets that are loaded."""
        with self._lock:
            return list(self._desks.values())

    def desk(self, target: str) -> Desk | None:
        """One of them."""
        with self._lock:
            return self._desks.get(target)

    def get(self, pair: Pair) -> Models | None:
        """Models that are loaded already; marks them as used now."""
        with self._lock:
            desk = self._desks.get(pair[0])
            if desk is None or pair[1] not in desk.models:
                return None
            desk.used_at[None] = desk.used_at[pair[1]] = time.monotonic()
            return desk.models[pair[1]]

    def loaded(self) -> list[dict[str, Any]]:
        """What is on the shelf: name, role, bytes, dtype, device, runs that use it, seconds since its last use."""
        holds, now = self._holds(), time.monotonic()
        return [
            {
                "name": drafter or desk.name,
                "role": "target" if drafter is None else "drafter",
                "bytes": memory.weight_bytes(runner) + memory.cache_bytes(runner),
                "dtype": str(runner.stored).removeprefix("torch."),
                "device": str(runner.device),
                "runs": _users(holds, desk.name, drafter),
                "idle_s": round(now - desk.used_at.get(drafter, now), 1),
            }
            for desk in self.desks()
            for drafter, runner in desk.runners()
        ]

    # -- memory --------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where the models are."""
        return resolve_device(self._options["device"])

    @property
    def limit(self) -> int:
        """Bytes that weights and caches may take."""
        if self._limit is None:
            self._limit = memory.budget(self.device)
        return self._limit

    def used(self) -> int:
        """Bytes of weights and caches."""
        runners = [runner for desk in self.desks() for _, runner in desk.runners()]
        return sum(memory.weight_bytes(r) + memory.cache_bytes(r) for r in runners)

    def room(self) -> int:
        """Bytes that may still be taken, by the budget and by what the device really has."""
        reserve = int(memory.capacity(self.device) * memory.RESERVE)
        return min(self.limit - self.used(), memory.free(self.device) - reserve)

    def memory(self) -> dict[str, int]:
        """Bytes of weights and caches, the most they may take, and what the device has free."""
        return {"models": self.used(), "limit": self.limit, "free": memory.free(self.device)}

    def make_room(self, n_bytes: int, keep: Pair | None = None) -> None:
        """Give up models nobody uses, those unused for longest first, until there is room or nothing to give up."""
        while self.room() < n_bytes and self._evict(keep):
            self._told("evict", 0.0)

    def _evict(self, keep: Pair | None) -> bool:
        with self._lock:
            holds = self._holds()
            idle = [
                (desk.used_at.get(drafter, 0.0), drafter is None, desk, drafter)
                for desk in self._desks.values()
                for drafter in desk.models
                if not _users(holds, desk.name, drafter) and not _is_part(keep, desk.name, drafter)
                if drafter is not None or len(desk.runs) == 0
            ]
            if not idle:
                return False
            _, is_target, desk, drafter = min(idle, key=lambda entry: entry[:2])
            if is_target:
                del self._desks[desk.name]
            else:
                del desk.models[drafter]
        _collect()
        return True

    def unload(self, target: str) -> None:
        """Take a target and its draft models off the shelf.

        Raises:
            UnknownNameError: it is not loaded.
            CapacityError: a run uses it.
        """
        with self._lock:
            if target not in self._desks:
                raise UnknownNameError(f"{target!r} is not loaded.", "Nothing needs to be done.")
            users = _users(self._holds(), target, None)
            if users:
                raise CapacityError(f"{target} is in use by {users} runs.", "Stop them first, or wait for their end.")
            del self._desks[target]
        _collect()

    def close(self) -> None:
        """Hold no model any more: what served this backend may live on, as an app of Gradio's does with all it had."""
        with self._lock:
            self._desks.clear()
        _collect()

    # -- loading -------------------------------------------------------------------------------------------------

    def load(self, pair: Pair, progress: Progress) -> Models:
        """Models from the shelf, or from their files. What comes back may lack the draft model, and says why.

        Raises:
            WorkbenchError: the target cannot be loaded, or there is no memory for the pair.
        """
        found = self.get(pair)
        if found is not None:
            return found
        started = time.monotonic()
        target, drafter = pair
        target_folder, drafter_folder = hub.fetch(target, progress, self.limit), None
        problem: ModelError | None = None
        if drafter is not None:
            try:
                drafter_folder = hub.fetch(drafter, progress, self.limit)
            except ModelError as error:
                problem = error
        with _BUILDING, self._turns.beside():
            desk = self.desk(target) or self._build_target(pair, target_folder, drafter_folder, progress)
            if drafter is not None and drafter_folder is not None and drafter not in desk.models:
                try:
                    self._build_drafter(desk, drafter, drafter_folder, progress)
                except ModelError as error:
                    problem = error
            found = self.get(pair)
        self._told("load", time.monotonic() - started)
        if found is not None:
            return found
        found = desk.models[None].with_drafter(None)  # methods without a draft model run; the others say why not
        found.drafter_problem, found.drafter_error = str(problem or ""), problem
        return found

    def _build_target(self, pair: Pair, folder: str, drafter_folder: str | None, progress: Progress) -> Desk:
        need = self._need(pair[0], folder, self._dtype(pair[0]))
        needs = [need]
        if drafter_folder is not None:
            needs.append(self._need(pair[1] or "", drafter_folder, self._drafter_dtype()))
        context = self._context(pair, needs)
        self._read(folder, progress)
        progress.stage(BUILDING)
        with self._called(pair[0], folder):
            kind = str(self._dtype(pair[0])).removeprefix("torch.")  # "auto" depends on the name, not on the folder
            models = load_models(folder, None, **{**self._options, "dtype": kind}, context=context)
            models.target_name = pair[0]  # a Hub model is known by its id, not by where its files lie
            models.heads = find_heads(pair[0], models.target)
            progress.stage(CALIBRATING)
            _touch(models.target)
        desk = Desk(pair[0], Engine(models, self._max_rows), {None: models}, need.context)
        desk.used_at[None] = time.monotonic()
        with self._lock:
            progress.add(0)  # raises if the backend was closed meanwhile: nobody would take the desk down again
            self._desks[pair[0]] = desk
        return desk

    def _build_drafter(self, desk: Desk, drafter: str, folder: str, progress: Progress) -> None:
        need = self._need(drafter, folder, self._drafter_dtype())
        context = desk.models[None].target.context
        self.make_room(need.weights + need.row(context), (desk.name, drafter))
        if need.weights + need.row(context) > self.room():
            raise CapacityError(
                f"{drafter} needs {megabytes(need.weights + need.row(context))}; {megabytes(self.room())} are left.",
                self._smaller(),
            )
        self._read(folder, progress)
        progress.stage(BUILDING)
        with self._called(drafter, folder):
            models = desk.models[None].with_drafter(folder, self._options["drafter_dtype"])
            models.drafter_name = drafter
            assert models.drafter is not None
            progress.stage(CALIBRATING)
            _touch(models.drafter)
        with self._lock:
            desk.models[drafter] = models
            desk.used_at[drafter] = time.monotonic()

    def _context(self, pair: Pair, needs: list[Need]) -> int:
        """The longest context, up to the target's own, of which one row fits beside all weights."""
        weights, context = sum(need.weights for need in needs), needs[0].context
        self.make_room(weights + sum(need.row(context) for need in needs), pair)
        room = self.room()
        fits = min(context, (room - weights) // sum(need.position for need in needs) - SCRATCH)
        if fits < min(SHORTEST, context):
            least = weights + sum(need.row(min(SHORTEST, context)) for need in needs)
            raise CapacityError(
                f"{' and '.join(filter(None, pair))} need {megabytes(least)}; {megabytes(max(0, room))} are left.",
                self._smaller(),
            )
        return fits

    @contextlib.contextmanager
    def _called(self, name: str, folder: str) -> Iterator[None]:
        """Errors speak of a model by its name, not of where its files lie, and of memory where that is what lacks."""
        try:
            yield
        except Exception as error:
            if is_out_of_memory(error) or is_out_of_memory(error.__cause__):
                raise CapacityError(f"There is no memory left for {name}.", self._smaller()) from error
            if isinstance(error, WorkbenchError):
                raise type(error)(error.message.replace(folder, name), error.remedy.replace(folder, name)) from error
            raise

    def _smaller(self) -> str:
        """What to do when something does not fit."""
        busy = sum(self._holds().values())
        options = ["Use a smaller model"]
        if self._dtype().itemsize > 2:
            options.append("start the backend with dtype bfloat16")
        if busy:
            options.append(f"wait for {busy} runs to end")
        return ", or ".join(options) + "."

    def _need(self, name: str, folder: str, dtype: torch.dtype) -> Need:
        try:
            with no_panic():
                return Need.of(folder, dtype, self.device)
        except Exception as error:  # transformers and safetensors raise many kinds
            raise ModelError(
                f"{name} cannot be loaded: its configuration or weights cannot be read ({type(error).__name__}).",
                "Check config.json and the *.safetensors files.",
            ) from error

    def _dtype(self, target: str = "") -> torch.dtype:
        return resolve_dtype(self._options["dtype"], self.device, target)

    def _drafter_dtype(self) -> torch.dtype:
        """As `engine.models.attach_drafter` decides it."""
        wanted = self._options["drafter_dtype"]
        if wanted == "auto" and self._dtype() == torch.float64:
            return torch.float64
        return resolve_dtype(wanted, self.device)

    def _read(self, folder: str, progress: Progress) -> None:
        """Read the weights once, so that the system has them at hand and the user sees how far it is."""
        files = memory.weight_files(folder)
        total = sum(file.stat().st_size for file in files)
        if total > memory.free(torch.device("cpu")) // 2:
            progress.stage(READING)
            return
        progress.stage(READING, total)
        for file in files:
            with Path(file).open("rb", buffering=0) as stream:
                while piece := stream.read(CHUNK):
                    progress.add(len(piece))


def _users(holds: Counter[Pair], target: str, drafter: str | None) -> int:
    """Runs that need a target (None), or a draft model beside it."""
    return sum(n for (t, d), n in holds.items() if t == target and drafter in (None, d))


def _is_part(keep: Pair | None, target: str, drafter: str | None) -> bool:
    return keep is not None and keep[0] == target and drafter in (None, keep[1])


def _touch(runner: Runner) -> None:
    """One forward, so that the cache is there and its size known."""
    slot = runner.open()
    runner.prefill(slot, [0])
    runner.close(slot)


def _collect() -> None:
    gc.collect()  # a runner's hooks hold it in a cycle
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
