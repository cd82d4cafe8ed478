"""Pool of the loaded models that all runs share. If memory is short, the least recently used ones are evicted."""

from __future__ import annotations

import contextlib
import dataclasses
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
from workbench.core.panics import convert_panics
from workbench.engine import Engine, Models, Runner, load_models
from workbench.kernels.device_clock import empty_cache
from workbench.models.loading import find_heads
from workbench.models.pretrained import resolve_device, resolve_drafter_dtype, resolve_dtype
from workbench.models.runner import SCRATCH
from workbench.models.weight_files import weight_files
from workbench.service import hub, memory
from workbench.service.loadedtarget import LoadedTarget
from workbench.service.memory import Need
from workbench.service.names import Pair
from workbench.service.progress import BUILDING, CALIBRATING, READING, Progress, megabytes
from workbench.service.timing_coordination import TimingCoordinator

log = logging.getLogger("workbench.service")

SHORTEST = 128
"""Minimum sequence length in tokens. A model is not loaded if there is no memory for a KV cache of this length."""
CHUNK = 8 << 20
_BUILDING = threading.Lock()
"""Lock that lets one thread at a time build a model: transformers changes PyTorch's default dtype meanwhile."""


class ModelPool:
    """Pool of loaded models. Thread-safe. It builds models one at a time; others may be downloaded meanwhile.

    Args:
        options: device, dtype and drafter_dtype for `load_models`.
        max_sequences: maximum batch size of each engine.
        memory_bytes: memory for weights and KV caches of all models; None: a fraction of the device's memory.
        count_model_uses: function that counts the runs that need each pair of target and draft model.
        on_event: function that is called after each load or eviction with "load" or "evict" and the duration in
            seconds.
        timing: coordination with timed runs: a model is not built while a run is timed, but may be downloaded.
    """

    def __init__(
        self,
        options: dict[str, Any],
        max_sequences: int,
        memory_bytes: int | None,
        count_model_uses: Callable[[], Counter[Pair]],
        on_event: Callable[[str, float], None],
        timing: TimingCoordinator,
    ) -> None:
        self._options, self._max_sequences, self._count_model_uses, self._on_event = (
            options,
            max_sequences,
            count_model_uses,
            on_event,
        )
        self._limit, self._timing = memory_bytes, timing
        self._targets: dict[str, LoadedTarget] = {}
        self._lock = threading.Lock()

    # -- contents ------------------------------------------------------------------------------------------------

    def targets(self) -> list[LoadedTarget]:
        """Return all loaded targets in the pool."""
        with self._lock:
            return list(self._targets.values())

    def target(self, target: str) -> LoadedTarget | None:
        """Return the loaded target with the given name; None if it is not loaded."""
        with self._lock:
            return self._targets.get(target)

    def get(self, pair: Pair) -> Models | None:
        """Return a target and a draft model from the pool, and update their time of last use; None if not loaded."""
        with self._lock:
            loaded = self._targets.get(pair[0])
            if loaded is None or pair[1] not in loaded.models:
                return None
            loaded.used_at[None] = loaded.used_at[pair[1]] = time.monotonic()
            return loaded.models[pair[1]]

    def loaded_models(self) -> list[dict[str, Any]]:
        """Return the models in the pool, each as {"name", "role", "bytes", "dtype", "device", "runs", "idle_s"}.

        `runs` is the number of runs that use the model, `idle_s` the number of seconds since its last use.
        """
        holds, now_s = self._count_model_uses(), time.monotonic()
        return [
            {
                "name": drafter or loaded.name,
                "role": "target" if drafter is None else "drafter",
                "bytes": memory.weight_bytes(runner) + memory.cache_bytes(runner),
                "dtype": str(runner.weight_dtype).removeprefix("torch."),
                "device": str(runner.device),
                "runs": _count_users(holds, loaded.name, drafter),
                "idle_s": round(now_s - loaded.used_at.get(drafter, now_s), 1),
            }
            for loaded in self.targets()
            for drafter, runner in loaded.runners()
        ]

    # -- memory --------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Return the device of the models, such as "cpu"."""
        return resolve_device(self._options["device"])

    @property
    def limit(self) -> int:
        """Return the maximum memory of weights and KV caches, in bytes."""
        if self._limit is None:
            self._limit = memory.budget(self.device)
        return self._limit

    def used(self) -> int:
        """Return the memory that weights and KV caches of all models take, in bytes."""
        runners = [runner for loaded in self.targets() for _, runner in loaded.runners()]
        return sum(memory.weight_bytes(r) + memory.cache_bytes(r) for r in runners)

    def room(self) -> int:
        """Return the memory in bytes that further models may use, within the limit and the device's free memory."""
        reserve = int(memory.capacity(self.device) * memory.RESERVE)
        return min(self.limit - self.used(), memory.free(self.device) - reserve)

    def memory(self) -> dict[str, int]:
        """Return three sizes in bytes: weights with KV caches, the limit for these, the device's free memory."""
        return {"models": self.used(), "limit": self.limit, "free": memory.free(self.device)}

    def make_room(self, n_bytes: int, keep: Pair | None = None) -> None:
        """Evict unused models, the least recently used first, until `n_bytes` are free or no unused model is left.

        Args:
            n_bytes: memory to free, in bytes.
            keep: target and draft model that are not evicted.
        """
        while self.room() < n_bytes and self._evict(keep):
            self._on_event("evict", 0.0)

    def _evict(self, keep: Pair | None) -> bool:
        with self._lock:
            holds = self._count_model_uses()
            idle = [
                (loaded.used_at.get(drafter, 0.0), drafter is None, loaded, drafter)
                for loaded in self._targets.values()
                for drafter in loaded.models
                if not _count_users(holds, loaded.name, drafter) and not _is_part(keep, loaded.name, drafter)
                if drafter is not None or len(loaded.runs) == 0
            ]
            if not idle:
                return False
            _, is_target, loaded, drafter = min(idle, key=lambda entry: entry[:2])
            if is_target:
                del self._targets[loaded.name]
            else:
                del loaded.models[drafter]
        _collect()
        return True

    def unload(self, target: str) -> None:
        """Unload a target and its draft models.

        Raises:
            UnknownNameError: the target is not loaded.
            CapacityError: a run uses the target.
        """
        with self._lock:
            if target not in self._targets:
                raise UnknownNameError(
                    f"The target {target!r} is not loaded, so it cannot be unloaded.", "No action is needed."
                )
            users = _count_users(self._count_model_uses(), target, None)
            if users:
                raise CapacityError(
                    f"The target {target} is in use by {users} runs.", "Stop these runs first, or wait until they end."
                )
            del self._targets[target]
        _collect()

    def find_heads(self) -> None:
        """Search the folders of trained heads again. Runs that start or are changed later use the heads found.

        Running generations keep their models and heads.

        Raises:
            ModelError: a folder of heads cannot be read.
        """
        for loaded in self.targets():
            heads = find_heads(loaded.name, loaded.models[None].target)
            with self._lock:
                loaded.models.update(
                    {name: dataclasses.replace(models, heads=heads) for name, models in loaded.models.items()}
                )

    def close(self) -> None:
        """Release all models, because a Gradio app keeps references to its backend after it is closed."""
        with self._lock:
            self._targets.clear()
        _collect()

    # -- loading -------------------------------------------------------------------------------------------------

    def load(self, pair: Pair, progress: Progress) -> Models:
        """Return a target and a draft model from the pool, after loading them from files if necessary.

        If only the draft model cannot be loaded, the result has no draft model; its `drafter_problem` is the reason.

        Args:
            pair: names of the target and the draft model.
            progress: progress of this load, to update.

        Raises:
            WorkbenchError: the target cannot be loaded, or there is no memory for both models.
        """
        models = self.get(pair)
        if models is not None:
            return models
        started = time.monotonic()
        target, drafter = pair
        target_folder, drafter_folder = hub.fetch(target, progress, self.limit), None
        problem: ModelError | None = None
        if drafter is not None:
            try:
                drafter_folder = hub.fetch(drafter, progress, self.limit)
            except ModelError as error:
                problem = error
        with _BUILDING, self._timing.exclude_timed_runs():
            loaded = self.target(target) or self._build_target(pair, target_folder, drafter_folder, progress)
            if drafter is not None and drafter_folder is not None and drafter not in loaded.models:
                try:
                    self._build_drafter(loaded, drafter, drafter_folder, progress)
                except ModelError as error:
                    problem = error
            models = self.get(pair)
        self._on_event("load", time.monotonic() - started)
        if models is not None:
            return models
        models = loaded.models[None].with_drafter(
            None
        )  # methods without a draft model can run; others report the reason
        models.drafter_problem, models.drafter_error = str(problem or ""), problem
        return models

    def _build_target(self, pair: Pair, folder: str, drafter_folder: str | None, progress: Progress) -> LoadedTarget:
        need = self._need(pair[0], folder, self._dtype(pair[0]))
        needs = [need]
        if drafter_folder is not None:
            needs.append(self._need(pair[1] or "", drafter_folder, self._drafter_dtype(drafter_folder, pair[0])))
        context = self._context(pair, needs)
        self._read_weights(folder, progress)
        progress.stage(BUILDING)
        with self._called(pair[0], folder):
            kind = str(self._dtype(pair[0])).removeprefix(
                "torch."
            )  # "auto" depends on the model's name, not on the folder
            models = load_models(folder, None, **{**self._options, "dtype": kind}, context=context)
            models.target_name = pair[0]  # a Hub model has its id as name, not its folder
            models.heads = find_heads(pair[0], models.target)
            progress.stage(CALIBRATING)
            _allocate_cache(models.target)
        loaded = LoadedTarget(pair[0], Engine(models, self._max_sequences), {None: models}, need.context)
        loaded.used_at[None] = time.monotonic()
        with self._lock:
            progress.add(0)  # raises if the backend was closed meanwhile: the target would never be released
            self._targets[pair[0]] = loaded
        return loaded

    def _build_drafter(self, loaded: LoadedTarget, drafter: str, folder: str, progress: Progress) -> None:
        need = self._need(drafter, folder, self._drafter_dtype(folder, loaded.name))
        context = loaded.models[None].target.context
        self.make_room(need.weights + need.sequence_bytes(context), (loaded.name, drafter))
        if need.weights + need.sequence_bytes(context) > self.room():
            raise CapacityError(
                f"{drafter} needs {megabytes(need.weights + need.sequence_bytes(context))} of memory; "
                f"{megabytes(self.room())} "
                "are left.",
                self._memory_remedy(),
            )
        self._read_weights(folder, progress)
        progress.stage(BUILDING)
        with self._called(drafter, folder):
            models = loaded.models[None].with_drafter(folder, self._options["drafter_dtype"])
            if models.other_vocabulary_drafter is not None:
                models.other_vocabulary_drafter = dataclasses.replace(models.other_vocabulary_drafter, name=drafter)
                models.drafter_problem, models.drafter_error = models.drafter_problem.replace(folder, drafter), None
            else:
                models.drafter_name = drafter
            assert models.draft_model is not None
            progress.stage(CALIBRATING)
            _allocate_cache(models.draft_model)
        with self._lock:
            loaded.models[drafter] = models
            loaded.used_at[drafter] = time.monotonic()

    def _context(self, pair: Pair, needs: list[Need]) -> int:
        """Return the longest context for which the weights and one sequence's KV cache fit into memory.

        It is at most the context length of the target.
        """
        weights, context = sum(need.weights for need in needs), needs[0].context
        self.make_room(weights + sum(need.sequence_bytes(context) for need in needs), pair)
        room = self.room()
        longest = min(context, (room - weights) // sum(need.position for need in needs) - SCRATCH)
        if longest < min(SHORTEST, context):
            needed = weights + sum(need.sequence_bytes(min(SHORTEST, context)) for need in needs)
            raise CapacityError(
                f"{' and '.join(filter(None, pair))} need {megabytes(needed)} of memory, but only "
                f"{megabytes(max(0, room))} are left.",
                self._memory_remedy(),
            )
        return longest

    @contextlib.contextmanager
    def _called(self, name: str, folder: str) -> Iterator[None]:
        """Context manager that replaces the folder by the model's name in errors, and converts out-of-memory errors."""
        try:
            yield
        except Exception as error:
            if is_out_of_memory(error) or is_out_of_memory(error.__cause__):
                raise CapacityError(f"There is no memory left for {name}.", self._memory_remedy()) from error
            if isinstance(error, WorkbenchError):
                raise type(error)(error.message.replace(folder, name), error.remedy.replace(folder, name)) from error
            raise

    def _memory_remedy(self) -> str:
        """Return the remedy for the error that a model does not fit into memory, such as a smaller model."""
        busy = sum(self._count_model_uses().values())
        options = ["Use a smaller model"]
        if self._dtype().itemsize > 2:
            options.append("start the server with --dtype bfloat16")
        if busy:
            options.append(f"wait until {busy} runs have ended")
        return ", or ".join(options) + "."

    def _need(self, name: str, folder: str, dtype: torch.dtype) -> Need:
        try:
            with convert_panics():
                return Need.of(folder, dtype, self.device)
        except Exception as error:  # transformers and safetensors raise many kinds
            raise ModelError(
                f"{name} cannot be loaded: its configuration or weights cannot be read ({type(error).__name__}).",
                "Check config.json and the *.safetensors files.",
            ) from error

    def _dtype(self, target: str = "") -> torch.dtype:
        return resolve_dtype(self._options["dtype"], self.device, target)

    def _drafter_dtype(self, folder: str, target: str) -> torch.dtype:
        """Return the dtype of a draft model, as `workbench.models.loading.attach_drafter` chooses it."""
        return resolve_drafter_dtype(self._options["drafter_dtype"], self.device, self._dtype(target), folder)

    def _read_weights(self, folder: str, progress: Progress) -> None:
        """Read the weight files in a folder once, to fill the page cache and to show the progress to the user."""
        files = weight_files(folder)
        total = sum(file.stat().st_size for file in files)
        if total > memory.free(torch.device("cpu")) // 2:
            progress.stage(READING)
            return
        progress.stage(READING, total)
        for file in files:
            with Path(file).open("rb", buffering=0) as stream:
                while chunk := stream.read(CHUNK):
                    progress.add(len(chunk))


def _count_users(holds: Counter[Pair], target: str, drafter: str | None) -> int:
    """Return the number of runs that use a target; with `drafter`, only runs that also use this draft model."""
    return sum(n for (t, d), n in holds.items() if t == target and drafter in (None, d))


def _is_part(keep: Pair | None, target: str, drafter: str | None) -> bool:
    return keep is not None and keep[0] == target and drafter in (None, keep[1])


def _allocate_cache(runner: Runner) -> None:
    """Run one forward pass of a model, so that its KV cache is allocated and the cache's size is known."""
    slot = runner.open()
    runner.prefill(slot, [0])
    runner.close(slot)


def _collect() -> None:
    gc.collect()  # a runner and its hooks reference each other
    empty_cache()
