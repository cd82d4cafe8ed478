"""The parts a method is made of: frozen parameters; all state is handed in. What they are told is in `told.py`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from jaxtyping import Bool
from torch import Tensor

from workbench.core.errors import WorkbenchError
from workbench.core.probes import Probes
from workbench.core.rejection import Ruling, Verdict, walk
from workbench.core.sampling import SamplingParams
from workbench.core.tree import DraftTree, Sampling
from workbench.engine.draft_plan import Grows, Plan
from workbench.engine.feedback import Exits, Outcome, Settled, Verification
from workbench.engine.tree_building import Growth, Step
from workbench.kernels.segment import Wanted

if TYPE_CHECKING:
    from workbench.engine.declarations import Claim, Head
    from workbench.engine.request import Request, Row
    from workbench.models.loading import Models
    from workbench.trace.tokens import Emitted


class Part:
    """What drafters, growers, verifiers and policies have in common."""

    name: ClassVar[str] = ""
    """Kebab-case; by it one of several is chosen."""
    needs: ClassVar[tuple[str, ...]] = ()
    """What it takes besides the target: a "drafter"; "any-drafter", one of whatever vocabulary; "sight" (the drafter
    reads pictures); "pictures" (the target reads them); the kind of a trained head ("medusa"); or "trees" (the target
    verifies trees, not chains alone)."""

    head: ClassVar[Head | None] = None
    """The trained net that it needs, where that is not its method's drafter's (`Method.head`)."""
    claims: ClassVar[tuple[Claim, ...]] = ()
    """What its paper claims, each measured with the method that it names: that method's claims are these, too."""

    def make_ready(self, models: Models) -> None:
        """What it takes once of these models, and takes long: before a run is queued or changed, in any thread."""

    def taps(self, models: Models) -> Collection[int]:
        """Indices of the target's layers whose residual streams it reads of a verification; none by default."""
        return ()

    def probes(self, row: Row, tree: DraftTree) -> Probes | None:
        """Tokens to compute behind a draft in the same pass, which are never accepted; None: no such tokens.

        Asked of a method's drafter and verifier before each verification, without a synchronisation. What comes back is
        `Verification.probed` for the one and `Outcome.probed` for the other: None too where there was no room.
        """
        return None


class Drafter(Part):
    """Proposes a tree behind the committed tokens. Subclasses are frozen dataclasses of parameters.

    `prime` builds the state for one row from its committed tokens alone: it is called at the start and after every
    switch in mid-generation. What it returns is `row.state` until `release`.
    """

    blind: ClassVar[bool] = False
    """Whether it leaves pictures out, so that a draft model trained without them suits it better."""
    reads_target: ClassVar[bool] = False
    """Whether it reads the target's own states, and so sees of a picture what the target sees."""

    def siblings(self) -> frozenset[Sampling]:
        """How siblings in its trees may be chosen, with these parameters, where the target samples. By default any way.

        From it follows which verifiers keep the target's law (`Method.unsound`), so that a tree that comes otherwise is
        refused. Trees without nodes need not be named, nor those of greedy decoding.
        """
        return frozenset(Sampling)

    def notice(self) -> str:
        """What the user of a run with these parameters has to know before it begins; "" if nothing."""
        return ""

    def hears(self, models: Models) -> Wanted:
        """What `prime` will ask `states_of` for, so that it is kept while the prompt is read; by default nothing."""
        return Wanted()

    def prime(self, row: Row, models: Models) -> Any:
        """State for one row; None when there is none."""
        return None

    @classmethod
    def batches(cls) -> bool:
        """Whether it drafts for several rows together. Others are asked for one row at a time."""
        return cls.propose is not Drafter.propose

    def reach(self, row: Row) -> int | None:
        """Most levels that it can draft now, where a model of its own has fewer positions than the target; else None.

        Below 1 the round asks it for nothing more, and says why.
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

    def exits(self, row: Row, tree: DraftTree) -> Exits | None:
        """The target's own states at the root and this draft, where drafting computed them; None: it did not.

        The row's entries of those layers then stand behind its committed part, and verification goes on from there.
        """
        return None

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

    def memory(self) -> Hashable | None:
        """What its state for a row is called, where it is learnt from the text and from what the target said of it.

        A drafter that names it goes on watching (`observe`) while another one drafts, and one whose memory has the same
        name takes it up, be it the same drafter with other parameters (see `engine/observers.py`): the name holds all
        parameters that the state depends on. None: a switch primes anew.
        """
        return None

    def release(self, row: Row, models: Models) -> None:
        """Give back what `prime` took (a row in a draft model's cache)."""


class Grower(Part):
    """A way of growing trees over any drafter that gives laws. Subclasses are frozen dataclasses of parameters."""

    siblings: ClassVar[Sampling]
    """How the siblings in its trees come where the target samples. When it is greedy they may be chosen."""
    superposes: ClassVar[bool] = False
    """Whether it has several tokens read as one, so that a drafter has to be able to: `LawDrafter.superposes`."""

    def prime(self, drafter: Drafter, models: Models) -> Any:
        """`row.grower_state` of a grower that learns, made anew with another grower or drafter; None: there is none."""
        return None

    def grow(self, growth: Growth, plan: Plan) -> DraftTree:
        """A tree of at most `plan.depth` ≥ 1 levels and `plan.nodes` nodes; closes the growth."""
        raise NotImplementedError

    def observe(self, row: Row, outcome: Outcome) -> None:
        """Learn from a round. `row.committed` already holds the emitted tokens, `row.grower_state` is the state."""


def siblings_of(drafter: Drafter, grower: Grows | type[Grower] | None) -> frozenset[Sampling]:
    """How siblings in a drafter's trees may be chosen, under a grower: one that it cannot follow changes nothing."""
    may = drafter.siblings()
    return may if grower is None else may & {grower.siblings} or may


class LawDrafter(Drafter):
    """A drafter that gives a law behind any node of a tree: how the tree grows is its plan's affair.

    So its siblings may come in any way, and what the grower says of them holds: see `siblings_of`.
    """

    superposes: ClassVar[bool] = False
    """Whether its growth can read several tokens as one, by their mean embedding: see `Growth.superpose`."""
    usual: ClassVar[Grower | None] = None
    """How its trees grow where neither plan nor method names a way."""

    def begin(self, row: Row) -> Growth | None:
        """A tree without nodes; None where nothing can be drafted yet."""
        raise NotImplementedError

    def propose_row(self, row: Row, plan: Plan) -> DraftTree:
        """The tree that the plan's grower makes of its laws.

        Raises:
            WorkbenchError: neither the plan nor the method names a grower, and there is no usual one.
        """
        grower = plan.grower or self.usual
        if grower is None:
            raise WorkbenchError(
                f"{type(self).__name__} yields distributions, but its method names no tree builder.",
                "Name tree builders in the method (`growers`): see workbench/methods/growers.",
            )
        if (growth := self.begin(row)) is None:
            return DraftTree.empty(device=row.models.target.device)
        return grower.grow(growth, plan)


class Verifier(Part):
    """Turns what the target says of a tree into a decision. See `workbench.core.rejection` for the form of a rule.

    One that learns or remembers keeps a state for each row: `prime` makes it from the committed tokens, at the start
    and after every switch in mid-generation; `observe` may write to it; a rule reads it as `Verification.state`.
    """

    exact_for: ClassVar[frozenset[Sampling]] = frozenset()
    """Ways of choosing siblings for which what it emits has the target's own law; none: it is approximate."""
    keeps_greedy: ClassVar[bool] = True
    """Whether text at temperature 0 is the target's own, whatever was drafted."""
    reads_laws: ClassVar[bool] = False
    """Whether it reads the laws of drafted chains at temperature 0, too: they then carry them, which costs time."""

    def reads_draft_states(self, models: Models) -> bool:
        """Return whether it reads the draft model's hidden state after each draft of a chain (`DraftTree.states`).

        The state after the last draft costs the draft model one more pass a round.
        """
        return False

    def prime(self, row: Row, models: Models) -> Any:
        """State for one row; None when there is none."""
        return None

    def rule(self, v: Verification) -> Ruling:
        """Decide for every place of the tree at once, without a synchronisation. See `Ruling` for what is drawn."""
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

    def observe(self, row: Row, outcome: Outcome) -> None:
        """Learn from a round. `row.committed` already holds the emitted tokens, `row.verifier_state` is the state."""

    def holds(self) -> int:
        """Most of the last tokens that it keeps and may still take back, with these parameters; 0: all is final.

        What is held is not text yet: it is emitted, and streamed, once `settle` or this number lets go of it.
        """
        return 0

    def settle(self, row: Row, held: Sequence[Emitted], ends: bool) -> Settled:
        """What of the held tokens stands; asked after each round, behind `observe`, where `holds` is not 0.

        Args:
            row: the last of `row.committed` are the held tokens, those of this round among them.
            held: these, oldest first, with the target's probability of each; they have no text yet.
            ends: the text ends with the last of them, unless it is taken back: what is not, is final then.
        """
        raise NotImplementedError


class Policy(Part):
    """Decides how much to draft. Subclasses are frozen dataclasses of parameters; `start` gives their state."""

    simulates: ClassVar[bool] = False
    """Whether it knows what no real one could: with it every method is a simulation (`Promise.SIMULATION`)."""
    timed: ClassVar[bool] = False
    """Whether it decides by measured seconds: two runs of one request may then draft differently."""
    grows: ClassVar[type[Grower] | None] = None
    """The way of growing that its plans name, whichever was chosen for the method; None: they leave it to that."""

    def start(self) -> Any:
        """State for one row."""
        return None

    def plan(self, row: Row, state: Any, batch: Sequence[Row] = ()) -> Plan:
        """For the coming round. The round cuts it to what is left of the text.

        Args:
            row: whose round it is.
            state: what `start` gave for it.
            batch: rows that share the coming verification, this one among them: what a draft costs depends on them.
        """
        raise NotImplementedError

    def go_on(self, row: Row, state: Any, step: Step) -> Bool[Tensor, ""] | bool:
        """Whether the draft that grows is to have another level; asked where the plan `stops`.

        It must not look at which tokens were drawn last: `step` knows the laws before the draw alone, so that a stop
        does not bias what is kept. An answer on the device is waited for; one that a policy has waited for is a bool.
        """
        raise NotImplementedError

    def observe(self, row: Row, state: Any, outcome: Outcome) -> None:
        """Learn from a round."""
