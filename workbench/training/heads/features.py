"""A frozen target's own answers with its features over them, computed once and stored as training data."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Float, Int
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlavaForConditionalGeneration

from workbench.methods.common.feature_net import PromptFeatures
from workbench.trace.files import replace_atomically
from workbench.training.scenes.packing import Packed
from workbench.training.scenes.train import answer_states


@dataclass(slots=True)
class Dialogue:
    """A prompt with the target's answer, and the target's hidden states over it.

    Attributes:
        ids: token ids of prompt and answer, int64 [n].
        n_prompt: number of tokens of the prompt.
        features: input of the target's LM head at each token, float [n, D].
        vision: input of the target's decoder at the N image tokens, float [N, D]; None without an image.
        start: position of the first image token.
    """

    ids: Int[Tensor, " n"]
    n_prompt: int
    features: Float[Tensor, "n D"]
    vision: Float[Tensor, "N D"] | None = None
    start: int = 0

    @property
    def kind(self) -> tuple[int, int]:
        """Return (position of the first vision token, number of vision tokens); equal for all dialogues of a batch."""
        return (self.start, 0 if self.vision is None else len(self.vision))


@dataclass(slots=True)
class Batch:
    """Batch of dialogues with vision tokens at the same positions, padded at the end.

    Attributes:
        inputs: inputs of the drafter.
        ids: token ids, int64 [B, n].
        features: the target's features at the tokens, float [B, n, D].
        answers: positions whose feature predicts a token of the answer, bool [B, n].
    """

    inputs: PromptFeatures
    ids: Tensor
    features: Tensor
    answers: Tensor


def batch_of(dialogues: Sequence[Dialogue], embed: torch.nn.Module, grid: tuple[int, int] | None = None) -> Batch:
    """Combine dialogues with vision tokens at the same positions (same `kind`) into a batch.

    Args:
        dialogues: dialogues with the same `kind`.
        embed: the target's embedding.
        grid: rows and columns of an image's vision tokens; by default a square.
    """
    start, size = dialogues[0].kind
    n = max(len(d.ids) for d in dialogues)
    device = dialogues[0].ids.device
    ids = torch.zeros(len(dialogues), n, dtype=torch.long, device=device)
    features = torch.zeros(len(dialogues), n, dialogues[0].features.shape[1], device=device)
    answers = torch.zeros(len(dialogues), n, dtype=torch.bool, device=device)
    question = torch.zeros(len(dialogues), n - 1, dtype=torch.bool, device=device)
    for i, dialogue in enumerate(dialogues):
        ids[i, : len(dialogue.ids)] = dialogue.ids
        features[i, : len(dialogue.ids)] = dialogue.features
        answers[i, dialogue.n_prompt - 1 : len(dialogue.ids) - 1] = True
        question[i, : dialogue.n_prompt - 1] = True
    question[:, start : start + size] = False
    with torch.no_grad():
        embeds = embed(ids)
        if size:
            embeds[:, start : start + size] = torch.stack([d.vision for d in dialogues if d.vision is not None]).float()
    spans = [(start, start + size)] if size else []
    side = int(size**0.5)
    grids = [grid or ((side, side) if side * side == size else (1, size))] if size else []
    return Batch(PromptFeatures(embeds, features[:, :-1], spans, grids, question), ids, features, answers)


def group_dialogues(dialogues: Iterable[Dialogue], size: int) -> list[list[Dialogue]]:
    """Split dialogues into groups of at most `size`, each with vision tokens at the same positions."""
    groups: list[list[Dialogue]] = []
    for dialogue in dialogues:
        if not groups or groups[-1][0].kind != dialogue.kind or len(groups[-1]) == size:
            groups.append([])
        groups[-1].append(dialogue)
    return groups


@dataclass
class Features:
    """Dialogues with the target's hidden states, and batches of dialogues in an endless random order.

    Attributes:
        dialogues: list of all dialogues.
    """

    dialogues: list[Dialogue] = field(default_factory=list)

    def batches(self, rows: int, seed: int, with_images: bool) -> Iterator[list[Dialogue]]:
        """Yield endless batches of `rows` dialogues of similar length, all with images or all without.

        The vision tokens of a batch's dialogues are at the same positions.

        Raises:
            ValueError: there are no dialogues with images, or none without.
        """
        candidates = [d for d in self.dialogues if (d.vision is not None) == with_images]
        if not candidates:
            raise ValueError(f"the training data contain no dialogues {'with' if with_images else 'without'} images")
        rng = random.Random(f"{seed}/{with_images}")
        while True:
            order = sorted(candidates, key=lambda d: (d.kind, len(d.ids) + rng.uniform(-6, 6)))
            groups = group_dialogues(order, rows)
            rng.shuffle(groups)
            yield from groups

    def save(self, path: Path) -> None:
        """Write the dialogues to one safetensors file: concatenated tensors, and the sizes of each dialogue.

        Features and vision tokens are in float16.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        vision = [d.vision for d in self.dialogues if d.vision is not None]
        tensors = {
            "ids": torch.cat([d.ids for d in self.dialogues]).to(torch.int32),
            "features": torch.cat([d.features for d in self.dialogues]).half(),
            "vision": torch.cat(vision).half() if vision else torch.zeros(0),
            "facts": torch.tensor([[len(d.ids), d.n_prompt, *d.kind] for d in self.dialogues]),
        }
        with replace_atomically(path) as part:
            save_file(tensors, part)

    @classmethod
    def load(cls, path: Path) -> Features:
        """Read dialogues with the target's hidden states from a file that `save` wrote."""
        with safe_open(path, "pt") as file:
            ids, features = file.get_tensor("ids").long(), file.get_tensor("features")
            vision, facts = file.get_tensor("vision"), file.get_tensor("facts").tolist()
        loaded, offset, vision_offset = cls(), 0, 0
        for n, n_prompt, start, size in facts:
            image = vision[vision_offset : vision_offset + size] if size else None
            loaded.dialogues.append(
                Dialogue(ids[offset : offset + n], n_prompt, features[offset : offset + n], image, start)
            )
            offset, vision_offset = offset + n, vision_offset + size
        return loaded


@torch.inference_mode()
def read_dialogues(
    model: LlavaForConditionalGeneration, packed: Packed, images: Tensor | None, reply: int
) -> list[Dialogue]:
    """Run a frozen target on packed sequences; return one dialogue for each turn of each sequence.

    Args:
        model: the frozen target.
        packed: sequences whose turns attend to the image and to themselves.
        images: images of the sequences, float32 [B, 3, 64, 64]; None if the sequences have none.
        reply: id of the token between a question and its answer.
    """
    layer_inputs: list[Tensor] = []
    first_layer = model.model.language_model.layers[0]
    hook = first_layer.register_forward_pre_hook(
        lambda _, args, named: layer_inputs.append(args[0] if args else named["hidden_states"]), with_kwargs=True
    )
    try:
        states = answer_states(model, packed, images)
    finally:
        hook.remove()
    dialogues = []
    for ids, positions, is_image, features, embeds in zip(
        packed.ids, packed.positions, packed.is_image, states.half(), layer_inputs[0].half(), strict=True
    ):
        n_shared = 1 + int(is_image.sum())
        end = int(positions.nonzero()[-1]) + 1
        starts = [*(positions == n_shared).nonzero().flatten().tolist(), end]
        image = embeds[is_image].clone() if is_image.any() else None
        for begin, stop in itertools.pairwise(starts):
            turn = ids[begin:stop]
            n_prompt = n_shared + int((turn == reply).nonzero()[0]) + 1
            turn_features = torch.cat([features[:n_shared], features[begin:stop]])
            dialogues.append(
                Dialogue(torch.cat([ids[:n_shared], turn]), n_prompt, turn_features, image, 1 if n_shared > 1 else 0)
            )
    return dialogues
