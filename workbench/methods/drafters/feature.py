"""Drafting with a feature drafter: prime it with the target's features, grow a tree, keep what was true."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.core.sampling import SamplingParams
from workbench.core.transfer import listed, to_device
from workbench.engine.captured_states import states_of
from workbench.engine.feedback import Outcome
from workbench.engine.image_trace import see
from workbench.engine.parts import Grower, LawDrafter
from workbench.engine.request import Request, Row
from workbench.engine.tree_building import Growth, Laws, WholeLaws
from workbench.kernels.device_clock import Mark
from workbench.kernels.reduced_vocabulary import SharedHead
from workbench.kernels.segment import Wanted
from workbench.methods.drafters.attention_net import Entries
from workbench.methods.drafters.feature_maps import explain_feature_drafter
from workbench.methods.drafters.feature_net import Entered, FeatureNet, Seen
from workbench.methods.drafters.feature_twin import FeatureTwin, Level, twin_of
from workbench.methods.drafters.trained import head_of, load_fitting
from workbench.methods.growers.best_first import BestFirst
from workbench.models.loading import Models
from workbench.models.runner import SCRATCH

FEATURES = Wanted(features=True)


@dataclass(slots=True)
class FeatureState:
    """What a feature drafter knows about one text.

    Attributes:
        net: the drafter.
        models: whose target's embedding and LM head it shares.
        head: the target's LM head, over the tokens that the drafter keeps.
        entries: its keys and values.
        place: position of the next pair.
        guess: the state at the newest stable pair, [1, D], or as many as the drafter guesses at once; None before the
            first.
        features: true features, [m, D] each, that have not been read yet.
        tokens: the tokens that follow them.
        twin: what runs the net's layer and the head where passes are compiled.
    """

    net: FeatureNet
    models: Models
    head: SharedHead
    entries: Entries
    place: int = 0
    guess: Tensor | None = None
    features: list[Tensor] = field(default_factory=list[Tensor])
    tokens: list[int] = field(default_factory=list[int])
    twin: FeatureTwin | None = None
    _said: Level | None = None

    def read(self, entered: Entered, place: int) -> None:
        """Read a prompt; `place` is the position behind its last pair."""
        if entered.inputs.shape[1]:
            self.guess = self.stay(entered.inputs, entered.places)
        self.place = place

    def stay(
        self, x: Float[Tensor, "1 n E"], places: Int[Tensor, " n"], since: Mark | None = None
    ) -> Float[Tensor, "k D"]:
        """Read true inputs, whose entries stay; what is guessed behind the last of them. `since`: see `_run`."""
        state = self._run(x, places, since=since)[:, -1]
        self.entries.settle()
        return state

    def newest(self) -> Float[Tensor, "k D"] | None:
        """What is guessed behind the newest pair, once all that was accepted has been read: in one call, for good."""
        since = self.models.target.clock.mark()
        if self.twin is not None and self.features and self.twin.takes(n := len(self.tokens)):
            places = torch.arange(self.place, self.place + n)
            self.guess = self._level(torch.tensor(self.tokens), torch.cat(self.features), places, None, since, True)
            self.entries.settle()
            self.features, self.tokens, self.place = [], [], self.place + n
        elif (pairs := self.fresh()) is not None:
            n = pairs.shape[1]
            self.guess = self.stay(pairs, torch.arange(self.place, self.place + n, device=pairs.device), since)
            self.place += n
        return self.guess

    def fresh(self) -> Float[Tensor, "1 n E"] | None:
        """The pairs of what was accepted and not read yet, which the caller reads; None where there are none."""
        if not self.features:
            return None
        tokens = to_device(self.tokens, self.features[0].device)
        pairs = self._pairs(tokens, self.net.taken(torch.cat(self.features)))
        self.features, self.tokens = [], []
        return pairs.unsqueeze(0)

    def speculate(
        self, features: Float[Tensor, "w D"], tokens: Int[Tensor, " w"], places: Int[Tensor, " w"], sees: Tensor | None
    ) -> Float[Tensor, "w D"]:
        """States at guessed features: speculative entries, which the next verdict drops.

        Args:
            features: guesses.
            tokens: the drafted tokens that follow them.
            places: their positions, counted from the newest stable pair.
            sees: bool [w, s + w] over all speculative entries, the new ones last; None: a chain that sees them all.
        """
        since, places = self.models.target.clock.mark(), places + (self.place - 1)
        if self.twin is not None and self.twin.takes(tokens.shape[0]):
            return self._level(tokens, features, places, sees, since)
        return self._run(self._pairs(tokens, features).unsqueeze(0), places, sees, since=since)[0]

    def _level(
        self,
        tokens: Int[Tensor, " n"],
        features: Float[Tensor, "n D"],
        places: Int[Tensor, " n"],
        sees: Tensor | None,
        since: Mark,
        last_only: bool = False,
    ) -> Float[Tensor, "k D"]:
        """States behind pairs, by the twin; what it says behind them is kept until the next level."""
        assert self.twin is not None
        self._said = self.twin.level(tokens, features, places, sees, self.entries, last_only)
        self.models.meter.add(since, self.models.target.clock.mark())
        return self._said.states

    def _pairs(self, tokens: Int[Tensor, " n"], features: Float[Tensor, "n D"]) -> Float[Tensor, "n E"]:
        return self.net.pairs(self.models.target.embed(tokens), features)

    def _run(
        self,
        x: Tensor,
        places: Tensor,
        sees: Tensor | None = None,
        since: Mark | None = None,
    ) -> Tensor:
        """States, [1, n, D].

        `since`: when fusing the inputs began, which is a part of the forward.
        """
        clock, meter = self.models.target.clock, self.models.meter
        start = since or clock.mark()
        mask = None
        if sees is not None:
            mask = sees.new_ones(x.shape[1], self.entries.stable + sees.shape[1])
            mask[:, self.entries.stable :] = sees
        state = self.net(x, places, mask, self.entries)
        meter.add(start, clock.mark())
        return state

    def logits(self, features: Float[Tensor, "w D"]) -> Float[Tensor, "w K"]:
        """Return logits of the tokens that the drafter keeps behind each feature, by the target's own LM head."""
        if (said := self._said_of(features)) is not None:
            return said.logits
        start = self.models.target.clock.mark()
        logits = self.head(self.net.said(features))
        self.models.meter.add(start, self.models.target.clock.mark(), is_part=True)
        return logits

    def best(self, features: Float[Tensor, "w D"], k: int) -> tuple[Float[Tensor, "w k"], Int[Tensor, "w k"]]:
        """Log-probabilities and ids of the k likeliest tokens behind each feature."""
        if (said := self._said_of(features)) is not None and k <= said.weighed.top.shape[1]:
            return said.weighed.logs[:, :k].contiguous(), self.head.tokens(said.weighed.top[:, :k])
        return self.head.ranked(self.logits(features), k)

    def _said_of(self, features: Float[Tensor, "w D"]) -> Level | None:
        """What the twin said with these states, if they are those that it gave last."""
        said = self._said
        if said is None or said.states.data_ptr() != features.data_ptr() or said.states.shape != features.shape:
            return None
        return said


@dataclass(frozen=True)
class FeatureLaws(Laws):
    """What features say of the tokens behind them, by the target's own LM head."""

    state: FeatureState
    features: Float[Tensor, "w D"]
    sampling: SamplingParams

    def whole(self) -> Float[Tensor, "w V"]:
        """Over all of the target's tokens; penalties, which depend on the text before, are left out."""
        return WholeLaws.of(self.state.head.spread(self.state.logits(self.features)), self.sampling).p

    def best(self, k: int) -> tuple[Float[Tensor, "w k"], Int[Tensor, "w k"]]:
        """Of the tokens that the drafter keeps, plain: without temperature."""
        return self.state.best(self.features, k)


class FeatureGrowth(Growth):
    """A tree that grows behind the newest stable pair: each node enters with its parent's guess at the next feature."""

    def __init__(self, row: Row, source: str, guess: Float[Tensor, "1 D"]) -> None:
        super().__init__(row, source, guess.device)
        self.state: FeatureState = row.state
        self._states = guess  # at the nodes expanded last
        self.root = self._laws()

    def laws(self, tokens: Int[Tensor, " w"], below: Int[Tensor, " w"] | None) -> FeatureLaws:
        behind = self._states.expand(tokens.shape[0], -1) if below is None else self._states[below]
        places = torch.full_like(tokens, len(self.tokens))
        self._states = self.state.speculate(behind, tokens, places, self.sees)
        return self._laws()

    def close(self, kept: Int[Tensor, " kept"] | None = None) -> None:
        """Drop what was guessed."""
        self.state.entries.forget()

    def _laws(self) -> FeatureLaws:
        return FeatureLaws(self.state, self._states, self.row.sampling)


@dataclass(frozen=True)
class FeatureDrafter(LawDrafter):
    """What the feature drafters share; each of them is a dataclass that names its net.

    The tree grows as the plan says, or as EAGLE-2's: see `BestFirst`.

    Source: Li et al. 2024, EAGLE, arXiv:2401.15077, §4.1; EAGLE-2, arXiv:2406.16858, §4.
    """

    reads_target: ClassVar[bool] = True
    net: ClassVar[type[FeatureNet]]
    state: ClassVar[type[FeatureState]] = FeatureState
    usual: ClassVar[Grower | None] = BestFirst()
    recipe: ClassVar[str] = "vision-heads"
    """What trains its net."""

    @property
    def how(self) -> Any:
        """What the parameters say about looking at a picture, for `FeatureNet.look`."""
        return None

    def hears(self, models: Models) -> Wanted:
        """The features of the prompt."""
        return FEATURES

    def prime(self, row: Row, models: Models) -> FeatureState:
        """Read the features of everything committed, as the target has them, pictures as this drafter sees them."""
        net, head = load_net(self.net, models, self.recipe), head_of(self.net, models)
        return self.primed(row, models, read_features(row, models), net, head, twin_of(net, head, models))

    def primed(
        self,
        row: Row,
        models: Models,
        features: Float[Tensor, "n_minus_1 D"],
        net: FeatureNet,
        head: SharedHead,
        twin: FeatureTwin | None,
    ) -> FeatureState:
        """The state of a row whose features are read by a net; the others: see `FeatureState`."""
        clock = models.target.clock
        capacity = len(row.committed) + row.remaining + SCRATCH
        entries = Entries(net.heads, net.head_size, capacity, features)
        state = self.state(net, models, head, entries, twin=twin)
        start = clock.mark()
        with torch.inference_mode():
            seen = what_was_seen(row, models, features)
            entered = net.enter(seen, self.how)
            state.read(entered, len(features))
        if seen.spans:
            seconds = clock.mark().seconds - start.seconds
            see(row, drafter=self.net.kind, drafter_prefill_s=seconds, **shown(seen, entered, state))
        return state

    def begin(self, row: Row) -> Growth | None:
        """Read what was accepted; a prompt of one token has nothing to go on from: the target has read nothing yet."""
        guess = row.state.newest()
        return None if guess is None else FeatureGrowth(row, self.net.kind, guess)

    def observe(self, row: Row, outcome: Outcome) -> None:
        """Take the true features of the root and of the accepted nodes; what was guessed has been forgotten."""
        state: FeatureState = row.state
        assert outcome.hidden is not None
        state.features.append(outcome.hidden[outcome.places])
        state.tokens += outcome.emitted

    def explain(
        self, models: Models, request: Request, tokens: Sequence[int], told: Callable[[float], None] = lambda _: None
    ) -> dict[str, Any] | None:
        """Maps over the target's patches: see `explain_feature_drafter`."""
        return explain_feature_drafter(load_net(self.net, models), self.how, models, request, tokens, told)


def read_features(row: Row, models: Models) -> Float[Tensor, "n_minus_1 D"]:
    """The target's features at all committed positions but the last.

    Those of a prompt with pictures are there since its prefill.
    """
    target, pictured, end = models.target, row.place.pictured, len(row.committed) - 1
    seen = torch.empty(0, target.hidden_size, dtype=target.dtype, device=target.device)
    if pictured is not None:
        seen = pictured.features[:end]
    behind = states_of(row, models, FEATURES, len(seen)).features if len(seen) < end else None
    return seen if behind is None else torch.cat([seen, behind])


def what_was_seen(row: Row, models: Models, features: Float[Tensor, "n_minus_1 D"]) -> Seen:
    """The committed text as the target saw it."""
    pictured = row.place.pictured
    known = 0 if pictured is None else len(pictured.embeds)
    embeds = models.target.embed(torch.tensor(row.committed[known:], device=features.device, dtype=torch.long))
    if pictured is None:
        return Seen(embeds[None], features[None])
    question = torch.zeros(len(features), dtype=torch.bool, device=features.device)
    question[: known - 1] = ~pictured.is_vision[:-1]
    whole = torch.cat([pictured.embeds, embeds])
    return Seen(whole[None], features[None], pictured.spans, pictured.grids, question[None])


def shown(seen: Seen, entered: Entered, state: FeatureState) -> dict[str, Any]:
    """What the drafter sees of the pictures, for the trace: patches are numbered through all pictures."""
    sizes = [end - start for start, end in seen.spans]
    views, each = entered.views, state.entries.bytes_each
    n_drafter = sum(view.inputs.shape[1] for view in views)
    kept: list[int] = []
    blocks: list[list[int]] = []
    weights: list[list[float]] = []
    before = 0
    for view, size in zip(views, sizes, strict=True):
        kept += [before + i for i in view.kept or ()]
        blocks += [[before + i for i in block] for block in view.blocks or ()]
        if view.weights is not None:
            rest = sum(sizes) - before - size
            weights += [[0.0] * before + [round(x, 4) for x in w] + [0.0] * rest for w in listed(view.weights)]
        before += size
    return {
        "compressor": views[0].compressor,
        "n_target": sum(sizes),
        "n_drafter": n_drafter,
        "drafter_bytes": n_drafter * each,
        "kept": kept if views[0].kept is not None else None,
        "blocks": blocks or None,
        "weights": weights or None,
        "gate": views[0].gate,
    }


def load_net(kind: type[FeatureNet], models: Models, recipe: str = "vision-heads") -> FeatureNet:
    """The trained net of a kind, loaded once for its target.

    Raises:
        ModelError: the folder cannot be read, or was made for another target.
    """
    one = recipe == "chat-heads"  # which one command does with all that they learn from
    how = f"{kind.kind} --target …" if one else f"{recipe} --set method={kind.kind}"
    again = f"Train them for this target: workbench train {how}"
    return load_fitting(kind, models, f"{kind.kind} weights", again)
