"""Models that are loaded behind the first pair, one after another, so that they are there when somebody picks them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from workbench.core.errors import ModelError, UnknownNameError, WorkbenchError
from workbench.engine.published import PUBLISHED
from workbench.service.inventory import TO_FETCH, state
from workbench.service.names import Pair
from workbench.service.progress import Progress, megabytes

log = logging.getLogger("workbench.service")

HEADROOM = 8
"""Free bytes asked for a byte of a published model's files in 16 bits: three layouts in float32, and its making."""


def behind(fetches: bool) -> list[str]:
    """Published models that an app loads behind its first pair: those that are here or in a package of this machine.

    Args:
        fetches: those that the Hub would have to send, too.
    """
    return [name for name, model in PUBLISHED.items() if fetches or state(model) != TO_FETCH]


def named(text: str, fetches: bool) -> list[str]:
    """The published models of a list of names: "auto" is `behind`, "none" and nothing are none.

    Raises:
        UnknownNameError: one is no published model.
    """
    if text.strip() == "auto":
        return behind(fetches)
    names = [name.strip() for name in text.split(",") if name.strip() not in ("", "none")]
    for name in names:
        if name not in PUBLISHED:
            raise UnknownNameError.of("published model", name, PUBLISHED)
    return names


class Background:
    """What is loaded in the background, and how far it is. One loader's thread writes, anyone reads.

    Args:
        load: loads a pair of models; raises `WorkbenchError`.
        room: bytes that are left for models.
        progress: makes what tells how far a load is, by the name of what is loaded.
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
        """Load the first pair, then the targets of these names where there is room for each. What fails is only said.

        Those that wait their turn count as being loaded.
        """
        others = [name for name in names if name != first[0]]
        self._now = {name: self._progress(name) for name in others}
        self._try(first, self._progress(first[0]))
        for name in others:
            wanted = HEADROOM * PUBLISHED[name].copy_bytes
            if (left := self._room()) < wanted:
                self._problems[name] = f"not loaded ahead: {megabytes(wanted)} of memory are not free"
                log.info("%s is not loaded ahead: %s of memory are left", name, megabytes(max(0, left)))
            else:
                self._try((name, None), self._now[name])
            del self._now[name]

    def _try(self, pair: Pair, progress: Progress) -> None:
        try:
            self._load(pair, progress)
        except WorkbenchError as error:  # whoever asks for these models is told by their own run
            self._problems[pair[0]] = error.message

    def refuse(self, name: str) -> None:
        """Refuse a model that strangers may have once it is here: asking makes it come no sooner.

        Raises:
            ModelError: it is on its way, or could not be had.
        """
        coming, problem = name in self._now, self._problems.get(name)
        if name in PUBLISHED and (coming or problem) and state(PUBLISHED[name]) == TO_FETCH:
            raise ModelError(
                f"{name} is on its way." if coming else f"{name} is not here: {problem}",
                "Wait until the list of targets says that it is ready." if coming else "Take another target.",
            )

    def tell(self, targets: list[dict[str, Any]], loaded: Sequence[str]) -> list[dict[str, Any]]:
        """Targets as `Backend.targets` lists them, where a published one says beside its name how far it is.

        `loading` is true of those on their way: whoever shows the list may ask again; `ready` of those in memory. One
        that would have to be fetched and could not be is not `available`, for a `reason`.
        """
        return [self._told(t, t["name"] in loaded) if t["kind"] == "published" else t for t in targets]

    def _told(self, target: dict[str, Any], is_loaded: bool) -> dict[str, Any]:
        name = target["name"]
        progress = None if is_loaded else self._now.get(name)
        problem = self._problems.get(name, "")
        now = "ready" if is_loaded else "loading" if progress else "not loaded" if problem else ""
        # how far it is stands in front: choosers cut what is long at its end
        title = f"{PUBLISHED[name].title}: {now} · {name}" if now else target["title"]
        more: dict[str, Any] = {"title": title, "loading": progress is not None, "ready": is_loaded}
        if now == "not loaded" and state(PUBLISHED[name]) == TO_FETCH:
            more |= {"available": False, "reason": problem}
        detail = target["detail"] if is_loaded else progress.short if progress else problem or target["detail"]
        return target | more | {"detail": detail}
