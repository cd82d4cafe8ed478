"""Evaluation of a vision-language model: answers about held-out scenes are compared with the right answers."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from transformers import LlavaForConditionalGeneration, PreTrainedTokenizerFast

from workbench.models.chat_markers import ASSISTANT, END, IMAGE, USER
from workbench.scenes.draw import paint
from workbench.scenes.held import CAPTION_TOKENS, held_scenes
from workbench.scenes.scene import Scene
from workbench.scenes.tasks import QUESTIONS, Ask, ask, read_caption
from workbench.training.graded_answers import GradedAnswer, generate_batch, grade, share_right
from workbench.training.scenes.data import normalise_pixels
from workbench.training.scenes.model import VISION_TOKENS
from workbench.training.tokenizer import PAD, token_id


def generate_answers(
    model: LlavaForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    images: torch.Tensor,
    questions: Sequence[str],
    max_new_tokens: int,
) -> list[list[int]]:
    """Return the model's greedy answers as token ids without padding; EOS is included if it was generated.

    Args:
        model: Model that answers.
        tokenizer: Tokenizer of the model.
        images: Normalised images, one per question, float32 [n, 3, 64, 64].
        questions: Question about each image.
        max_new_tokens: Maximum length of an answer, in tokens.
    """
    user, reply, end, image, pad = (token_id(tokenizer, t) for t in (USER, ASSISTANT, END, IMAGE, PAD))
    rows = [
        [user, *[image] * VISION_TOKENS, *tokenizer.encode(text, add_special_tokens=False), reply] for text in questions
    ]
    return generate_batch(model, rows, max_new_tokens, end, pad, pixel_values=images.to(model.dtype))


def answer_texts(
    model: LlavaForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    scene_list: Sequence[Scene],
    question_list: Sequence[Ask],
    rows: int = 50,
) -> list[str]:
    """Return the texts of the model's greedy answers to one question about each scene."""
    texts: list[str] = []
    for start in range(0, len(scene_list), rows):
        part, questions = scene_list[start : start + rows], question_list[start : start + rows]
        longest = CAPTION_TOKENS if any(a.kind == "caption" for a in questions) else 40
        answers = generate_answers(model, tokenizer, render_images(part), [a.question for a in questions], longest)
        texts += [str(tokenizer.decode(ids, skip_special_tokens=True)) for ids in answers]
    return texts


def render_images(scene_list: Sequence[Scene]) -> torch.Tensor:
    """Return the images of scenes in the model's input format, float32 [n, 3, 64, 64]."""
    return torch.from_numpy(normalise_pixels(np.stack([paint(scene)[0] for scene in scene_list])))


def caption_scores(captions: Sequence[str], questions: Sequence[Ask]) -> dict[str, float]:
    """Compare captions with the correct ones, object by object from the left.

    A missing or additional object counts as wrong in every attribute.

    Returns:
        Share of right answers by attribute, of captions with the right number of objects, and of captions that match
        exactly.
    """
    right: dict[str, int] = defaultdict(int)
    total: dict[str, int] = defaultdict(int)
    for text, question in zip(captions, questions, strict=True):
        predicted, expected = read_caption(text), read_caption(question.answer)
        right["caption"] += text == question.answer
        right["objects"] += len(predicted) == len(expected)
        total["caption"] += 1
        total["objects"] += 1
        for i in range(max(len(predicted), len(expected))):
            for attribute in ("colour", "shape", "size", "place", "relation"):
                if attribute == "relation" and i == 0:
                    continue
                total[attribute] += 1
                if i < len(predicted) and i < len(expected):
                    right[attribute] += getattr(predicted[i], attribute) == getattr(expected[i], attribute)
    return {name: right[name] / total[name] for name in sorted(total)}


def ask_all(scene_list: Sequence[Scene], kind: str, seed: int = 0) -> tuple[list[Scene], list[Ask]]:
    """Return the scenes to which a kind of question applies, and a question of this kind about each scene."""
    rng = random.Random(f"{kind}/{seed}")
    pairs = [(scene, question) for scene in scene_list if (question := ask(kind, scene, rng))]
    return [scene for scene, _ in pairs], [question for _, question in pairs]


def answer_scenes(
    model: LlavaForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, scene_list: Sequence[Scene], kind: str
) -> list[GradedAnswer[Ask]]:
    """Return the model's answers to one kind of question about every scene to which it applies."""
    fitting, questions = ask_all(scene_list, kind)
    texts = answer_texts(model, tokenizer, fitting, questions)
    return grade(questions, texts, lambda question, text: text == question.answer)


def evaluate_scenes(
    model: LlavaForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    scene_list: Sequence[Scene],
    kinds: Sequence[str] = tuple(QUESTIONS),
) -> dict[str, float]:
    """Return a vision-language model's shares of right answers: per attribute in captions, and per kind of question."""
    results: dict[str, float] = {}
    for kind in kinds:
        answers = answer_scenes(model, tokenizer, scene_list, kind)
        if kind == "caption":
            scores = caption_scores([answer.text for answer in answers], [answer.problem for answer in answers])
            results |= {f"caption: {name}": value for name, value in scores.items()}
        elif answers:
            results[kind] = share_right(answers)
    return results


def quick_check(
    model: LlavaForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, count: int
) -> dict[str, float]:
    """Return the shares of right answers on `count` held-out scenes, for captions and some kinds of short questions."""
    kinds = ("caption", "colour", "count", "place", "reading", "relation")
    return evaluate_scenes(model, tokenizer, held_scenes(count), kinds)
