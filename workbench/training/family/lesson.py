"""What lessons have in common: how one kind of trained head learns from readings.

A lesson is the module of this package that is named after the head's kind (`eagle_3` for "eagle-3") and has `train`;
kinds without one learn as EAGLE's layer does. So a new head's recipe is its file. It may have, too: `taps_of` (which
layers' streams it reads), `keeps` (how many tokens it can propose), `exit_of` (where it exits), `GOES_ON`, if it can
begin with a finished layer of EAGLE's, and `ONE_LOSS`, if it learns by that alone.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from workbench.kernels.reduced_vocabulary import KEY
from workbench.methods.drafters.feature_net import FeatureNet
from workbench.methods.drafters.trained import TrainedNet
from workbench.models.fingerprint import WEIGHTS
from workbench.training.family.drafter import Curve, Teacher
from workbench.training.family.readings import Readings, batches
from workbench.training.heads.artefact import save_net
from workbench.training.loop import Report, RunResult, run_loop

_Net = TypeVar("_Net", bound=TrainedNet)
StepLosses = Callable[[list[int], torch.Generator], tuple[int, dict[str, Tensor], Tensor]]
"""Rows and random numbers → tokens read, losses to report, and the one to descend on."""
USUAL = FeatureNet.kind
"""Whose lesson kinds without one have."""
HELD_ROWS = 16
"""Held-out dialogues side by side."""


def own_lesson(kind: str) -> ModuleType | None:
    """The module that says how heads of this kind learn, and no others; None: there is none."""
    name = f"{__package__}.{kind.replace('-', '_')}"
    found = importlib.import_module(name) if importlib.util.find_spec(name) else None
    return found if hasattr(found, "train") else None


def lesson_of(kind: str) -> ModuleType:
    """The module that says how a head of this kind learns."""
    return own_lesson(kind) or importlib.import_module(f"{__package__}.{USUAL}")


def goes_on(kind: str) -> bool:
    """Whether such a head can begin with a finished layer of EAGLE's."""
    return getattr(own_lesson(kind), "GOES_ON", False)


@dataclass(frozen=True)
class Course:
    """Who is taught by whom, and on what.

    Attributes:
        options: of the recipe (`ChatHeadOptions`).
        teacher: of the target, what drafters learn from beside its readings.
        readings: of the target's own answers.
        kept: tokens that the heads can propose, int64 [W].
        held: readings that are kept for measuring.
        report: receives progress lines.
        finished: a layer of EAGLE's with whose weights the head begins; None: with fresh ones.
    """

    options: Any
    teacher: Teacher
    readings: Readings
    kept: Int[Tensor, " W"]
    held: list[int]
    report: Report
    finished: FeatureNet | None = None

    @property
    def device(self) -> torch.device:
        """Where they learn: where the teacher lies."""
        return self.teacher.head.device

    @cached_property
    def table(self) -> Float[Tensor, "W D"]:
        """The rows of the target's LM head for the tokens kept."""
        return self.teacher.head[self.kept]

    def said(self, row: int) -> Int[Tensor, " n"]:
        """The target's likeliest token behind each place of an answer that decides one of its tokens, −1 elsewhere.

        A run comes to the same places over and over: what it was at the first time is kept.
        """
        if row not in self._said:
            found = self.readings.dialogue(row)
            decides = slice(found.n_prompt - 1, len(found.ids) - 1)
            self._said[row] = torch.full_like(found.ids, -1)
            self._said[row][decides] = self.teacher.likeliest(found.features[decides])
        return self._said[row]

    @cached_property
    def _said(self) -> dict[int, Tensor]:
        return {}

    def facts(self, net: TrainedNet) -> dict[str, Any]:
        """What the configuration says of every head beside its sizes and tokens."""
        count = sum(p.numel() for p in net.parameters())
        return {WEIGHTS: self.teacher.weights, "parameters": count, "loss": self.options.loss}

    def steps(self, step_losses: StepLosses) -> Callable[[int], tuple[int, dict[str, float]]]:
        """Of a step's number: its answers, forward and backward; tokens read, and losses to report."""
        options = self.options
        rows = batches(self.readings, self.readings.part(held=False), options.rows, options.seed)

        def step(number: int) -> tuple[int, dict[str, float]]:
            generator = torch.Generator().manual_seed(options.seed * 1_000_003 + number)
            count, named, total = step_losses(rows(number), generator)
            if total.requires_grad:  # else there was nothing to learn from in these answers
                total.backward()
            return count, {name: float(loss.detach()) for name, loss in named.items()}

        return step

    def run(
        self,
        net: TrainedNet,
        step_losses: StepLosses,
        measure: Callable[[], dict[str, float]],
        on_progress: Callable[[float], None] = lambda _: None,
        **facts: Any,
    ) -> tuple[RunResult, Curve]:
        """Train, and write the heads at each checkpoint; the first figure measured makes the learning curve.

        Args:
            net: what is trained.
            step_losses: see `StepLosses`.
            measure: figures on held-out answers, by name.
            on_progress: is told before each step what share of the run is over.
            facts: more for the configuration.
        """
        options, facts = self.options, self.facts(net.to(self.device)) | facts
        loop = options.loop(options.method)
        self.report(f"{options.method}: {facts['parameters']:,} parameters")
        curve, taught = Curve.of(options), self.steps(step_losses)

        def step(number: int) -> tuple[int, dict[str, float]]:
            on_progress(loop.clock.progress(number))
            return taught(number)

        def on_checkpoint(result: RunResult) -> str:
            result.held = measure()
            name, value = next(iter(result.held.items()))
            curve.add(result.tokens, value)
            save_net(net, options.folder, self.teacher.name, **facts)
            return f"{options.method}: held out: {name} {value:.3f}"

        optimizers = options.optimizers(net, weight_decay=0.0)
        return run_loop(loop, net, optimizers, step, self.report, on_checkpoint), curve


def keeping(kept: Tensor, teacher: Teacher) -> dict[str, Any]:
    """What a configuration says of the tokens kept; nothing where these are all."""
    return {KEY: kept.tolist()} if len(kept) < len(teacher.head) else {}


def still(answer: Bool[Tensor, "B n"], steps: int) -> Bool[Tensor, "B n"]:
    """Places of answers that are as many steps before the last one."""
    return F.pad(answer, (0, steps))[:, steps:] & answer


def on(stream: Float[Tensor, "B n *d"], steps: int) -> Float[Tensor, "B n *d"]:
    """What stands so many places on; zeros behind the end, where nothing is right or wrong."""
    moved = stream.roll(-steps, 1)
    moved[:, stream.shape[1] - steps :] = 0
    return moved


def summed(losses: Iterable[Tensor]) -> Float[Tensor, ""]:
    """Their sum; 0, without gradients, of none: in some answers no place counts."""
    found = list(losses)
    return torch.stack(found).sum() if found else torch.zeros(())


def some_of(n: int, most: int, generator: torch.Generator) -> Int[Tensor, " m"]:
    """At most so many of n places, by chance."""
    return torch.randperm(n, generator=generator)[:most]


def begun(seed: int, make: Callable[[], _Net]) -> _Net:
    """A net whose fresh weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()
