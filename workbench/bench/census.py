"""Census of model families: whether each causal language model of transformers can be decoded here, or is refused.

The list is transformers' own mapping, so that a new version adds its new families. For each family a tiny random model
is built and checked like a target at loading (`workbench.models.model_self_test`). A model that passes then generates
greedy text, by draft trees and by a chain, which must equal that of Hugging Face's `generate`. For families that cannot
be built, the board gives the reason; such families do not count.
"""

from __future__ import annotations

import datetime
import json
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging as hf_logging

from workbench.bench import board
from workbench.bench.check import check_greedy, one_thread
from workbench.bench.families import random_model
from workbench.bench.finding import PASS
from workbench.bench.forced_acceptance import noisy_copy
from workbench.bench.markdown import markdown_table as table
from workbench.bench.tiny_config import tiny_config
from workbench.core.errors import ModelError
from workbench.engine import Models, Runner
from workbench.methods import registry
from workbench.models.admission import admit
from workbench.trace.files import write_atomically

BOARD = "families"
EQUAL, CHAINS, REFUSED, DIFFERS = "equal", "equal in chains", "refused", "differs"
NOT_BUILT, NOT_CHECKED = "not built yet", "not tested yet"
MEANINGS = {
    EQUAL: "greedy text decoded with draft trees and with draft chains equals that of `generate`, token for token",
    CHAINS: "greedy text decoded with draft chains equals that of `generate`; methods with draft trees are "
    "refused before the run",
    REFUSED: "models of the family are refused at loading, for the reason given",
    DIFFERS: "passes the self-test, but its text differs from that of `generate`: an error",
    NOT_BUILT: "no tiny random model of the family could be built, for the reason given",
    NOT_CHECKED: "`workbench check --families` has not tested the family yet",
}
LARGEST = 10_000_000
"""Largest number of parameters of a model that the census builds."""
PROMPTS = ((5, 9, 13, 9, 5, 9, 13, 21, 5, 9), tuple((3 + 7 * i) % 61 for i in range(24)))
"""Token ids of two prompts: one that repeats itself, for methods that copy from the text, and one that does not."""
NEW_TOKENS = 16
NOISE = 0.1
"""Noise that turns a copy of the target into its drafter, relative to the weights' standard deviation.

The noise is so small that drafts are often accepted.

A wrong tree position is only visible in accepted drafts, and it changes few of a random model's top tokens: with 0.2,
MPT's wrongly decoded trees, which the self-test rejects, generated the same twelve tokens as `generate`.
"""
TREE, CHAIN = "draft-tree", "draft-model"
WIDE = {"width": 6, "depth": 4, "nodes": 40}
"""Shape of the second draft tree that each family decodes, besides the default one.

With many siblings, the cache slot of a node differs much from its position in the text.
"""
LONGEST_REASON = 200


@dataclass(frozen=True, slots=True)
class Entry:
    """Result of the tests of one model family (census).

    Attributes:
        family: `model_type` of the family in transformers.
        model: class name of the family's causal language model.
        verdict: a key of `MEANINGS`.
        why: reason for a verdict other than `EQUAL`.
    """

    family: str
    model: str
    verdict: str
    why: str = ""


def families() -> dict[str, str]:
    """Return the class name of each family's causal language model, from the mapping of the installed transformers."""
    return {name: str(model) for name, model in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items())}


def check_family(name: str, tokenizer: Any) -> Entry:
    """Build a tiny random model of a model family in float64, and test whether it is decoded correctly.

    Args:
        name: name of the family.
        tokenizer: any tokenizer; texts are compared by their token ids.
    """
    kind = families()[name]
    with _quietly():
        try:
            models = Models(Runner(_build(name)), tokenizer, name)
            _try_alone(models)
            admit(models.target, "It")
            models.drafter, models.drafter_name = Runner(noisy_copy(models.target.model, NOISE)), "noisy-copy"
        except ModelError as error:
            return Entry(name, kind, REFUSED, _error_reason(error))
        except Exception as error:  # configurations and models raise many exception types
            return Entry(name, kind, NOT_BUILT, _error_reason(error))
        reason = models.target.why_no_trees
        models.drafter.why_no_trees = reason
        for method_name in (CHAIN,) if reason else (CHAIN, TREE):
            method = registry.get(method_name)
            others = [method.with_params(**WIDE)] if method_name == TREE else []
            finding = check_greedy(method, models, PROMPTS, NEW_TOKENS, others)
            if finding.verdict != PASS:
                return Entry(name, kind, DIFFERS, f"{method_name}: {finding.detail}"[:LONGEST_REASON])
    return Entry(name, kind, CHAINS, reason.split(": ", 1)[1]) if reason else Entry(name, kind, EQUAL)


def _build(name: str) -> Any:
    """Build a tiny random model of the model family `name`."""
    config = tiny_config(name)
    with torch.device("meta"):
        size = sum(weight.numel() for weight in AutoModelForCausalLM.from_config(config).parameters())
    if size > LARGEST:
        raise ValueError(f"the smallest configuration found for this family has {size:,} parameters")
    return random_model(config)


def _try_alone(models: Models) -> None:
    """Check that the tiny model runs in transformers alone: in float64, or else in float32, as XGLM requires."""
    model = models.target.model
    with torch.inference_mode():
        try:
            model(input_ids=torch.tensor([PROMPTS[0]]), use_cache=False)
        except Exception:
            models.target = Runner(model.float())
            model(input_ids=torch.tensor([PROMPTS[0]]), use_cache=False)


def _error_reason(error: Exception) -> str:
    """Return the reason of an error in one line: the innermost of nested errors, without the family's name."""
    text = error.message if isinstance(error, ModelError) else f"{type(error).__name__}: {error}"
    lines = [line.strip() for line in text.splitlines() if len(line.split()) > 1]
    line = next(
        (line for line in reversed(lines) if re.match(r"\w*Error: ", line)), lines[0] if lines else text.strip()
    )
    return line.split(" cannot be decoded here: ", 1)[-1][:LONGEST_REASON]


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress warnings inside the `with` block, and use one thread, with which tiny models run faster."""
    level = hf_logging.get_verbosity()
    hf_logging.set_verbosity_error()
    with one_thread(), warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            hf_logging.set_verbosity(level)


# -- the board --------------------------------------------------------------------------------------------------------


def save(entries: Sequence[Entry]) -> None:
    """Write the board of model families: a JSON file, and the Markdown generated from it."""
    data = {
        "board": BOARD,
        "transformers": transformers.__version__,
        "date": datetime.date.today().isoformat(),
        "rows": {entry.family: asdict(entry) for entry in entries},
    }
    folder = board.folder()
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{BOARD}.json", f"{json.dumps(data, ensure_ascii=False, indent=1)}\n".encode())
    write_atomically(folder / f"{BOARD}.md", markdown(data).encode())


def read() -> dict[str, Any]:
    """Return the saved board (table of results) of model families."""
    return json.loads((board.folder() / f"{BOARD}.json").read_text(encoding="utf-8"))


def saved_entries() -> dict[str, Entry]:
    """Return the saved test results by model family; empty if they are from another version of transformers."""
    if not (board.folder() / f"{BOARD}.json").is_file() or read()["transformers"] != transformers.__version__:
        return {}
    return {name: Entry(**row) for name, row in board.read(BOARD).items()}


def markdown(saved_board: Mapping[str, Any]) -> str:
    """Return the board of model families as Markdown."""
    unchecked = {name: asdict(Entry(name, kind, NOT_CHECKED)) for name, kind in families().items()}
    rows = [saved_board["rows"].get(name, row) for name, row in unchecked.items()]
    counts = Counter(row["verdict"] for row in rows)
    lines = [
        "# Families of models",
        "",
        f"All {len(rows)} model families with a causal language model in transformers "
        f"{saved_board['transformers']}, each tested as a tiny random model on {saved_board['date']}. Generated "
        f"by `workbench check --families`. Other "
        "models of a family may have other settings (alibi, LongRoPE), so every model is checked again when it is "
        "loaded.",
        "",
        table(
            {"verdict": lambda m: f"**{m[0]}**", "families": lambda m: counts[m[0]], "meaning": lambda m: m[1]},
            MEANINGS.items(),
            left=("meaning",),
        ),
        "",
        table(
            {
                "family": lambda r: f"`{r['family']}`",
                "class": lambda r: r["model"],
                "verdict": lambda r: r["verdict"],
                "reason": lambda r: r["why"].replace("<", "&lt;"),
            },
            rows,
            left=("class", "verdict", "reason"),
        ),
    ]
    return "\n".join([*lines, ""])
