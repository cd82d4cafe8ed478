"""A draft model for a chat model with a large vocabulary, distilled from stored hidden states of the target.

The target's LM head computes the target's distribution at each position from the stored feature, so the target is not
run again. The distributions of target and drafter are compared over the drafter's reduced vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from workbench.core.errors import ParameterError
from workbench.kernels.reduced_vocabulary import KEY
from workbench.models.fingerprint import WEIGHTS, fingerprint, fingerprints_differ
from workbench.models.int8_checkpoint import read_folder
from workbench.models.loading import load_models
from workbench.models.local_models import short_name
from workbench.models.model_index import MODEL_INDEX, vocabulary_hash
from workbench.models.pretrained import load_model, load_tokenizer, resolve_device
from workbench.models.shared_embeddings import ROWS, expand_rows, factor_rows
from workbench.models.tokenizer_source import FILES, VOCABULARY
from workbench.training.distill import distillation_loss, draft_model_losses
from workbench.training.family.readings import Readings, last_norm
from workbench.training.family.shared_embedding_drafter import DrafterInTraining
from workbench.training.family.training_texts import ALL, DRAFTER, MIX, OwnTexts, make_next_batch, select_readings
from workbench.training.family.vocabulary import IGNORE_INDEX, index_in_vocab, select_draft_vocabulary
from workbench.training.heads.features import Dialogue
from workbench.training.loop import Report, RunOptions, RunResult
from workbench.training.models import half_precision, save_tokenizer, save_weights
from workbench.training.trainer import Curve, Step, StepLoss, Trainer


@dataclass
class ChatDrafterOptions(RunOptions):
    """Options of the `chat-drafter` recipe, besides those of `RunOptions`.

    Attributes:
        target: Name or folder of the target.
        readings: Folder with stored hidden states of the target's answers, from the `readings` recipe.
        out: Folder of the finished drafter.
        vocabulary: Size of the draft vocabulary: the tokens that the drafter can propose.
        hidden: Hidden size.
        layers: Number of decoder layers.
        inner: Intermediate size of the MLP.
        head_size: Size of an attention head.
        rows: Batch size: dialogues per step.
        positions: Positions per step at which draft and target distributions are compared; the LM heads take most of
            the time.
        text_weight: Weight of the cross-entropy on the text itself, relative to the divergence from the target.
        loss: Divergences from the target with their weights: forward_kl, reverse_kl, jensen_shannon, total_variation,
            tvd_plus_plus, …, for example "reverse_kl:1+ce_hard:0.1".
        held: Number of held-out dialogues on which agreement with the target is measured.
        begin: Folder of a finished drafter for this target, to continue training from. Its shape and draft vocabulary
            are kept. None: random initial weights.
        average: Share of the weights of `begin` in the final weights; the rest comes from the weights of this run.
        made: Source of the training answers: "all": all stored answers; "target": the target's own; "given": those in
            the training text; "drafter": answers to the same prompts, sampled with the drafter's current weights;
            "mix": half of each batch from the target, half from the drafter. Answers of the drafter have no
            cross-entropy loss on the text.
        anew: Training steps after which the drafter generates new training text.
        device: Training device: cpu, cuda, cuda:1, …; "auto" uses a GPU if there is one.
    """

    target: str = "smollm2"
    readings: Path = Path(".cache/train/readings")
    out: Path = Path(".cache/models/smollm2-drafter")
    checkpoint: Path | None = Path(".cache/train/chat-drafter.pt")
    vocabulary: int = 8192
    hidden: int = 256
    layers: int = 4
    inner: int = 704
    head_size: int = 32
    minutes: float | None = 40.0
    rows: int = 24
    positions: int = 2048
    text_weight: float = 0.1
    loss: str = "forward_kl:1"
    held: int = 96
    seed: int = 1
    threads: int = 2
    checkpoint_seconds: float = 240.0
    begin: Path | None = None
    average: float = 0.0
    made: str = ALL
    anew: int = 32
    device: str = "auto"


@dataclass(frozen=True)
class Teacher:
    """Parts of a target that the training of drafters uses, in addition to stored hidden states.

    Attributes:
        lm_head: weights of the target's LM head, float32 [V, D].
        embedding: weights of the target's input embedding, float32 [V, D].
        last_norm: final norm of the target, whose output is called features.
        config: configuration of the target.
        tokenizer: tokenizer of the target.
        name: name of the target.
        weights: fingerprint of the target's weights.
    """

    lm_head: Tensor
    embedding: Tensor
    last_norm: nn.Module
    config: Any
    tokenizer: Any
    name: str
    weights: str

    @property
    def end_tokens(self) -> list[int]:
        """Return the EOS token of the target's tokenizer as a list; empty if it has none."""
        end = self.tokenizer.eos_token_id
        return [] if end is None else [end]

    def logits(self, features: Tensor, lm_head_rows: Tensor | None = None) -> Tensor:
        """Return the logits that the target's LM head computes from features [N, D], in float32.

        With `lm_head_rows` [W, D], rows of the LM head, only the logits of their tokens are computed.
        """
        with half_precision():
            return F.linear(
                features.to(self.lm_head.dtype), self.lm_head if lm_head_rows is None else lm_head_rows
            ).float()

    @torch.inference_mode()
    def greedy_tokens(self, features: Tensor) -> Int[Tensor, " N"]:
        """Return the target's most probable token of the whole vocabulary after each feature [N, D]."""
        return torch.cat([self.logits(part).argmax(-1) for part in features.split(512)])


def load_teacher(options: Any) -> Teacher:
    """Load the parts of the target that training uses (LM head, embedding, final norm) on the training device.

    Raises:
        ParameterError: the readings (stored hidden states) come from another target or other weights, or are too few.
        ModelError: this machine does not have the device.
    """
    device = resolve_device(options.device)
    readings = Readings(options.readings)
    if (
        not (options.readings / "readings.json").exists()
        or not readings.split_indices(held_out=False)
        or not readings.split_indices(held_out=True)
    ):
        raise ParameterError(
            f"{options.readings} has too few readings (stored hidden states): training and held-out ones are needed.",
            "Create more readings: `workbench train answers`, then `workbench train readings`.",
        )
    facts, name = readings.facts, short_name(options.target)
    if facts["target"] != name:
        raise ParameterError(
            f"{options.readings} has hidden states (readings) of {facts['target']}, not of {options.target}.",
            f"Set target={facts['target']}, or create readings of {options.target} in another folder.",
        )
    model = load_model(options.target, torch.device("cpu"), torch.float32)
    head = model.get_output_embeddings()
    assert head is not None
    if fingerprints_differ(facts[WEIGHTS], fingerprint(model)):
        raise ParameterError(
            f"The stored hidden states (readings) in {options.readings} were computed with other weights than those "
            f"of {name} on this machine.",
            "Create readings of these weights in another folder: `workbench train readings`.",
        )
    modules = (head, model.get_input_embeddings())
    weights, embedding = (part.to(device).get_parameter("weight").detach() for part in modules)
    return Teacher(
        weights,
        embedding,
        last_norm(model).to(device),
        model.config,
        load_tokenizer(options.target),
        name,
        facts[WEIGHTS],
    )


def config_of(options: ChatDrafterOptions, teacher: Teacher) -> LlamaConfig:
    """Return the configuration of the draft model to train, with the target's vocabulary, context and EOS tokens."""
    target_config = teacher.config
    return LlamaConfig(
        vocab_size=target_config.vocab_size,
        hidden_size=options.hidden,
        intermediate_size=options.inner,
        num_hidden_layers=options.layers,
        num_attention_heads=options.hidden // options.head_size,
        num_key_value_heads=options.hidden // options.head_size,
        max_position_embeddings=target_config.max_position_embeddings,
        tie_word_embeddings=False,
        bos_token_id=target_config.bos_token_id,
        eos_token_id=target_config.eos_token_id,
        pad_token_id=target_config.pad_token_id,
    )


def load_batch(readings: Readings, rows: list[int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Load the stored answers with the indices `rows` and their hidden states, and stack them (`stack_dialogues`)."""
    return stack_dialogues([readings.dialogue(row) for row in rows])


def stack_dialogues(dialogues: Sequence[Dialogue]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Stack dialogues, padded with zeros at the end.

    Returns:
        Token ids, int64 [B, n]; features [B, n, D]; positions before the last token of a text, bool [B, n]; and
        positions that predict a token of the answer, bool [B, n].
    """
    ids, features = pad_and_stack([d.ids for d in dialogues]), pad_and_stack([d.features for d in dialogues])
    text, answer = torch.zeros(2, *ids.shape, dtype=torch.bool, device=ids.device)
    for b, dialogue in enumerate(dialogues):
        text[b, : len(dialogue.ids) - 1] = True
        answer[b, dialogue.n_prompt - 1 : len(dialogue.ids) - 1] = True
    return ids, features, text, answer


def pad_and_stack(sequences: Sequence[Tensor]) -> Float[Tensor, "B n D"]:
    """Stack sequences of vectors [n, D], padded with zeros at the end."""
    return nn.utils.rnn.pad_sequence(list(sequences), batch_first=True)


def train_chat_drafter(options: ChatDrafterOptions, report: Report) -> tuple[RunResult, dict[str, Any]]:
    """Train a chat model's draft model, write it to `options.out`, and return metrics and facts for its card."""
    torch.set_num_threads(options.threads)
    teacher = load_teacher(options)
    readings = Readings(options.readings, device := teacher.lm_head.device)
    held, prompts = readings.split_indices(held_out=True)[: options.held], select_readings(readings, options.made)
    check_folders_differ(options.begin, options.out)
    start_model = None if options.begin is None else _load_start_drafter(options.begin, teacher)
    start_vocab = None if start_model is None else list(getattr(start_model.config, KEY))
    vocab_ids, facts = select_draft_vocabulary(readings, held, options.vocabulary, teacher.end_tokens, start_vocab)
    vocab = torch.tensor(vocab_ids, device=device)
    vocab_index = index_in_vocab(vocab, len(teacher.lm_head))
    drafter = build_drafter(config_of(options, teacher), teacher, options.seed) if start_model is None else start_model
    start_weights = (
        {} if start_model is None else {name: weight.clone() for name, weight in start_model.weights().items()}
    )
    report(
        f"chat-drafter: the draft vocabulary covers {facts['covered']:.1%} of the tokens in the target's held-out "
        f"answers"
    )
    losses = draft_model_losses(options.loss)
    table, own_texts = teacher.lm_head[vocab], None
    if options.made in (DRAFTER, MIX):
        models = load_models(options.target, None, str(device), readings.facts["dtype"])
        own_texts = OwnTexts(drafter, models, readings, prompts, vocab, teacher.end_tokens, options.seed)
    next_batch = make_next_batch(readings, options.made, options.rows, options.seed, options.anew, own_texts)
    curve, held_batches = Curve.of(options), load_answer_batches(teacher, readings, held)

    def step_loss(step: Step) -> StepLoss:
        dialogues, n_own = next_batch(step.number)
        ids, features, text, _ = stack_dialogues(dialogues)
        positions = text.flatten().nonzero().flatten()
        sample = positions[torch.randperm(len(positions), generator=step.generator)[: options.positions]]
        labels = vocab_index[ids.roll(-1, 1).flatten()[sample]]
        labels[sample >= (len(dialogues) - n_own) * ids.shape[1]] = IGNORE_INDEX
        with half_precision():
            with torch.no_grad():
                target_logits = F.linear(features.flatten(0, 1)[sample].to(table.dtype), table)
            draft_logits = F.linear(drafter.states(ids).flatten(0, 1)[sample], drafter.lm_head_rows(vocab))
        loss = distillation_loss(draft_logits, target_logits, labels, options.text_weight, losses)
        share = (draft_logits.argmax(-1) == target_logits.argmax(-1)).float().mean()
        return StepLoss(loss, int(text.sum()), {"loss": float(loss.detach()), "agreement": float(share)})

    result = Trainer(
        "chat-drafter",
        options,
        drafter,
        step_loss,
        report,
        evaluate=lambda: {"agreement": agreement(drafter, vocab, held_batches)},
        save=lambda: write_drafter(drafter, teacher, vocab_ids, options.out),
        curve=curve,
    ).run()
    if start_weights and options.average:
        drafter.load_weights(interpolate_weights(drafter.weights(), start_weights, options.average))
        write_drafter(drafter, teacher, vocab_ids, options.out)
    return result, facts | {"curve": curve.points}


def build_drafter(config: LlamaConfig, teacher: Teacher, seed: int) -> DrafterInTraining:
    """Return an untrained draft model on the device of the teacher (the target's parts)."""
    return DrafterInTraining(config, teacher.embedding, teacher.lm_head, seed).to(teacher.lm_head.device)


def write_drafter(drafter: DrafterInTraining, teacher: Teacher, draft_vocabulary: list[int], out: Path) -> None:
    """Write a drafter's folder.

    If the target is in the model index, the folder has no tokenizer and no token embeddings: they are taken from the
    target when the drafter is loaded.
    """
    entries: dict[str, Any] = {KEY: draft_vocabulary, "target": teacher.name}
    if teacher.name in MODEL_INDEX:
        entries |= {VOCABULARY: vocabulary_hash(teacher.tokenizer.get_vocab()), ROWS: teacher.lm_head.shape[1]}
    config = LlamaConfig.from_dict(drafter.config.to_dict() | entries)
    weights = drafter.weights()
    if ROWS not in entries:
        weights = expand_rows(weights, teacher.embedding, teacher.lm_head)
    save_weights(LlamaForCausalLM(config), weights, teacher.tokenizer, out, is_int8=ROWS in entries)
    if VOCABULARY in entries:
        for name in FILES:
            (out / name).unlink(missing_ok=True)
    else:
        save_tokenizer(teacher.tokenizer, out)


def interpolate_weights(weights: dict[str, Tensor], before: dict[str, Tensor], share: float) -> dict[str, Tensor]:
    """Return the interpolated weights of two models of the same shape: (1 − share) · weights + share · before."""
    return {name: torch.lerp(weight, before[name].to(weight), share) for name, weight in weights.items()}


def _load_start_drafter(folder: Path, teacher: Teacher) -> DrafterInTraining:
    """Load the finished draft model from which the training starts.

    Raises:
        ParameterError: this recipe did not train the drafter for this target.
    """
    message = f"The model in {folder} is not a drafter that the recipe chat-drafter trained for {teacher.name}."
    remedy = "Set `begin` to the folder of such a drafter, or leave `begin` out."
    try:
        config: Any = LlamaConfig.from_pretrained(str(folder), local_files_only=True)
        is_ours = isinstance(getattr(config, KEY, None), list) and getattr(config, "target", None) == teacher.name
        if not is_ours:
            raise ParameterError(message, remedy)
        drafter = build_drafter(config, teacher, 0)
        drafter.load_weights(factor_rows(read_folder(folder), teacher.embedding.cpu(), teacher.lm_head.cpu()))
    except (OSError, ValueError, SafetensorError) as error:
        raise ParameterError(f"{message} {error}", remedy) from None
    return drafter.train()


def check_folders_differ(begin: Path | None, out: Path) -> None:
    """Raise an error if a run would overwrite the model from which it starts, because a resumed run needs this model.

    Raises:
        ParameterError: `begin` and `out` are the same folder.
    """
    if begin is not None and begin.resolve() == out.resolve():
        raise ParameterError(
            f"{out} is both the model to start from and the output folder.", "Set `out` to another folder."
        )


AnswerBatches = list[tuple[list[int], tuple[Tensor, Tensor, Tensor]]]
"""Type of batches of stored answers: their indices, token ids [B, n], mask of the positions that predict an answer's
token [B, n], and the target's most probable token at these N positions, [N]."""


@torch.inference_mode()
def load_answer_batches(teacher: Teacher, readings: Readings, rows: list[int], size: int = 16) -> AnswerBatches:
    """Return batches of the stored answers `rows`, each with the target's most probable token at every answer position.

    The target's tokens are from its full vocabulary, not only from the draft vocabulary.
    """
    batches, order = [], sorted(rows, key=lambda row: readings.rows[row, 3])
    for start in range(0, len(order), size):
        chunk = order[start : start + size]
        ids, features, _, answer = load_batch(readings, chunk)
        batches.append((chunk, (ids, answer, teacher.greedy_tokens(features[answer]))))
    return batches


@torch.inference_mode()
def agreement(drafter: DrafterInTraining, draft_vocabulary: Tensor, batches: AnswerBatches) -> float:
    """Return the share of answer positions at which drafter and target have the same most probable token."""
    table, matches, total = drafter.lm_head_rows(draft_vocabulary), 0, 0
    for _, (ids, answer, target_tokens) in batches:
        with half_precision():
            draft_tokens = draft_vocabulary[F.linear(drafter.states(ids)[answer], table).argmax(-1)]
        matches, total = matches + int((draft_tokens == target_tokens).sum()), total + len(draft_tokens)
    return matches / max(total, 1)
