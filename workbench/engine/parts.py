"""The parts a method is made of, and what they are told. Parts are frozen parameters; all state is handed in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from jaxtyping import Float
from torch import Tensor

from workbench.core.rejection import Ruling, Verdict, walk
from workbench.core.sampling import SamplingParams
from workbench.core.tree import DraftTree

if TYPE_CHECKING:
    from workbench.engine.models import Models
    from workbench.engine.request import Request, Row


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to draft in this round.

    Attributes:
        depth: most levels; 0 asks for no draft at all.
        stop_below: stop before a token whose drafter's largest probability is below this (0 never stops).
    """

    depth: int
    stop_below: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a round taught, for drafters and policies that learn from it.

    Attributes:
        tokens: drafted tokens, node by node.
        parents: their parents (−1: the last committed token).
        verdict: what was kept.
        emitted: committed tokens of this round, cut at the end of the text.
        root: the token the tree hung on.
        top: the target's likeliest next tokens at the root (entry 0) and after each node, accepted or not.
        planned: the plan that was drafted to.
        hidden: what the target's LM head read at the root (row 0) and at each node, accepted or not.
    """

    tokens: list[int]
    parents: list[int]
    verdict: Verdict
    emitted: list[int]
    root: int
    top: list[list[int]]
    planned: Plan
    hidden: Float[Tensor, "N_plus_1 D"] | None = None


class Drafter:
    """Proposes a tree behind the committed tokens. Subclasses are frozen dataclasses of parameters.

    `prime` builds the state for one row from its committed tokens alone: it is called at the start and after every
    switch in mid-generation. What it returns is `row.state` until `release`.
    """

    needs: ClassVar[tuple[str, ...]] = ()
    """What it takes besides the target: a "drafter"; "sight" (the drafter reads pictures); "pictures" (the target reads
    them); the kind of a trained head ("medusa"); or "trees" (the target verifies trees, not chains alone)."""
    blind: ClassVar[bool] = False
    """Whether it leaves pictures out, so that a draft model trained without them suits it better."""
    reads_target: ClassVar[bool] = False
    """Whether it reads the target's own states, and so sees of a picture what the target sees."""

    def notice(self) -> str:
        """What the user of a run with these parameters has to know before it begins; "" if nothing."""
        return ""

    def prime(self, row: Row, models: Models) -> Any:
        """State for one row; None when there is none."""
        return None

    @classmethod
    def batches(cls) -> bool:
        """Whether it drafts for several rows together. Others are asked for one row at a time."""
        return cls.propose is not Drafter.propose

    def reach(self, row: Row) -> int | None:
        """Most levels that it can draft now, where a model of its own has fewer positions than the target; else None.

        Below 1 the loop asks it for nothing more, and says why.
        """
        return None

    def propose(self, rows: Sequence[Row]) -> list[DraftTree]:
        """One tree a row. Rows share this drafter's class, not necessarily its parameters: read `row.drafter`.

        The default treats one row after the other with `propose_row`.
        """
        return [row.drafter.propose_row(row, row.plan) for row in rows]

    def propose_row(self, row: Row, plan: Plan) -> DraftTree:
        """A tree for one row, of at most `plan.depth` levels."""
        raise NotImplementedError

    def observe(self, row: Row, outcome: Outcome) -> None:
        """Learn from a round. `row.committed` already holds the emitted tokens."""

    def explain(
        self, models: Models, request: Request, tokens: Sequence[int], told: Callable[[float], None] = lambda _: None
    ) -> dict[str, Any] | None:
        """On which of its own vision tokens each emitted token leans, after a run: see `Trace.attribution`.

        Args:
            models: the run's.
            request: the run's, with its pictures and their changes.
            tokens: all that was emitted.
            told: called as it goes on with the share that is done.

        Returns:
            `{"attention": maps, "gradient": maps}`, or None where it has no eyes of its own.
        """
        return None

    def release(self, row: Row, models: Models) -> None:
        """Give back what `prime` took (a row in a draft model's cache)."""


class Verifier:
    """Turns the target's logits over a tree into a decision. See `workbench.core.rejection` for the form of a rule."""

    def rule(
        self,
        tree: DraftTree,
        logits: Float[Tensor, "N_plus_1 V"],
        p: Float[Tensor, "N_plus_1 V"],
        sampling: SamplingParams,
        u_stop: Float[Tensor, " N_plus_1"] | None,
    ) -> Ruling:
        """Decide for every place of the tree at once, without a synchronisation.

        Args:
            tree: the draft.
            logits: the target's, after penalties and processors.
            p: the law tokens are drawn from; when greedy, the plain softmax, for reading only.
            sampling: in force for this row.
            u_stop: uniforms for the emitted token; None when greedy.
        """
        raise NotImplementedError

    def walk(
        self,
        parents: Sequence[int],
        accept: Sequence[float],
        stop: Sequence[int],
        uniform: Sequence[float] | None,
        score: Sequence[float] | None = None,
    ) -> Verdict:
        """Follow the decision on the host. `score`: of the ruling, for verifiers that choose among paths by it."""
        return walk(parents, accept, stop, uniform)

    def draws(self, sampling: SamplingParams) -> bool:
        """Whether acceptance needs uniforms."""
        return not sampling.greedy


class Policy:
    """Decides how much to draft. Subclasses are frozen dataclasses of parameters; `start` gives their state."""

    name: ClassVar[str] = ""

    def start(self) -> Any:
        """State for one row."""
        return None

    def plan(self, row: Row, state: Any) -> Plan:
        """For the coming round. The loop cuts it to what is left of the text."""
        raise NotImplementedError

    def observe(self, row: Row, state: Any, outcome: Outcome) -> None:
        """Learn from a round."""


class Schedule:
    """Decides what runs when. `Sequential` is the only one so far: draft, then verify."""

    name: ClassVar[str] = "sequential"
