"""TLT's adaptive drafter: EAGLE's head drafts, and learns while the long tail of a batch leaves the machine idle."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar, cast

from workbench.core.errors import ParameterError
from workbench.core.params import param
from workbench.engine.feedback import Outcome
from workbench.engine.online_weights import MOST_LESSONS, Learnt
from workbench.engine.request import Row
from workbench.engine.tree_building import Growth
from workbench.methods.drafters.eagle import Eagle
from workbench.methods.drafters.feature import FeatureState, load_net, read_features
from workbench.methods.drafters.spot import Apprentice, Text
from workbench.methods.drafters.warmth import WARM, warmth
from workbench.models.loading import Models


@dataclass(slots=True)
class Batch:
    """The rows that draft for one target like this, which are counted to know when there is time to learn.

    Attributes:
        running: rows that have begun and not ended.
        began: most that ran at once since none did.
    """

    running: int = 0
    began: int = 0

    def enter(self) -> None:
        """A row begins."""
        self.running += 1
        self.began = max(self.began, self.running)

    def leave(self) -> None:
        """A row ends."""
        self.running -= 1
        self.began = self.began if self.running else 0

    def is_tail(self, share: float) -> bool:
        """Whether no more than this share of the rows runs still; a row that has been alone all the time is a tail."""
        return self.began == 1 or self.running <= share * self.began

    @classmethod
    def of(cls, models: Models) -> Batch:
        """That of these models."""
        return cast(Batch, models.shared.setdefault("tlt batch", cls()))


@dataclass(slots=True)
class TLTState(FeatureState):
    """What a drafter that learns knows about one text.

    Attributes:
        owned: its apprentice, and whose that is; it is there as soon as the row is primed.
        text: what is written, with features, which lessons are drawn from; None with pictures, which none are about.
        version: of the apprentice, when the entries were computed.
        batch: the rows that this one is counted among, until it ends.
    """

    owned: Learnt[Apprentice] | None = None
    text: Text | None = None
    version: int = 0
    batch: Batch | None = None

    def follow(self, apprentice: Apprentice, again: bool) -> None:
        """Draft with what was learnt since; `again`: entries that an older head left are computed anew."""
        if self.version == apprentice.version:
            return
        self.net, self.head, self.twin = apprentice.net, apprentice.head, apprentice.twin
        self.version = apprentice.version
        if again and self.text is not None:
            self.entries.keep(0)
            self.place, self.features, self.tokens = 0, [self.text.whole()], self.text.tokens[1:]


@dataclass(frozen=True)
class TLT(Eagle):
    """EAGLE's head drafts a tree, and is trained on the texts that it drafted for, whenever part of a batch is idle.

    The features of every token were computed when it was verified, so that a lesson costs the target nothing. Lessons
    are given once few enough rows of a batch are left, which is when a machine made for many has time; a row that runs
    alone has one every so many rounds. Whatever the head becomes, the verifier decides: the output is the target's.

    Source: Hu et al. 2025, Taming the long tail (TLT), arXiv:2511.16665 (the adaptive drafter and its spot training).
    """

    state: ClassVar[type[FeatureState]] = TLTState
    every: int = param(4, ge=1, le=100_000, doc="rounds between two training steps, while training")
    tail: float = param(0.5, ge=0.0, le=1.0, doc="train while at most this share of the batch's sequences still runs")
    rate: float = param(3e-4, ge=0.0, le=0.1, doc="learning rate of AdamW; 0: no training")
    texts: int = param(4, ge=1, le=64, doc="most texts per training step")
    reads: int = param(64, ge=8, le=512, doc="most tokens per text")
    again: bool = param(False, doc="recompute the text's cache entries after a training step")
    warm: bool = warmth("what was learnt")

    def notice(self) -> str:
        """Warm drafts depend on other runs."""
        return WARM if self.warm else ""

    def memory(self) -> Hashable:
        """The apprentice, however often it is taught."""
        return "tlt", self.warm

    def apprentice(self, models: Models) -> Apprentice:
        """One that knows what the trained head knows; with `warm` the one that earlier runs taught.

        Raises:
            ModelError: the head cannot be read, or was made for another target.
        """
        kind = self.net.kind
        key = ("tlt", models.heads[kind].name)
        found = cast("Apprentice | None", models.shared.get(key)) if self.warm else None
        if found is None or not _is_of(found, models, kind):
            found = Apprentice(load_net(self.net, models, self.recipe), models.target, models.heads[kind])
            if self.warm:
                models.shared[key] = found
        found.look_up()
        return found

    def prime(self, row: Row, models: Models) -> TLTState:
        """Read what is committed by the head as it is now; the text is one to learn from, from here on."""
        mine, features = self.apprentice(models), read_features(row, models)
        state = cast(TLTState, self.primed(row, models, features, mine.net, mine.head, mine.twin))
        state.owned, state.version, state.batch = Learnt(mine, self.warm), mine.version, Batch.of(models)
        if row.images is None:
            pieces = features.new_empty(0, models.target.hidden_size) if not len(features) else features
            state.text = Text(mine.pool.step, row.prompt_length, list(row.committed), [pieces])
            mine.pool.add(state.text)
        state.batch.enter()
        return state

    def begin(self, row: Row) -> Growth | None:
        """Read what was accepted with the head as it is now."""
        state: TLTState = row.state
        assert state.owned is not None
        if not _is_of(state.owned.learner, row.models, self.net.kind):  # another head since
            self.release(row, row.models)
            row.state = state = self.prime(row, row.models)
        assert state.owned is not None
        mine = state.owned.learner
        state.follow(mine, self.again)
        row.signals["lessons"] = mine.lessons
        if mine.lessons:
            row.signals["loss of the last lesson"] = mine.loss
        return super().begin(row)

    def observe(self, row: Row, outcome: Outcome) -> None:
        """Take the true features, for the next draft and for lessons, and give one when it is time."""
        super().observe(row, outcome)
        state: TLTState = row.state
        if state.text is None or state.owned is None or state.batch is None:
            return
        mine = state.owned.learner
        state.text.tokens += outcome.emitted
        state.text.features.append(state.features[-1])
        mine.pool.trim()
        mine.rounds += 1
        if not isinstance(row.drafter, TLT) or not self.rate or mine.lessons >= MOST_LESSONS:
            return
        together = state.batch.running if state.owned.shared else 1
        if mine.rounds >= self.every * together and state.batch.is_tail(self.tail):
            mine.lesson(self.texts, self.reads, self.rate)

    def study(self, models: Models, lessons: int) -> int:
        """Lessons between batches, to the apprentice that warm rows share. Returns how many there was something for.

        Args:
            models: those that the batches run with.
            lessons: at most.

        Raises:
            ParameterError: this drafter is not `warm`: what each row learns ends with it.
        """
        if not self.warm:
            raise ParameterError("Between batches nobody is taught: each row has a head of its own.", "Set warm=True.")
        mine = self.apprentice(models)
        return sum(mine.lesson(self.texts, self.reads, self.rate) for _ in range(lessons))

    def release(self, row: Row, models: Models) -> None:
        """The row is no longer one of its batch."""
        state: TLTState | None = row.state
        if state is not None and state.batch is not None:
            state.batch.leave()
            state.batch = None


def _is_of(apprentice: Apprentice, models: Models, kind: str) -> bool:
    """Whether it learns to draft for these models, from the head that they have."""
    return apprentice.target is models.target and apprentice.info is models.heads[kind]
