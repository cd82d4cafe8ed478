"""Training of the bundled vision-language model on rendered scenes, end to end from a pretrained tower."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlavaForConditionalGeneration, PreTrainedTokenizerFast

from workbench.scenes.scene import COLOURS, SHAPES, Scene
from workbench.scenes.tasks import ask_some
from workbench.training.loop import Report, RunOptions, RunResult
from workbench.training.models import build_optimizers, fast_attention, half_precision
from workbench.training.scenes.data import ASPECTS, PatchLabels, Shards, jitter_images, normalise_pixels, patch_labels
from workbench.training.scenes.evaluate import quick_check
from workbench.training.scenes.model import (
    language_config,
    load_vision_model,
    save_vision_model,
    vision_language_config,
)
from workbench.training.scenes.packing import NO_IMAGE_ANSWER, ChatTurn, Packed, Packer, vary_wording
from workbench.training.scenes.pointing import Pointer
from workbench.training.scenes.tower import PatchReader, load_tower, reading_loss, seeded_weights
from workbench.training.tokenizer import load_tokenizer
from workbench.training.trainer import Step, StepLoss, Trainer


@dataclass
class VisionOptions(RunOptions):
    """Options of the `vision-target` recipe, besides those of `RunOptions`.

    Attributes:
        tower: File of the trained vision tower, from the `vision-tower` recipe.
        begin: Folder of a finished model to continue from, instead of the tower and random initial weights.
        tokenizer: Folder with the tokenizer of the bundled text models.
        scenes: Folder of rendered scenes; missing scenes are rendered.
        out: Folder of the finished model; also written at every checkpoint.
        hidden: Hidden size of the language model.
        layers: Number of decoder layers of the language model.
        inner: Intermediate size of the language model's MLP.
        rows: Batch size: images per step.
        questions: Number of questions per image, besides its caption.
        favoured: Kinds of question that are asked five times as often as other kinds, separated by commas.
        shards: Number of shards of scenes to use.
        shard_size: Number of scenes per shard.
        captioned: Share of the images for which a caption is requested, too.
        chained: Share of the images whose questions form one conversation.
        unseen: Share of the training samples whose image is left out.
        tower_rate: Factor on both learning rates for the vision tower.
        reading_rows: Further images per step, on which the tower predicts what each patch shows; an auxiliary loss.
        reading: Weight of the auxiliary loss on what each patch shows (see `reading_rows`).
        pointing: Weight of a loss on the attention of two heads, which should attend to the object that a question
            names.
        naming: Weight of a loss on the images of `reading_rows`: each patch's projected embedding should be similar to
            the word embeddings of its colour and shape. This loss alone did not teach the bundled model to find objects
            by their shapes; `pointing` did.
        decay: Share of the run, at its end, in which the learning rate decreases.
        check_scenes: Number of held-out scenes that are described at every checkpoint.
    """

    tower: Path = Path(".cache/train/vision-tower.pt")
    begin: Path | None = None
    tokenizer: Path = Path("assets/models/text-target")
    scenes: Path = Path(".cache/train/scenes")
    out: Path = Path(".cache/models/vision-target")
    checkpoint: Path | None = Path(".cache/train/vision-target.pt")
    minutes: float | None = 40.0
    hidden: int = 256
    layers: int = 5
    inner: int = 512
    rows: int = 16
    questions: int = 6
    favoured: tuple[str, ...] = ()
    shards: int = 24
    shard_size: int = 4096
    captioned: float = 1.0
    chained: float = 0.1
    unseen: float = 0.02
    other_rate: float = 0.003
    tower_rate: float = 0.2
    reading_rows: int = 32
    reading: float = 0.1
    pointing: float = 0.3
    naming: float = 0.0
    seed: int = 1
    checkpoint_seconds: float = 240.0
    decay: float = 0.4
    check_scenes: int = 32


@dataclass(frozen=True)
class SceneQuestions:
    """Training questions about scenes, one list per scene.

    Attributes:
        turns: For each scene the questions with their plain answers.
        chained: For each scene, whether its questions form one conversation.
        with_image: For each scene, whether the sequence contains the image.
        named_objects: For each question, the objects that it names.
    """

    turns: list[list[ChatTurn]]
    chained: list[bool]
    with_image: list[bool]
    named_objects: list[list[tuple[int, ...]]]


def draw_questions(scene_list: Sequence[Scene], options: VisionOptions, seed: str) -> SceneQuestions:
    """Generate the training questions about scenes."""
    rng = random.Random(seed)
    rows = SceneQuestions([], [], [], [])
    for scene in scene_list:
        questions = ask_some(scene, options.questions, rng, options.favoured)
        if rng.random() >= options.captioned:
            del questions[0]
        is_chained, has_image = rng.random() < options.chained, rng.random() >= options.unseen
        if is_chained:
            rng.shuffle(questions)
        rows.turns.append(
            [(vary_wording(a.question, rng), a.answer if has_image else NO_IMAGE_ANSWER) for a in questions]
        )
        rows.chained.append(is_chained)
        rows.with_image.append(has_image)
        rows.named_objects.append([a.named if has_image else () for a in questions])
    return rows


def answer_states(model: LlavaForConditionalGeneration, packed: Packed, images: Tensor | None) -> Tensor:
    """Return the language model's last hidden states for a batch, [B, T, D].

    Args:
        model: The vision-language model.
        packed: Batch of packed sequences.
        images: Images of the sequences that have one, float32 [n, 3, 64, 64].
    """
    trunk = model.model
    embeds = trunk.language_model.embed_tokens(packed.ids)
    if images is not None and len(images):
        states = trunk.vision_tower(images, output_hidden_states=True).hidden_states[-1]
        features = trunk.multi_modal_projector(states)
        embeds = embeds.masked_scatter(packed.is_image[..., None], features.to(embeds.dtype))
    bias = torch.zeros(packed.mask.shape).masked_fill(~packed.mask, torch.finfo(torch.float32).min)
    return trunk.language_model(
        inputs_embeds=embeds, attention_mask=bias, position_ids=packed.positions, use_cache=False
    ).last_hidden_state


def build_vision_model(options: VisionOptions) -> LlavaForConditionalGeneration:
    """Build the model with the pretrained tower and a new projector and language model, or load a finished one."""
    if options.begin is not None:
        model, _ = load_vision_model(options.begin)
        model.set_attn_implementation(fast_attention())
        return model.requires_grad_(True).train()
    tokenizer = load_tokenizer(options.tokenizer)
    tower = load_tower(options.tower)
    language = language_config(tokenizer, options.hidden, options.layers, options.inner)
    model = LlavaForConditionalGeneration(vision_language_config(tokenizer, tower.config, language))
    seeded_weights(model, options.seed)
    model.model.vision_tower.load_state_dict(tower.state_dict())
    model.set_attn_implementation(fast_attention())
    return model


def vision_optimizers(
    model: LlavaForConditionalGeneration, reader: PatchReader, options: VisionOptions
) -> list[torch.optim.Optimizer]:
    """Return the optimizers: language model, projector and patch reader at full rates, vision tower at lower rates."""
    trunk = model.model
    others = nn.ModuleDict({"projector": trunk.multi_modal_projector, "language": trunk.language_model})
    if options.reading_rows:
        others.update({"norm": reader.norm, "read": reader.read})
    factor = options.tower_rate
    return [
        *build_optimizers(others, options.matrix_rate, options.other_rate),
        *build_optimizers(trunk.vision_tower, factor * options.matrix_rate, factor * options.other_rate),
    ]


SHARPNESS = 16.0
"""Factor on the cosine similarities of patches and words in the naming loss (an inverse temperature)."""


def embed_words(tokenizer: PreTrainedTokenizerFast, model: LlavaForConditionalGeneration) -> dict[str, Tensor]:
    """Return the token embeddings of the colour words and of the shape words (first token of each), [words, D]."""
    embedding = model.model.language_model.embed_tokens
    return {
        aspect: embedding(torch.tensor([tokenizer.encode(f" {word}", add_special_tokens=False)[0] for word in names]))
        for aspect, names in (("colour", COLOURS), ("shape", SHAPES))
    }


def naming_loss(vision: Tensor, word_embeddings: dict[str, Tensor], labels: PatchLabels) -> Tensor:
    """Return the cross-entropy of colours and shapes, predicted by the cosines between patches and words.

    All items of a scene have equal weights.

    Args:
        vision: The projector's output for the patches, [n, 64, D].
        word_embeddings: Embeddings of the words by aspect, [words, D].
        labels: Labels of the patches.
    """
    losses = []
    for aspect, embeddings in word_embeddings.items():
        answers = torch.from_numpy(labels.answers[..., list(ASPECTS).index(aspect)])
        has_label = answers >= 0
        scores = F.normalize(vision[has_label].float(), dim=-1) @ F.normalize(embeddings.float(), dim=-1).mT
        weight = torch.from_numpy(labels.weights)[has_label]
        patch_losses = F.cross_entropy(SHARPNESS * scores, answers[has_label], reduction="none")
        losses.append((patch_losses * weight).sum() / weight.sum())
    return torch.stack(losses).sum()


def train_vision(options: VisionOptions, report: Report) -> RunResult:
    """Train the vision-language model and write it to `options.out`."""
    torch.set_num_threads(options.threads)
    tokenizer = load_tokenizer(options.tokenizer)
    model = build_vision_model(options)
    reader = PatchReader(model.model.vision_tower.config)
    seeded_weights(reader, options.seed)
    reader.tower = model.model.vision_tower
    optimizers = vision_optimizers(model, reader, options)
    pointer = Pointer(model, tokenizer) if options.pointing else None
    shards = Shards(options.scenes, 0, options.shard_size)
    packer = Packer(tokenizer)

    def losses(step: Step) -> Iterator[StepLoss]:
        yield question_loss(step.number)
        if options.reading_rows:
            yield auxiliary_loss(step.number)

    def question_loss(step: int) -> StepLoss:
        scene_list, pixels, maps = shards.batch(step, options.rows, options.shards)
        rows = draw_questions(scene_list, options, f"{options.seed}/{step}")
        packed = packer.pack(rows.turns, rows.chained, rows.with_image)
        images = torch.from_numpy(jitter_images(normalise_pixels(pixels), (options.seed, step, 2)))[
            torch.tensor(rows.with_image)
        ]
        with half_precision():
            states = answer_states(model, packed, images)
            is_answer = packed.labels >= 0
            logits = model.lm_head(states[is_answer])
        labels, weights = packed.labels[is_answer], packed.weights[is_answer]
        token_losses = F.cross_entropy(logits.float(), labels, reduction="none")
        loss = (token_losses * weights).sum() / weights.sum()
        pointing_loss = pointer.loss(packed, rows.named_objects, scene_list, maps) if pointer else torch.zeros(())
        is_short = weights > 1
        figures = {
            name: float(token_losses[mask].detach().mean())
            for name, mask in (("caption", ~is_short), ("short", is_short))
            if mask.any()
        }
        figures = {"loss": float(loss.detach()), **figures}
        if pointer:
            figures["pointing"] = float(pointing_loss.detach())
        return StepLoss(loss + options.pointing * pointing_loss, packed.ids.numel(), figures)

    def auxiliary_loss(step: int) -> StepLoss:
        scene_list, pixels, item_maps = shards.batch(step, options.reading_rows, options.shards)
        images = jitter_images(normalise_pixels(pixels), (options.seed, step, 3))
        labels = patch_labels(scene_list, item_maps)
        with half_precision():
            states = reader.states(torch.from_numpy(images))
            scores, vision = reader.read_states(states), model.model.multi_modal_projector(states)
        loss, accuracy = reading_loss(scores, labels)
        naming = naming_loss(vision, embed_words(tokenizer, model), labels) if options.naming else torch.zeros(())
        figures = {
            name: accuracy[name] for name in ("colour", "shape", "rank", "relation", "place") if name in accuracy
        }
        total = options.reading * loss + options.naming * naming
        return StepLoss(total, 0, {"naming": float(naming.detach()), **figures})

    further = {"norm": reader.norm, "read": reader.read} if options.reading_rows else None
    trained = nn.ModuleDict({"model": model, **further}) if further else model
    return Trainer(
        "vision-target",
        options,
        trained,
        losses,
        report,
        evaluate=lambda: quick_check(model, tokenizer, options.check_scenes),
        save=lambda: save_vision_model(model, tokenizer, options.out),
        optimizers=optimizers,
        decay=options.decay,
    ).run()
