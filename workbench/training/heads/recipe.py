"""The recipe `vision-heads`: feature drafters for the bundled vision-language target, on its own answers."""

from __future__ import annotations

import dataclasses
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from workbench.engine.declarations import Head
from workbench.methods import registry
from workbench.models.chat_markers import ASSISTANT
from workbench.models.fingerprint import WEIGHTS, fingerprint
from workbench.scenes.draw import paint
from workbench.scenes.tasks import ask_some
from workbench.trace.files import write_whole
from workbench.training.cards import write_card
from workbench.training.heads.artefact import load_saved, save_net
from workbench.training.heads.cards import card
from workbench.training.heads.features import Dialogue, Features, read_dialogues
from workbench.training.heads.trainer import HeadOptions, train_net
from workbench.training.loop import Report
from workbench.training.scenes.data import normalised
from workbench.training.scenes.drafters import (
    VisionDrafterOptions,
    newer_than_weights,
    own_scenes,
    write_own_answers,
)
from workbench.training.scenes.model import load_vision_model
from workbench.training.scenes.packing import Packer, worded
from workbench.training.tokenizer import token_id

UNSEEN = 5
"""After one of so many batches of scenes, the batch is processed again without its images, as text-only data."""
HELD = 64
"""Number of scenes, the last of the target's own answers, that are held out for evaluation."""


OWN, RIGHT = "the target's own answers", "the scenes' right answers"


@dataclass
class VisionHeadOptions(HeadOptions):
    """Options of the recipe `vision-heads`.

    Attributes:
        method: Kind of the drafter ("eagle-vlm", "msd", "specvlm", "flash"), or all: one after the other.
        target: Folder of the vision-language target.
        own: File with answers that the target wrote; made again where it is missing or older than the target.
        own_scenes: Scenes in that file, where it is made.
        used: Scenes of that file that are read.
        questions: Questions about each of them that are read, next to its caption.
        features: File with what the target made of them; made again where it is missing or older than the target.
        out: Folder above those of the finished drafters.
        begin: Folder above those of drafters to go on from.
        truth: Read the scenes' right answers instead of the target's own: nothing is generated, for a first run.
    """

    method: str = "all"
    target: Path = Path(".cache/models/vision-target")
    own: Path = VisionDrafterOptions().own
    own_scenes: int = VisionDrafterOptions().own_scenes
    used: int = 1400
    questions: int = 2
    features: Path = Path(".cache/train/vision-features.safetensors")
    out: Path = Path(".cache/models")
    begin: Path | None = None
    truth: bool = False

    def methods(self) -> list[str]:
        """Return the methods that are trained."""
        return list(trainable()) if self.method == "all" else [self.method]

    def checkpoints(self) -> list[Path]:
        """Return a checkpoint file per method; an empty list if no checkpoints are requested."""
        path = self.checkpoint
        return [] if path is None else [path.with_stem(f"{path.stem}-{method}") for method in self.methods()]


def trainable() -> dict[str, Head]:
    """Return the drafters that this recipe trains, by their kinds."""
    return {kind: head for kind, head in registry.heads().items() if head.recipe == "vision-heads"}


def train_vision_heads(options: VisionHeadOptions, report: Report) -> dict[str, Any]:
    """Train the drafters and write them; return the figures of each.

    Raises:
        ValueError: there is no such method.
    """
    torch.set_num_threads(options.threads)
    if options.method not in ("all", *trainable()):
        raise ValueError(f"there is no feature drafter {options.method!r}; there are: all, {', '.join(trainable())}")
    target, processor = load_vision_model(options.target)
    train, held = prepared(options, target, processor.tokenizer, report)
    each = [dataclasses.replace(options, method=method) for method in options.methods()]
    return {one.method: _train_one(one, target, train, held, report) for one in each}


def _train_one(
    options: VisionHeadOptions, target: Any, train: Features, held: list[list[Dialogue]], report: Report
) -> dict[str, Any]:
    head, checkpoint = trainable()[options.method], next(iter(options.checkpoints()), None)
    if options.begin is None:  # a continued one has finished its first stage
        options = head.settle(options)
    options = dataclasses.replace(options, checkpoint=checkpoint)
    folder = head.folder(options.target.name)
    sources = {pictured: train.batches(options.rows, options.seed, pictured) for pictured in (True, False)}
    begin = None if options.begin is None else load_saved(options.begin / folder)[0]
    net, result = train_net(options, target, lambda pictured, _: next(sources[pictured]), report, held, begin)
    out = options.out / folder
    facts: dict[str, Any] = {WEIGHTS: fingerprint(target), "loss": options.loss}
    save_net(net, out, options.target.name, parameters=sum(p.numel() for p in net.parameters()), **facts)
    figures: dict[str, Any] = dataclasses.asdict(result) | {"answers": RIGHT if options.truth else OWN}
    if options.begin is not None:
        figures["begun"] = json.loads((options.begin / folder / "training.json").read_text())
    write_whole(out / "training.json", (json.dumps(figures, indent=2) + "\n").encode())
    write_card(out, card)
    return figures


def prepared(
    options: VisionHeadOptions, target: Any, tokenizer: Any, report: Report
) -> tuple[Features, list[list[Dialogue]]]:
    """Return the target's dialogues for training, and batches of dialogues about other scenes for evaluation."""
    paths = {part: options.features.with_stem(f"{options.features.stem}-{part}") for part in ("train", "held")}
    if not all(newer_than_weights(path, options.target) for path in paths.values()):
        if not newer_than_weights(options.own, options.target):
            source = VisionDrafterOptions(
                target=options.target,
                own=options.own,
                own_scenes=options.own_scenes,
                own_questions=options.questions,
            )
            (write_right_answers if options.truth else write_own_answers)(source, report)
        begun, read = time.monotonic(), {part: Features() for part in paths}
        for part, dialogues in read_scenes(options, target, tokenizer):
            read[part].dialogues += dialogues
            n = sum(len(d.ids) for features in read.values() for d in features.dialogues)
            report(f"features: {n:,} tokens read, {time.monotonic() - begun:.0f} s")
        for part, path in paths.items():
            read[part].save(path)
    loaded = {part: Features.load(path) for part, path in paths.items()}
    groups: list[list[Dialogue]] = []
    for one in sorted(loaded["held"].dialogues, key=lambda d: (d.kind, len(d.ids))):
        if not groups or groups[-1][0].kind != one.kind or len(groups[-1]) == 16:
            groups.append([])
        groups[-1].append(one)
    return loaded["train"], [group for group in groups if group[0].vision is not None]


def write_right_answers(options: VisionDrafterOptions, report: Report) -> None:
    """Write questions with right answers from the scenes' geometry, in the format of the target's own answers."""
    rng = random.Random(f"truth/{options.seed}")
    turns = [
        [(worded(a.question, rng), a.answer) for a in ask_some(scene, options.own_questions, rng)]
        for scene in own_scenes(options.own_scenes)
    ]
    options.own.parent.mkdir(parents=True, exist_ok=True)
    write_whole(options.own, json.dumps(turns).encode())
    report(f"right answers: {len(turns)} scenes")


def read_scenes(
    options: VisionHeadOptions, target: Any, tokenizer: Any, rows: int = 16
) -> Iterator[tuple[str, list[Dialogue]]]:
    """Compute the target's features over its own answers; yield ("train" or "held", dialogues)."""
    turns = json.loads(options.own.read_text())[: options.used]
    drawn = own_scenes(len(turns))
    packer, reply = Packer(tokenizer), token_id(tokenizer, ASSISTANT)
    for start in range(0, len(turns), rows):
        chosen = range(start, min(start + rows, len(turns)))
        said = [[(question, answer) for question, answer in turns[i][: options.questions + 1]] for i in chosen]
        part = "held" if start >= len(turns) - HELD else "train"
        images = torch.from_numpy(normalised(np.stack([paint(drawn[i])[0] for i in chosen])))
        plain = [False] * len(said)
        yield part, read_dialogues(target, packer.pack(said, plain, [True] * len(said)), images, reply)
        if start // rows % UNSEEN == 0:
            yield part, read_dialogues(target, packer.pack(said, plain, plain), None, reply)
