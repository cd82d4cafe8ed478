"""Heads for a chat model, trained on readings of its own answers: the recipe. Each kind's training is a module here.

All but two draft through the target's own LM head over a reduced vocabulary, and are trained that way: S2D's draft
model has rows of its own, and EAGLE-3's layer may have an LM head (`head_learns`).
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from workbench.core.errors import ParameterError
from workbench.kernels.reduced_vocabulary import KEY
from workbench.methods import registry
from workbench.methods.drafters.block_diffusion import LONGEST
from workbench.methods.drafters.feature_net import FeatureNet
from workbench.methods.drafters.medusa import RANKS
from workbench.models.fingerprint import WEIGHTS, differ
from workbench.models.local_models import named
from workbench.training.family.drafter import (
    Teacher,
    load_teacher,
    refuse_same,
)
from workbench.training.family.inuse import InUse
from workbench.training.family.lesson import TrainingSetup, goes_on, lesson_of
from workbench.training.family.readings import Readings
from workbench.training.family.vocabulary import chosen_tokens
from workbench.training.heads.artefact import load_saved
from workbench.training.heads.trainer import HeadOptions
from workbench.training.loop import LoopOptions, Report, RunResult


@dataclass
class ChatHeadOptions(HeadOptions):
    """Options of the `chat-heads` recipe.

    Attributes:
        method: What to train, the kind of a head: "eagle", "kangaroo", "medusa", "hydra", "eagle-3", …
        loss: Losses and their weights; by default the method's own. Medusa's heads know one alone and refuse others.
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
        glance: Of the blocks, as many as Falcon guesses wrong times this are shown their first answer when training
            begins, at places drawn by chance; it falls to two ninths of that.
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
            begins and whose tokens and sizes it keeps, whatever `vocabulary`, `heads` and `ffn` say; none: fresh ones.
        average: For EAGLE's layer: share of the weights of `begin` in those that are kept at the end; the rest is what
            this run came to. Of two runs on different texts the mean knows both, where the second alone has forgotten
            some of the first. Source: Wortsman et al. 2022, Model soups, arXiv:2203.05482.
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
        """Folder of the finished heads, named after target and method so that heads of two methods never collide."""
        return self.out / f"{named(self.target)}-{self.method}"

    def checkpoints(self) -> list[Path]:
        """Return the method's own checkpoint; an empty list if no checkpoints are requested."""
        path = self.checkpoint
        return [] if path is None else [path.with_stem(f"{path.stem}-{self.method}")]


def train_chat_heads(
    options: ChatHeadOptions, report: Report, settled: bool = False
) -> tuple[RunResult, dict[str, Any]]:
    """Train heads and write them to their folder; return their figures, and further facts for their card.

    Args:
        options: options of the recipe.
        report: receives progress lines.
        settled: whether the kind's own settings are already in the options.

    Raises:
        ParameterError: the vocabulary is too small to draft from; the kind has a fixed loss, and another is given; the
            readings are few, or of another target.
    """
    lesson, course, facts = prepared(options, report, settled)
    result, curve = lesson.train(course)
    return result, facts | {"curve": curve.points}


def prepared(
    options: ChatHeadOptions, report: Report, settled: bool = False
) -> tuple[ModuleType, TrainingSetup, dict[str, Any]]:
    """Return the training module of a kind of heads, the training setup, and the card's facts about the vocabulary.

    Raises:
        ParameterError: see `train_chat_heads`.
    """
    torch.set_num_threads(options.threads)
    if options.vocabulary < RANKS:
        raise ParameterError(
            f"vocabulary={options.vocabulary} is too few tokens to draft from.", f"Give {RANKS} or more."
        )
    check_begin(options)
    check_loss(options)
    checkpoint = next(iter(options.checkpoints()), None)
    if not settled and (head := registry.heads().get(options.method)):
        options = head.settle(options)
    options = dataclasses.replace(options, checkpoint=checkpoint, loss=options.loss or HeadOptions.loss)
    teacher = load_teacher(options)
    readings = Readings(options.readings, teacher.head.device, options.everywhere)
    held = readings.part(held=True)[: options.held]
    lesson, size = lesson_of(options.method), options.vocabulary
    if hasattr(lesson, "keeps"):
        size = lesson.keeps(options, teacher)
    finished, before = None, None
    if options.begin is not None:
        finished, before = _begun(options.begin, teacher)
    kept, facts = chosen_tokens(readings, held, size, teacher.ends, before)
    tokens = torch.tensor(kept, device=readings.device)
    return lesson, TrainingSetup(options, teacher, readings, tokens, held, report, finished), facts


def check_loss(options: ChatHeadOptions) -> None:
    """Check that a head can be trained with the given losses.

    Raises:
        ParameterError: this kind has one fixed loss.
    """
    known = getattr(lesson_of(options.method), "ONE_LOSS", "")
    if known and options.loss:
        raise ParameterError(f"{options.method} learns by one loss, {known}: not by {options.loss}.", "Leave it out.")


def check_begin(options: ChatHeadOptions) -> None:
    """Check that a head can start from the given one, before hours are spent on its training data.

    Raises:
        ParameterError: this kind cannot start from a finished layer, or cannot be averaged with it; or there is no such
            layer, or it is of another kind, or in the folder of the new one.
    """
    if options.average and options.method != FeatureNet.kind:
        message = f"The mean with what a head begins with is kept of {FeatureNet.kind} alone, not of {options.method}."
        raise ParameterError(message, "Leave `average` out.")
    if options.begin is None:
        return
    if not goes_on(options.method):
        those = sorted(filter(goes_on, registry.heads()))
        message = f"{options.method} does not go on from a finished head: {', '.join(those)} do."
        raise ParameterError(message, "Leave `begin` out.")
    refuse_same(options.begin, options.folder)
    try:
        kind = json.loads((options.begin / "config.json").read_text()).get("workbench_head")
    except (OSError, ValueError, AttributeError) as error:
        message = f"{options.begin} holds no head to begin with: {error}"
        raise ParameterError(message, "Give the folder of one.") from None
    if kind != FeatureNet.kind:
        message = f"The head in {options.begin} is of another kind than {FeatureNet.kind}: {kind}."
        raise ParameterError(message, f"Give the folder of a head of {FeatureNet.kind}.")


def _begun(folder: Path, teacher: Teacher) -> tuple[FeatureNet, list[int]]:
    """Load the head to start from, and the tokens of its vocabulary.

    Raises:
        ParameterError: it cannot be read, or was trained for other weights.
    """
    try:
        net, config = load_saved(folder)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ParameterError(f"{folder} holds no head to begin with: {error}", "Give the folder of one.") from None
    if differ(config.get(WEIGHTS, ""), teacher.weights):
        message = f"The head in {folder} was trained for other weights than these."
        raise ParameterError(message, f"Give the folder of a head of {FeatureNet.kind} for {teacher.name}.")
    return net, list(config.get(KEY, range(len(teacher.head))))
