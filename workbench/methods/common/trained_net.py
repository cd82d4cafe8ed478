"""Trained nets of drafters: built from their configuration, and loaded from their folder once per target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar, cast

import torch
from safetensors import SafetensorError
from torch import nn

from workbench.core.errors import ModelError
from workbench.kernels.reduced_vocabulary import SharedHead
from workbench.models.checkpoints.description import Checkpoint
from workbench.models.checksums import check_weights
from workbench.models.int8_checkpoint import read_weights
from workbench.models.loading import Models
from workbench.models.runner import SCRATCH

_Net = TypeVar("_Net", bound="TrainedNet")
_Levels = TypeVar("_Levels", bound="LevelNet")
RANKS = 10
"""Number of most likely tokens per draft level whose accuracy is measured, and from which a tree is built."""


class TrainedNet(nn.Module):
    """Base class of trained nets of drafters. A method declares its net in `Method.head`."""

    kind: ClassVar[str]
    """Name of the net class, in `config.json` and in a drafter's `needs`."""
    no_random_init: ClassVar[tuple[str, ...]] = ()
    """Substrings of weight names. Training retains the constructor's initial values of the matrices with such a
    name, and initialises all other matrices with small random values."""
    width: int
    """The target's hidden size D."""

    @property
    def sizes(self) -> dict[str, Any]:
        """Return the constructor arguments that rebuild this drafter net."""
        raise NotImplementedError

    def config(self) -> dict[str, Any]:
        """Return the net's configuration, from which the constructor `of` rebuilds it."""
        return {"hidden_size": self.width, "net": self.sizes}

    @classmethod
    def of(cls: type[_Net], config: Mapping[str, Any], context: int = 1024) -> _Net:
        """Create a net from its configuration, without trained weights.

        Args:
            config: configuration, as the method `config` returns it.
            context: maximum sequence length, in positions.

        Raises:
            KeyError, TypeError, ValueError: the configuration is damaged.
        """
        return cls(**config["net"], context=context)

    @classmethod
    def from_checkpoint(cls: type[_Net], checkpoint: Checkpoint, context: int, layers: int) -> _Net:
        """Create a drafter's net with the weights of an external checkpoint that fits its target.

        Args:
            checkpoint: checkpoint whose architecture corresponds to this net class (`workbench.models.checkpoints`).
            context: maximum sequence length, in positions.
            layers: number of the target's layers.

        Raises:
            ModelError: no method supports this layout, or the weights cannot be read.
        """
        raise ModelError(
            f"{checkpoint.name} ({checkpoint.layout}) was read, but {cls.kind} heads of this layout are not "
            "supported as drafters.",
            "Use heads of EAGLE-1, EAGLE-2 or Medusa.",
        )

    def prepare_for_drafting(self: _Net) -> _Net:
        """Prepare the net for drafting: set evaluation mode, and disable gradients."""
        return self.eval().requires_grad_(False)


class LevelNet(TrainedNet):
    """Base class of nets with one prediction per draft level. The accuracy of each level is measured after training."""

    accuracy: tuple[tuple[float, ...], ...] = ()
    """Accuracy on held-out text for K draft levels, [K, 10]: entry (k, r) is the share of positions at which the r-th
    most likely token of draft level k was correct, after a path of correct tokens."""

    def config(self) -> dict[str, Any]:
        return super().config() | {"head_accuracy": self.accuracy}

    @classmethod
    def of(cls: type[_Levels], config: Mapping[str, Any], context: int = 1024) -> _Levels:
        net = super().of(config, context)
        net.accuracy = tuple(map(tuple, config["head_accuracy"]))
        return net


def load_trained(kind: type[_Net], models: Models, label: str, advice: str) -> _Net:
    """Return a method's trained net, which is loaded once. The caller must check that the net fits the target.

    Args:
        kind: class of the net.
        models: models of the run, with a trained head of this class.
        label: name of the net in error messages, such as "exit adapter".
        advice: advice in error messages.

    Raises:
        ModelError: the folder cannot be read, or contains no net of this class.
    """
    info, target = models.heads[kind.kind], models.target
    key = (kind.kind, info.name)
    if key not in models.shared:
        with torch.inference_mode(False):  # packed layers track their weights' versions, which inference tensors lack
            try:
                check_weights(info.folder)
                if info.checkpoint is not None:
                    net = kind.from_checkpoint(info.checkpoint, target.context + SCRATCH, target.n_layers)
                else:
                    weights = read_weights(info.folder / "model.safetensors")
                    net = kind.of(info.config, target.context + SCRATCH)
                    net.load_state_dict(weights)
            except (OSError, KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
                reason = " ".join(str(error).split())[:300]
                raise ModelError(
                    f"The {label} in {info.folder} cannot be read: {reason.rstrip('.')}.", advice
                ) from error
            models.shared[key] = net.to(target.device, target.dtype).prepare_for_drafting()
    return cast(_Net, models.shared[key])


def load_fitting(kind: type[_Net], models: Models, label: str, advice: str) -> _Net:
    """Return a method's trained net, and check that it fits the target's hidden size.

    Args:
        kind: class of the net.
        models: models of the run, with a trained head of this class.
        label: name of the net in error messages, in the plural, such as "Medusa heads".
        advice: advice in the error message if the net was trained for another target.

    Raises:
        ModelError: the folder cannot be read, or its net was trained for another target.
    """
    net = load_trained(kind, models, label, "Train or fetch the heads again.")
    if net.width != models.target.hidden_size:
        raise ModelError(
            f"These {label} read hidden states of width {net.width}, but the target's hidden states have width "
            f"{models.target.hidden_size}.",
            advice,
        )
    return net


def head_of(kind: type[TrainedNet], models: Models) -> SharedHead:
    """Return the target's LM head over the draft vocabulary of a trained net. It is built once and cached.

    Raises:
        ModelError: the draft vocabulary has tokens that the target does not have.
    """
    info = models.heads[kind.kind]
    key = ("head of", kind.kind, info.name)
    if key not in models.shared:
        models.shared[key] = SharedHead(models.target.lm_head, info.config)
    return cast(SharedHead, models.shared[key])
