"""Grow where the drafter's own law expects most to be accepted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import torch

from workbench.core.grown import Grown, GrowthRule
from workbench.core.params import param
from workbench.core.transfer import listed
from workbench.core.tree import DraftTree, Sampling
from workbench.engine.declared import Claim
from workbench.engine.growing import Growth
from workbench.engine.parts import Grower
from workbench.engine.plan import Plan
from workbench.methods.growers.drawn import Drawn
from workbench.methods.growers.shapes import NODES

WORTH = GrowthRule(
    "dyspec",
    "Where most is expected",
    "The drafter's own law foretold how likely its place was to be reached: by the path above it, and by what its "
    "elder siblings left. The places of the largest worth got a node.",
    "worth of the place",
    "once its token was drawn, chance of the path",
)


@dataclass(frozen=True)
class DySpec(Grower):
    """Draw siblings without replacement, and give each next node to the place that is likeliest to be reached.

    The chance that a child is accepted once its elder siblings were not is taken for its chance in what they left of
    the drafter's law. A place for a node is then worth v · (1 − what its elder siblings hold of q), with v the product
    of q along the path above it. It is known before the place's token is drawn, and no place below or behind is worth
    more: so what is kept never depends on which token was drawn there, and recursive rejection keeps the target's law.

    The heap takes the places of the largest worth, one after the other. Here a level's are found together, and those
    that cannot be among the best are never expanded: the same tree as with one node at a time, with one forward of the
    drafter a level.

    Attributes:
        nodes: at most.
        form: heap: the `nodes` places of the largest worth. threshold: those that are worth more than a bound.
        worth: that bound.

    Source: Xiong et al. 2024, DySpec, arXiv:2410.11744, §4 (heap), §4.2 (threshold). When decoding is greedy the laws
    are point masses and the tree is a chain.

    The paper assumes that a draft is accepted with about its probability q. On the bundled pair that does not hold: at
    temperature 1, drafts of q below 0.05 are 31 % of all that are drawn, and of these 34 % are accepted where q
    foretells 1 %; at temperature 0.6 those above 0.95 (mean 0.995) are accepted in 88 % (118 and 112 places). The heap
    then widens the tree where it should go on, and Sequoia, which counts what is accepted, is ahead at equal size.
    """

    name: ClassVar[str] = "dyspec"
    needs: ClassVar[tuple[str, ...]] = ("trees",)
    siblings: ClassVar[Sampling] = Sampling.WITHOUT_REPLACEMENT
    nodes: int = param(12, **NODES)
    form: str = param("heap", choices=("heap", "threshold"), doc="which places of a dyspec tree get a node")
    worth: float = param(0.08, ge=0.01, le=1.0, doc="by threshold, least chance that a place is reached")
    claims: ClassVar[tuple[Claim, ...]] = tuple(
        Claim(
            f"τ / τ of Sequoia's tree of {nodes} nodes, temperature 0.6", "LLaMA-2 70B with a small drafter",
            None, None, "Xiong et al. 2024, arXiv:2410.11744, tables (direction; recalled)",
            lambda lab, nodes=nodes: lab.tau_over(
                "draft-tree-sampled", {"grower": "dyspec", "nodes": nodes, "depth": 8},
                {"grower": "sequoia", "nodes": nodes, "depth": 8, "counts_time": False}, temperature=0.6,
            ),
            key=f"dyspec-{nodes}", method="draft-tree-sampled",
        )
        for nodes in (16, 32, 64)
    )  # fmt: skip

    def grow(self, growth: Growth, plan: Plan) -> DraftTree:
        """Level by level, and of all that was drawn the best places."""
        most = plan.within(self.nodes)
        drawn, said = Drawn(growth, self.siblings), growth.root
        path = torch.ones(1, dtype=torch.float64, device=growth.device)  # product of q down to each node expanded last
        drafted = list[torch.Tensor]()  # product of q down to each node
        found = path.new_zeros(0)  # what each place drawn so far is worth
        for level in range(plan.depth):
            p = drawn.law(said)
            top = drawn.gumbel(p, level).topk(min(most, p.shape[1]), dim=1)
            q = p.double().gather(1, top.indices)
            elder = torch.cat([q.new_zeros(len(q), 1), q[:, :-1].cumsum(1)], 1)
            worth = path.unsqueeze(1) * (1 - elder).clamp_min(0)  # [w, k]
            worth = torch.where(torch.isfinite(top.values), worth, 0)
            bound = self._bound(torch.cat([found, worth.view(-1)]), most)
            below, place = ((worth >= bound) & (worth > 0)).nonzero().unbind(1)
            if not len(below):
                break
            drawn.add(top.indices[below, place], below)
            found = torch.cat([found, worth[below, place]])
            drafted.append(path[below] * q[below, place])
            path = torch.minimum(path[below] * q[below, place], found[-len(below) :])  # whatever rounding says
            inner = ((path >= bound) & (path > 0)).nonzero().squeeze(1)
            if level + 1 == plan.depth or not len(inner) or not growth.goes_on(said := growth.expand(inner)):
                break
            path = path[inner]
        best = found.sort(descending=True, stable=True).indices[:most].sort().values  # elder and above come first
        kept: list[int] = listed(best)
        fan = Counter[int](listed(torch.cat(growth.parents)[best]))
        return drawn.tree(max(fan.values()), Grown((WORTH,), before=found[best], after=torch.cat(drafted)[best]), kept)

    def _bound(self, worth: torch.Tensor, most: int) -> torch.Tensor:
        """What a place has to be worth: as much as the last one that there is room for, or the threshold."""
        if self.form == "threshold":
            return worth.new_tensor(self.worth).clamp_max(worth.max())  # the first place is always worth 1
        if len(worth) < most:  # there is room for any: a place below the least one is worth as much but for rounding
            return worth.new_zeros(())
        return worth.topk(most).values[-1]
