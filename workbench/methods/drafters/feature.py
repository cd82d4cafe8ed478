"""Drafting with a feature drafter: prime it with the target's features, grow a tree, keep what was true."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from workbench.core.errors import ModelError
from workbench.core.params import param
from workbench.core.transfer import to_device
from workbench.core.tree import DraftTree
from workbench.engine.checksums import check_weights
from workbench.engine.models import HeadInfo, Models
from workbench.engine.parts import Drafter, Outcome, Plan
from workbench.engine.pictures import see
from workbench.engine.request import Request, Row
from workbench.engine.runner import SCRATCH, Segment
from workbench.engine.trimmed import SharedHead
from workbench.methods.drafters.feature_maps import explain_feature_drafter
from workbench.methods.drafters.feature_net import Entered, Entries, FeatureNet, Seen
from workbench.methods.drafters.grow import most_promising, subtree

CHUNK = 512
"""Positions of which the target's features are computed at once."""


@dataclass(slots=True)
class FeatureState:
    """What a feature drafter knows about one text.

    Attributes:
        net: the drafter.
        models: whose target's embedding and LM head it shares.
        head: the target's LM head, over the tokens that the drafter keeps.
        entries: its keys and values.
        place: position of the next pair.
        guess: the state at the newest stable pair, [1, D]; None before the first.
        features: true features, [m, D] each, that have not been read yet.
        tokens: the tokens that follow them.
    """

    net: FeatureNet
    models: Models
    head: SharedHead
    entries: Entries
    place: int = 0
    guess: Tensor | None = None
    features: list[Tensor] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def read(self, entered: Entered, place: int) -> None:
        """Read a prompt; `place` is the position behind its last pair."""
        if entered.inputs.shape[1]:
            self.guess = self._run(entered.inputs, entered.places)[:, -1]
        self.entries.settle()
        self.place = place

    def newest(self) -> Float[Tensor, "1 D"] | None:
        """The state at the newest pair, once all that was accepted has been read: in one call, all of it stable."""
        if self.features:
            tokens = to_device(self.tokens, self.features[0].device)
            pairs = self.net.pairs(self.models.target.embed(tokens), torch.cat(self.features))
            places = torch.arange(self.place, self.place + len(self.tokens), device=tokens.device)
            self.guess = self._run(pairs.unsqueeze(0), places)[:, -1]
            self.entries.settle()
            self.place += len(self.tokens)
            self.features, self.tokens = [], []
        return self.guess

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
        pairs = self.net.pairs(self.models.target.embed(tokens), features).unsqueeze(0)
        mask = None
        if sees is not None:
            mask = sees.new_ones(len(tokens), self.entries.stable + sees.shape[1])
            mask[:, self.entries.stable :] = sees
        return self._run(pairs, places + (self.place - 1), mask)[0]

    def _run(self, x: Tensor, places: Tensor, mask: Tensor | None = None) -> Tensor:
        clock = self.models.target.clock
        start = clock.mark()
        state = self.net(x, places, mask, self.entries)
        self.models.meter.add(start, clock.mark())
        return state

    def best(self, features: Float[Tensor, "w D"], k: int) -> tuple[Float[Tensor, "w k"], Int[Tensor, "w k"]]:
        """Log-probabilities and ids of the k likeliest tokens behind each feature, by the target's own LM head."""
        clock = self.models.target.clock
        start = clock.mark()
        logits = self.head(features).float()
        self.models.meter.add(start, clock.mark())
        found = logits.topk(min(k, logits.shape[1]), dim=1)
        return (found.values - logits.logsumexp(1, keepdim=True)).clamp_max_(0), self.head.tokens(found.indices)


@dataclass(frozen=True)
class FeatureDrafter(Drafter):
    """What the feature drafters share; each of them is a dataclass that names its net.

    The tree is EAGLE-2's: the `width` most promising nodes of a level are expanded, each offers `width` children, and
    of all nodes offered the best `nodes` are verified. A node's promise is the product of the drafter's probabilities
    along its path. Children are a function of what is committed, hence the deterministic rule, which keeps the target's
    law at every temperature.

    Source: Li et al. 2024, EAGLE, arXiv:2401.15077, §4.1; EAGLE-2, arXiv:2406.16858, §4.1 (expand), §4.2 (rerank).
    """

    reads_target: ClassVar[bool] = True
    net: ClassVar[type[FeatureNet]]
    width: int = param(3, ge=1, le=8, doc="nodes expanded a level, and children offered by each")
    nodes: int = param(12, ge=1, le=96, doc="nodes verified a round")

    @property
    def how(self) -> Any:
        """What the parameters say about looking at a picture, for `FeatureNet.look`."""
        return None

    def prime(self, row: Row, models: Models) -> FeatureState:
        """Read the features of everything committed, as the target has them, pictures as this drafter sees them."""
        net, clock = load_net(self.net, models), models.target.clock
        features = read_features(row, models)
        capacity = len(row.committed) + row.remaining + SCRATCH
        state = FeatureState(
            net, models, head_of(self.net, models), Entries(net.heads, net.head_size, capacity, features)
        )
        start = clock.mark()
        with torch.inference_mode():
            seen = what_was_seen(row, models, features)
            entered = net.enter(seen, self.how)
            state.read(entered, len(features))
        if seen.spans:
            seconds = clock.mark().seconds - start.seconds
            see(row, drafter=self.net.kind, drafter_prefill_s=seconds, **shown(seen, entered, state))
        return state

    def propose_row(self, row: Row, plan: Plan) -> DraftTree:
        """Grow, rank, keep."""
        state: FeatureState = row.state
        guess = state.newest()
        if guess is None:  # a prompt of one token: the target has read nothing yet
            return DraftTree.empty(self.net.kind, row.models.target.device)
        with torch.inference_mode():
            return self.grow(state, guess, plan.depth)

    def grow(self, state: FeatureState, guess: Float[Tensor, "1 D"], depth: int) -> DraftTree:
        """The tree below the newest committed token."""
        chance, token = state.best(guess, self.width)  # [1, k]
        k = token.shape[1]
        tokens, chances, scores = [token[0]], [chance[0]], [chance[0]]
        parents, first = [token.new_full((k,), -1)], 0
        behind, sees = guess.expand(k, -1), None  # the level's nodes: states of their parents, and what these saw
        own = torch.eye(self.width, dtype=torch.bool, device=token.device)
        for level in range(1, depth):
            w = min(self.width, scores[-1].shape[0])
            chosen = scores[-1].topk(w).indices
            sees = own[:w, :w] if sees is None else torch.cat([sees[chosen], own[:w, :w]], 1)
            places = chosen.new_full((w,), level)
            states = state.speculate(behind[chosen], tokens[-1][chosen], places, sees)
            chance, token = state.best(states, self.width)  # [w, k]
            parents.append((first + chosen).repeat_interleave(k))
            first += tokens[-1].shape[0]
            scores.append((scores[-1][chosen].unsqueeze(1) + chance).view(-1))
            chances.append(chance.view(-1))
            tokens.append(token.view(-1))
            behind, sees = states.repeat_interleave(k, 0), sees.repeat_interleave(k, 0)
        state.entries.forget()
        keep = most_promising(torch.cat(scores), self.nodes)
        score = torch.cat(chances).exp()
        return subtree(keep, torch.cat(tokens), torch.cat(parents), score, depth, k, self.net.kind)

    def observe(self, row: Row, outcome: Outcome) -> None:
        """Take the true features of the root and of the accepted nodes; what was guessed has been forgotten."""
        state: FeatureState = row.state
        path = outcome.verdict.path[: len(outcome.emitted)]
        rows = [0, *(node + 1 for node in path)][: len(outcome.emitted)]
        assert outcome.hidden is not None
        state.features.append(outcome.hidden[rows])
        state.tokens += outcome.emitted

    def explain(
        self, models: Models, request: Request, tokens: Sequence[int], told: Callable[[float], None] = lambda _: None
    ) -> dict[str, Any] | None:
        """Maps over the target's patches: see `explain_feature_drafter`."""
        return explain_feature_drafter(load_net(self.net, models), self.how, models, request, tokens, told)


def read_features(row: Row, models: Models) -> Float[Tensor, "n_minus_1 D"]:
    """The target's features at all committed positions but the last.

    Those of a prompt with pictures are there since its prefill. The others are read again: the target runs over their
    tokens once more, and writes the same entries into its cache.
    """
    target, slot, pictured = models.target, row.place, row.place.pictured
    end = len(row.committed) - 1
    found = [] if pictured is None else [pictured.features[:end]]
    start = sum(map(len, found))
    if start == end and found:
        return found[0]
    target.rewind(slot, start)
    for at in range(start, end, CHUNK):
        piece = torch.tensor(row.committed[at : min(at + CHUNK, end)], device=target.device)
        found.append(target.forward([Segment(slot, piece)]).hidden[0])
        target.commit(slot, range(len(piece)))
    return torch.cat(found) if found else torch.zeros(0, target.hidden_size, dtype=target.dtype, device=target.device)


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
            weights += [[0.0] * before + [round(x, 4) for x in w] + [0.0] * rest for w in view.weights.tolist()]
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


def load_net(kind: type[FeatureNet], models: Models) -> FeatureNet:
    """The trained net of a kind, loaded once for its target.

    Raises:
        ModelError: the folder cannot be read, or was made for another target.
    """
    info: HeadInfo = models.heads[kind.kind]
    key = (kind.kind, info.name)
    if key not in models.shared:
        with torch.inference_mode(False):  # packed layers watch their weights, which inference tensors do not allow
            models.shared[key] = _load(kind, info, models)
    return cast(FeatureNet, models.shared[key])


def head_of(kind: type[FeatureNet], models: Models) -> SharedHead:
    """The target's LM head as the trained net of a kind drafts with it, laid out once.

    Raises:
        ModelError: the net keeps tokens that the target does not have.
    """
    info: HeadInfo = models.heads[kind.kind]
    key = ("head of", kind.kind, info.name)
    if key not in models.shared:
        models.shared[key] = SharedHead(models.target.lm_head, info.config)
    return cast(SharedHead, models.shared[key])


def _load(kind: type[FeatureNet], info: HeadInfo, models: Models) -> FeatureNet:
    target = models.target
    try:
        net = kind(**info.config["net"], context=target.context + SCRATCH)
        check_weights(info.folder)
        net.load_state_dict(load_file(info.folder / "model.safetensors"))
    except (OSError, KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        raise ModelError(
            f"The {kind.kind} weights in {info.folder} cannot be read: {error}", "Train or fetch them again."
        ) from error
    if net.width != target.hidden_size:
        raise ModelError(
            f"These {kind.kind} weights read {net.width} numbers; the target gives {target.hidden_size}.",
            f"Train them for this target: workbench train vision-heads --set method={kind.kind}.",
        )
    return net.to(target.device, target.dtype).settle()
