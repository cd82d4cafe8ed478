"""What crosses the wire: requests are checked here, and errors become plain data and errors again.

Everything that reaches a server from outside passes through this module once, whichever door it came in by.
"""

from __future__ import annotations

import base64
import io
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from workbench.core import errors
from workbench.core.errors import CapacityError, ModelError, ParameterError, PromptError, WorkbenchError
from workbench.engine.converted import is_gguf
from workbench.engine.owned import MOST_BYTES
from workbench.trace.files import read_regular
from workbench.trace.kinds import is_list, is_object

NAME_CHARS, MESSAGE_CHARS = 200, 600
ITEMS = 64
"""Entries of a list or an object, where it is not a prompt."""
INTEGERS = 2**63
ENDED = ("finished", "cancelled", "error")
"""States of a run in which nothing more will come."""

_KINDS = {kind.__name__: kind for kind in vars(errors).values() if isinstance(kind, type)}
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_PATH = re.compile(r"(?<![\w/:.<])(?:~|[A-Za-z]:)?[/\\](?:[\w.@+~ -]+[/\\])+[\w.@+~-]*")
_SECRET = re.compile(r"\b(?:hf|sk)[_-][A-Za-z0-9_-]{8,}")


# -- requests ---------------------------------------------------------------------------------------------------------


def text(name: str, value: Any, longest: int | None = NAME_CHARS) -> str:
    """A string of Unicode text.

    Raises:
        ParameterError: not a string, too long, or with half a character (a lone surrogate) in it.
    """
    if not isinstance(value, str):
        raise ParameterError(f"{name} is not text.", f"Give a string, not {_kind(value)}.")
    if longest is not None and len(value) > longest:
        raise ParameterError(f"{name} has {len(value):,} characters.", f"At most {longest:,} are allowed.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ParameterError(f"{name} has half a character in it.", "Send valid Unicode text.") from None
    return value


def whole(name: str, value: Any, least: int = 0, most: int = INTEGERS - 1) -> int:
    """A whole number that fits 64 bits.

    Raises:
        ParameterError: not one, below `least` or above `most`.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most or value != int(value):
        to = f" to {most}" if most < INTEGERS - 1 else ""
        raise ParameterError(f"{name} is not a whole number from {least}{to}.", "Give one.")
    return int(value)


def prompt(value: Any) -> str | list[int]:
    """A prompt: text, or token ids. How long it may be is the backend's affair.

    Raises:
        PromptError: neither.
    """
    if isinstance(value, str):
        try:
            return text("The prompt", value, None)
        except ParameterError as error:
            raise PromptError(error.message, error.remedy) from None
    if not is_list(value) or not all(type(token) is int and 0 <= token < 2**31 for token in value):
        raise PromptError("The prompt is neither text nor token ids.", "Give a string, or a list of whole numbers.")
    return value


def params(value: Any) -> dict[str, Any]:
    """Parameters by name; the method that has them checks their ranges.

    Raises:
        ParameterError: not a flat object.
    """
    if value is None:
        return {}
    if not is_object(value) or len(value) > ITEMS:
        raise ParameterError("params is not an object of names and values.", 'For example: {"depth": 4}.')
    for name, item in value.items():
        text("A parameter's name", name)
        if isinstance(item, str):
            text(name, item)
        elif not isinstance(item, int | float):
            raise ParameterError(f"{name} is {_kind(item)}.", "A parameter is a number, a word, or true or false.")
    return value


def names(name: str, value: Any, most: int = ITEMS) -> list[str]:
    """A list of one or more strings.

    Raises:
        ParameterError: something else, or too many.
    """
    given = cast("Sequence[Any]", value)
    if not isinstance(value, list | tuple) or not 0 < len(given) <= most:
        raise ParameterError(f"{name} is not a list of names.", f"Give 1 to {most} of them.")
    return [text(name, item) for item in given]


def stops(value: Any) -> tuple[str, ...]:
    """Strings that end the text: one, a list of them, or none.

    Raises:
        ParameterError: something else.
    """
    found = [value] if isinstance(value, str) else value or []
    return tuple(names("stop", found)) if found else ()


def images(value: Any) -> list[str]:
    """Pictures as data-URLs; what is in them, `workbench.service.pictures` checks. Nothing else names a picture here.

    Raises:
        PromptError: something else: a path or a web address would be the server's to open.
    """
    if value is None:
        return []
    if not is_list(value) or len(value) > ITEMS:
        raise PromptError("images is not a list of pictures.", 'Give data-URLs: "data:image/png;base64,…".')
    if not all(isinstance(url, str) and url.startswith("data:image/") for url in value):
        raise PromptError("A picture is no data-URL.", 'Give data-URLs: "data:image/png;base64,…".')
    return value


def base64_of(data: bytes) -> str:
    """Bytes for the wire."""
    return base64.b64encode(data).decode("ascii")


def remembered(answer: dict[str, Any]) -> dict[str, Any]:
    """What `RunHandle.memory` answers, for the wire."""
    return answer | ({"data": base64_of(answer["data"])} if "data" in answer else {})


def packed(name: str, value: Any) -> bytes | None:
    """A file in base64, of a drafter's state; None where there is none.

    Raises:
        ParameterError: something else, or too large.
    """
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > 4 * MOST_BYTES // 3 + 4:
        raise ParameterError(f"{name} is no file of a drafter's state.", f"Give one of at most {MOST_BYTES >> 20} MiB.")
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        raise ParameterError(f"{name} is not in base64.", "Send the file as it was saved.") from None


def data_url(picture: Any) -> str:
    """A picture of this process for the wire: bytes of a file, a data-URL, a path, or a PIL image.

    Raises:
        PromptError: the file cannot be read.
    """
    if isinstance(picture, str) and picture.startswith("data:"):
        return picture
    if isinstance(picture, bytes):
        raw = picture
    elif not isinstance(picture, (str, Path)) and hasattr(picture, "save"):
        out = io.BytesIO()
        picture.save(out, "PNG")
        raw = out.getvalue()
    else:
        try:
            raw = read_regular(Path(picture).expanduser())
        except (OSError, TypeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is no path"
            raise PromptError(f"The picture cannot be read: {reason}.", "Give a file, or its bytes.") from None
    return f"data:image/{_format(raw)};base64,{base64.b64encode(raw).decode('ascii')}"


def _format(raw: bytes) -> str:
    heads = {b"\xff\xd8": "jpeg", b"GIF8": "gif", b"RIFF": "webp"}
    return next((name for head, name in heads.items() if raw.startswith(head)), "png")


def messages(value: Any) -> list[dict[str, Any]]:
    """A conversation: messages with a role and a content, which may be a list of parts: text, and places of pictures.

    A part of type "image_url" (OpenAI's) or "image" becomes {"type": "image"}; see `images_of` for what it holds.

    Raises:
        PromptError: something else.
    """
    if not is_list(value) or not 0 < len(value) <= 8 * ITEMS:
        raise PromptError("messages is not a list of messages.", 'For example: [{"role": "user", "content": "Hello"}].')
    return [_message(item) for item in value]


def images_of(value: list[dict[str, Any]]) -> list[str]:
    """The pictures of a conversation that `messages` has let through, in their order.

    Raises:
        PromptError: one is no data-URL.
    """
    parts = [part for item in value if is_list(item["content"]) for part in item["content"]]
    return images([part.get("url", "") for part in parts if part["type"] == "image"])


def _part(value: Any) -> dict[str, Any]:
    kind = value.get("type") if is_object(value) else None
    if kind == "text":
        return {"type": "text", "text": prompt(value.get("text"))}
    if kind == "image_url" and isinstance(value.get("image_url"), dict):
        return {"type": "image", "url": value["image_url"].get("url")}
    if kind == "image":
        return {"type": "image"}
    raise PromptError("A part of a message is neither text nor a picture.", "Use the types text and image_url.")


def _message(value: Any) -> dict[str, Any]:
    if not is_object(value) or value.get("role") not in ("system", "developer", "user", "assistant"):
        raise PromptError("A message has no role.", "Use system, user or assistant.")
    content = value.get("content")
    role = "system" if value["role"] == "developer" else value["role"]
    if is_list(content) and len(content) <= ITEMS:
        parts = [_part(part) for part in content]
        if any(part["type"] == "image" for part in parts):
            return {"role": role, "content": parts}
        content = "".join(part["text"] for part in parts)
    if not isinstance(content, str):
        raise PromptError("The content of a message is not text.", "Give a text, or a list of parts.")
    return {"role": role, "content": prompt(content)}


def model_name(name: str, value: Any, known: Sequence[str], hub_only: bool = False) -> str | None:
    """The name of a model, or None. Folders and files of the server go by the names that it lists, and by no path.

    Not even by one that its command line was given: who guesses that would learn where on the machine models lie.

    Args:
        name: of the field, for the message.
        value: what was sent.
        known: names that the server lists.
        hub_only: whether the backend looks for other names on the Hub alone. Then no folder is looked for here either:
            an answer that depended on it would tell of it.

    Raises:
        ModelError: neither a listed name nor a Hub id.
    """
    if value is None or value == "":
        return None
    given = text(name, value)
    is_id = _HUB_NAME.fullmatch(given) and ".." not in given and not is_gguf(given)
    if given in known or (is_id and (hub_only or not _is_place(given))):
        return given
    raise ModelError(f"{given[:80]!r} is not the name of a model.", "Use a listed name, or a Hub id like owner/name.")


def _is_place(name: str) -> bool:
    """Whether what looks like a Hub id would be a folder or a file of the server, which goes before one of the Hub."""
    try:
        return Path(name).exists()
    except OSError:  # it is there, and may not be looked at
        return True


def _kind(value: Any) -> str:
    numbers = {bool: "true or false", int: "a number", float: "a number"}
    return (numbers | {type(None): "null", list: "a list", dict: "an object"}).get(value.__class__, "something else")


# -- errors -----------------------------------------------------------------------------------------------------------


def scrub(message: str) -> str:
    """A message for strangers: no folders of this machine, no tokens, no novel."""
    clean = _SECRET.sub("…", _PATH.sub("…", message))
    return clean if len(clean) <= MESSAGE_CHARS else clean[:MESSAGE_CHARS] + "…"


def error_to_wire(problem: BaseException) -> dict[str, Any]:
    """An error as plain data: kind, message, remedy, and in how many seconds to ask again, where that is known.

    What nobody foresaw goes to the log and is not told.
    """
    if isinstance(problem, WorkbenchError):
        kind = type(problem).__name__
        found: dict[str, Any] = {
            "kind": kind if kind in _KINDS else "WorkbenchError",
            "message": scrub(problem.message),
            "remedy": scrub(problem.remedy),
        }
        later = getattr(problem, "retry_after_s", None)
        return found if later is None else found | {"retry_after_s": later}
    logging.getLogger("workbench.wire").error("unexpected error", exc_info=problem)
    return {
        "kind": "WorkbenchError",
        "message": "Something went wrong inside the workbench.",
        "remedy": "The log of the server has the details; the server goes on.",
    }


def error_from_wire(data: dict[str, Any]) -> WorkbenchError:
    """The inverse of `error_to_wire`."""
    kind = _KINDS.get(str(data.get("kind")), WorkbenchError)
    problem, later = kind(str(data.get("message", "")), str(data.get("remedy", ""))), data.get("retry_after_s")
    if isinstance(problem, CapacityError) and type(later) is int:
        problem.retry_after_s = later
    return problem


def news(since: dict[str, Any]) -> dict[str, Any]:
    """What `Run.since` returned, with its messages made fit for strangers."""
    footer, problem = since["footer"], since.get("problem")
    if footer is not None and footer.get("error"):
        footer = footer | {"error": scrub(footer["error"])}
    told = {"problem": error_to_wire(error_from_wire(problem))} if problem else {}
    return since | {"message": scrub(since["message"]), "footer": footer} | told
