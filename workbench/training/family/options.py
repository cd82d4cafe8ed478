"""Options for training heads: common options, and further ones that each kind of head declares in its method's folder.

The file `train.py` of a method (`workbench.methods.eagle_3.train` for "eagle-3") has a dataclass `Options` with the
options and defaults of this kind of head. So a new head needs no change in this module.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from workbench import methods
from workbench.core.errors import ParameterError, UnknownNameError
from workbench.methods import registry
from workbench.methods.common.feature_net import FeatureNet
from workbench.models.local_models import short_name
from workbench.training.family.validation_drafts import OnPolicyEvaluator
from workbench.training.heads.trainer import CommonHeadOptions
from workbench.training.loop import LoopOptions
from workbench.training.options import docs_of, types_of

DEFAULT_KIND = FeatureNet.kind
"""Kind of head whose training module also trains all kinds of heads that have no training module."""


@dataclass
class ChatHeadOptions(CommonHeadOptions):
    """Options of the `chat-heads` recipe that all kinds of heads have.

    Attributes:
        method: Kind of head to train: "eagle", "kangaroo", "medusa", "hydra", "eagle-3", …
        loss: Losses with their weights; by default those of the method. Medusa has one fixed loss and accepts no other.
        target: Name or folder of the target.
        readings: Folder with stored hidden states of the target's answers, from the `readings` recipe.
        out: Parent folder of the finished heads' folder, which is named after target and method.
        vocabulary: Size of the draft vocabulary: the tokens that the heads can propose.
        held: Number of held-out dialogues for evaluation.
        answers: Folder with the target's answers that `readings` was computed from. With this and `curves`, each
            checkpoint is evaluated by drafting for some held-out prompts.
        drafted: Number of held-out prompts for the evaluation at each checkpoint.
        begin: Folder of a finished EAGLE layer for this target, to start from (EAGLE, PARD and EAGLE-3 only). Its
            draft vocabulary and sizes are kept: `vocabulary`, `heads` and `ffn` are ignored. None: random initial
            weights.
        everywhere: Train on the prompts' tokens, too. The target did not generate these, but its distributions there
            need no extra computation. This helps runs with little time or few answers.
        device: Training device: cpu, cuda, cuda:1, …; "auto" uses a GPU if there is one.
    """

    method: str = DEFAULT_KIND
    loss: str = ""
    minutes: float | None = 40.0
    checkpoint: Path | None = Path(".cache/train/chat-heads.pt")
    target: str = "smollm2"
    readings: Path = Path(".cache/train/readings")
    out: Path = Path(".cache/models")
    vocabulary: int = 8192
    held: int = 96
    threads: int = 2
    checkpoint_seconds: float = 240.0
    answers: Path | None = None
    drafted: int = 6
    begin: Path | None = None
    everywhere: bool = False
    device: str = "auto"
    starts_from_eagle: ClassVar[bool] = False
    """Whether a head of this kind can start from a finished EAGLE layer."""
    fixed_loss: ClassVar[str] = ""
    """The only loss with which this kind of head can be trained; "": the option `loss` gives the loss."""
    depth_shares: ClassVar[Mapping[str, int]] = {}
    """Divisors of the options that are numbers of layers: for a target with L layers, the option is L / divisor."""

    def loop(self, name: str, decay: float = 0.4) -> LoopOptions:
        loop, answers = super().loop(name, decay), self.answers
        if answers is None or loop.curves is None:
            return loop
        on_policy = OnPolicyEvaluator(self.target, self.method, self.folder, answers, self.drafted, self.device)
        return dataclasses.replace(loop, on_policy=on_policy)

    @property
    def folder(self) -> Path:
        """Return the folder for the finished heads, which is named after target and method."""
        return self.out / f"{short_name(self.target)}-{self.method}"

    def checkpoints(self) -> list[Path]:
        """Return a list with the path of the head's training checkpoint; empty if no checkpoints are requested."""
        path = self.checkpoint
        return [] if path is None else [path.with_stem(f"{path.stem}-{self.method}")]

    def capture_layers(self, layers: int) -> tuple[int, ...]:
        """Return the layers whose hidden states the training reads in addition to the features.

        Args:
            layers: number of the target's layers.
        """
        return ()

    def draft_vocabulary_size(self, vocab_size: int) -> int:
        """Return the size of the draft vocabulary, for a target's vocabulary of `vocab_size` tokens."""
        return self.vocabulary


@dataclass
class LayerOptions(ChatHeadOptions):
    """Options of heads that have a decoder layer of their own.

    Attributes:
        ffn: Width of the gated MLP.
        heads: Number of attention heads.
        head_size: Size of an attention head; 0: the heads divide the target's hidden size.
    """

    ffn: int = 1024
    heads: int = 9
    head_size: int = 0


def find_kind_module(kind: str) -> ModuleType | None:
    """Return the training module (`train.py`) in the folder of a kind of head; None if the folder has none."""
    folder = f"{methods.__name__}.{kind.replace('-', '_')}"
    if not importlib.util.find_spec(folder) or not importlib.util.find_spec(f"{folder}.train"):
        return None
    return importlib.import_module(f"{folder}.train")


def get_training_module(kind: str) -> ModuleType:
    """Return the training module for a kind of head; a kind without a module of its own uses EAGLE's."""
    return find_kind_module(kind) or importlib.import_module(f"{methods.__name__}.{DEFAULT_KIND}.train")


def options_class(kind: str, default: type | None = None) -> Any:
    """Return the class of training options of a kind of head.

    Args:
        kind: kind of the head.
        default: options class for a kind without a training module of its own; None: EAGLE's options.
    """
    if default is not None and find_kind_module(kind) is None:
        return default
    return get_training_module(kind).Options


def own_options(cls: type) -> list[str]:
    """Return the names of the options that a kind of head has in addition to `LayerOptions`."""
    shared = {field.name for field in dataclasses.fields(LayerOptions)}
    return [field.name for field in dataclasses.fields(cls) if field.name not in shared]


def chat_head_kinds() -> list[str]:
    """Return the kinds of heads that the recipe `chat-heads` trains."""
    return [kind for kind, head in registry.heads().items() if head.is_for_any_target]


def choose_chat_head_options(values: Mapping[str, Any]) -> Any:
    """Return the options class of the kind of head that `values["method"]` names, for the recipe `chat-heads`.

    Raises:
        UnknownNameError: the kind of head does not exist.
        ParameterError: heads of this kind cannot be averaged with the head that they start from.
    """
    kind = str(values.get("method") or DEFAULT_KIND)
    if kind not in (kinds := chat_head_kinds()):
        raise UnknownNameError.of("head", kind, kinds)
    cls = options_class(kind)
    if float(values.get("average") or 0) and not hasattr(cls, "average"):
        message = (
            f"Only {DEFAULT_KIND} heads, not {kind} heads, can be averaged with the head from which training starts."
        )
        raise ParameterError(message, "Leave `average` out.")
    return cls


def combine_options(base: type, classes: Mapping[str, type]) -> type:
    """Return a dataclass with the training options of `base` and of several kinds of heads.

    If only some kinds have an option, its description lists these kinds, and their defaults if the defaults differ.
    """
    types, texts, defaults = dict[str, Any](), dict[str, str](), dict[str, dict[str, Any]]()
    shared = {field.name for field in dataclasses.fields(base)}
    for kind, cls in classes.items():
        for field in (field for field in dataclasses.fields(cls) if field.name not in shared):
            types.setdefault(field.name, types_of(cls)[field.name])
            texts.setdefault(field.name, docs_of(cls)[field.name].rstrip("."))
            defaults.setdefault(field.name, {})[kind] = field.default
    firsts = {name: next(iter(by_kind.values())) for name, by_kind in defaults.items()}
    lines = []
    for name, by_kind in defaults.items():
        kinds = ", ".join(kind if value == firsts[name] else f"{kind}: {value}" for kind, value in by_kind.items())
        lines.append(f"    {name}: {texts[name]} ({kinds}).")
    return dataclasses.make_dataclass(
        base.__name__,
        [(name, kind, dataclasses.field(default=firsts[name])) for name, kind in types.items()],
        bases=(base,),
        namespace={"__doc__": "\n".join(["Training options of each kind of head.", "", "Attributes:", *lines, ""])},
    )
