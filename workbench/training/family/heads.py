"""The recipe `chat-heads`: heads for a chat model, trained on the target's stored hidden states over its own answers.

The training module of each kind is `train.py` in its method's folder. All but two kinds use the target's LM head over a
reduced vocabulary, in drafting and in training: S2D's draft model has its own token embeddings, and EAGLE-3's layer may
have its own LM head (option `head_learns`).
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from workbench.core.errors import ParameterError
from workbench.kernels.reduced_vocabulary import KEY
from workbench.methods.common.feature_net import FeatureNet
from workbench.methods.medusa.drafter import RANKS
from workbench.models.fingerprint import WEIGHTS, fingerprints_differ
from workbench.training.family.drafter import (
    Teacher,
    check_folders_differ,
    load_teacher,
)
from workbench.training.family.head_training import TrainingSetup
from workbench.training.family.options import ChatHeadOptions as ChatHeadOptions
from workbench.training.family.options import chat_head_kinds, get_training_module, options_class
from workbench.training.family.readings import Readings
from workbench.training.family.vocabulary import select_draft_vocabulary
from workbench.training.heads.artefact import load_net
from workbench.training.heads.trainer import HeadOptions
from workbench.training.loop import Report, RunResult


def train_chat_heads(options: ChatHeadOptions, report: Report) -> tuple[RunResult, dict[str, Any]]:
    """Train a chat model's heads of one kind, and write them to their folder; return metrics and model card facts.

    Args:
        options: options of the kind of head, an instance of its `options_class`.
        report: function that receives progress lines.

    Raises:
        ParameterError: the vocabulary is too small; another loss is given for a kind with a fixed loss; the stored
            hidden states are too few, or come from another target.
    """
    module, setup, facts = prepare_training(options, report)
    result, curve = module.train(setup)
    return result, facts | {"curve": curve.points}


def prepare_training(options: ChatHeadOptions, report: Report) -> tuple[ModuleType, TrainingSetup, dict[str, Any]]:
    """Return the training module of a kind of head, the training setup, and facts about the draft vocabulary.

    Raises:
        ParameterError: the options do not suit this kind of head, or the readings (stored hidden states) are too few or
            of another target.
    """
    torch.set_num_threads(options.threads)
    if options.vocabulary < RANKS:
        raise ParameterError(
            f"A draft vocabulary of {options.vocabulary} tokens (option vocabulary) is too small to draft from.",
            f"Use {RANKS} tokens or more.",
        )
    check_begin(options)
    check_loss(options)
    checkpoint = next(iter(options.checkpoints()), None)
    loss = options.loss or type(options).loss or HeadOptions.loss
    options = dataclasses.replace(options, checkpoint=checkpoint, loss=loss)
    teacher = load_teacher(options)
    readings = Readings(options.readings, teacher.lm_head.device, options.everywhere)
    held = readings.split_indices(held_out=True)[: options.held]
    size = options.draft_vocabulary_size(len(teacher.lm_head))
    finished, start_vocab = None, None
    if options.begin is not None:
        finished, start_vocab = _load_start_layer(options.begin, teacher)
    vocab_ids, facts = select_draft_vocabulary(readings, held, size, teacher.end_tokens, start_vocab)
    tokens = torch.tensor(vocab_ids, device=readings.device)
    setup = TrainingSetup(options, teacher, readings, tokens, held, report, finished)
    return get_training_module(options.method), setup, facts


def check_loss(options: ChatHeadOptions) -> None:
    """Check that heads of the kind `options.method` can be trained with the losses of the options.

    Raises:
        ParameterError: another loss is given for a kind with a fixed loss.
    """
    if options.fixed_loss and options.loss:
        raise ParameterError(
            f"{options.method} heads are always trained with the loss {options.fixed_loss}, not with {options.loss}.",
            "Leave `loss` out.",
        )


def check_begin(options: ChatHeadOptions) -> None:
    """Check that the training can start from the head in `options.begin`, before hours are spent on training data.

    Raises:
        ParameterError: this kind cannot start from a finished layer; or `begin` contains no layer or a layer of another
            kind, or is the output folder.
    """
    if options.begin is None:
        return
    if not options.starts_from_eagle:
        kinds = sorted(kind for kind in chat_head_kinds() if options_class(kind).starts_from_eagle)
        message = (
            f"The training of {options.method} heads cannot start from a finished head; the training of "
            f"{', '.join(kinds)} heads can."
        )
        raise ParameterError(message, "Leave `begin` out.")
    check_folders_differ(options.begin, options.folder)
    try:
        kind = json.loads((options.begin / "config.json").read_text()).get("workbench_head")
    except (OSError, ValueError, AttributeError) as error:
        message = f"{options.begin} contains no head from which training could start: {error}"
        raise ParameterError(message, "Set `begin` to the folder of a trained head.") from None
    if kind != FeatureNet.kind:
        message = f"The head in {options.begin} is of kind {kind}, not {FeatureNet.kind}."
        raise ParameterError(message, f"Use a head of kind {FeatureNet.kind}.")


def _load_start_layer(folder: Path, teacher: Teacher) -> tuple[FeatureNet, list[int]]:
    """Load the finished head from which training starts, and the tokens in its draft vocabulary.

    Raises:
        ParameterError: the head cannot be read, or was trained for a target with other weights.
    """
    try:
        net, config = load_net(folder)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ParameterError(
            f"{folder} contains no head from which training could start: {error}",
            "Set `begin` to the folder of a trained head.",
        ) from None
    if fingerprints_differ(config.get(WEIGHTS, ""), teacher.weights):
        message = f"The head in {folder} was trained for other weights of the target."
        raise ParameterError(message, f"Use a head of kind {FeatureNet.kind} for {teacher.name}.")
    return net, list(config.get(KEY, range(len(teacher.lm_head))))
