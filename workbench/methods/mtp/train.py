"""Training of the multi-token prediction module on distributions alone, as for DeepSeek-V3, in multi-step drafts."""

# pyright: basic
from __future__ import annotations

from dataclasses import dataclass

from torch.nn import functional as F

from workbench.methods import registry
from workbench.methods.mtp.drafter import MTPNet
from workbench.training.family.head_training import TrainingSetup, build_seeded, draft_vocabulary_config
from workbench.training.family.options import LayerOptions
from workbench.training.family.unrolled import train_unrolled
from workbench.training.heads.trainer import init_weights
from workbench.training.loop import RunResult
from workbench.training.trainer import Curve


@dataclass
class Options(LayerOptions):
    """Options for training the multi-token prediction module.

    Attributes:
        ttt: Draft steps unrolled in training.
    """

    method: str = MTPNet.kind
    loss: str = "ce_soft:1"
    ttt: int = 3


def train(setup: TrainingSetup) -> tuple[RunResult, Curve]:
    """Train the multi-token prediction module on the mean loss over `ttt` draft steps; DeepSeek-V3 uses one.

    Source: DeepSeek-AI 2024, DeepSeek-V3, arXiv:2412.19437, §2.2, equations 24 and 25.
    """
    options, teacher = setup.options, setup.teacher
    table = setup.lm_head_rows

    def build_untrained() -> MTPNet:
        net = registry.heads()[options.method].build(table.shape[1], vars(options))
        init_weights(net, teacher.last_norm)
        return net

    net = build_seeded(options.seed, build_untrained)
    return train_unrolled(
        setup,
        net,
        lambda rows, features: features.float(),
        lambda state: F.linear(net.lm_head_input(state), table),
        [1 / options.ttt] * options.ttt,
        vocab_size=len(teacher.lm_head),
        **draft_vocabulary_config(setup.draft_vocabulary, teacher),
    )
