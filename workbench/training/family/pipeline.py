"""Recipe that makes a drafting head with one command: answers, hidden states, training, evaluation and model card.

Each step continues where it was stopped. After an interruption, the same command finishes the run.
"""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM

from workbench.core.errors import ParameterError
from workbench.kernels.layers import text_config
from workbench.models.bundle import bundled_folder
from workbench.models.local_models import as_argument, short_name
from workbench.models.names import locate
from workbench.training.answers import AnswersOptions, write_answers
from workbench.training.corpus import DEFAULT_DATA
from workbench.training.family.evaluate import ChatEvaluateOptions, evaluate_drafters
from workbench.training.family.heads import check_begin, check_loss, train_chat_heads
from workbench.training.family.options import ChatHeadOptions, options_class, own_options
from workbench.training.family.readings import ReadingsOptions, last_norm, make_readings
from workbench.training.loop import Report
from workbench.training.options import docs_of, types_of
from workbench.training.recipe import changed_options, finish, load_start_figures
from workbench.training.resuming import check_same_settings, matches_checkpoint, resolve_resume

ALL_TOKENS = 1 << 62
"""Token limit that no set of answers reaches, so that all answers are used."""


@dataclass
class PipelineOptions:
    """Options of the recipes that make a drafting head, each named after its kind of head.

    Attributes:
        target: Name, folder or Hub id of the target.
        data: Folder with public training text for prompts; missing files are skipped. The built-in generators add
            further prompts.
        work: Folder for answers, stored hidden states and checkpoints, with one subfolder per target.
        out: Parent folder of the finished head; none: `run`, or the folder of the bundled models, where every command
            finds it.
        answer_tokens: Training data: number of tokens that the target generates.
        longest_prompt: Skip prompts longer than this, in tokens.
        max_new_tokens: Maximum length of an answer, in tokens.
        per_task: Number of prompts per task of the built-in generators.
        minutes: Training time of the head in minutes, without generating the answers.
        steps: Number of training steps of the head; overrides `minutes`.
        loss: Losses with their weights, for example "smooth_l1:1+ce_soft:0.1"; by default those of the kind of head,
            which its card lists.
        rows: Batch size: answers per step.
        places: Positions per step at which draft and target distributions are compared.
        ffn: MLP width of the head, if it has an MLP; 0: about two thirds of the target's hidden size.
        half: Compute in bfloat16.
        dtype: Number format of the target.
        matrix_rate: Peak learning rate of Muon.
        other_rate: Peak learning rate of AdamW.
        vocabulary: Size of the draft vocabulary: the tokens that the target generates most often.
        everywhere: Train on the prompts' tokens, too.
        begin: Folder of a finished EAGLE layer for this target, to start from (EAGLE, PARD and EAGLE-3 only). None:
            random initial weights.
        seed: Seed of answers, initial weights and batches.
        threads: Number of CPU threads.
        resume: Continue from existing files; otherwise the head is trained from scratch. Answers and stored hidden
            states are reused in both cases.
        each: Number of held-out prompts per group of tasks for the final measurement.
        measured_tokens: Maximum length of an answer in the final measurement, in tokens.
        checkpoint_seconds: Seconds between checkpoints.
        device: Device of the target and of training: cpu, cuda, cuda:1, …; "auto" uses a GPU if there is one.
        run: Separate folder for this run: the head, its checkpoint, and training curves as TensorBoard event files,
            including the drafting quality at each checkpoint. None: no curves; the checkpoint is in `work`.
    """

    target: str = "text-target"
    data: Path = DEFAULT_DATA
    work: Path = Path(".cache/train")
    out: Path | None = None
    answer_tokens: int = 100_000
    longest_prompt: int = 256
    max_new_tokens: int = 256
    per_task: int = 400
    minutes: float | None = 5.0
    steps: int | None = None
    loss: str = ""
    rows: int = 32
    places: int = 1024
    ffn: int = 0
    half: bool = True
    dtype: str = "auto"
    matrix_rate: float = ChatHeadOptions.matrix_rate
    other_rate: float = ChatHeadOptions.other_rate
    vocabulary: int = 8192
    everywhere: bool = False
    begin: Path | None = None
    seed: int = 0
    threads: int = 2
    resume: bool = True
    each: int = 2
    measured_tokens: int = 96
    checkpoint_seconds: float = 30.0
    device: str = "auto"
    run: Path | None = None


def run_pipeline(kind: str, options: PipelineOptions, report: Report) -> dict[str, Any]:
    """Make a drafting head: answers of the target, hidden states, training, evaluation; return the training's metrics.

    Args:
        kind: kind of the head.
        options: options, including the kind's own: see `pipeline_options`.
        report: function that receives progress lines.

    Raises:
        ParameterError: the target has too few layers or is too narrow for this kind, an earlier run of a step used
            other settings, or a finished head would be overwritten.
        ModelError: the target does not exist.
    """
    length = options.minutes if options.steps is None else options.steps
    if length is None or length <= 0:
        raise ParameterError(
            f"The training length must be more than 0 minutes or steps, not {length or 0}.",
            "Set minutes above 0, or steps to at least 1.",
        )
    if not options.data.is_dir():
        report(f"{options.data} does not exist, so all prompts come from the project's own generators")
    config = AutoConfig.from_pretrained(locate(options.target))
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:  # other architectures are checked when they are loaded
        with torch.device("meta"):  # fails before hours of generating answers
            last_norm(AutoModelForCausalLM.from_config(config))
    shape = text_config(config)
    heads = _heads(shape.hidden_size, shape.num_attention_heads)
    out = options.out or options.run or bundled_folder()
    work = options.work / Path(short_name(options.target)).name
    checkpoint, layers = (options.run or work) / "heads.pt", shape.num_hidden_layers
    head_options = _head_options(kind, options, layers)
    head_options = dataclasses.replace(head_options, out=out, checkpoint=checkpoint, answers=work / "answers")
    sizes = {"heads": heads, "ffn": options.ffn or max(16, shape.hidden_size * 2 // 3 // 16 * 16)}
    for name in sizes.keys() & vars(head_options).keys():
        setattr(head_options, name, sizes[name])
    check_loss(dataclasses.replace(head_options, loss=options.loss))
    taps = head_options.capture_layers(layers)
    head_options.readings = work / "-".join(["readings", *map(str, taps)])
    check_begin(head_options)
    _check_output_folder(head_options)
    if options.resume:
        check_same_settings(head_options)
    earlier_figures = load_start_figures(head_options.begin)
    report(f"{kind} for {short_name(options.target)}: 1 of 4, generating {options.answer_tokens:,} tokens of answers")
    shared: dict[str, Any] = {"dtype": options.dtype, "threads": options.threads, "device": options.device}
    answers_options = AnswersOptions(
        options.target, options.data, work / "answers", options.answer_tokens, max_new_tokens=options.max_new_tokens,
        longest_prompt=options.longest_prompt, per_task=options.per_task, rows=32, seed=options.seed, **shared,
    )  # fmt: skip
    write_answers(answers_options, report)
    report(f"{kind}: 2 of 4, computing the target's hidden states over its answers")
    longest = options.longest_prompt + options.max_new_tokens  # so that all generated texts fit
    read_options = ReadingsOptions(
        options.target, work / "answers", head_options.readings, taps, ALL_TOKENS, longest, **shared
    )
    make_readings(read_options, report)
    report(f"{kind}: 3 of 4, training")
    settled = resolve_resume(head_options, {} if options.resume else {"resume": False}, report)
    result, facts = train_chat_heads(settled, report)
    recipe = {"recipe": kind, "asked": changed_options(options)}
    figures = finish(
        result, settled.folder, {"options": changed_options(settled), **recipe, **facts, **earlier_figures}
    )
    report(f"{kind}: 4 of 4, evaluation by drafting for held-out prompts")
    evaluate_options = ChatEvaluateOptions(
        options.target, work / "answers", out, options.each, options.measured_tokens, only=kind, **shared
    )
    evaluate_drafters(evaluate_options, report)
    command = draft_command(options.target, kind, settled.folder)
    report(f"{kind}: done. The head and its README.md are in {settled.folder}. To draft with the head: {command}")
    return figures


def draft_command(target: str, kind: str, folder: Path) -> str:
    """Return the command that drafts with a finished head, from any working folder.

    Heads in the workbench's own folder are found by the name of their target; for other heads the command has a path.
    """
    path = folder.resolve()
    is_bundled = path.parent == bundled_folder().resolve()
    flag = f"--method {kind}" if is_bundled else f"--head {shlex.quote(str(path))}"
    return f'workbench generate --chat "…" --target {as_argument(target)} {flag}'


def _check_output_folder(options: ChatHeadOptions) -> None:
    """Check that a finished head is overwritten only by the run that wrote it, according to its settings file.

    Raises:
        ParameterError: another run's finished head is in the output folder.
    """
    folder = options.folder
    if (folder / "config.json").exists() and not matches_checkpoint(options, "out", "target"):
        raise ParameterError(
            f"The folder {folder} contains a finished head, which this training run would overwrite.",
            f"Choose another folder with --set out=FOLDER, and draft with --head FOLDER/{folder.name}.",
        )


def _heads(width: int, target_heads: int) -> int:
    """Return the largest number of attention heads, at most the target's, that gives an even head size.

    Raises:
        ParameterError: the width is odd, so that no number of heads gives an even head size.
    """
    n_heads = next((n for n in range(target_heads, 0, -1) if width % (2 * n) == 0), None)
    if n_heads is None:
        raise ParameterError(
            f"The target's hidden size {width} is odd, and drafting heads need an even hidden size.",
            "Use another target.",
        )
    return n_heads


def _head_options(kind: str, options: PipelineOptions, layers: int) -> Any:
    """Return the training options of a kind of head, given the options of the recipe that makes it.

    Options with the same name in the recipe are copied; numbers of layers are shares of the target's depth `layers`.
    """
    cls = options_class(kind)
    shared = {field.name for field in dataclasses.fields(cls)} & vars(options).keys() - {"out", "resume", "ffn"}
    values = {name: getattr(options, name) for name in shared if name != "loss" or options.loss}
    depths = {name: max(1, layers // share) for name, share in cls.depth_shares.items()}
    return cls(**values | depths | {"method": kind, "curves": options.run})


def pipeline_options(kind: str) -> type:
    """Return the options class of the recipe that makes a kind of head: `PipelineOptions` and options of this kind."""
    cls = options_class(kind)
    types, docs, base = types_of(cls), docs_of(cls), vars(ChatHeadOptions())
    own = [name for name in own_options(cls) if name not in cls.depth_shares]
    shared = [field.name for field in dataclasses.fields(PipelineOptions)]
    changed = [f.name for f in dataclasses.fields(cls) if f.name in shared and base.get(f.name, f.default) != f.default]
    fields = {name: getattr(cls, name) for name in (*changed, *own) if name not in ("method", "loss", "ffn")}
    attributes = "\n".join(f"    {name}: {docs[name]}" for name in own if name not in shared)
    return dataclasses.make_dataclass(
        "WholeOptions",
        [(name, types[name], dataclasses.field(default=default)) for name, default in fields.items()],
        bases=(PipelineOptions,),
        namespace={"__doc__": f"Options of the recipe `{kind}`.\n\nAttributes:\n{attributes}\n"},
    )
