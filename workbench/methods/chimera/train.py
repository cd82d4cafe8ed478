"""Training of Chimera: each head on the target's distribution, with the fusion layer's states for draft tokens."""

# pyright: basic
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from workbench.methods.chimera.drafter import TOKENS, ChimeraHeads
from workbench.methods.hydra.train import train_sequential_heads
from workbench.training.family.head_training import TrainingSetup, answer_continues, predicting_positions, shift_left
from workbench.training.family.options import ChatHeadOptions
from workbench.training.loop import RunResult
from workbench.training.trainer import Curve


@dataclass
class Options(ChatHeadOptions):
    """Options for training Chimera's encoder, layer and heads.

    Attributes:
        blocks: Number of heads.
        cond: Internal width of the layers.
        ffn: Width of the fusion layer's gated MLP.
    """

    method: str = ChimeraHeads.kind
    loss: str = "ce_soft:1"
    blocks: int = 4
    cond: int = 64
    ffn: int = 1024


def train(setup: TrainingSetup) -> tuple[RunResult, Curve]:
    """Train Chimera's encoder, fusion layer and heads on the target's distributions. The loss is summed over all heads.

    Source: Zeng et al. 2024, Chimera, arXiv:2402.15758, §3.3.
    """
    return train_sequential_heads(setup, guesses)


def guesses(
    net: ChimeraHeads, embedding: Tensor, ids: Tensor, features: Tensor, answer: Tensor, sample: Tensor | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield, for each draft level, the predicted and the true features at positions of answers.

    Args:
        net: the heads.
        embedding: the target's embedding of V tokens in width D, [V, D].
        ids: B padded dialogues of n tokens, int64 [B, n].
        features: the target's features, [B, n, D].
        answer: mask of the positions whose feature predicts a token of an answer, bool [B, n].
        sample: indices into the positions with at least one token to predict; None: all of these positions.
    """
    rows, positions = predicting_positions(answer, sample)
    for level, states in enumerate(compute_draft_states(net, net.project(embedding[ids]), features.float())):
        in_answer = answer_continues(answer, level + 1)[rows, positions]
        if in_answer.any():
            guess = net(features[rows, positions].float(), states[rows, positions], level)
            yield guess[in_answer], shift_left(features, level + 1)[rows, positions][in_answer].float()


def compute_draft_states(
    net: ChimeraHeads, token_inputs: Float[Tensor, "B n C"], features: Float[Tensor, "B n D"]
) -> Iterator[Float[Tensor, "B n C"]]:
    """Yield, level by level, the fusion layer's states of drafts that begin at every position of the texts.

    The drafts after all n positions are computed together. Entry s of level k = 0, 1, … belongs to the draft that
    begins after position s, and is at position s + 1 + k. It attends to the target's states up to s, to the entries of
    the same draft in all earlier levels, and to itself.

    Args:
        net: the heads.
        token_inputs: projected embedding of each token.
        features: the target's features.
    """
    layer, n = net.layer, features.shape[1]
    positions = torch.arange(n, device=features.device)
    diagonal = torch.eye(n, dtype=torch.bool, device=features.device)
    cached_kv, mask = layer.project_kv(net.enter(features), positions), diagonal.new_ones(n, n).tril()
    for level in range(net.blocks):
        x = net.encode_trigram(
            torch.cat([_shift_inputs(token_inputs, level + 2 - back) for back in range(TOKENS, 0, -1)], -1)
        )
        draft_positions, mask = positions + 1 + level, torch.cat([mask, diagonal], 1)
        queries, *new_kv = layer.project_qkv(layer.before(x), draft_positions)
        keys, values = torch.cat([cached_kv, torch.stack(new_kv)], 3)
        attended = nn.functional.scaled_dot_product_attention(queries, keys, values, mask)
        states = layer.after(layer.apply_mlp(layer.add_attention(attended, x)))
        cached_kv = torch.cat([cached_kv, layer.project_kv(states, draft_positions)], 3)
        yield states


def _shift_inputs(token_inputs: Float[Tensor, "B n C"], steps: int) -> Float[Tensor, "B n C"]:
    """Return, for each position s, the input of position s + `steps`, or the first token's input if s + `steps` < 0."""
    return (
        shift_left(token_inputs, steps)
        if steps >= 0
        else torch.cat([token_inputs[:, :1].expand(-1, -steps, -1), token_inputs[:, :steps]], 1)
    )
