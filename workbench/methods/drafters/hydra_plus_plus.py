"""Hydra++: deeper heads, which read what one more attention made of the whole text instead of the newest state alone.

The prefix layer stands behind the target's last one. It reads the features f(≤ t) of everything that the target has
read, so it runs once a round, over true features only: nothing of it is ever taken back.

    prefix      f(≤ t)  →  g(t)
    head k      g(t), e(t + 1), …, e(t + k)   →  law of x(t + 1 + k)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from workbench.engine.feedback import Outcome
from workbench.engine.request import Row
from workbench.engine.tree_building import Growth
from workbench.kernels.segment import Wanted
from workbench.methods.drafters.attention_net import DecoderLayer, Entries, Norm
from workbench.methods.drafters.feature import FEATURES, read_features
from workbench.methods.drafters.hydra import Hydra, HydraGrowth, HydraState, ToldHeads
from workbench.methods.drafters.trained import head_of, load_fitting
from workbench.models.loading import Models
from workbench.models.runner import SCRATCH


class Prefix(DecoderLayer):
    """One decoder layer over features that were brought to C numbers."""

    def __init__(self, width: int, cond: int, heads: int, ffn: int, context: int) -> None:
        super().__init__(cond, heads, context)
        self.feeds(ffn)
        self.enter = nn.Sequential(Norm(width, eps=self.eps), nn.Linear(width, cond, bias=False))

    def forward(
        self, features: Float[Tensor, "B n D"], places: Int[Tensor, " n"], entries: Entries | None = None
    ) -> Float[Tensor, "B n C"]:
        """What it makes of features at consecutive places. Arguments: see `AttentionNet.mix`."""
        return self.after(self.fed(self.mix(self.enter(features), places, None, entries)))


class PrefixHeads(ToldHeads):
    """Heads behind layers that read the text: what the kinds after Hydra++ have in common."""

    @property
    def readers(self) -> list[DecoderLayer]:
        """The layers that read the text."""
        raise NotImplementedError


class HydraPlusPlusHeads(PrefixHeads):
    """K stacks of n layers, C numbers wide, on the prefix layer's state and on the tokens since.

    Of u, the state and the k embeddings, the first layer makes R(k) u + SiLU(W(k) u + b(k)), and each further one
    y + SiLU(V(k, j) y + b(k, j)). One product that all heads share leads back to the width of a feature; to that comes
    what of f(t) head k lets through, number by number. Each head begins as the identity of f(t).

    Args:
        width: the target's hidden size D.
        blocks: K.
        cond: C, the width of everything inside.
        deep: n, layers of each stack.
        prefix_heads: attention heads of the prefix layer.
        ffn: width of its feed-forward.
        context: longest sequence, in positions.

    Source: Ankner et al. 2024, Hydra, arXiv:2402.05109, §4 (the first layer's two products: the released code).
    """

    kind: ClassVar[str] = "hydra-plus-plus"

    def __init__(
        self, width: int, blocks: int = 4, cond: int = 64, deep: int = 4, prefix_heads: int = 4, ffn: int = 192,
        context: int = 1024,
    ) -> None:  # fmt: skip
        super().__init__(width, blocks, cond)
        self.deep = deep
        self.prefix = Prefix(width, cond, prefix_heads, ffn, context)
        self.first = nn.ModuleList(nn.Linear((k + 2) * cond, cond) for k in range(blocks))
        self.around = nn.ModuleList(nn.Linear((k + 2) * cond, cond, bias=False) for k in range(blocks))
        self.further = nn.ModuleList(
            nn.ModuleList(nn.Linear(cond, cond) for _ in range(deep - 1)) for _ in range(blocks)
        )
        self.through = nn.ParameterList(torch.ones(width) for _ in range(blocks))
        self.leave = nn.Linear(cond, width, bias=False)
        nn.init.zeros_(self.leave.weight)

    def over(self, features: Float[Tensor, "B n D"], places: Int[Tensor, " n"] | None = None,
             entries: Entries | None = None) -> Float[Tensor, "B n DC"]:  # fmt: skip
        """The features and behind each the prefix layer's state, which knows those before it."""
        if places is None:
            places = torch.arange(features.shape[1], device=features.device)
        return torch.cat([features, self.prefix(features, places, entries)], -1)

    def forward(
        self, features: Float[Tensor, "*b DC"], told: Float[Tensor, "*b kC"], block: int
    ) -> Float[Tensor, "*b D"]:
        """What a head makes of what `over` gave and of the tokens since. Arguments: see `HydraHeads`."""
        own, state = features[..., : self.width], features[..., self.width :]
        u = torch.cat([state, told], -1)
        y = self.around[block](u) + nn.functional.silu(self.first[block](u))
        stack = self.further[block]
        assert isinstance(stack, nn.ModuleList)
        for layer in stack:
            y = y + nn.functional.silu(layer(y))
        return self.through[block] * own + self.leave(y)

    @property
    def sizes(self) -> dict[str, Any]:
        """What the constructor needs to build it again."""
        prefix = {"prefix_heads": self.prefix.heads, "ffn": self.prefix.down.in_features}
        return super().sizes | {"deep": self.deep} | prefix

    @property
    def readers(self) -> list[DecoderLayer]:
        return [self.prefix]

    def settle(self) -> HydraPlusPlusHeads:
        """For drafting; the prefix layer is laid out for it."""
        super().settle()
        self.prefix.settle()
        return self


@dataclass(slots=True)
class PrefixState(HydraState):
    """What drafting needs of the heads and of one text.

    Attributes:
        entries: keys and values of each layer that reads the text; all of them are true.
        newest: what the heads read behind the newest feature, [R]; None before the first.
        features: true features, [m, D] each, that those layers have not read yet.
    """

    entries: list[Entries]
    newest: Tensor | None = None
    features: list[Tensor] = field(default_factory=list[Tensor])

    def read(self, row: Row) -> Tensor | None:
        """What the heads read now, once the text's layers have read all that was accepted, in one call."""
        found, self.features = self.features, []
        if any(map(len, found)):
            features, begin = torch.cat(found), self.entries[0].used
            places = torch.arange(begin, begin + len(features), device=features.device)
            self.newest = self.over(row, features.unsqueeze(0), places)[0, -1]
            for entries in self.entries:
                entries.settle()
        return self.newest

    def over(self, row: Row, features: Float[Tensor, "1 n D"], places: Int[Tensor, " n"]) -> Float[Tensor, "1 n R"]:
        """What the net makes of features at consecutive places behind those that it has read."""
        assert isinstance(self.net, HydraPlusPlusHeads)
        return self.net.over(features, places, self.entries[0])


@dataclass(frozen=True)
class HydraPlusPlus(Hydra):
    """Hydra's heads, n layers deep, on a state that one attention over the text's features made.

    Source: Ankner et al. 2024, Hydra, arXiv:2402.05109, §4.
    """

    needs: ClassVar[tuple[str, ...]] = (HydraPlusPlusHeads.kind, "trees")
    heads: ClassVar[type[PrefixHeads]] = HydraPlusPlusHeads
    state: ClassVar[type[PrefixState]] = PrefixState
    called: ClassVar[str] = "Hydra++"

    def hears(self, models: Models) -> Wanted:
        """The features of the prompt."""
        return FEATURES

    def prime(self, row: Row, models: Models) -> PrefixState:
        """Read the features of everything committed but the last token.

        Raises:
            ModelError: the heads cannot be read, or are none for this target.
        """
        again = f"Train heads for this target: workbench train {self.heads.kind} --target …"
        net = load_fitting(self.heads, models, f"{self.called} heads", again)
        features, room = read_features(row, models), len(row.committed) + row.remaining + SCRATCH
        entries = [Entries(layer.heads, layer.head_size, room, features) for layer in net.readers]
        state = self.state(net, head_of(self.heads, models), entries, features=[features])
        with torch.inference_mode():
            state.read(row)
        return state

    def begin(self, row: Row) -> Growth | None:
        """Read what was accepted; a prompt of one token has nothing to go on from."""
        clock = row.models.target.clock
        start = clock.mark()
        hidden = row.state.read(row)
        row.models.meter.add(start, clock.mark(), is_part=True)  # the first block's forward goes on from it
        return None if hidden is None else self.growth(row, hidden)

    def growth(self, row: Row, hidden: Float[Tensor, " R"]) -> Growth:
        """A tree without nodes. `hidden`: what the net made of the text."""
        return HydraGrowth(row, hidden)

    def observe(self, row: Row, outcome: Outcome) -> None:
        """Take the true features of the root and of the accepted nodes."""
        rows = outcome.places
        assert outcome.hidden is not None
        row.state.features.append(outcome.hidden[rows])
