"""A head in use while it learns: the engine drafts with it, as it was last saved, for a few held-out prompts."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from workbench.engine import Engine, Request
from workbench.engine.models import HeadInfo, Models, load_models
from workbench.engine.request import ENDED
from workbench.methods import registry
from workbench.trace import metrics
from workbench.trace.curves import ON_POLICY, TAU, TESTED
from workbench.training.family.evaluate import held_prompts, one_branch, rows_of

TOKENS = 48
"""Longest answer that is drafted for."""
ROWS = 8


@dataclass
class InUse:
    """Drafts greedily for held-out prompts and says how that went; its models are loaded once.

    Attributes:
        target: name or folder of the target.
        kind: of the head.
        folder: of the head.
        answers: folder with the target's answers, whose held-out prompts are asked again.
        prompts: so many of them, as many groups as there are.
    """

    target: str
    kind: str
    folder: Path
    answers: Path
    prompts: int
    _models: list[Models] = field(default_factory=list)
    _asked: int = 0

    def __call__(self) -> dict[str, float]:
        """Acceptance at each position of a draft, of how many rounds, and τ, by curve; nothing without prompts.

        Drafts have one branch where the method can do that, so that a position is accepted or not.
        """
        if not self._models:
            self._models.append(load_models(self.target, None, "cpu", "float32"))
        models = self._models[0]
        self._asked += 1
        config = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
        models.heads[self.kind] = HeadInfo(f"{self.folder.name}, {self._asked}", self.folder, config)
        models.shared.clear()  # the net as it was before
        rows = rows_of(self.kind)
        chosen = next((row for row in rows if row.name == "chain"), rows[0])
        method = registry.get(chosen.method).with_params(**dict(chosen.params))
        engine = Engine(one_branch(models) if chosen.name == "chain" else models, max_rows=ROWS)
        held = list(held_prompts(self.answers / "answers.jsonl", 1))
        held = held if len(held) >= self.prompts else list(held_prompts(self.answers / "answers.jsonl", self.prompts))
        asked = [engine.submit(Request(ids, method, max_new_tokens=TOKENS)) for _, ids in islice(held, self.prompts)]
        while any(row.status not in ENDED for row in asked):
            engine.step()
        rounds = [r for row in asked if row.trace is not None for r in row.trace.rounds]
        found: dict[str, float] = {}
        for depth, tested, accepted in metrics.acceptance_by_depth(rounds):
            found[f"{ON_POLICY}/position {depth}"] = accepted / tested
            found[f"{TESTED}/position {depth}"] = tested
        tau = metrics.tau(rounds)
        return found if tau is None else found | {TAU: tau}
