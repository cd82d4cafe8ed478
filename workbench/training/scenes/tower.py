"""Training of the vision tower before the language model exists: it classifies the content of every patch.

The renderer provides the object that covers each patch, so the tower is trained on labels of 64 patches per image
rather than on a few words. The labels are the object's colour, shape, size, place, rank from left to right, relation to
the previous object, vector to its centre and pixels, and the writing. One linear layer predicts all labels from the
features that the language model will get.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import SiglipVisionConfig, SiglipVisionModel

from workbench.scenes.scene import SIDE
from workbench.trace.files import replace_atomically
from workbench.training.loop import Report, RunOptions, RunResult
from workbench.training.models import half_precision
from workbench.training.scenes.data import (
    ASPECTS,
    PATCH,
    PatchLabels,
    Shards,
    jitter_images,
    normalise_pixels,
    patch_labels,
    silhouettes,
)
from workbench.training.trainer import Step, StepLoss, Trainer


@dataclass
class TowerOptions(RunOptions):
    """Options of the `vision-tower` recipe, besides those of `RunOptions`.

    Attributes:
        scenes: Folder of rendered scenes; missing scenes are rendered.
        out: Output file of the trained tower.
        hidden: Hidden size.
        layers: Number of encoder layers.
        inner: Intermediate size of the MLP.
        rows: Batch size: images per step.
        shards: Number of shards of scenes to use.
        shard_size: Number of scenes per shard.
        silhouette_steps: Number of first steps in which half of the images are silhouettes.
    """

    scenes: Path = Path(".cache/train/scenes")
    out: Path = Path(".cache/train/vision-tower.pt")
    checkpoint: Path | None = Path(".cache/train/vision-tower-run.pt")
    minutes: float | None = 12.0
    hidden: int = 128
    layers: int = 4
    inner: int = 384
    rows: int = 64
    shards: int = 24
    shard_size: int = 4096
    silhouette_steps: int = 500
    other_rate: float = 0.003


def tower_config(hidden: int = 128, layers: int = 4, inner: int = 384) -> SiglipVisionConfig:
    """Return the configuration of the vision tower: 64 patches of 8 × 8 pixels, no pooled output."""
    return SiglipVisionConfig(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=max(1, hidden // 32),
        image_size=SIDE,
        patch_size=PATCH,
        vision_use_head=False,
    )


class PatchReader(nn.Module):
    """A vision tower and one linear layer that predicts every aspect of each patch.

    Args:
        config: Shape of the tower.
    """

    def __init__(self, config: SiglipVisionConfig) -> None:
        super().__init__()
        self.tower = SiglipVisionModel(config)
        self.tower.set_attn_implementation("eager")  # in bfloat16 far faster on CPUs, at 64 tokens
        self.norm = nn.LayerNorm(config.hidden_size)
        self.read = nn.Linear(config.hidden_size, sum(ASPECTS.values()) + 2 + PATCH**2)

    def forward(self, images: Tensor) -> Tensor:
        """Return for each patch the predicted labels, centre vector and pixels of its object, [n, 64, labels + 66].

        The last axis has the scores of all labels, the vector to the object's centre, and 64 scores of pixels.
        """
        return self.read_states(self.states(images))

    def states(self, images: Tensor) -> Tensor:
        """Return the tower's output for images, the input of the language model's projector, [n, 64, hidden]."""
        return self.tower(images, output_hidden_states=True).hidden_states[-1]

    def read_states(self, states: Tensor) -> Tensor:
        """Return the predicted labels, centre vectors and pixels for the tower's output states [n, 64, hidden]."""
        return self.read(self.norm(states))


def seeded_weights(model: nn.Module, seed: int) -> None:
    """Fill a module, in place, with small random weights from a separate random generator."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                scale = 0.02 if "embed" in name else parameter[0].numel() ** -0.5
                scale *= 0.3 if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")) else 1.0
                parameter.normal_(0.0, scale, generator=generator)
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)


def reading_loss(scores: Tensor, labels: PatchLabels) -> tuple[Tensor, dict[str, float]]:
    """Return the loss of predicted patch labels, and for each aspect the weighted share of right predictions.

    Args:
        scores: Output of `PatchReader`, [n, 64, labels + 66].
        labels: Labels of the patches.
    """
    losses, accuracy = [], {}
    answers, weights = torch.from_numpy(labels.answers), torch.from_numpy(labels.weights)
    pieces = scores.float().split([*ASPECTS.values(), 2, PATCH**2], dim=-1)
    for i, (name, logits) in enumerate(zip(ASPECTS, pieces, strict=False)):
        has_label = answers[..., i] >= 0
        answer, weight = answers[..., i][has_label], weights[has_label]
        if len(answer) == 0:
            continue
        total = weight.sum()
        factor = 2.0 if name == "shape" else 1.0
        losses.append(factor * (F.cross_entropy(logits[has_label], answer, reduction="none") * weight).sum() / total)
        accuracy[name] = float(((logits[has_label].argmax(-1) == answer) * weight).sum() / total)
    is_covered = answers[..., 0] > 0
    distance = (pieces[-2] - torch.from_numpy(labels.centre_offsets)).abs().sum(-1)
    losses.append(4.0 * (distance * weights)[is_covered].sum() / weights[is_covered].sum().clamp(min=1e-6))
    pixels = F.binary_cross_entropy_with_logits(pieces[-1], torch.from_numpy(labels.mask), reduction="none").mean(-1)
    losses.append(4.0 * pixels[is_covered].mean())
    return torch.stack(losses).sum(), accuracy


def train_tower(options: TowerOptions, report: Report) -> RunResult:
    """Train the vision tower and write it to `options.out`."""
    torch.set_num_threads(options.threads)
    reader = PatchReader(tower_config(options.hidden, options.layers, options.inner))
    seeded_weights(reader, options.seed)
    shards = Shards(options.scenes, options.seed, options.shard_size)

    def losses(step: Step) -> StepLoss:
        scene_list, pixels, item_maps = shards.batch(step.number, options.rows, options.shards)
        labels = patch_labels(scene_list, item_maps)
        images = jitter_images(normalise_pixels(pixels), (options.seed, step.number))
        if step.number < options.silhouette_steps:
            images = silhouettes(images, item_maps, 0.5, (options.seed, step.number, 1))
        with half_precision():
            scores = reader(torch.from_numpy(images))
        loss, accuracy = reading_loss(scores, labels)
        return StepLoss(loss, images.shape[0] * labels.weights.shape[1], {"loss": float(loss.detach()), **accuracy})

    def save() -> None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with replace_atomically(options.out) as part:
            torch.save({"config": reader.tower.config.to_dict(), "model": reader.tower.state_dict()}, part)

    return Trainer("vision-tower", options, reader, losses, report, save=save).run()


def load_tower(path: Path) -> SiglipVisionModel:
    """Load a vision tower that `train_tower` wrote."""
    checkpoint = torch.load(str(path), weights_only=True)
    tower = SiglipVisionModel(SiglipVisionConfig(**checkpoint["config"]))
    tower.load_state_dict(checkpoint["model"])
    return tower
