"""The bundled draft model as target, and as drafter a copy of it with other ids for the same tokens."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from workbench.engine import Models, Runner
from workbench.models.bundle import bundled
from workbench.models.other_vocabulary import OtherVocabularyDrafter
from workbench.models.pretrained import load_model, load_tokenizer

NAME = "omnidraft"
needs_bundle = pytest.mark.skipif("text-drafter" not in bundled(), reason="needs the bundled models")


def shuffled_vocabulary_models(work: Path) -> Models:
    """Return the bundled draft model as target, and a copy with shuffled token ids as drafter of another vocabulary.

    Args:
        work: an empty folder.
    """
    folder = Path(bundled()["text-drafter"])
    model, tokenizer = load_model("text-drafter", torch.device("cpu"), torch.float64), load_tokenizer("text-drafter")
    size = model.config.vocab_size
    number = list(range(size))
    random.Random(7).shuffle(number)
    text = json.loads((folder / "tokenizer.json").read_text())
    text["model"]["vocab"] = {word: number[i] for word, i in text["model"]["vocab"].items()}
    for added in text["added_tokens"]:
        added["id"] = number[added["id"]]
    path = work / "tokenizer.json"
    path.write_text(json.dumps(text))
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(path), eos_token=tokenizer.eos_token)
    shared_copy = copy.deepcopy(model)
    for weight in {
        id(w): w for w in (shared_copy.get_input_embeddings().weight, shared_copy.get_output_embeddings().weight)
    }.values():
        weight.data[torch.tensor(number)] = weight.data.clone()
    models = Models(Runner(model), tokenizer, "text-drafter")
    models.other_vocabulary_drafter = OtherVocabularyDrafter(Runner(shared_copy), theirs, "renumbered")
    return models
