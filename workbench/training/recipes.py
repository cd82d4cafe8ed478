"""The registry of training recipes: names, typed options, and how to run one.

>>> "eagle" in RECIPES, "tokenizer" in RECIPES
(True, True)
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from transformers.utils import logging as transformers_logging

from workbench.training import acceptance, judge, masked_diffusion
from workbench.training.acceptance import AcceptanceOptions, train_acceptance
from workbench.training.answers import AnswersOptions, write_answers
from workbench.training.corpus import DEFAULT_DATA, build_documents, pack_corpus
from workbench.training.distill import DrafterOptions, train_drafter
from workbench.training.evaluate import EvaluateOptions, evaluate
from workbench.training.family.drafter import ChatDrafterOptions, train_chat_drafter
from workbench.training.family.evaluate import ChatEvaluateOptions, evaluate_drafters
from workbench.training.family.heads import train_chat_heads
from workbench.training.family.options import (
    ChatHeadOptions,
    chat_head_kinds,
    choose_chat_head_options,
    combine_options,
    options_class,
)
from workbench.training.family.pipeline import pipeline_options, run_pipeline
from workbench.training.family.readings import ReadingsOptions, make_readings
from workbench.training.family.throughput import choose_throughput_options, measure_throughput, throughput_options
from workbench.training.heads.recipe import choose_vision_options, train_vision_heads
from workbench.training.judge import JudgeOptions, train_judge
from workbench.training.known_recipes import refuse_finished_study
from workbench.training.loop import Report
from workbench.training.masked_diffusion import MaskedDiffusionOptions, train_masked_diffusion
from workbench.training.models import save_tokenizer
from workbench.training.pretrain import PretrainOptions, pretrain
from workbench.training.recipe import Recipe, head_recipes, training_recipe
from workbench.training.resuming import resolve_resume
from workbench.training.scenes.drafters import (
    TextDrafterOptions,
    VisionDrafterOptions,
    train_text_drafter,
    train_vision_drafter,
)
from workbench.training.scenes.gallery import GalleryOptions, write_gallery
from workbench.training.scenes.report import VisionEvaluateOptions, evaluate_vision
from workbench.training.scenes.tower import TowerOptions, train_tower
from workbench.training.scenes.train import VisionOptions, train_vision
from workbench.training.tokenizer import VOCAB_SIZE, load_tokenizer, train_tokenizer


@dataclass
class TokenizerOptions:
    """Options of the `tokenizer` recipe.

    Attributes:
        data: Folder with the public training text; missing files are skipped.
        out: Folder of the tokenizer.
        tokens: Size of the training mixture in tokens; the tokenizer is trained on a sixth of its documents.
        vocab_size: Vocabulary size.
        seed: Seed of the training mixture.
    """

    data: Path = DEFAULT_DATA
    out: Path = Path(".cache/train/tokenizer")
    tokens: int = 24_000_000
    vocab_size: int = VOCAB_SIZE
    seed: int = 0


@dataclass
class CorpusOptions:
    """Options of the `corpus` recipe.

    Attributes:
        data: Folder with the public training text; missing files are skipped.
        tokenizer: Folder written by the `tokenizer` recipe.
        out: Output folder of the packed corpus.
        tokens: Approximate number of training tokens.
        seed: Seed of the training mixture.
    """

    data: Path = DEFAULT_DATA
    tokenizer: Path = Path(".cache/train/tokenizer")
    out: Path = Path(".cache/train/corpus")
    tokens: int = 24_000_000
    seed: int = 0


def _tokenizer(options: TokenizerOptions, report: Report) -> dict[str, Any]:
    documents, _ = build_documents(options.data, options.tokens, options.seed, report)
    tokenizer = train_tokenizer(documents[: max(1, len(documents) // 6)], options.vocab_size)
    save_tokenizer(tokenizer, options.out)
    report(f"tokenizer: {len(tokenizer)} entries in {options.out}")
    return {"entries": len(tokenizer), "out": str(options.out)}


def _corpus(options: CorpusOptions, report: Report) -> dict[str, Any]:
    documents, held = build_documents(options.data, options.tokens, options.seed, report)
    pack_corpus(load_tokenizer(options.tokenizer), documents, held, options.out, options.seed, report)
    return json.loads((options.out / "corpus.json").read_text())


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in [
        Recipe(
            "tokenizer",
            "the bundled tokenizer: byte-level BPE of 4,096 entries, trained on the mixture of training texts",
            TokenizerOptions,
            _tokenizer,
        ),
        Recipe(
            "corpus",
            "the mixture of training texts for the bundled models, packed into token files",
            CorpusOptions,
            _corpus,
        ),
        Recipe(
            "answers",
            "answers of a chat model to training prompts, as training data of its drafters",
            AnswersOptions,
            write_answers,
        ),
        training_recipe(
            "acceptance",
            "SpecDec++'s acceptance head for a draft model, trained on answers of its target",
            AcceptanceOptions,
            train_acceptance,
            acceptance.card,
        ),
        training_recipe(
            "judge",
            "Judge Decoding's linear judge, trained on token replacements that make an answer wrong and on "
            "harmless ones",
            JudgeOptions,
            train_judge,
            judge.card,
        ),
        Recipe(
            "readings",
            "hidden states of a chat model over its own answers (readings), as training data of its drafters",
            ReadingsOptions,
            make_readings,
        ),
        training_recipe(
            "chat-drafter",
            "a draft model with a reduced vocabulary for a chat model, distilled from its hidden states (`readings`)",
            ChatDrafterOptions,
            train_chat_drafter,
        ),
        training_recipe(
            "chat-heads",
            "drafting heads for a chat model, trained on its hidden states (`readings`): method=eagle, eagle-3, "
            "medusa, hydra, kangaroo …",
            combine_options(ChatHeadOptions, {kind: options_class(kind) for kind in chat_head_kinds()}),
            train_chat_heads,
            choose_options=choose_chat_head_options,
        ),
        Recipe(
            "chat-evaluate",
            "acceptance of a chat model's drafters by draft position, measured in decoding, and their model cards",
            ChatEvaluateOptions,
            evaluate_drafters,
        ),
        Recipe(
            "throughput",
            "training speed of a drafting head on this machine: tokens per second, and share of the peak "
            "matrix-product speed",
            throughput_options(),
            measure_throughput,
            choose_throughput_options,
        ),
        training_recipe("target", "the bundled target (13 M parameters, early-exit loss)", PretrainOptions, pretrain),
        training_recipe(
            "drafter",
            "the bundled drafter (0.7 M parameters), distilled from the target",
            DrafterOptions,
            train_drafter,
        ),
        Recipe(
            "evaluate",
            "evaluation of the bundled text models: exact match, held-out loss and acceptance",
            EvaluateOptions,
            evaluate,
        ),
        Recipe(
            "vision-tower",
            "the vision tower of the bundled vision-language target, trained to predict the content of each "
            "image patch",
            TowerOptions,
            lambda options, report: dataclasses.asdict(train_tower(options, report)),
        ),
        training_recipe(
            "vision-target",
            "the bundled vision-language target (5 M parameters, LLaVA layout), trained on rendered scenes",
            VisionOptions,
            train_vision,
        ),
        training_recipe(
            "vision-text-drafter",
            "the text-only drafter of the vision-language target, tuned on the target's own answers",
            TextDrafterOptions,
            train_text_drafter,
        ),
        training_recipe(
            "vision-drafter",
            "the draft model with image input (MASSV): the target's vision tower, a new projector and a small "
            "language model",
            VisionDrafterOptions,
            train_vision_drafter,
        ),
        Recipe(
            "vision-evaluate",
            "evaluation of the vision-language target (exact match) and its drafters (acceptance) on held-out scenes",
            VisionEvaluateOptions,
            evaluate_vision,
        ),
        Recipe(
            "vision-heads",
            "heads of the vision-language target (EagleVLM, MSD, SpecVLM or FLASH), trained on the target's own "
            "answers",
            choose_vision_options({}),
            train_vision_heads,
            choose_vision_options,
        ),
        training_recipe(
            "diffusion-target",
            "a masked-diffusion model that fills in the masked answers of generated tasks",
            MaskedDiffusionOptions,
            train_masked_diffusion,
            masked_diffusion.card,
        ),
        Recipe(
            "vision-gallery",
            "the gallery of held-out scenes that the app's Vision page shows",
            GalleryOptions,
            write_gallery,
        ),
    ]
}


RECIPES |= {
    kind: Recipe(
        kind,
        f"{kind} heads for any target in one command: generates answers, computes hidden states, trains, writes "
        f"a model card",
        pipeline_options(kind),
        partial(run_pipeline, kind),
    )
    for kind in chat_head_kinds()
    if kind not in RECIPES
}


def run(name: str, options: dict[str, Any], report: Report) -> dict[str, Any]:
    """Run a training recipe.

    Args:
        name: Name of the recipe.
        options: The recipe's options by name; missing options and `None` take their defaults, strings are converted.
            Without the option `resume` the recipe continues from its checkpoint if there is one.
        report: Function that receives progress lines.

    Returns:
        The measured metrics.

    Raises:
        ValueError: the recipe or an option is unknown.
        WorkbenchError: a head declares a recipe that cannot be run.
        UnknownNameError: the recipe was a study that is finished.
        ParameterError: the recipe's checkpoint was trained with other settings.
    """
    refuse_finished_study(name)
    recipes = RECIPES if name in RECIPES else RECIPES | head_recipes(RECIPES)
    if name not in recipes:
        raise ValueError(f"there is no recipe {name!r}; the recipes are: {', '.join(recipes)}")
    recipe = recipes[name]
    transformers_logging.disable_progress_bar()
    parsed = recipe.parse(options)
    if unused := recipe.unused_options(options):
        report(f"{name}: {parsed.method} does not use {', '.join(unused)}")
    return recipe.run(resolve_resume(parsed, options, report), report)
