"""Check the options of a command before slow imports, so that an invalid command fails within a second."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from workbench.cli import output
from workbench.core.errors import MethodUnavailableError, PromptError, UnknownNameError, WorkbenchError, system_reason
from workbench.decoders.declarations import DRAFTERS
from workbench.methods import method_info
from workbench.service.checks import check_method, check_model, choose_method, set_error_option
from workbench.service.choices import static_reasons
from workbench.service.limits import Limits
from workbench.service.names import Pair
from workbench.trace.files import check_writable

if TYPE_CHECKING:
    from workbench.bench.prompts import BenchPrompt


def check_sampling(values: Mapping[str, Any]) -> None:
    """Check the values of sampling parameters, such as `temperature`, by the parameters' names.

    Raises:
        ParameterError: a value is out of range.
    """
    for name, value in values.items():
        with set_error_option(name.replace("_", "-")):
            method_info.sampling()[name].parse(value)


def resolve_method(name: str | None, values: Mapping[str, Any], pair: Pair, n_images: int | None = None) -> str:
    """Check that a method can run with its parameters and models; if no method is named, choose one.

    Args:
        name: value of `--method`, or None.
        values: values of the option `--set`, by parameter name.
        pair: names of the target and the draft model.
        n_images: number of images in the prompt; None: do not check it.

    Returns:
        Name of the method.

    Raises:
        WorkbenchError: the method cannot run; the error's `option` names the wrong command-line option.
    """
    if name is None:
        name, reason = _with_own_heads(pair, n_images) or choose_method(pair)
        if reason:
            output.note(f"{reason} Decoding with {name}; choose another method with --method or --drafter.")
    with set_error_option("method"):
        method_info.get(name)
        if method_info.get(name).reads_images and n_images == 0:
            raise PromptError(
                f"{name} needs a prompt with images, and this prompt has none.",
                "Give an image with --image FILE and --target vision-target, or use another --method.",
            )
        try:
            check_method(name, values, pair)
        except MethodUnavailableError as error:
            needs = method_info.get(name).needs
            hint = "Name a draft model with --drafter. " if DRAFTERS & set(needs) and pair[1] is None else ""
            raise MethodUnavailableError(error.message, f"{hint}{error.remedy}") from None
    return name


def _with_own_heads(pair: Pair, n_images: int | None) -> tuple[str, str] | None:
    """Choose the method for the user's own heads: the first heads that fit the target decide.

    The user's own heads are given by `--head` and by the variable `WORKBENCH_HEADS`, which may also list heads for
    other targets.

    Returns:
        Name of the method and the reason for the choice; None if none of these heads fit.
    """
    from workbench.models.checkpoints import user_heads
    from workbench.models.names import folder_of

    if not user_heads.head_folders():
        return None
    reason, target = static_reasons(*pair), pair[0] or ""
    for heads in user_heads.own_heads():
        if user_heads.problem(heads, target, folder_of(target)):
            continue
        methods = method_info.drafting_with(heads.kind)
        for name in sorted(methods, key=lambda name: name != heads.kind):
            method = method_info.get(name)
            if not (method.reads_images and n_images == 0) and not reason(method.needs):
                return name, f"{heads.folder} has {heads.kind} heads for {target}."
    return None


def check_lanes(requested: Sequence[str] | None, defaults: Sequence[str], pair: Pair) -> list[str]:
    """Check the compared methods that `--lane` names; without `--lane`, return the defaults that can run.

    Args:
        requested: values of `--lane`; None: none were given.
        defaults: lanes (methods with settings) to use if none were given.
        pair: names of the target and the draft model.

    Raises:
        WorkbenchError: a lane is malformed, or its method or parameter is unknown.
    """
    from workbench.bench.lanes import Lane

    with set_error_option("lane"):
        for lane in requested or ():
            parsed = Lane.parse(lane)
            if parsed.drafter not in (None, "auto", "none"):
                check_model(str(parsed.drafter))
    if requested:
        return list(requested)
    reason = static_reasons(*pair)
    left_out = {name: reason_text for name in defaults if (reason_text := reason(method_info.get(name).needs))}
    for name, reason_text in left_out.items():
        output.note(f"{name} was left out: {reason_text}")
    return [name for name in defaults if name not in left_out]


def check_groups(names: Sequence[str], prompts: Sequence[BenchPrompt]) -> None:
    """Refuse the name of a prompt group to which no prompt belongs.

    Raises:
        UnknownNameError: a group is unknown; the message suggests the most similar known names.
    """
    from workbench.bench.prompts import groups_of

    with set_error_option("group"):
        for name in names:
            if name not in (known_groups := groups_of(prompts)):
                raise UnknownNameError.of("group of prompts", name, known_groups)


def check_request(prompt: str, max_new_tokens: int, stop: Sequence[str]) -> None:
    """Check a prompt, the number of new tokens and the stop strings against the limits that all backends have.

    Raises:
        WorkbenchError: a limit is exceeded; the message states it.
    """
    limits = Limits()
    limits.check_prompt(prompt)
    with set_error_option("max-new-tokens"):
        limits.check_tokens(max_new_tokens)
    with set_error_option("stop"):
        limits.check_stops(stop)


def check_images(paths: Sequence[Path], target: str) -> None:
    """Check that the target accepts images, and that each image can be decoded.

    Raises:
        PromptError: an image cannot be read, there are too many images, or the target reads text only.
    """
    if not paths:
        return
    from workbench.service.choices import accepts_images
    from workbench.service.image_decoding import MAX_IMAGES, decode

    with set_error_option("image"):
        if accepts_images(target) is False:
            raise PromptError(f"{target} reads text only.", "Leave out --image, or use --target vision-target.")
        if len(paths) > MAX_IMAGES:
            raise PromptError(f"{len(paths)} images were given; the limit is {MAX_IMAGES}.", "Give fewer images.")
        for path in paths:
            _named(path, decode)


def _named(path: Path, decode: Callable[[Path], Any]) -> None:
    try:
        decode(path)
    except PromptError as error:
        message = error.message if str(path) in error.message else f"{path}: {error.message}"
        raise PromptError(message, error.remedy) from None


def check_suffixes(suite: str, out: Sequence[Path], kinds: Iterable[str]) -> None:
    """Refuse output files with a suffix that a benchmark suite cannot write.

    Raises:
        BadParameter: the suffix of a file is not in `kinds`.
    """
    *others, last = kinds
    if any(path.suffix not in (*others, last) for path in out):
        raise typer.BadParameter(f"the suite {suite} writes {', '.join(others)} or {last}", param_hint="--out")


def check_output_file(path: Path | None, option: str) -> None:
    """Check, before a long measurement, that an output file can be written. The file is not changed.

    Args:
        path: the file; None: nothing is checked.
        option: name of the option that the error refers to.

    Raises:
        WorkbenchError: the file cannot be written.
    """
    if path is None:
        return
    with set_error_option(option):
        try:
            check_writable(path)
        except OSError as error:
            raise WorkbenchError(f"{path} cannot be written: {system_reason(error)}.", "Choose another file.") from None


def check_output_folder(path: Path | None, option: str) -> None:
    """Check, before a long measurement, that an output folder exists or can be created, and is writable.

    Args:
        path: the folder; None: nothing is checked.
        option: name of the option that the error refers to.

    Raises:
        WorkbenchError: the path is a file, or not writable.
    """
    if path is None:
        return
    existing = next((p for p in (path, *path.absolute().parents) if p.exists()), path)
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        reason = "the folder is not writable" if existing.is_dir() else f"{existing} is a file"
        with set_error_option(option):
            raise WorkbenchError(f"{path} cannot be used: {reason}.", "Choose another folder.")
