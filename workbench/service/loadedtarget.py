"""A target that is loaded, with all that belongs to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from workbench.core.errors import CapacityError, PromptError
from workbench.engine import Engine, Models, Runner
from workbench.service.fairqueue import FairQueue
from workbench.service.run import Run


@dataclass(eq=False)
class LoadedTarget:
    """A target in the pool: its engine, the draft models loaded for it, and the runs that wait for its rows.

    Attributes:
        name: of the target.
        engine: belongs to the engine's thread.
        models: the target with each draft model loaded for it; None: with none.
        own_context: longest sequence of the model itself; the target's may be shorter, for want of memory.
        used_at: `time.monotonic()` of the last use of each of `models`.
        queue: runs that wait for a row.
        runs: runs that have one.
    """

    name: str
    engine: Engine
    models: dict[str | None, Models]
    own_context: int
    used_at: dict[str | None, float] = field(default_factory=dict)
    queue: FairQueue[Any] = field(default_factory=FairQueue)
    runs: list[Run] = field(default_factory=list)

    def check_fit(self, n_prompt: int, max_new_tokens: int) -> None:
        """Refuse a run that the target's context, or the memory there was for it, cannot hold.

        A run that only the model's own context cuts short is not refused: the engine cuts it and says so.

        Raises:
            PromptError: no token fits behind the prompt.
            CapacityError: with the largest `max_new_tokens` that fits.
        """
        target = self.models[None].target
        context, why = target.context, target.why_context
        if n_prompt >= context:
            raise PromptError(
                f"The prompt has {n_prompt} tokens; the context holds {context}, one of which must stay free.",
                f"Shorten it by {n_prompt - context + 1} tokens or more{f': {why}' if why else ''}.",
            )
        if context < min(self.own_context, n_prompt + max_new_tokens):
            raise CapacityError(
                f"{n_prompt} tokens of prompt and {max_new_tokens} new ones do not fit: memory holds {context}.",
                f"Use max_new_tokens={context - n_prompt} or less.",
            )

    def runners(self) -> Iterator[tuple[str | None, Runner]]:
        """The target (None) and the draft models by name."""
        for drafter, models in list(self.models.items()):
            runner = models.target if drafter is None else models.writer
            if runner is not None:
                yield drafter, runner
