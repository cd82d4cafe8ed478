"""The frozen target's own answers and its features over them, computed once and stored."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Float, Int
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlavaForConditionalGeneration

from workbench.methods.drafters.feature_net import Seen
from workbench.trace.files import replacing
from workbench.training.scenes.packing import Packed
from workbench.training.scenes.train import answer_states


@dataclass(slots=True)
class Dialogue:
    """A prompt with the target's answer, and the target's hidden states over it.

    Attributes:
        ids: tokens of prompt and answer.
        n_prompt: number of tokens of the prompt.
        features: input of the target's LM head at each token.
        vision: input of the target's decoder at the image's tokens; None without an image.
        start: position of the first image token.
    """

    ids: Int[Tensor, " n"]
    n_prompt: int
    features: Float[Tensor, "n D"]
    vision: Float[Tensor, "N D"] | None = None
    start: int = 0

    @property
    def kind(self) -> tuple[int, int]:
        """Start and number of the vision tokens, which all dialogues of one batch must share."""
        return (self.start, 0 if self.vision is None else len(self.vision))


@dataclass(slots=True)
class Batch:
    """Dialogues of one kind, padded at the end.

    Attributes:
        seen: inputs of the drafter.
        ids: tokens, [B, n].
        features: [B, n, D].
        answers: bool [B, n], positions whose feature predicts a token of the answer.
    """

    seen: Seen
    ids: Tensor
    features: Tensor
    answers: Tensor


def batch_of(dialogues: Sequence[Dialogue], embed: torch.nn.Module, grid: tuple[int, int] | None = None) -> Batch:
    """Combine dialogues of one kind into a batch.

    Args:
        dialogues: dialogues of one kind.
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
    for row, one in enumerate(dialogues):
        ids[row, : len(one.ids)] = one.ids
        features[row, : len(one.ids)] = one.features
        answers[row, one.n_prompt - 1 : len(one.ids) - 1] = True
        question[row, : one.n_prompt - 1] = True
    question[:, start : start + size] = False
    with torch.no_grad():
        embeds = embed(ids)
        if size:
            embeds[:, start : start + size] = torch.stack([d.vision for d in dialogues if d.vision is not None]).float()
    spans = [(start, start + size)] if size else []
    side = int(size**0.5)
    grids = [grid or ((side, side) if side * side == size else (1, size))] if size else []
    return Batch(Seen(embeds, features[:, :-1], spans, grids, question), ids, features, answers)


@dataclass
class Features:
    """Dialogues, and batches of them in an endless random order.

    Attributes:
        dialogues: all dialogues.
    """

    dialogues: list[Dialogue] = field(default_factory=list)

    def batches(self, rows: int, seed: int, pictured: bool) -> Iterator[list[Dialogue]]:
        """Yield endless batches of dialogues of one kind and similar length, with images or without.

        Raises:
            ValueError: there are no such dialogues.
        """
        mine = [d for d in self.dialogues if (d.vision is not None) == pictured]
        if not mine:
            raise ValueError(f"no dialogues {'with' if pictured else 'without'} pictures to train on")
        rng = random.Random(f"{seed}/{pictured}")
        while True:
            order = sorted(mine, key=lambda d: (d.kind, len(d.ids) + rng.uniform(-6, 6)))
            groups: list[list[Dialogue]] = []
            for one in order:
                if not groups or groups[-1][0].kind != one.kind or len(groups[-1]) == rows:
                    groups.append([])
                groups[-1].append(one)
            rng.shuffle(groups)
            yield from groups

    def save(self, path: Path) -> None:
        """Write one safetensors file: flat tensors and the sizes of each dialogue. Features as float16."""
        path.parent.mkdir(parents=True, exist_ok=True)
        vision = [d.vision for d in self.dialogues if d.vision is not None]
        held = {
            "ids": torch.cat([d.ids for d in self.dialogues]).to(torch.int32),
            "features": torch.cat([d.features for d in self.dialogues]).half(),
            "vision": torch.cat(vision).half() if vision else torch.zeros(0),
            "facts": torch.tensor([[len(d.ids), d.n_prompt, *d.kind] for d in self.dialogues]),
        }
        with replacing(path) as part:
            save_file(held, part)

    @classmethod
    def load(cls, path: Path) -> Features:
        """Read a file that `save` wrote."""
        with safe_open(path, "pt") as file:
            ids, features = file.get_tensor("ids").long(), file.get_tensor("features")
            vision, facts = file.get_tensor("vision"), file.get_tensor("facts").tolist()
        found, at, seen = cls(), 0, 0
        for n, n_prompt, start, size in facts:
            picture = vision[seen : seen + size] if size else None
            found.dialogues.append(Dialogue(ids[at : at + n], n_prompt, features[at : at + n], picture, start))
            at, seen = at + n, seen + size
        return found


@torch.inference_mode()
def read_dialogues(
    model: LlavaForConditionalGeneration, packed: Packed, images: Tensor | None, reply: int
) -> list[Dialogue]:
    """Run a frozen target on packed sequences; return one dialogue for each turn of each sequence.

    Args:
        model: the target.
        packed: sequences whose turns attend to the image and to themselves.
        images: their images, float32 [B, 3, 64, 64]; None if the sequences have none.
        reply: id of the token that ends a question.
    """
    entered: list[Tensor] = []
    first = model.model.language_model.layers[0]
    hook = first.register_forward_pre_hook(
        lambda _, args, named: entered.append(args[0] if args else named["hidden_states"]), with_kwargs=True
    )
    try:
        states = answer_states(model, packed, images)
    finally:
        hook.remove()
    found = []
    for ids, places, vision, features, embeds in zip(
        packed.ids, packed.positions, packed.image, states.half(), entered[0].half(), strict=True
    ):
        common = 1 + int(vision.sum())
        end = int(places.nonzero()[-1]) + 1
        starts = [*(places == common).nonzero().flatten().tolist(), end]
        picture = embeds[vision].clone() if vision.any() else None
        for begin, stop in itertools.pairwise(starts):
            turn = ids[begin:stop]
            n_prompt = common + int((turn == reply).nonzero()[0]) + 1
            whole = torch.cat([features[:common], features[begin:stop]])
            found.append(Dialogue(torch.cat([ids[:common], turn]), n_prompt, whole, picture, 1 if common > 1 else 0))
    return found
