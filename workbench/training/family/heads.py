"""The recipe `chat-heads`: heads for a chat model, trained on the target's stored hidden states over its own answers.

Each kind's training is a module of this package. All but two kinds use the target's LM head over a reduced
vocabulary, in drafting and in training: S2D's draft model has its own token rows, and EAGLE-3's layer may have its own
LM head (option `head_learns`).
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
from workbench.models.fingerprint import WEIGHTS, fingerprints_differ
from workbench.models.local_models import short_name
from workbench.training.family.drafter import (
    Teacher,
    check_folders_differ,
    load_teacher,
)
from workbench.training.family.head_training import TrainingSetup, get_training_module, starts_from_eagle
from workbench.training.family.readings import Readings
from workbench.training.family.validation_drafts import OnPolicyEvaluator
from workbench.training.family.vocabulary import select_draft_vocabulary
from workbench.training.heads.artefact import load_net
from workbench.training.heads.trainer import HeadOptions
from workbench.training.loop import LoopOptions, Report, RunResult


@dataclass
class ChatHeadOptions(HeadOptions):
    """Options of the `chat-heads` recipe.

    Attributes:
        method: Kind of head to train: "eagle", "kangaroo", "medusa", "hydra", "eagle-3", …
        loss: Losses with their weights; by default those of the method. Medusa has one fixed loss and accepts no other.
        target: Name or folder of the target.
        readings: Folder with stored hidden states of the target's answers, from the `readings` recipe.
        out: Parent folder of the finished heads' folder, which is named after target and method.
        vocabulary: Size of the draft vocabulary: the tokens that the heads can propose.
        blocks: Number of heads of Medusa, Hydra or Chimera; levels of Clover.
        cond: Internal width: of Hydra's token vectors; of the layers of Hydra++, Clover, Chimera and S2D; rank of the
            fusion in block diffusion; state size of Falcon's LSTM (0: a third of the target's hidden size).
        draft_vocab_size: Draft vocabulary of EAGLE-3; 0: `vocabulary`, or a quarter of the target's vocabulary if
            EAGLE-3 has an LM head of its own.
        taps: Layers whose hidden states EAGLE-3 and block diffusion fuse, counted from 1; none: a low, a middle and a
            high layer.
        block: Block size in positions: of block diffusion, including the known token; of Falcon.
        glance: Glancing rate (Falcon): number of randomly chosen blocks that get the correct answer as their first
            input, relative to the number of wrong predictions. It decreases to 2/9 of this value during training.
        layers: Number of layers of a block diffusion drafter.
        augmenting: Layers of Clover's augmenting block: 1 in Clover, 2 in Clover-2.
        mixes: Feed the newest token into Clover's augmenting block, as Clover-2 does.
        prompts: Number of prompt tokens (PPD).
        ensemble: Number of embeddings per prompt token (PPD).
        transfers: Number of future tokens whose hidden states are predicted (hidden transfer).
        transfer_layer: Layer after which the hidden states of future tokens are predicted (hidden transfer).
        head_learns: Give EAGLE-3 an LM head of its own, as in the paper, initialised with the target's rows for the
            draft vocabulary. Otherwise it uses the target's LM head, as EAGLE does, and needs fewer training steps.
        ttt: Draft steps unrolled in training: of EAGLE-3's training-time test, and of MTP.
        head_size: Size of an attention head of EAGLE, MTP or block diffusion; 0: the heads divide the target's hidden
            size.
        wide: Width of the gated space in FSPAD, as a multiple of the target's hidden size.
        apart: Let FSPAD's LM head read a learned projection of the predicted feature, not the feature itself.
        exit_layer: Layer whose output Kangaroo's adapter reads; the readings must have it in `taps`. For M2R2: layer
            after which the fast residual stream is read.
        rank: Rank of the adapters (M2R2).
        exits: Number of layers of each size of S2D's drafter, ascending.
        held: Number of held-out dialogues for evaluation.
        answers: Folder with the target's answers that `readings` was computed from. With this and `curves`, each
            checkpoint is evaluated by drafting for some held-out prompts.
        drafted: Number of held-out prompts for the evaluation at each checkpoint.
        begin: Folder of a finished EAGLE layer for these weights, to start from (EAGLE, PARD and EAGLE-3 only). Its
            draft vocabulary and sizes are kept: `vocabulary`, `heads` and `ffn` are ignored. None: random initial
            weights.
        average: Share of the weights of `begin` in the final weights (EAGLE only); the rest is this run's. Averaging
            two runs on different texts keeps the accuracy of both; the second run alone loses some on the first texts.
            Source: Wortsman et al. 2022, Model soups, arXiv:2203.05482.
        everywhere: Train on the prompts' tokens, too. The target did not generate them, but its distributions there
            need no extra computation. This helps runs with little time or few answers.
        device: Training device: cpu, cuda, cuda:1, …; "auto" uses a GPU if there is one.
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
        on_policy = OnPolicyEvaluator(self.target, self.method, self.folder, answers, self.drafted, self.device)
        return dataclasses.replace(loop, on_policy=on_policy)

    @property
    def folder(self) -> Path:
        """Folder of the finished heads, named after target and method so that heads of two methods never collide."""
        return self.out / f"{short_name(self.target)}-{self.method}"

    def checkpoints(self) -> list[Path]:
        """Return the method's own checkpoint; an empty list if no checkpoints are requested."""
        path = self.checkpoint
        return [] if path is None else [path.with_stem(f"{path.stem}-{self.method}")]


def train_chat_heads(
    options: ChatHeadOptions, report: Report, has_head_settings: bool = False
) -> tuple[RunResult, dict[str, Any]]:
    """Train heads and write them to their folder; return their figures, and further facts for their card.

    Args:
        options: options of the recipe.
        report: receives progress lines.
        has_head_settings: whether the kind's own settings are already in the options.

    Raises:
        ParameterError: the vocabulary is too small to draft from; the kind has a fixed loss, and another is given; the
            readings are too few, or of another target.
    """
    module, setup, facts = prepare_training(options, report, has_head_settings)
    result, curve = module.train(setup)
    return result, facts | {"curve": curve.points}


def prepare_training(
    options: ChatHeadOptions, report: Report, has_head_settings: bool = False
) -> tuple[ModuleType, TrainingSetup, dict[str, Any]]:
    """Return the training module of a kind of heads, the training setup, and the card's facts about the vocabulary.

    Raises:
        ParameterError: see `train_chat_heads`.
    """
    torch.set_num_threads(options.threads)
    if options.vocabulary < RANKS:
        raise ParameterError(
            f"vocabulary={options.vocabulary} is too few tokens to draft from.", f"Use {RANKS} or more."
        )
    check_begin(options)
    check_loss(options)
    checkpoint = next(iter(options.checkpoints()), None)
    if not has_head_settings and (head := registry.heads().get(options.method)):
        options = head.apply_settings(options)
    options = dataclasses.replace(options, checkpoint=checkpoint, loss=options.loss or HeadOptions.loss)
    teacher = load_teacher(options)
    readings = Readings(options.readings, teacher.lm_head.device, options.everywhere)
    held = readings.split_indices(held_out=True)[: options.held]
    module, size = get_training_module(options.method), options.vocabulary
    if hasattr(module, "draft_vocabulary_size"):
        size = module.draft_vocabulary_size(options, teacher)
    finished, start_vocab = None, None
    if options.begin is not None:
        finished, start_vocab = _load_start_layer(options.begin, teacher)
    vocab_ids, facts = select_draft_vocabulary(readings, held, size, teacher.end_tokens, start_vocab)
    tokens = torch.tensor(vocab_ids, device=readings.device)
    return module, TrainingSetup(options, teacher, readings, tokens, held, report, finished), facts


def check_loss(options: ChatHeadOptions) -> None:
    """Check that a head can be trained with the given losses.

    Raises:
        ParameterError: this kind has one fixed loss.
    """
    fixed_loss = getattr(get_training_module(options.method), "FIXED_LOSS", "")
    if fixed_loss and options.loss:
        raise ParameterError(
            f"{options.method} has one fixed loss, {fixed_loss}, not {options.loss}.", "Leave `loss` out."
        )


def check_begin(options: ChatHeadOptions) -> None:
    """Check that a head can start from the given one, before hours are spent on its training data.

    Raises:
        ParameterError: this kind cannot start from a finished layer, or cannot be averaged with it; or there is no
            such layer, or it is of another kind, or in the output folder.
    """
    if options.average and options.method != FeatureNet.kind:
        message = f"Only {FeatureNet.kind} can be averaged with the head it starts from, not {options.method}."
        raise ParameterError(message, "Leave `average` out.")
    if options.begin is None:
        return
    if not starts_from_eagle(options.method):
        kinds = sorted(filter(starts_from_eagle, registry.heads()))
        message = f"{options.method} cannot start from a finished head. These can: {', '.join(kinds)}."
        raise ParameterError(message, "Leave `begin` out.")
    check_folders_differ(options.begin, options.folder)
    try:
        kind = json.loads((options.begin / "config.json").read_text()).get("workbench_head")
    except (OSError, ValueError, AttributeError) as error:
        message = f"{options.begin} has no head to start from: {error}"
        raise ParameterError(message, "Set `begin` to a head's folder.") from None
    if kind != FeatureNet.kind:
        message = f"The head in {options.begin} is of kind {kind}, not {FeatureNet.kind}."
        raise ParameterError(message, f"Use a head of kind {FeatureNet.kind}.")


def _load_start_layer(folder: Path, teacher: Teacher) -> tuple[FeatureNet, list[int]]:
    """Load the head to start from, and the tokens of its vocabulary.

    Raises:
        ParameterError: the head cannot be read, or was trained for other weights.
    """
    try:
        net, config = load_net(folder)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ParameterError(
            f"{folder} has no head to start from: {error}", "Set `begin` to a head's folder."
        ) from None
    if fingerprints_differ(config.get(WEIGHTS, ""), teacher.weights):
        message = f"The head in {folder} was trained for other weights of the target."
        raise ParameterError(message, f"Use a head of kind {FeatureNet.kind} for {teacher.name}.")
    return net, list(config.get(KEY, range(len(teacher.lm_head))))
