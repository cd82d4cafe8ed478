"""How EAGLE's layer learns, and every head that has no lesson of its own: by features and laws, from true features."""

from __future__ import annotations

from torch import Tensor, nn

from workbench.methods.drafters.feature_net import FeatureNet
from workbench.training.family.drafter import Curve, Teacher, meant
from workbench.training.family.lesson import HELD_ROWS, Course, keeping
from workbench.training.family.readings import batches
from workbench.training.heads.artefact import save_net
from workbench.training.heads.features import Dialogue
from workbench.training.heads.trainer import train_net
from workbench.training.loop import RunResult

GOES_ON = True
"""From a finished layer of its own kind, and afterwards the mean of both may be kept."""


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


def train(course: Course) -> tuple[RunResult, Curve]:
    """Train the layer.

    Source: Li et al. 2024, EAGLE, arXiv:2401.15077, §4.2.
    """
    options, teacher, kept, readings = course.options, course.teacher, course.kept, course.readings
    net = course.finished
    before = {} if net is None else {name: weight.clone() for name, weight in net.state_dict().items()}
    rows = batches(readings, readings.part(held=False), options.rows, options.seed)
    order = sorted(course.held, key=lambda row: readings.rows[row, 3])
    groups = [[readings.dialogue(row) for row in order[i : i + HELD_ROWS]] for i in range(0, len(order), HELD_ROWS)]
    curve = Curve.of(options)

    def write(net: FeatureNet) -> None:
        save_net(net, options.folder, teacher.name, **course.facts(net), **keeping(kept, teacher))

    def keep(net: FeatureNet, result: RunResult) -> None:
        curve.add(result.tokens, result.held["agreement 1"])
        write(net)

    def batch(pictured: bool, step: int) -> list[Dialogue]:
        return [readings.dialogue(row) for row in rows(step)]

    def theirs(said: Tensor, features: Tensor) -> Tensor:
        return kept[said] == teacher.likeliest(features)

    shared = Shared(teacher, kept)
    net, result = train_net(options, shared, batch, course.report, groups, net, on_measured=keep, theirs=theirs)
    if before and options.average:
        net.load_state_dict(meant(net.state_dict(), before, options.average))
        write(net)
    return result, curve
