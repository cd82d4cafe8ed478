"""Load further target models in the background, one by one, after the default target and its draft model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from workbench.core.errors import ModelError, UnknownNameError, WorkbenchError
from workbench.models.model_index import MODEL_INDEX
from workbench.service.inventory import TO_FETCH, availability
from workbench.service.names import Pair
from workbench.service.progress import Progress, megabytes

log = logging.getLogger("workbench.service")

HEADROOM = 8
"""Required free memory for loading a published model, as a multiple of the size of its 16-bit weight files.

The model takes three copies of its weights in float32, and memory for their conversion.
"""


def default_background_models(fetches: bool) -> list[str]:
    """Return the names of the published models that an app loads in the background by default.

    These are the models whose files, or an installed package with these files, are on this machine.

    Args:
        fetches: whether to include models that must first be downloaded from the Hub.
    """
    return [name for name, model in MODEL_INDEX.items() if fetches or availability(model) != TO_FETCH]


def parse_background_models(text: str, fetches: bool) -> list[str]:
    """Parse a comma-separated list of names of published models.

    Args:
        text: the list. "auto" stands for the default models, "none" or "" for none.
        fetches: whether the default models include those that must be downloaded.

    Raises:
        UnknownNameError: a name is not a published model.
    """
    if text.strip() == "auto":
        return default_background_models(fetches)
    names = [name.strip() for name in text.split(",") if name.strip() not in ("", "none")]
    for name in names:
        if name not in MODEL_INDEX:
            raise UnknownNameError.of("published model", name, MODEL_INDEX)
    return names


class BackgroundLoader:
    """Load models in the background, and report the progress, which any thread may read.

    Args:
        load: function that loads a pair (target, draft model); raises `WorkbenchError`.
        room: function that returns the memory in bytes that further models may use.
        progress: function from a model's name to a new `Progress`, which reports how far its loading is.
    """

    def __init__(
        self,
        load: Callable[[Pair, Progress], Any],
        room: Callable[[], int],
        progress: Callable[[str], Progress] = Progress,
    ) -> None:
        self._load, self._room, self._progress = load, room, progress
        self._now: dict[str, Progress] = {}
        self._problems: dict[str, str] = {}

    def run(self, first: Pair, names: Sequence[str]) -> None:
        """Load the models in `first` (target, draft model), then each target in `names` for which there is memory.

        A target that cannot be loaded is skipped, and the error message is stored. All targets in `names` that have not
        been loaded yet are reported as loading.
        """
        others = [name for name in names if name != first[0]]
        self._now = {name: self._progress(name) for name in others}
        self._try(first, self._progress(first[0]))
        for name in others:
            needed_bytes = HEADROOM * MODEL_INDEX[name].copy_bytes
            if (free_bytes := self._room()) < needed_bytes:
                self._problems[name] = f"not preloaded: {megabytes(needed_bytes)} of free memory would be needed"
                log.info(
                    "the model %s is not preloaded: only %s of memory are free", name, megabytes(max(0, free_bytes))
                )
            else:
                self._try((name, None), self._now[name])
            del self._now[name]

    def _try(self, pair: Pair, progress: Progress) -> None:
        try:
            self._load(pair, progress)
        except WorkbenchError as error:  # runs that use these models report the error themselves
            self._problems[pair[0]] = error.message

    def refuse(self, name: str) -> None:
        """Raise the error for a request that names a model that is not loaded.

        Used on a server where requests do not load models.

        Args:
            name: name of the model.

        Raises:
            ModelError: always; the message says whether the model is still loading or could not be loaded.
        """
        is_loading, problem = name in self._now, self._problems.get(name)
        if name in MODEL_INDEX and (is_loading or problem) and availability(MODEL_INDEX[name]) == TO_FETCH:
            raise ModelError(
                f"{name} is being loaded." if is_loading else f"{name} is not available: {problem}",
                "Wait until the list of targets shows it as ready." if is_loading else "Choose another target.",
            )

    def add_progress(self, targets: list[dict[str, Any]], loaded: Sequence[str]) -> list[dict[str, Any]]:
        """Add the progress of loading to a list of targets from `Backend.targets`, in the titles of published targets.

        Each target gets two keys: `loading`: whether the target is being loaded, so that a page should refresh the
        list; `ready`: whether the target is in memory. If a target could not be downloaded, `available` is False and
        `reason` is the error message.
        """
        return [self._with_progress(t, t["name"] in loaded) if t["kind"] == "published" else t for t in targets]

    def _with_progress(self, target: dict[str, Any], is_loaded: bool) -> dict[str, Any]:
        name = target["name"]
        progress = None if is_loaded else self._now.get(name)
        problem = self._problems.get(name, "")
        status = "ready" if is_loaded else "loading" if progress else "not loaded" if problem else ""
        # the progress comes first, because drop-down lists cut long titles at the end
        title = f"{MODEL_INDEX[name].title}: {status} · {name}" if status else target["title"]
        fields: dict[str, Any] = {"title": title, "loading": progress is not None, "ready": is_loaded}
        if status == "not loaded" and availability(MODEL_INDEX[name]) == TO_FETCH:
            fields |= {"available": False, "reason": problem}
        detail = target["detail"] if is_loaded else progress.short if progress else problem or target["detail"]
        return target | fields | {"detail": detail}
