"""A loaded target model with its engine, its draft models and its runs."""

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
    """Target in the pool: its engine, the draft models loaded for it, and its waiting and running runs.

    Attributes:
        name: name of the target.
        engine: engine of the target; only the engine thread may use it.
        models: the target with each draft model loaded for it, by the draft model's name; key None: without a draft
            model.
        own_context: maximum sequence length of the model; the engine's limit may be lower to fit memory.
        used_at: `time.monotonic()` of the last use of each entry of `models`.
        queue: runs that wait to join the batch.
        runs: runs in the batch.
    """

    name: str
    engine: Engine
    models: dict[str | None, Models]
    own_context: int
    used_at: dict[str | None, float] = field(default_factory=dict)
    queue: FairQueue[Any] = field(default_factory=FairQueue)
    runs: list[Run] = field(default_factory=list)

    def check_fit(self, n_prompt: int, max_new_tokens: int, is_unbounded: bool = False) -> None:
        """Refuse a run that does not fit into the target's context, or into the context for which there is memory.

        A run whose prompt and new tokens exceed only the model's context length is accepted; the engine shortens it and
        adds a warning.

        Args:
            n_prompt: length of the prompt, in tokens.
            max_new_tokens: largest number of new tokens.
            is_unbounded: whether the method uses a KV cache of constant size, so that a text of any length fits.

        Raises:
            PromptError: no token fits after the prompt.
            CapacityError: memory is too small for the run; the error's remedy states the largest possible
                `max_new_tokens`.
        """
        if is_unbounded:
            return
        target = self.models[None].target
        context, reason = target.context, target.why_context
        if n_prompt >= context:
            raise PromptError(
                f"The prompt has {n_prompt} tokens; the target's context holds {context}, and one position must "
                f"stay free.",
                f"Shorten the prompt by {n_prompt - context + 1} tokens or more{f': {reason}' if reason else ''}.",
            )
        if context < min(self.own_context, n_prompt + max_new_tokens):
            raise CapacityError(
                f"{n_prompt} prompt tokens and {max_new_tokens} new tokens do not fit: the memory allows a "
                f"context of {context} tokens.",
                f"Use max_new_tokens={context - n_prompt} or less.",
            )

    def runners(self) -> Iterator[tuple[str | None, Runner]]:
        """Yield (name, model runner) of the target and of its draft models; the name of the target is None."""
        for drafter, models in list(self.models.items()):
            runner = models.target if drafter is None else models.draft_model
            if runner is not None:
                yield drafter, runner
