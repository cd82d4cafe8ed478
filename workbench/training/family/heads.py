"""Heads for a chat model, trained on readings of its own answers: an EAGLE-like layer, or Medusa's blocks.

Both draft through the target's own LM head over the tokens that they keep, and are trained that way.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.core.errors import ParameterError
from workbench.engine.fingerprint import WEIGHTS
from workbench.engine.placed import named
from workbench.engine.trimmed import KEY
from workbench.methods.drafters.feature_net import FeatureNet
from workbench.training.clock import RunClock
from workbench.training.family.drafter import Curve, Teacher, load_teacher, together
from workbench.training.family.readings import Readings, batches
from workbench.training.family.vocabulary import counts_of, coverage, kept_tokens
from workbench.training.heads.artefact import save_net
from workbench.training.heads.features import Dialogue
from workbench.training.heads.trainer import HeadOptions, train_net
from workbench.training.loop import LoopOptions, Report, RunResult, run_loop
from workbench.training.medusa import RANKS, MedusaHeads, save_heads
from workbench.training.models import build_optimizers, half_precision

HELD_ROWS = 16
"""Held-out dialogues side by side."""


@dataclass
class ChatHeadOptions(HeadOptions):
    """Options of the `chat-heads` recipe.

    Attributes:
        method: A feature drafter of one decoder layer ("eagle-vlm"), or "medusa".
        target: Name or folder of the target.
        readings: Folder written by the `readings` recipe.
        out: Folder above that of the finished heads, which is named after target and method.
        vocabulary: Tokens that they can propose.
        blocks: Medusa heads.
        held: Dialogues kept out of training for measuring.
        threads: CPU threads.
    """

    method: str = "eagle-vlm"
    ffn: int = 1024
    heads: int = 9
    loss: str = "smooth_l1:1+ce_soft:0.1"
    text_share: float = 1.0
    minutes: float | None = 40.0
    checkpoint: Path | None = Path(".cache/train/chat-heads.pt")
    target: str = "smollm2"
    readings: Path = Path(".cache/train/readings")
    out: Path = Path(".cache/models")
    vocabulary: int = 8192
    blocks: int = 4
    held: int = 96
    threads: int = 2

    @property
    def folder(self) -> Path:
        """Where the finished heads are put: those of one method never take another's place."""
        return self.out / f"{named(self.target)}-{self.method}"

    def checkpoints(self) -> list[Path]:
        """The method's own checkpoint; none where none is asked for."""
        path = self.checkpoint
        return [] if path is None else [path.with_stem(f"{path.stem}-{self.method}")]


class Shared(nn.Module):
    """Of a target, what feature drafters share while they learn: its embedding, last norm, and part of its LM head.

    Args:
        teacher: its LM head, to which its embedding is tied or which comes with it.
        kept: the tokens that they keep.
    """

    def __init__(self, teacher: Teacher, kept: Tensor) -> None:
        super().__init__()
        self.embed = nn.Embedding.from_pretrained(teacher.embedding)
        self.part = nn.Linear(teacher.head.shape[1], len(kept), bias=False)
        self.part.weight = nn.Parameter(teacher.head[kept], requires_grad=False)
        self.norm = teacher.last_norm

    def get_input_embeddings(self) -> nn.Module:
        """As a model has it."""
        return self.embed

    def get_output_embeddings(self) -> nn.Module:
        """As a model has it, but for the tokens left out."""
        return self.part

    def get_decoder(self) -> nn.Module:
        """Whose `norm` the drafter's own begins as."""
        return self


def train_chat_heads(options: ChatHeadOptions, report: Report) -> tuple[RunResult, dict[str, Any]]:
    """Train heads and write them to their folder; returns their figures, and what else their card says.

    Raises:
        ParameterError: they could propose next to nothing; the readings are few, or of another target.
    """
    torch.set_num_threads(options.threads)
    if options.vocabulary < RANKS:
        raise ParameterError(
            f"vocabulary={options.vocabulary} is too few tokens to draft from.", f"Give {RANKS} or more."
        )
    options = dataclasses.replace(options, checkpoint=next(iter(options.checkpoints()), None))
    teacher, readings = load_teacher(options), Readings(options.readings)
    counts = counts_of(readings, readings.part(held=False))
    kept = kept_tokens(counts, options.vocabulary, teacher.ends)
    held = readings.part(held=True)[: options.held]
    facts = {"kept": len(kept), "covered": round(coverage(counts_of(readings, held), kept), 4)}
    train = _train_medusa if options.method == "medusa" else _train_layer
    result, curve = train(options, teacher, readings, torch.tensor(kept), held, report)
    return result, facts | {"curve": curve.points, "answer_tokens": int(counts.sum())}


def _train_layer(
    options: ChatHeadOptions, teacher: Teacher, readings: Readings, kept: Tensor, held: list[int], report: Report
) -> tuple[RunResult, Curve]:
    rows = batches(readings, readings.part(held=False), options.rows, options.seed)
    order = sorted(held, key=lambda row: readings.rows[row, 3])
    groups = [[readings.dialogue(row) for row in order[i : i + HELD_ROWS]] for i in range(0, len(order), HELD_ROWS)]
    curve = Curve.of(options)

    def keep(net: FeatureNet, result: RunResult) -> None:
        curve.add(result.tokens, result.held["agreement 1"])
        facts = {
            KEY: kept.tolist(),
            WEIGHTS: teacher.weights,
            "parameters": sum(p.numel() for p in net.parameters()),
            "loss": options.loss,
        }
        save_net(net, options.folder, teacher.name, **facts)

    def batch(pictured: bool, step: int) -> list[Dialogue]:
        return [readings.dialogue(row) for row in rows(step)]

    _, result = train_net(options, Shared(teacher, kept), batch, report, groups, on_measured=keep)
    return result, curve


def _train_medusa(
    options: ChatHeadOptions, teacher: Teacher, readings: Readings, kept: Tensor, held: list[int], report: Report
) -> tuple[RunResult, Curve]:
    heads, table = MedusaHeads(teacher.head.shape[1], options.blocks), teacher.head[kept]
    report(f"medusa: {sum(p.numel() for p in heads.parameters()):,} parameters")
    optimizers = build_optimizers(heads, options.matrix_rate, options.other_rate, weight_decay=0.0)
    rows = batches(readings, readings.part(held=False), options.rows, options.seed)
    place = torch.full((len(teacher.head),), -1).index_copy_(0, kept, torch.arange(len(kept)))
    curve = Curve.of(options)

    def step_losses(step: int) -> tuple[int, dict[str, float]]:
        ids, features, _, answer = together(readings, rows(step))
        generator = torch.Generator().manual_seed(options.seed * 1_000_003 + step)
        read, wanted = ahead(ids, features, answer, options.blocks)
        some = torch.randperm(len(read), generator=generator)[: options.places]
        labels = place[wanted[:, some]].masked_fill(wanted[:, some] < 0, -1)
        with half_precision(options.half):
            logits = F.linear(heads(read[some].float()), table).float()
        losses = [F.cross_entropy(said, right, ignore_index=-1) for said, right in zip(logits, labels, strict=True)]
        torch.stack(losses).sum().backward()
        return int(answer.sum()), {f"head {k + 1}": float(loss.detach()) for k, loss in enumerate(losses)}

    def on_checkpoint(result: RunResult) -> str:
        accuracy = hit_rates(heads, readings, held, kept, table)
        result.held = {f"accuracy {k + 1}": row[0] for k, row in enumerate(accuracy)}
        curve.add(result.tokens, accuracy[0][0])
        config = {
            "workbench_head": "medusa",
            "hidden_size": teacher.head.shape[1],
            "vocab_size": len(teacher.head),
            "n_heads": options.blocks,
            "target": teacher.name,
            "head_accuracy": accuracy,
            WEIGHTS: teacher.weights,
            KEY: kept.tolist(),
        }
        save_heads(heads, options.folder, config)
        return "medusa: held-out top-1 accuracy " + " ".join(f"{row[0]:.3f}" for row in accuracy)

    clock = RunClock(options.minutes, options.steps)
    loop = LoopOptions("medusa", clock, options.checkpoint, options.resume)
    return run_loop(loop, heads, optimizers, step_losses, report, on_checkpoint), curve


def ahead(
    ids: Int[Tensor, "B n"], features: Float[Tensor, "B n D"], answer: Bool[Tensor, "B n"], n_heads: int
) -> tuple[Float[Tensor, "N D"], Int[Tensor, "K N"]]:
    """What Medusa's heads read, and what they should say: head k the token k + 1 places on, or −1 behind the end.

    Args:
        ids: dialogues side by side.
        features: the target's.
        answer: places whose feature decides a token of the answer, each row's in one piece.
        n_heads: K.
    """
    on = torch.stack([ids.roll(-k - 2, 1).masked_fill(~_still(answer, k + 1), -1) for k in range(n_heads)])
    use = _still(answer, 1)  # the last place of an answer has nothing but the target's own token behind it
    return features[use], on[:, use]


def _still(answer: Bool[Tensor, "B n"], steps: int) -> Bool[Tensor, "B n"]:
    """Places of answers that are as many steps before the last one."""
    return F.pad(answer, (0, steps))[:, steps:] & answer


@torch.inference_mode()
def hit_rates(
    heads: MedusaHeads, readings: Readings, rows: list[int], kept: Tensor, table: Tensor
) -> list[list[float]]:
    """How often the r-th best token of each head is what the target said, r = 1 … 10: [K, 10]."""
    hits, total = torch.zeros(len(heads.heads), RANKS), torch.zeros(len(heads.heads))
    for start in range(0, len(rows), HELD_ROWS):
        ids, features, _, answer = together(readings, rows[start : start + HELD_ROWS])
        read, wanted = ahead(ids, features, answer, len(heads.heads))
        with half_precision():
            best = kept[F.linear(heads(read.float()), table).topk(RANKS, dim=-1).indices]  # [K, N, 10]
        hits += (best == wanted[..., None]).float().sum(1)
        total += (wanted >= 0).float().sum(1)
    return [[round(float(x), 4) for x in row] for row in hits / total.clamp_min(1)[:, None]]
