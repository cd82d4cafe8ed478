"""Training of EAGLE's layer, and of other layers that predict features, on features and distributions."""

# pyright: basic
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from workbench.methods.common.feature_net import FeatureNet
from workbench.training.family.drafter import Teacher, interpolate_weights
from workbench.training.family.head_training import EVAL_BATCH_SIZE, TrainingSetup, draft_vocabulary_config
from workbench.training.family.options import LayerOptions
from workbench.training.family.readings import batches
from workbench.training.heads.artefact import save_net
from workbench.training.heads.features import Dialogue
from workbench.training.heads.trainer import HeadOptions, train_net
from workbench.training.loop import RunResult
from workbench.training.trainer import Curve


@dataclass
class FeatureHeadOptions(LayerOptions, HeadOptions):
    """Options for training drafter layers that predict the target's features.

    Attributes:
        own: Share of the input features that are replaced by the drafter's own predictions, because these are its input
            from the second draft level on. Source: HASS, Zhang et al. 2024, arXiv:2408.15766, §3.2, here with one
            network pass and random positions instead of one pass per level.
    """

    own: float = 0.0


@dataclass
class Options(FeatureHeadOptions):
    """Options for training EAGLE's layer.

    Attributes:
        average: Weight a of the initial weights (option `begin`) in the result: a · (initial weights) + (1 − a) ·
            (trained weights). If both were trained on different texts, the average keeps the accuracy on both; the
            trained weights alone lose accuracy on the earlier texts. Source: Wortsman et al. 2022, Model soups,
            arXiv:2203.05482.
    """

    method: str = FeatureNet.kind
    loss: str = "smooth_l1:1+ce_soft:1"
    average: float = 0.0
    starts_from_eagle: ClassVar[bool] = True


class TargetParts(nn.Module):
    """Parts of a target that drafters use in training: embedding, final norm, and LM head over the draft vocabulary.

    Args:
        teacher: parts of the target, including the whole LM head.
        draft_vocabulary: target ids of the tokens of the draft vocabulary.
    """

    def __init__(self, teacher: Teacher, draft_vocabulary: Tensor) -> None:
        super().__init__()
        self.embed = nn.Embedding.from_pretrained(teacher.embedding)
        self.lm_head = nn.Linear(teacher.lm_head.shape[1], len(draft_vocabulary), bias=False)
        self.lm_head.weight = nn.Parameter(teacher.lm_head[draft_vocabulary], requires_grad=False)
        self.norm = teacher.last_norm

    def get_input_embeddings(self) -> nn.Module:
        """Return the target's embedding. Models of Transformers have a method of the same name."""
        return self.embed

    def get_output_embeddings(self) -> nn.Module:
        """Return the target's LM head over the draft vocabulary.

        Models of Transformers have a method of the same name.
        """
        return self.lm_head

    def get_decoder(self) -> nn.Module:
        """Return the object that has the target's final norm as attribute `norm`, as in models of Transformers."""
        return self


def train(setup: TrainingSetup) -> tuple[RunResult, Curve]:
    """Train EAGLE's layer on the target's features and distributions.

    Source: Li et al. 2024, EAGLE, arXiv:2401.15077, §4.2.
    """
    options, teacher, vocab, readings = setup.options, setup.teacher, setup.draft_vocabulary, setup.readings
    net = setup.start_layer
    start_weights = {} if net is None else {name: weight.clone() for name, weight in net.state_dict().items()}
    rows = batches(readings, readings.split_indices(held_out=False), options.rows, options.seed)
    order = sorted(setup.held_out, key=lambda row: readings.rows[row, 3])
    groups = [
        [readings.dialogue(row) for row in order[i : i + EVAL_BATCH_SIZE]]
        for i in range(0, len(order), EVAL_BATCH_SIZE)
    ]
    curve = Curve.of(options)

    def write(net: FeatureNet) -> None:
        save_net(net, options.folder, teacher.name, **setup.facts(net), **draft_vocabulary_config(vocab, teacher))

    def batch(has_images: bool, step: int) -> list[Dialogue]:
        return [readings.dialogue(row) for row in rows(step)]

    def is_target(token_indices: Tensor, features: Tensor) -> Tensor:
        return vocab[token_indices] == teacher.greedy_tokens(features)

    shared = TargetParts(teacher, vocab)
    net, result = train_net(
        options,
        shared,
        batch,
        setup.report,
        groups,
        net,
        save=write,
        is_target_token=is_target,
        curve=curve,
        predicted_share=options.own,
    )
    if start_weights and options.average:
        net.load_state_dict(interpolate_weights(net.state_dict(), start_weights, options.average))
        write(net)
    return result, curve
