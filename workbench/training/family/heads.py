"""Heads for a chat model, trained on readings of its own answers: EAGLE's layer, Kangaroo's adapter, Medusa's blocks.

All draft through the target's own LM head over the tokens that they keep, and are trained that way.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.core.errors import ParameterError
from workbench.engine.fingerprint import WEIGHTS, differ
from workbench.engine.placed import named
from workbench.engine.trimmed import KEY
from workbench.methods import registry
from workbench.methods.drafters.block_diffusion import LONGEST
from workbench.methods.drafters.feature_net import FeatureNet
from workbench.methods.drafters.kangaroo import ExitAdapter
from workbench.methods.drafters.medusa import RANKS, MedusaHeads
from workbench.training.family.drafter import (
    Curve,
    Teacher,
    answers_of,
    beside,
    load_teacher,
    meant,
    refuse_same,
    together,
)
from workbench.training.family.inuse import InUse
from workbench.training.family.lesson import HELD_ROWS, Course, keeping, lesson_of, still
from workbench.training.family.readings import Readings, batches
from workbench.training.family.vocabulary import LEFT_OUT, chosen_tokens, places_among
from workbench.training.heads.artefact import load_saved, save_net
from workbench.training.heads.features import Dialogue
from workbench.training.heads.losses import Places, Weighted
from workbench.training.heads.trainer import HeadOptions, begin_at, train_net
from workbench.training.loop import LoopOptions, Report, RunResult, run_loop
from workbench.training.models import half_precision


@dataclass
class ChatHeadOptions(HeadOptions):
    """Options of the `chat-heads` recipe.

    Attributes:
        method: What to train, the kind of a head: "eagle", "kangaroo", "medusa", "hydra", "eagle-3", …
        loss: Losses and their weights; by default the method's own. Medusa's heads know one alone.
        target: Name or folder of the target.
        readings: Folder written by the `readings` recipe.
        out: Folder above that of the finished heads, which is named after target and method.
        vocabulary: Tokens that they can propose.
        blocks: Medusa's, Hydra's or Chimera's heads; Clover's levels.
        cond: Numbers that Hydra's heads are told of a token; the width inside Hydra++'s, Clover's and Chimera's, and
            inside block diffusion's fusion; the width of S2D's layers; of the state of Falcon's LSTM, 0: a third of the
            target's width.
        draft_vocab_size: Tokens that EAGLE-3 can propose; 0: `vocabulary`, or with an LM head of its own a quarter of
            the target's.
        taps: Layers that EAGLE-3 and block diffusion fuse, counted from 1; none: low, middle and high.
        block: Places of a block (block diffusion, the known token's among them; Falcon).
        glance: Of the places that Falcon guesses wrong, the share that is shown to it when training begins; it falls to
            two ninths of that.
        layers: Of a block diffusion drafter.
        augmenting: Layers of Clover's augmenting block: 1 is Clover's, 2 Clover-2's.
        mixes: Let the newest token into that block, as Clover-2 does.
        prompts: Prompt tokens of PPD.
        ensemble: Embeddings of each of them.
        transfers: Tokens ahead for which hidden transfer makes states.
        transfer_layer: Layer behind which it makes them.
        head_learns: Give EAGLE-3 an LM head of its own, as in its paper, which begins as the target's rows of its
            tokens. Without, it speaks by the target's, as EAGLE does, and its layer learns in fewer steps.
        ttt: Steps of a draft in EAGLE-3's training-time test, and in MTP's.
        head_size: Numbers of an attention head of a layer of EAGLE's, MTP's or block diffusion's; 0: the heads share
            the target's width.
        wide: Times the target's width in which the token selects (FSPAD).
        apart: Let FSPAD's LM head read a map of the guessed feature, and not the guess itself.
        exit_layer: Layer whose stream Kangaroo's adapter reads; the readings must have it among their taps. Also the
            one behind which M2R2's fast stream is read.
        rank: Of M2R2's adapters.
        exits: Layers of each size of S2D's drafter, rising.
        held: Dialogues kept out of training for measuring.
        answers: Folder of the answers that were read. With it and `curves`, the heads as they are at each checkpoint
            draft for some of its held-out prompts.
        drafted: Prompts that they draft for.
        begin: Folder of a finished layer of EAGLE's for these weights, with whose weights EAGLE's, PARD's or EAGLE-3's
            begins and whose tokens it keeps; none: fresh ones.
        average: Share of the weights of `begin` in those that are kept at the end; the rest is what this run came to.
            Of two runs on different texts the mean knows both, where the second alone has forgotten some of the first.
            Source: Wortsman et al. 2022, Model soups, arXiv:2203.05482.
        everywhere: Learn behind the tokens of prompts, too. They are not the target's words, and its laws there cost
            nothing more: a run that has little time, or few answers, learns more a step.
        device: Where they learn: cpu, cuda, cuda:1 …; auto takes a GPU where there is one.
    """

    method: str = FeatureNet.kind
    ffn: int = 1024
    heads: int = 9
    loss: str = ""
    text_share: float = 1.0
    minutes: float | None = 40.0
    checkpoint: Path | None = Path(".cache/train/chat-heads.pt")
    target: str = "smollm2"
    readings: Path = Path(".cache/train/readings")
    out: Path = Path(".cache/models")
    vocabulary: int = 8192
    blocks: int = 4
    cond: int = 64
    draft_vocab_size: int = 0
    taps: tuple[int, ...] = ()
    block: int = LONGEST
    glance: float = 0.45
    layers: int = 2
    augmenting: int = 1
    mixes: bool = True
    prompts: int = 3
    ensemble: int = 1
    transfers: int = 3
    transfer_layer: int = 4
    head_learns: bool = False
    ttt: int = 3
    head_size: int = 0
    wide: int = 2
    apart: bool = True
    exit_layer: int = 8
    exits: tuple[int, ...] = (1, 2, 4)
    rank: int = 16
    held: int = 96
    threads: int = 2
    checkpoint_seconds: float = 240.0
    answers: Path | None = None
    drafted: int = 6
    begin: Path | None = None
    average: float = 0.0
    everywhere: bool = False
    device: str = "auto"

    def loop(self, name: str, decay: float = 0.4) -> LoopOptions:
        loop, answers = super().loop(name, decay), self.answers
        if answers is None or loop.curves is None:
            return loop
        ask = InUse(self.target, self.method, self.folder, answers, self.drafted, self.device)
        return dataclasses.replace(loop, on_policy=ask)

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
    checkpoint = next(iter(options.checkpoints()), None)
    if head := registry.heads().get(options.method):
        options = head.settle(options)
    options = dataclasses.replace(options, checkpoint=checkpoint, loss=options.loss or HeadOptions.loss)
    teacher = load_teacher(options)
    readings = Readings(options.readings, teacher.head.device, options.everywhere)
    held = readings.part(held=True)[: options.held]
    lesson = lesson_of(options.method)
    size = options.vocabulary
    if lesson is not None and hasattr(lesson, "keeps"):
        size = lesson.keeps(options, teacher)
    finished, before = None, None
    if options.begin is not None:
        if options.method != FeatureNet.kind and not getattr(lesson, "GOES_ON", False):
            those = [kind for kind in registry.heads() if getattr(lesson_of(kind), "GOES_ON", kind == FeatureNet.kind)]
            message = f"{options.method} does not go on from a finished head: {', '.join(sorted(those))} do."
            raise ParameterError(message, "Leave `begin` out.")
        refuse_same(options.begin, options.folder)
        finished, before = _begun(options.begin, teacher)
    kept, facts = chosen_tokens(readings, held, size, teacher.ends, before)
    tokens = torch.tensor(kept, device=readings.device)
    if lesson is not None:
        result, curve = lesson.train(Course(options, teacher, readings, tokens, held, report, finished))
    else:
        layer = partial(_train_layer, net=finished)
        train = {"medusa": _train_medusa, ExitAdapter.kind: _train_adapter}.get(options.method, layer)
        result, curve = train(options, teacher, readings, tokens, held, report)
    return result, facts | {"curve": curve.points}


def _train_layer(
    options: ChatHeadOptions,
    teacher: Teacher,
    readings: Readings,
    kept: Tensor,
    held: list[int],
    report: Report,
    net: FeatureNet | None = None,
) -> tuple[RunResult, Curve]:
    before = {} if net is None else {name: weight.clone() for name, weight in net.state_dict().items()}
    rows = batches(readings, readings.part(held=False), options.rows, options.seed)
    order = sorted(held, key=lambda row: readings.rows[row, 3])
    groups = [[readings.dialogue(row) for row in order[i : i + HELD_ROWS]] for i in range(0, len(order), HELD_ROWS)]
    curve = Curve.of(options)

    def keep(net: FeatureNet, result: RunResult) -> None:
        curve.add(result.tokens, result.held["agreement 1"])
        save_net(net, options.folder, teacher.name, **_facts(options, teacher, kept, net))

    def batch(pictured: bool, step: int) -> list[Dialogue]:
        return [readings.dialogue(row) for row in rows(step)]

    def theirs(said: Tensor, features: Tensor) -> Tensor:
        return kept[said] == teacher.likeliest(features)

    net, result = train_net(options, Shared(teacher, kept), batch, report, groups, net, on_measured=keep, theirs=theirs)
    if before and options.average:
        net.load_state_dict(meant(net.state_dict(), before, options.average))
        save_net(net, options.folder, teacher.name, **_facts(options, teacher, kept, net))
    return result, curve


def _begun(folder: Path, teacher: Teacher) -> tuple[FeatureNet, list[int]]:
    """The head to go on from and the tokens that it keeps.

    Raises:
        ParameterError: it is of another kind, or was trained for other weights.
    """
    try:
        net, config = load_saved(folder)
    except (OSError, ValueError, KeyError) as error:
        raise ParameterError(f"{folder} holds no head to begin with: {error}", "Give the folder of one.") from None
    if not isinstance(net, FeatureNet) or differ(config.get(WEIGHTS, ""), teacher.weights):
        message = f"The head in {folder} is of another kind, or was trained for other weights than these."
        raise ParameterError(message, f"Give the folder of a head of {FeatureNet.kind} for {teacher.name}.")
    return net, list(config.get(KEY, range(len(teacher.head))))


def _train_adapter(
    options: ChatHeadOptions, teacher: Teacher, readings: Readings, kept: Tensor, held: list[int], report: Report
) -> tuple[RunResult, Curve]:
    stream = f"tap-{options.exit_layer}"
    if options.exit_layer not in readings.facts["taps"]:
        raise ParameterError(
            f"{options.readings} holds nothing of layer {options.exit_layer}.",
            f"Make readings with taps={options.exit_layer} in another folder"
            + (f", or give exit_layer among {taps}." if (taps := readings.facts["taps"]) else "."),
        )
    table = teacher.head[kept]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        net = ExitAdapter(table.shape[1], options.heads, options.exit_layer)
        begin_at(net, teacher.last_norm)
    net.to(readings.device)
    report(f"kangaroo: {sum(p.numel() for p in net.parameters()):,} parameters behind layer {options.exit_layer}")
    rows = batches(readings, readings.part(held=False), options.rows, options.seed)
    loss, curve, exam = Weighted.parse(options.loss), Curve.of(options), answers_of(teacher, readings, held)

    def guesses(some: list[int], decide: Tensor) -> Tensor:
        exits = beside([readings.stream(stream, row) for row in some])
        return net(exits.float(), torch.arange(exits.shape[1], device=exits.device))[decide]

    def step_losses(step: int) -> tuple[int, dict[str, float]]:
        some = rows(step)
        _, features, _, answer = together(readings, some)
        generator = torch.Generator().manual_seed(options.seed * 1_000_003 + step)
        chosen = torch.randperm(int(answer.sum()), generator=generator)[: options.places]
        with half_precision(options.half):
            guess, truth = guesses(some, answer)[chosen], features[answer][chosen].float()
            with torch.no_grad():
                wanted = F.linear(truth, table)
            logits = F.linear(guess, table)
        total, named = loss(Places(guess.float(), truth, logits.float(), wanted.float()))
        total.backward()
        return int(answer.sum()), named

    @torch.inference_mode()
    def on_checkpoint(result: RunResult) -> str:
        right = total = 0
        for some, (_, answer, theirs) in exam:
            with half_precision(options.half):
                mine = kept[F.linear(guesses(some, answer), table).argmax(-1)]
            right, total = right + int((mine == theirs).sum()), total + len(mine)
        result.held = {"agreement 1": right / max(total, 1)}
        curve.add(result.tokens, result.held["agreement 1"])
        save_net(net, options.folder, teacher.name, **_facts(options, teacher, kept, net))
        return f"kangaroo: held out: agreement {result.held['agreement 1']:.3f}"

    loop = options.loop(options.method)
    optimizers = options.optimizers(net, weight_decay=0.0)
    return run_loop(loop, net, optimizers, step_losses, report, on_checkpoint), curve


def _facts(options: ChatHeadOptions, teacher: Teacher, kept: Tensor, net: nn.Module) -> dict[str, Any]:
    """What the configuration says of a head beside its sizes."""
    count = sum(p.numel() for p in net.parameters())
    return keeping(kept, teacher) | {WEIGHTS: teacher.weights, "parameters": count, "loss": options.loss}


def _train_medusa(
    options: ChatHeadOptions, teacher: Teacher, readings: Readings, kept: Tensor, held: list[int], report: Report
) -> tuple[RunResult, Curve]:
    heads, table = MedusaHeads(teacher.head.shape[1], options.blocks).to(readings.device), teacher.head[kept]
    report(f"medusa: {sum(p.numel() for p in heads.parameters()):,} parameters")
    optimizers = options.optimizers(heads, weight_decay=0.0)
    rows = batches(readings, readings.part(held=False), options.rows, options.seed)
    place = places_among(kept, len(teacher.head))
    curve = Curve.of(options)

    def step_losses(step: int) -> tuple[int, dict[str, float]]:
        ids, features, _, answer = together(readings, rows(step))
        generator = torch.Generator().manual_seed(options.seed * 1_000_003 + step)
        read, wanted = ahead(ids, features, answer, options.blocks)
        some = torch.randperm(len(read), generator=generator)[: options.places]
        labels = place[wanted[:, some]].masked_fill(wanted[:, some] < 0, LEFT_OUT)
        with half_precision(options.half):
            logits = F.linear(heads(read[some].float()), table).float()
        losses = [F.cross_entropy(said, right) for said, right in zip(logits, labels, strict=True)]
        torch.stack(losses).sum().backward()
        return int(answer.sum()), {f"head {k + 1}": float(loss.detach()) for k, loss in enumerate(losses)}

    def on_checkpoint(result: RunResult) -> str:
        accuracy = hit_rates(heads, readings, held, kept, table)
        result.held = {f"accuracy {k + 1}": row[0] for k, row in enumerate(accuracy)}
        curve.add(result.tokens, accuracy[0][0])
        of = {"target": teacher.name, "vocab_size": len(teacher.head), WEIGHTS: teacher.weights}
        heads.accuracy = tuple(map(tuple, accuracy))
        save_net(heads, options.folder, **of, **keeping(kept, teacher))
        return "medusa: held-out top-1 accuracy " + " ".join(f"{row[0]:.3f}" for row in accuracy)

    loop = options.loop("medusa")
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
    on = torch.stack([ids.roll(-k - 2, 1).masked_fill(~still(answer, k + 1), -1) for k in range(n_heads)])
    use = still(answer, 1)  # the last place of an answer has nothing but the target's own token behind it
    return features[use], on[:, use]


@torch.inference_mode()
def hit_rates(
    heads: MedusaHeads, readings: Readings, rows: list[int], kept: Tensor, table: Tensor
) -> list[list[float]]:
    """How often the r-th best token of each head is what the target said, r = 1 … 10: [K, 10]."""
    hits = torch.zeros(len(heads.heads), RANKS, device=table.device)
    total = hits.new_zeros(len(heads.heads))
    for start in range(0, len(rows), HELD_ROWS):
        ids, features, _, answer = together(readings, rows[start : start + HELD_ROWS])
        read, wanted = ahead(ids, features, answer, len(heads.heads))
        with half_precision():
            best = kept[F.linear(heads(read.float()), table).topk(RANKS, dim=-1).indices]  # [K, N, 10]
        hits += (best == wanted[..., None]).float().sum(1)
        total += (wanted >= 0).float().sum(1)
    return [[round(float(x), 4) for x in row] for row in hits / total.clamp_min(1)[:, None]]
