"""DySpec: add draft nodes at the positions where the drafter's distribution predicts the most accepted tokens."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import torch

from workbench.core.params import param
from workbench.core.transfer import to_list
from workbench.core.tree import DraftTree, Sampling
from workbench.core.tree_explanation import TreeBuilderRule, TreeExplanation
from workbench.decoders.declarations import Claim
from workbench.decoders.draft_verify.parts import Plan, TreeBuilder
from workbench.decoders.draft_verify.tree_building import PartialTree
from workbench.methods.tree_builders.shapes import NODES
from workbench.methods.tree_builders.tree_sampler import TreeSampler

WORTH = TreeBuilderRule(
    "dyspec",
    "Highest expected acceptance",
    "By the drafter's own distribution, this position was among the most likely to be reached. That probability is "
    "the probability of the path above it, times the probability that its earlier siblings are rejected.",
    "probability that verification reaches this position",
    "draft probability of the path including this token",
)


@dataclass(frozen=True)
class DySpec(TreeBuilder):
    """Draw siblings without replacement, and add each next draft node at the position that is likeliest to be reached.

    q is the drafter's distribution after a node. DySpec assumes that a child is accepted with its probability in q
    without its earlier siblings, given that they were rejected. A position is then reached with the probability v · (1
    − Σ q of its earlier siblings), called its worth; v is the product of q along the path above the position. The worth
    is known before the position's token is drawn. It is never smaller than the worth of a position below it, or of a
    later sibling. So the choice of positions never depends on the token drawn there, and recursive rejection is exact.

    The paper takes the positions with the largest worth one after the other from a heap. Here the positions of a level
    are computed together, and those that cannot be among the best are not expanded. The tree is the same, with one
    forward pass of the drafter per level.

    Attributes:
        nodes: maximum number of nodes.
        form: "heap": the `nodes` positions with the largest worth. "threshold": all positions whose worth reaches a
            bound.
        worth: bound for form = "threshold".

    Source: Xiong et al. 2024, DySpec, arXiv:2410.11744, §4 (heap), §4.2 (threshold). When decoding is greedy the
    distributions are point masses and the tree is a chain.

    The paper assumes that a draft is accepted with about its probability q. This does not hold for the bundled target
    and draft model. At temperature 1, 31 % of the drafts have q below 0.05; by q, 1 % of these should be accepted, but
    34 % are (118 positions measured). At temperature 0.6, the drafts with q above 0.95 have a mean q of 0.995, but 88 %
    of them are accepted (112 positions). Compared with Sequoia's trees of the same size, 64 nodes in at most 8 levels,
    τ is nevertheless 1.14 times as large at temperature 0.6 (95 % interval 1.09 to 1.18, 112 prompts); at temperature 1
    no difference was found (0.95, 0.86 to 1.05, 25 prompts).
    """

    name: ClassVar[str] = "dyspec"
    needs: ClassVar[tuple[str, ...]] = ("trees",)
    siblings: ClassVar[Sampling] = Sampling.WITHOUT_REPLACEMENT
    nodes: int = param(12, **NODES)
    form: str = param("heap", choices=("heap", "threshold"), doc="how the dyspec tree builder chooses nodes")
    worth: float = param(0.08, ge=0.01, le=1.0, doc="minimum probability that a node is reached, for form = threshold")
    claims: ClassVar[tuple[Claim, ...]] = tuple(
        Claim(
            f"τ relative to Sequoia's tree of {nodes} nodes, temperature 0.6", "LLaMA-2 70B with a small drafter",
            None, None, "Xiong et al. 2024, arXiv:2410.11744, tables (only the direction is compared; from memory)",
            lambda lab, nodes=nodes: lab.tau_over(
                "draft-tree-sampled", {"grower": "dyspec", "nodes": nodes, "depth": 8},
                {"grower": "sequoia", "nodes": nodes, "depth": 8, "counts_time": False}, temperature=0.6,
            ),
            key=f"dyspec-{nodes}", method="draft-tree-sampled",
        )
        for nodes in (16, 32, 64)
    )  # fmt: skip

    def build(self, tree: PartialTree, plan: Plan) -> DraftTree:
        """Draw the nodes of the draft tree level by level, then select the positions with the largest worth."""
        most = plan.limit_nodes(self.nodes)
        sampler, distributions = TreeSampler(tree, self.siblings), tree.root
        path = torch.ones(1, dtype=torch.float64, device=tree.device)  # product of q down to each node expanded last
        drafted = list[torch.Tensor]()  # product of q down to each node
        all_worths = path.new_zeros(0)  # worth of each position drawn so far
        for level in range(plan.depth):
            p = sampler.probs(distributions)
            top = sampler.gumbel(p, level).topk(min(most, p.shape[1]), dim=1)
            q = p.double().gather(1, top.indices)
            sibling_mass = torch.cat([q.new_zeros(len(q), 1), q[:, :-1].cumsum(1)], 1)
            worth = path.unsqueeze(1) * (1 - sibling_mass).clamp_min(0)  # [w, k]
            worth = torch.where(torch.isfinite(top.values), worth, 0)
            bound = self._bound(torch.cat([all_worths, worth.view(-1)]), most)
            below, place = ((worth >= bound) & (worth > 0)).nonzero().unbind(1)
            if not len(below):
                break
            sampler.add(top.indices[below, place], below)
            all_worths = torch.cat([all_worths, worth[below, place]])
            drafted.append(path[below] * q[below, place])
            # A path's product does not exceed the worth of its position, also after rounding.
            path = torch.minimum(path[below] * q[below, place], all_worths[-len(below) :])
            inner = ((path >= bound) & (path > 0)).nonzero().squeeze(1)
            if (
                level + 1 == plan.depth
                or not len(inner)
                or not tree.should_continue(distributions := tree.expand(inner))
            ):
                break
            path = path[inner]
        # The stable sort puts earlier siblings and parents first.
        best = all_worths.sort(descending=True, stable=True).indices[:most].sort().values
        selection: list[int] = to_list(best)
        fan = Counter[int](to_list(torch.cat(tree.parents)[best]))
        return sampler.finish(
            max(fan.values()),
            TreeExplanation((WORTH,), before=all_worths[best], after=torch.cat(drafted)[best]),
            selection,
        )

    def _bound(self, worth: torch.Tensor, most: int) -> torch.Tensor:
        """Return the smallest worth with which a position may be in the draft tree, a scalar tensor.

        The worth of a position is the probability that it is reached, as estimated by the drafter.

        For form = "heap" it is the worth of the position that ranks last within the budget; for form = "threshold" it
        is the parameter `worth`, but at most the largest worth.

        Args:
            worth: worth of all positions drawn so far, [n].
            most: maximum number of nodes.
        """
        if self.form == "threshold":
            return worth.new_tensor(self.worth).clamp_max(worth.max())  # the first position is always worth 1
        if len(worth) < most:  # the budget is not used up: no minimum
            return worth.new_zeros(())
        return worth.topk(most).values[-1]
