"""Heads on the target's last hidden state guess the tokens after next; a fixed tree combines their guesses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, cast

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from workbench.core.errors import ModelError
from workbench.core.params import param
from workbench.core.templates import best_paths, parents_of
from workbench.core.tree import DraftTree, Sampling
from workbench.engine.checksums import check_weights
from workbench.engine.models import HeadInfo, Models
from workbench.engine.parts import Drafter
from workbench.engine.request import Row
from workbench.engine.trimmed import SharedHead

RANKS = 10


class MedusaHeads(nn.Module):
    """K residual blocks on the vector that the target's LM head reads; all share that LM head.

    Block k: x + SiLU(W_k x + b_k), weights [K, D, D] and biases [K, D].
    """

    def __init__(self, info: HeadInfo, models: Models) -> None:
        super().__init__()
        try:
            check_weights(info.folder)
            weights = load_file(info.folder / "model.safetensors")
            n = info.config["n_heads"]
            weight = torch.stack([weights[f"heads.{i}.weight"] for i in range(n)])
            bias = torch.stack([weights[f"heads.{i}.bias"] for i in range(n)])
        except (OSError, KeyError, ValueError, RuntimeError, SafetensorError) as error:
            raise ModelError(
                f"The Medusa heads in {info.folder} cannot be read: {error}", "Train or fetch them again."
            ) from error
        if weight.shape[-1] != models.target.hidden_size:
            raise ModelError(
                f"These Medusa heads read {weight.shape[-1]} numbers; the target gives {models.target.hidden_size}.",
                "Train heads for this target: workbench train medusa.",
            )
        self.weight = weight.to(models.target.device, models.target.dtype)
        self.bias = bias.to(models.target.device, models.target.dtype)
        self.shared = SharedHead(models.target.lm_head, info.config)
        self.accuracy: tuple[tuple[float, ...], ...] = tuple(map(tuple, info.config["head_accuracy"]))

    def forward(self, hidden: Float[Tensor, "B D"]) -> Float[Tensor, "B K W"]:
        """Logits of each head: head k (from 1) guesses the token k + 1 places after the one `hidden` ends at.

        W is the target's vocabulary, or as many tokens as the heads keep of it: `shared.tokens` has their ids.
        """
        x = hidden.unsqueeze(0)  # [1, B, D]
        block = nn.functional.silu(
            torch.baddbmm(self.bias.unsqueeze(1), x.expand(len(self.weight), -1, -1), self.weight.mT)
        )
        return self.shared((x + block).transpose(0, 1))


@dataclass(frozen=True, slots=True)
class Template:
    """A static tree as tensors: which head and which of its ranks each node takes, int64 [N], and the parents."""

    head: Int[Tensor, " N"]
    rank: Int[Tensor, " N"]
    parents: Int[Tensor, " N"]
    depth: int
    fanout: int


@lru_cache(maxsize=64)
def template(accuracy: tuple[tuple[float, ...], ...], n_nodes: int, depth: int, device: torch.device) -> Template:
    """The static tree for measured head accuracies."""
    paths = best_paths(accuracy, n_nodes, min(depth, len(accuracy)))
    parents = parents_of(paths)
    return Template(
        head=torch.tensor([len(path) - 1 for path in paths], device=device),
        rank=torch.tensor([path[-1] for path in paths], device=device),
        parents=torch.tensor(parents, device=device),
        depth=max(map(len, paths)),
        fanout=max(Counter(parents).values()),
    )


@dataclass(frozen=True)
class Medusa(Drafter):
    """All heads read one hidden state, that of the newest token the target has seen, and guess independently.

    The newest committed token was drawn from that state but has not been through the target, so head k guesses the
    k-th token after it. A path (i₁, i₂, …) of the static tree means: the i₁-th best guess of head 1, then the i₂-th
    best of head 2, …: which guesses are combined was decided once, from the heads' accuracies on held-out text.

    Source: Cai et al. 2024, Medusa, arXiv:2401.10774, §2.1.1 (heads), §2.1.2 and §2.3.3 (tree).
    """

    needs: ClassVar[tuple[str, ...]] = ("medusa", "trees")
    reads_target: ClassVar[bool] = True
    nodes: int = param(12, ge=1, le=96, doc="nodes of the static tree")

    def prime(self, row: Row, models: Models) -> MedusaHeads:
        """The heads, loaded once for the target."""
        key = ("medusa", models.heads["medusa"].name)
        if key not in models.shared:
            models.shared[key] = MedusaHeads(models.heads["medusa"], models)
        return models.shared[key]

    def propose(self, rows: Sequence[Row]) -> list[DraftTree]:
        """One pass of the heads for all rows, then each row's tree."""
        assert rows[0].models is not None
        target, meter = rows[0].models.target, rows[0].models.meter
        hidden = {id(row): row.place.last_hidden for row in rows}
        ready = [row for row in rows if hidden[id(row)] is not None]
        trees = {id(row): DraftTree.empty("medusa", target.device) for row in rows}
        if ready:
            start = target.clock.mark()
            logits = ready[0].state(torch.stack([h for h in hidden.values() if h is not None]))
            meter.add(start, target.clock.mark(), map(id, ready))
            best = logits.float().softmax(-1).topk(min(RANKS, logits.shape[-1]), dim=-1)
            tokens = ready[0].state.shared.tokens(best.indices)
            for b, row in enumerate(ready):
                trees[id(row)] = self._tree(row, tokens[b], best.values[b])
        return [trees[id(row)] for row in rows]

    def _tree(self, row: Row, tokens: Tensor, chance: Tensor) -> DraftTree:
        """Combine the heads' guesses: tokens, chance [K, RANKS]."""
        shape = template(row.state.accuracy, cast(Medusa, row.drafter).nodes, row.plan.depth, tokens.device)
        return DraftTree(
            tokens=tokens[shape.head, shape.rank],
            parents=shape.parents,
            logq=torch.zeros(len(shape.head), device=tokens.device),
            sampling=Sampling.DETERMINISTIC,
            depth=shape.depth,
            fanout=shape.fanout,
            source="medusa",
            score=chance[shape.head, shape.rank],
        )
