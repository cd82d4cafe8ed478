"""Two drafters for the vision-language target: a text-only one ("blind"), and a small one that reads the image.

Both start from one small language model that was trained on questions and answers in every style, without images. The
text-only drafter (Gagrani et al. 2024, arXiv 2404.08856) is then tuned on the target's own answers and gets the text of
the prompt only. The other one (MASSV, Ganesan et al. 2025, arXiv 2505.10526) gets the target's frozen vision tower and
a new projector; the projector is trained alone first, then projector and language model on the target's own answers.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from transformers import LlamaForCausalLM, LlavaForConditionalGeneration, PreTrainedTokenizerFast

from workbench.scenes.held import held_scenes
from workbench.scenes.scene import Scene, scenes
from workbench.scenes.tasks import QUESTIONS, ask_some
from workbench.trace.files import replacing, write_whole
from workbench.training.clock import RunClock
from workbench.training.loop import Report, RunOptions, RunResult, run_loop
from workbench.training.models import fast_attention, half_precision, save_model
from workbench.training.scenes.data import Shards, normalised
from workbench.training.scenes.evaluate import answer, ask_all, pictures_of
from workbench.training.scenes.model import (
    language_config,
    load_vision_model,
    save_vision_model,
    vision_language_config,
)
from workbench.training.scenes.packing import Packed, Packer, RoundState, worded
from workbench.training.scenes.tower import seeded_weights
from workbench.training.scenes.train import answer_states
from workbench.training.tokenizer import load_tokenizer

OWN_SEED = 4242


@dataclass
class VisionDrafterOptions(RunOptions):
    """Options of the recipes `vision-text-drafter` and `vision-drafter`, beside those of every run.

    Attributes:
        target: Folder of the vision-language target.
        begin: Folder of a finished drafter to go on from with the tuning, instead of the small language model.
        scenes: Folder of rendered scenes; missing ones are drawn.
        own: File with answers that the target wrote; made again where it is missing or older than the target.
        own_scenes: Scenes in that file.
        own_questions: Questions about each, next to its caption.
        base: File with the small language model before it is tuned; made when it is missing.
        base_steps: Steps of its training on ground truth of every style.
        out: Folder of the finished drafter.
        projector_steps: Steps in which only the projector learns, on captions of every style.
        truth: Tune on ground truth of every style instead, to measure what the target's own answers are worth.
        hidden: Hidden size.
        layers: Number of layers.
        inner: Size of the feed-forward layers.
        rows: Pictures per step.
        shards: Shards of scenes in use for ground truth.
        shard_size: Scenes per shard.
        held: Held-out scenes on which acceptance is measured.
    """

    target: Path = Path(".cache/models/vision-target")
    begin: Path | None = None
    scenes: Path = Path(".cache/train/scenes")
    own: Path = Path(".cache/train/vision-own.json")
    own_scenes: int = 2000
    own_questions: int = 4
    base: Path = Path(".cache/train/vision-base.pt")
    base_steps: int = 150
    out: Path = Path(".cache/models/vision-drafter")
    checkpoint: Path | None = Path(".cache/train/vision-drafter.pt")
    projector_steps: int = 60
    minutes: float | None = 6.0
    truth: bool = False
    hidden: int = 96
    layers: int = 2
    inner: int = 192
    rows: int = 32
    shards: int = 24
    shard_size: int = 4096
    other_rate: float = 0.006
    seed: int = 2
    held: int = 40


@dataclass
class TextDrafterOptions(VisionDrafterOptions):
    """Options of the `vision-text-drafter` recipe: as above, without a projector."""

    out: Path = Path(".cache/models/vision-text-drafter")
    checkpoint: Path | None = Path(".cache/train/vision-text-drafter.pt")
    minutes: float | None = 2.0


def own_scenes(count: int) -> list[Scene]:
    """Return the training scenes that the target is asked about."""
    return list(islice(scenes(OWN_SEED, held_out=False), count))


def write_own_answers(options: VisionDrafterOptions, report: Report, rows: int = 64) -> None:
    """Generate the target's greedy captions and answers about training scenes, into `options.own`.

    The right answers serve as drafts: if one forward pass shows that the target would generate exactly that answer, it
    is used; only the others are generated.
    """
    target, processor = load_vision_model(options.target)
    target.set_attn_implementation(fast_attention())
    tokenizer = processor.tokenizer
    packer = Packer(tokenizer)
    drawn = own_scenes(options.own_scenes)
    rng = random.Random(f"own/{options.seed}")
    turns: list[list[RoundState]] = []
    clock = RunClock(minutes=1.0)
    same = 0
    for start in range(0, len(drawn), rows):
        part = drawn[start : start + rows]
        pictures = pictures_of(part)
        asked: list[list[RoundState]] = [
            [(worded(a.question, rng), a.answer) for a in ask_some(scene, options.own_questions, rng)] for scene in part
        ]
        packed = packer.pack(asked, [False] * len(part), [True] * len(part))
        with torch.inference_mode():
            best = target.lm_head(answer_states(target, packed, pictures)).argmax(-1)
        differs = (best != packed.labels) & (packed.labels >= 0)
        known = [packer.agree(row, differs[i].tolist()) for i, row in enumerate(asked)]
        for captions in (True, False):
            where = [
                (i, k) for i, row in enumerate(known) for k in range(len(row)) if not row[k] and (k == 0) == captions
            ]
            for some in (where[at : at + 128] for at in range(0, len(where), 128)):
                said = answer(
                    target,
                    tokenizer,
                    pictures[torch.tensor([i for i, _ in some])],
                    [asked[i][k][0] for i, k in some],
                    136 if captions else 40,
                )
                for (i, k), ids in zip(some, said, strict=True):
                    asked[i][k] = (asked[i][k][0], tokenizer.decode(ids, skip_special_tokens=True))
        turns += asked
        same += sum(map(sum, known))
        share = same / sum(map(len, turns))
        report(f"own answers: {len(turns)} of {len(drawn)} scenes, {share:.0%} true, {clock.seconds:.0f} s")
    options.own.parent.mkdir(parents=True, exist_ok=True)
    write_whole(options.own, json.dumps(turns).encode())


Batch = tuple[Packed, torch.Tensor]


def _truth_batches(options: VisionDrafterOptions, packer: Packer, captions: bool) -> Callable[[int], Batch]:
    """Return a function for batches of ground truth in every style; of captions only, or of captions and questions."""
    shards = Shards(options.scenes, 0, options.shard_size)

    def batch(step: int) -> Batch:
        drawn, pixels, _ = shards.batch(step, options.rows, options.shards)
        rng = random.Random(f"truth/{options.seed}/{step}")
        rows = []
        for scene in drawn:
            style = rng.randrange(3)
            asked = ask_some(scene, 0 if captions else options.own_questions, rng)
            rows.append([(worded(a.question, rng), a.answers[style]) for a in asked])
        seen = [packer.vision_tokens > 0] * len(rows)
        return packer.pack(rows, [False] * len(rows), seen), torch.from_numpy(normalised(pixels))

    return batch


def _own_batches(options: VisionDrafterOptions, packer: Packer) -> Callable[[int], Batch]:
    """Return a function for batches of the target's own answers."""
    turns: list[list[RoundState]] = [[(q, a) for q, a in row] for row in json.loads(options.own.read_text())]
    drawn = own_scenes(len(turns))
    pictures = pictures_of(drawn)

    def batch(step: int) -> Batch:
        turn, within = divmod(step * options.rows, len(turns))
        chosen = np.random.default_rng([options.seed, turn]).permutation(len(turns))[within : within + options.rows]
        seen = [packer.vision_tokens > 0] * len(chosen)
        packed = packer.pack([turns[i] for i in chosen], [False] * len(chosen), seen)
        return packed, pictures[torch.from_numpy(chosen)]

    return batch


def _blind_states(model: LlamaForCausalLM, packed: Packed) -> torch.Tensor:
    bias = torch.zeros(packed.mask.shape).masked_fill(~packed.mask, torch.finfo(torch.float32).min)
    return model.model(
        input_ids=packed.ids, attention_mask=bias, position_ids=packed.positions, use_cache=False
    ).last_hidden_state


def _run(
    name: str,
    model: LlamaForCausalLM | LlavaForConditionalGeneration,
    batch: Callable[[int], Batch],
    options: VisionDrafterOptions,
    report: Report,
) -> RunResult:
    """Train the weights of a drafter that require gradients on the answers of batches."""
    model.set_attn_implementation(fast_attention())
    optimizers = options.optimizers(model)
    model.train()

    def step_losses(step: int) -> tuple[int, dict[str, float]]:
        packed, images = batch(step)
        with half_precision():
            if isinstance(model, LlavaForConditionalGeneration):
                states = answer_states(model, packed, images)
            else:
                states = _blind_states(model, packed)
            asked = packed.labels >= 0
            logits = model.lm_head(states[asked])
        loss = F.cross_entropy(logits.float(), packed.labels[asked])
        loss.backward()
        return packed.ids.numel(), {"loss": float(loss.detach())}

    result = run_loop(options.loop(name), model, optimizers, step_losses, report)
    model.eval()
    return result


def _base_model(options: VisionDrafterOptions, tokenizer: PreTrainedTokenizerFast, report: Report) -> LlamaForCausalLM:
    """Return the small language model that is trained on questions and answers of every style; train it if needed."""
    model = LlamaForCausalLM(language_config(tokenizer, options.hidden, options.layers, options.inner))
    if options.base.exists():
        model.load_state_dict(torch.load(str(options.base), weights_only=True))
        return model
    seeded_weights(model, options.seed)
    phase = dataclasses.replace(options, steps=options.base_steps, checkpoint=None)
    _run("base", model, _truth_batches(options, Packer(tokenizer, 0, 1.0), False), phase, report)
    options.base.parent.mkdir(parents=True, exist_ok=True)
    with replacing(options.base) as part:
        torch.save(model.state_dict(), part)
    return model


def newer_than_weights(path: Path, folder: Path) -> bool:
    """Return whether a file was made after the weights of the model in `folder`."""
    return path.exists() and path.stat().st_mtime > max(w.stat().st_mtime for w in folder.glob("*.safetensors"))


def _prepared(options: VisionDrafterOptions, report: Report) -> PreTrainedTokenizerFast:
    """Prepare the data of both drafters: the tokenizer, and the target's own answers on disk."""
    torch.set_num_threads(options.threads)
    if not newer_than_weights(options.own, options.target):
        write_own_answers(options, report)
    return load_tokenizer(options.target)


def train_text_drafter(options: TextDrafterOptions, report: Report) -> RunResult:
    """Train the text-only drafter and write it to `options.out`."""
    tokenizer = _prepared(options, report)
    if options.begin is None:
        model = _base_model(options, tokenizer, report)
    else:
        model = LlamaForCausalLM.from_pretrained(str(options.begin), dtype=torch.float32)
    packer = Packer(tokenizer, 0, 1.0)
    batch = _truth_batches(options, packer, False) if options.truth else _own_batches(options, packer)
    result = _run("vision-text-drafter", model, batch, options, report)
    result.held = acceptance(options.target, model, options.held)
    save_model(model, tokenizer, options.out, {"target": options.target.name})
    return result


def train_vision_drafter(options: VisionDrafterOptions, report: Report) -> RunResult:
    """Train the drafter that reads the image and write it to `options.out`."""
    tokenizer = _prepared(options, report)
    packer = Packer(tokenizer, short_weight=1.0)
    tower = load_vision_model(options.target)[0].model.vision_tower
    held: dict[str, float] = {}
    if options.begin is not None:
        model, _ = load_vision_model(options.begin)
        model.model.vision_tower.load_state_dict(tower.state_dict())
    else:
        model = _before_tuning(options, tower, tokenizer, packer, held, report)
    model.model.language_model.requires_grad_(True)
    model.model.multi_modal_projector.requires_grad_(True)
    batch = _truth_batches(options, packer, False) if options.truth else _own_batches(options, packer)
    result = _run("vision-drafter", model, batch, options, report)
    result.held = held | acceptance(options.target, model, options.held)
    _phase("tuned", result.held, report)
    config: Any = model.config
    config.target = options.target.name
    save_vision_model(model, tokenizer, options.out)
    return result


def _before_tuning(
    options: VisionDrafterOptions,
    tower: Any,
    tokenizer: PreTrainedTokenizerFast,
    packer: Packer,
    held: dict[str, float],
    report: Report,
) -> LlavaForConditionalGeneration:
    """Return that drafter after its first phase: the target's frozen tower, and a projector that was trained alone."""
    base = _base_model(options, tokenizer, report)
    language = language_config(tokenizer, options.hidden, options.layers, options.inner)
    model = LlavaForConditionalGeneration(vision_language_config(tokenizer, tower.config, language))
    seeded_weights(model, options.seed + 1)
    model.model.vision_tower.load_state_dict(tower.state_dict())
    model.model.language_model.load_state_dict(base.model.state_dict())
    model.tie_weights()
    model.requires_grad_(False)
    if not options.resume:
        held |= _phase("base, blind", acceptance(options.target, base, options.held), report)
        model.model.multi_modal_projector.requires_grad_(True)
        phase = dataclasses.replace(options, steps=options.projector_steps, checkpoint=None)
        _run("projector", model, _truth_batches(options, packer, True), phase, report)
        held |= _phase("projector", acceptance(options.target, model, options.held), report)
    return model


def _phase(name: str, figures: dict[str, float], report: Report) -> dict[str, float]:
    report(f"acceptance, {name}: " + " ".join(f"{kind} {value:.3f}" for kind, value in figures.items()))
    return {f"{name}: {kind}": value for kind, value in figures.items()}


@torch.inference_mode()
def acceptance(
    target_folder: Path, drafter: nn.Module, count: int, kinds: Sequence[str] = tuple(QUESTIONS)
) -> dict[str, float]:
    """Return the share of the tokens of the target's greedy answers that are the drafter's top-1 token, by kind.

    Args:
        target_folder: Folder of the target.
        drafter: A text-only `LlamaForCausalLM` or a `LlavaForConditionalGeneration`.
        count: Held-out scenes.
        kinds: Kinds of question.
    """
    target, processor = load_vision_model(target_folder)
    tokenizer = processor.tokenizer
    sees = isinstance(drafter, LlavaForConditionalGeneration)
    packer = Packer(tokenizer, short_weight=1.0) if sees else Packer(tokenizer, 0, 1.0)
    drawn = held_scenes(count)
    hits: dict[str, list[bool]] = {kind: [] for kind in kinds}
    for group in ([kind for kind in kinds if kind == "caption"], [kind for kind in kinds if kind != "caption"]):
        pairs = [(scene, asked) for kind in group for scene, asked in zip(*ask_all(drawn, kind, seed=1), strict=True)]
        for start in range(0, len(pairs), 64):
            part = pairs[start : start + 64]
            pictures = pictures_of([scene for scene, _ in part])
            questions = [asked.question for _, asked in part]
            said = answer(target, tokenizer, pictures, questions, 136 if group == ["caption"] else 40)
            rows: list[list[RoundState]] = [[turn] for turn in zip(questions, said, strict=True)]
            packed = packer.pack(rows, [False] * len(rows), [sees] * len(rows))
            if isinstance(drafter, LlavaForConditionalGeneration):
                states = answer_states(drafter, packed, pictures)
            elif isinstance(drafter, LlamaForCausalLM):
                states = _blind_states(drafter, packed)
            else:
                raise TypeError(f"not a drafter: {type(drafter).__name__}")
            best = drafter.lm_head(states).argmax(-1)
            for i, (_, asked) in enumerate(part):
                wanted = packed.labels[i] >= 0
                hits[asked.kind] += (best[i] == packed.labels[i])[wanted].tolist()
    result = {kind: sum(found) / len(found) for kind, found in hits.items() if found}
    flat = [hit for found in hits.values() for hit in found]
    return result | {"all": sum(flat) / len(flat)}
