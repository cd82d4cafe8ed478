"""What a command checks before anything is imported that takes time: it is refused within a second, or it can run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from workbench.cli import say
from workbench.core.errors import MethodUnavailableError, PromptError, UnknownNameError, WorkbenchError
from workbench.engine.declared import DRAFTERS
from workbench.methods import known
from workbench.service.checks import about, check_method, check_model, choose_method
from workbench.service.choices import static_reasons
from workbench.service.limits import Limits
from workbench.service.names import Pair
from workbench.trace.files import check_writable

if TYPE_CHECKING:
    from workbench.bench.prompts import BenchPrompt


def sampling(values: Mapping[str, Any]) -> None:
    """Sampling's parameters, given as options of their own.

    Raises:
        ParameterError: one is out of its range.
    """
    for name, value in values.items():
        with about(name.replace("_", "-")):
            known.sampling()[name].parse(value)


def method(name: str | None, values: Mapping[str, Any], pair: Pair, pictures: int | None = None) -> str:
    """A method that can run with its parameters on these models; where none is named, the one that is taken.

    Args:
        name: as `--method` gave it, or None.
        values: as `--set` gave them.
        pair: the target and the draft model.
        pictures: how many the prompt has; None: that is not asked here.

    Raises:
        WorkbenchError: `option` says what is wrong.
    """
    if name is None:
        name, why = _with_own_heads(pair, pictures) or choose_method(pair)
        if why:
            say.note(f"{why} Decoding with {name}; --method and --drafter choose otherwise.")
    with about("method"):
        known.get(name)
        if known.get(name).draws_on_pictures and pictures == 0:
            raise PromptError(
                f"{name} is made for prompts with pictures, and there is none.",
                "Give one with --image FILE and --target vision-target, or take another --method.",
            )
        try:
            check_method(name, values, pair)
        except MethodUnavailableError as error:
            needs = known.get(name).needs
            more = "Name a draft model with --drafter. " if DRAFTERS & set(needs) and pair[1] is None else ""
            raise MethodUnavailableError(error.message, f"{more}{error.remedy}") from None
    return name


def _with_own_heads(pair: Pair, pictures: int | None) -> tuple[str, str] | None:
    """Return the method that drafts with the first of the user's own heads that suits the target, and why it is taken.

    Heads of one's own are those of `--head` and of `WORKBENCH_HEADS`; of the latter some may be for other targets.
    """
    from workbench.engine.checkpoints import own
    from workbench.engine.names import folder_of

    if not own.places():
        return None
    reason, target = static_reasons(*pair), pair[0] or ""
    for heads in own.own_heads():
        if own.problem(heads, target, folder_of(target)):
            continue
        able = known.drafting_with(heads.kind)
        for name in sorted(able, key=lambda name: name != heads.kind):
            method = known.get(name)
            if not (method.draws_on_pictures and pictures == 0) and not reason(method.needs):
                return name, f"{heads.folder} has {heads.kind} heads for {target}."
    return None


def lanes(given: Sequence[str] | None, usual: Sequence[str], pair: Pair) -> list[str]:
    """Lanes as `--lane` gave them, read once; where there are none, those of the usual ones that can run.

    Raises:
        WorkbenchError: one is not written as a lane is, or nobody knows its method or parameter.
    """
    from workbench.bench.lanes import Lane

    with about("lane"):
        for lane in given or ():
            found = Lane.parse(lane)
            if found.drafter not in (None, "auto", "none"):
                check_model(str(found.drafter))
    if given:
        return list(given)
    reason = static_reasons(*pair)
    left_out = {name: why for name in usual if (why := reason(known.get(name).needs))}
    for name, why in left_out.items():
        say.note(f"{name} is left out: {why}")
    return [name for name in usual if name not in left_out]


def groups(names: Sequence[str], prompts: Sequence[BenchPrompt]) -> None:
    """Refuse a group that no prompt is of.

    Raises:
        UnknownNameError: with the nearest known ones.
    """
    from workbench.bench.prompts import groups_of

    with about("group"):
        for name in names:
            if name not in (found := groups_of(prompts)):
                raise UnknownNameError.of("group of prompts", name, found)


def request(prompt: str, max_new_tokens: int, stop: Sequence[str]) -> None:
    """A prompt, a length and stop strings, as every backend bounds them.

    Raises:
        WorkbenchError: with the bound.
    """
    limits = Limits()
    limits.check_prompt(prompt)
    with about("max-new-tokens"):
        limits.check_tokens(max_new_tokens)
    with about("stop"):
        limits.check_stops(stop)


def pictures(paths: Sequence[Path], target: str) -> None:
    """Pictures, each read once: a damaged one is named.

    Raises:
        PromptError: it cannot be read, or the target reads text only.
    """
    if not paths:
        return
    from workbench.service.choices import reads_pictures
    from workbench.service.pictures import MAX_PICTURES, decode

    with about("image"):
        if reads_pictures(target) is False:
            raise PromptError(f"{target} reads text only.", "Leave --image out, or choose --target vision-target.")
        if len(paths) > MAX_PICTURES:
            raise PromptError(f"{len(paths)} pictures came; {MAX_PICTURES} are the limit.", "Leave some out.")
        for path in paths:
            _named(path, decode)


def _named(path: Path, decode: Callable[[Path], Any]) -> None:
    try:
        decode(path)
    except PromptError as error:
        message = error.message if str(path) in error.message else f"{path}: {error.message}"
        raise PromptError(message, error.remedy) from None


def kinds_of(suite: str, out: Sequence[Path], kinds: Iterable[str]) -> None:
    """Refuse files of another kind than a suite writes.

    Raises:
        BadParameter: there is one.
    """
    *others, last = kinds
    if any(path.suffix not in (*others, last) for path in out):
        raise typer.BadParameter(f"the suite {suite} writes {', '.join(others)} or {last}", param_hint="--out")


def file_to_write(path: Path | None, option: str) -> None:
    """A file that will be written: it is tried now, not after the work. What is in it stays.

    Raises:
        WorkbenchError: it cannot be written.
    """
    if path is None:
        return
    with about(option):
        try:
            check_writable(path)
        except OSError as error:
            raise WorkbenchError(f"{path} cannot be written: {error.strerror}.", "Choose another file.") from None


def folder_to_write(path: Path | None, option: str) -> None:
    """A folder that will be written to: it is there, or can be made.

    Raises:
        WorkbenchError: it is a file, or may not be written to.
    """
    if path is None:
        return
    place = next((p for p in (path, *path.absolute().parents) if p.exists()), path)
    if not place.is_dir() or not os.access(place, os.W_OK):
        why = "it may not be written to" if place.is_dir() else f"{place} is a file"
        with about(option):
            raise WorkbenchError(f"{path} cannot be used: {why}.", "Choose another folder.")
