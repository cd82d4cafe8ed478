"""Load a target with its draft model and trained heads, by name, folder or Hub id; check that they fit the target."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.core.errors import ModelError, TokenizerMismatchError
from workbench.kernels.device_clock import Meter
from workbench.kernels.image_layout import why_no_images
from workbench.kernels.reduced_vocabulary import draft_vocabulary_size
from workbench.models.admission import admit
from workbench.models.bundle import DEFAULT_TARGET, bundled, config_of
from workbench.models.checkpoints.compatibility import HeadRequirements, mismatch_reason, other_embedding
from workbench.models.checkpoints.description import Checkpoint
from workbench.models.checkpoints.user_heads import own_heads
from workbench.models.fingerprint import WEIGHTS, fingerprint, fingerprints_differ
from workbench.models.local_models import short_name, trained_for
from workbench.models.masked_lm import MASKED_LM, mask_token_of, why_not_masked
from workbench.models.names import ANY_DRAFTER, bundled_drafter, locate
from workbench.models.other_vocabulary import OtherVocabularyDrafter
from workbench.models.pretrained import (
    load_model,
    load_processor,
    load_tokenizer,
    resolve_device,
    resolve_drafter_dtype,
    resolve_dtype,
)
from workbench.models.runner import Runner
from workbench.models.tokenizer_source import tokenizer_source_of
from workbench.models.untrained_heads import no_heads


@dataclass(slots=True)
class HeadInfo:
    """Trained head (such as Medusa's or EAGLE's) that was found on disk.

    Attributes:
        name: name of the head's folder.
        folder: path of the head's folder.
        config: configuration of the head.
        problem: reason why the head cannot be used with the target; empty if it can.
        checkpoint: description of the head's files if another project wrote them; None if this workbench wrote them.
    """

    name: str
    folder: Path
    config: dict[str, Any]
    problem: str = ""
    checkpoint: Checkpoint | None = None


@dataclass
class Models:
    """Loaded models of a session: a target, and the draft model and trained heads for it.

    Attributes:
        target: runner of the target.
        tokenizer: tokenizer of the target.
        target_name: bundled name, folder or Hub id of the target.
        drafter: runner of a separate draft model with the target's vocabulary, or None. (A `Drafter` is something else,
            a component of a method.)
        drafter_name: name of the draft model.
        drafter_problem: reason why there is no draft model, or why it does not fit.
        drafter_error: exception that was raised for the reason in `drafter_problem`, if any.
        heads: trained heads for this target by kind ("medusa").
        shared: data that drafters keep across requests; each drafter uses its own keys.
        meter: timings of the trained heads' forward passes.
        processor: the target's processor for prompts with images; None if the target reads text only.
        drafter_processor: the draft model's processor for prompts with images; None if the draft model reads text
            only.
        other_vocabulary_drafter: draft model with a different vocabulary, in place of `drafter`. In this case
            `drafter_problem` explains why methods that need a draft model with the target's vocabulary cannot run.
    """

    target: Runner
    tokenizer: Any
    target_name: str = ""
    drafter: Runner | None = None
    drafter_name: str | None = None
    drafter_problem: str = "No draft model was chosen for this target."
    drafter_error: ModelError | None = None
    heads: dict[str, HeadInfo] = field(default_factory=dict)
    shared: dict[Any, Any] = field(default_factory=dict)
    meter: Meter = field(default_factory=Meter)
    processor: Any = None
    drafter_processor: Any = None
    other_vocabulary_drafter: OtherVocabularyDrafter | None = None

    @property
    def draft_model(self) -> Runner | None:
        """Return the runner of the draft model, whatever its vocabulary; None without a draft model."""
        return self.drafter if self.other_vocabulary_drafter is None else self.other_vocabulary_drafter.runner

    @property
    def draft_model_name(self) -> str | None:
        """Return the name of the draft model, whatever its vocabulary; None without a draft model."""
        return self.drafter_name if self.other_vocabulary_drafter is None else self.other_vocabulary_drafter.name

    @property
    def eos(self) -> frozenset[int]:
        """Return the ids of the target's tokens that end a text (EOS)."""
        eos_ids = getattr(getattr(self.target.model, "generation_config", None), "eos_token_id", None)
        eos_ids = getattr(self.target.config, "eos_token_id", None) if eos_ids is None else eos_ids
        ids = [] if eos_ids is None else [eos_ids] if isinstance(eos_ids, int) else list(eos_ids)
        return frozenset(ids)

    @property
    def mask_token(self) -> int | None:
        """Return the id of the target's mask token if the target is a masked language model, else None."""
        return mask_token_of(self.target.config)

    @property
    def predicts_next(self) -> bool:
        """Return whether the target is a masked language model whose logits at position i predict position i + 1."""
        return bool(getattr(self.target.config, "predicts_next", False))

    def missing_reason(self, need: str) -> str:
        """Return why the loaded models do not meet one requirement of a method (`need`); empty if they do."""
        if need == "drafter":
            return "" if self.drafter is not None else self.drafter_problem
        if need == ANY_DRAFTER:
            return "" if self.draft_model is not None else self.drafter_problem
        if need == "trees":
            return self.target.why_no_trees
        if need == MASKED_LM:
            return ""  # see `unsupported_reason`
        if need == "pictures":
            return why_no_images(self.target.model.config, self.target_name or "This target")
        if need == "sight":
            reads_images = self.drafter is None or self.drafter_processor is not None
            return (
                "" if reads_images else f"{self.drafter_name} reads text only; choose a draft model that reads images."
            )
        if need in self.heads:
            head, name = self.heads[need], self.drafter_name
            if (other := head.config.get("drafter", name)) != name:
                remedy = f"choose the draft model {other}, or train another head"
                return f"{head.name} needs the draft model {other}, but the chosen one is {name or 'none'}: {remedy}."
            return head.problem
        return no_heads(need, self.target_name)

    def unsupported_reason(self, needs: tuple[str, ...]) -> str:
        """Return why a method with the requirements `needs` cannot run with the loaded models; "" if it can."""
        reasons = [
            why_not_masked(self.target_name or "This target", self.mask_token is not None, needs),
            *(self.missing_reason(need) for need in needs),
        ]
        if self.drafter is not None and {"drafter", "trees"} <= set(needs):
            reasons.append(self.drafter.why_no_trees)
        return " ".join(filter(None, reasons))

    @property
    def meters(self) -> list[Meter]:
        """Return the meters that time the forward passes of target, trained heads and draft model."""
        return [self.target.meter, self.meter, *([] if self.draft_model is None else [self.draft_model.meter])]

    def set_unknown_token(self) -> None:
        """Make the draft model replace token ids for which it has no embedding by the unk, pad or EOS token."""
        if self.drafter is None:
            return
        token_ids = (getattr(self.tokenizer, f"{kind}_token_id", None) for kind in ("unk", "pad", "eos"))
        self.drafter.set_unknown_token(
            self.target.vocab_size, next((token for token in token_ids if token is not None), 0)
        )

    def with_drafter(self, name: str | None, dtype: str = "auto") -> Models:
        """Return a copy of the loaded models with another draft model; it shares everything else with this object.

        Args:
            name: bundled name, local folder or Hub id of the draft model; None: no draft model.
            dtype: dtype of the draft model; see `resolve_drafter_dtype`.

        Raises:
            ModelError: the draft model cannot be loaded.
        """
        shared_copy = dataclasses.replace(
            self, drafter=None, drafter_name=None, drafter_processor=None, other_vocabulary_drafter=None
        )
        shared_copy.drafter_problem, shared_copy.drafter_error = "No draft model was chosen for this target.", None
        if name:
            attach_drafter(shared_copy, name, dtype)
        return shared_copy


def find_heads(target_name: str, target: Runner) -> dict[str, HeadInfo]:
    """Return the trained heads on disk for a target's name and hidden size, by kind ("medusa").

    `HeadInfo.problem` is set for heads that were trained for other weights.
    """
    heads: dict[str, HeadInfo] = {}
    for name, folder in bundled().items():
        config = config_of(folder)
        kind = config.get("workbench_head")
        fits = trained_for(config) == target_name and config.get("hidden_size") == target.hidden_size
        if kind and fits:
            problem = other_weights(name, config, target_name, target)
            if not problem or kind not in heads:
                heads[kind] = HeadInfo(name, folder, config, problem)
    for kind, info in own_infos(target_name, target):
        if kind not in heads or not info.problem:
            heads[kind] = info
    return heads


def own_infos(target_name: str, target: Runner) -> Iterator[tuple[str, HeadInfo]]:
    """Yield pairs such as ("medusa", heads) of the user's own trained heads; `problem` says why heads do not fit.

    The pairs are in reverse order of the user's folders. In a dict made from the pairs, the folder that the user named
    first thus has precedence.

    Raises:
        ModelError: a folder named by the user cannot be read.
    """
    for head in reversed(list(own_heads())):
        config = dict(head.config)
        if head.checkpoint is not None:
            requirements = HeadRequirements.of(target_name, target.model.config.to_dict())
            embedding = target.model.get_input_embeddings().get_parameter("weight")
            problem = mismatch_reason(head.checkpoint, requirements) or other_embedding(
                head.checkpoint, embedding, target_name
            )
        elif trained_for(config) != target_name or config.get("hidden_size") != target.hidden_size:
            problem = f"{head.name} was trained for another target, {config.get('target')}."
        else:
            problem = other_weights(head.name, config, target_name, target)
        yield head.kind, HeadInfo(head.name, head.folder, config, problem, head.checkpoint)


def other_weights(name: str, config: dict[str, Any], target_name: str, target: Runner) -> str:
    """Return why trained heads do not fit a target's weights; "" if they fit, or have no fingerprint to compare.

    Args:
        name: name of the heads.
        config: configuration of the heads.
        target_name: name of the target.
        target: runner of the target.
    """
    head_fingerprint = config.get(WEIGHTS)
    if not head_fingerprint or not fingerprints_differ(str(head_fingerprint), fingerprint(target.model)):
        return ""
    return (
        f"{name} was trained for other weights than those of the loaded {target_name}, so its drafts would be "
        f"rejected. "
        "Train the head again for this target (`workbench train`), or use the weights for which it was trained."
    )


def same_vocabulary(target: Any, drafter: Any) -> bool:
    """Return whether two tokenizers map all tokens to the same ids."""
    return target.get_vocab() == drafter.get_vocab()


def load_models(
    target: str = DEFAULT_TARGET,
    drafter: str | None = "auto",
    device: str = "auto",
    dtype: str = "auto",
    drafter_dtype: str = "auto",
    context: int | None = None,
    strict: bool = False,
) -> Models:
    """Load a target, its tokenizer, a draft model and the trained heads for this target.

    Args:
        target: bundled name, local folder, or Hub id.
        drafter: bundled name, local folder, or Hub id of the draft model; "auto": the bundled draft model for a bundled
            target, else none; None: none.
        device: "auto", "cpu", "cuda", ….
        dtype: dtype of the target; see `resolve_dtype`.
        drafter_dtype: dtype of the draft model; see `resolve_drafter_dtype`.
        context: maximum length of a sequence in tokens; by default the model's own, at most 4,096.
        strict: whether to raise an error if the draft model does not fit. If not, the reason is stored in
            `drafter_problem`, and a draft model with a different vocabulary in `other_vocabulary_drafter`.

    Raises:
        ModelError: a model cannot be loaded or verified.
        TokenizerMismatchError: with `strict`, when target and drafter do not share a vocabulary.
    """
    torch_device = resolve_device(device)
    torch_dtype = resolve_dtype(dtype, torch_device, target)
    model = load_model(target, torch_device, torch_dtype)
    if n_tokens := draft_vocabulary_size(model):
        raise ModelError(
            f"{target} is a draft model: its LM head can propose only {n_tokens:,} of the "
            f"{model.config.vocab_size:,} tokens in its vocabulary.",
            "Choose this model as the draft model, and the model for which it was trained as the target.",
        )
    runner = Runner(model, context)
    admit(runner, target, locate(target))
    models = Models(runner, load_tokenizer(target), short_name(target))
    models.processor = load_processor(target, model)
    models.heads = find_heads(models.target_name, models.target)
    if drafter == "auto":
        drafter = bundled_drafter(target)
        if drafter is None:
            models.drafter_problem = f"No draft model is known for {target}; choose one that shares its tokenizer."
    if drafter:
        try:
            attach_drafter(models, drafter, drafter_dtype)
        except ModelError as error:
            if strict:
                raise
            models.drafter_problem = str(error)
        if strict and models.drafter_error is not None:
            raise models.drafter_error
    return models


def attach_drafter(models: Models, name: str, dtype: str = "auto") -> None:
    """Load a draft model for a loaded target, and store it in `models`.

    If the draft model's vocabulary differs, `drafter_error` is a `TokenizerMismatchError` that lists the methods that
    still work.

    Args:
        models: the target's models. The draft model becomes `drafter`, or `other_vocabulary_drafter` if its vocabulary
            differs.
        name: bundled name, local folder or Hub id of the draft model.
        dtype: dtype of the draft model; see `resolve_drafter_dtype`.

    Raises:
        TokenizerMismatchError: the draft model uses the tokenizer of another target and has none of its own.
        ModelError: the draft model cannot be loaded.
    """
    device = models.target.device
    tokenizer_source = tokenizer_source_of(
        Path(locate(name))
    )  # if it uses the target's tokenizer, do not load that again
    tokenizer = None if tokenizer_source else load_tokenizer(name)
    problem = None
    if not (
        tokenizer_source.matches(models.tokenizer) if tokenizer_source else same_vocabulary(models.tokenizer, tokenizer)
    ):
        problem = TokenizerMismatchError(
            f"{name} and {models.target_name} do not share a vocabulary: their token ids differ.",
            "Choose a draft model of the target's family, or the method omnidraft, which translates the tokens "
            "of any draft model. Methods that need no draft model, such as prompt-lookup and suffix, still "
            "work; `workbench methods` lists them.",
        )
        try:
            tokenizer = tokenizer or load_tokenizer(name)
        except ModelError as error:  # it has no tokenizer, and its target's is not on this machine
            raise TokenizerMismatchError(problem.message, f"{error} Or: {problem.remedy}") from None
    torch_dtype = resolve_drafter_dtype(dtype, device, models.target.dtype, name)
    model = load_model(name, device, torch_dtype)
    if mask_token_of(model.config) is not None:
        raise ModelError(
            f"{name} is a masked-diffusion model, which cannot draft tokens from left to right.",
            "Choose another draft model.",
        )
    runner = Runner(model, models.target.context)
    admit(runner, name, locate(name))
    if problem is not None:
        models.other_vocabulary_drafter = OtherVocabularyDrafter(runner, tokenizer, short_name(name))
        models.drafter_problem, models.drafter_error = str(problem), problem
        return
    models.drafter = runner
    models.drafter_processor = load_processor(name, model)
    models.drafter_name, models.drafter_problem = short_name(name), ""
    models.set_unknown_token()
