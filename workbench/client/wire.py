"""Checks of values in requests, and conversion of errors to JSON and back.

Every value from a client is checked here, whether it comes from a page, the API or the command line.
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
from workbench.decoders.draft_verify.inspectable_state import MOST_BYTES
from workbench.models.converted_models import is_gguf
from workbench.trace.files import read_regular
from workbench.trace.type_checks import is_list, is_object

NAME_CHARS, MESSAGE_CHARS = 200, 600
ITEMS = 64
"""Maximum number of entries in a list or object in a request, except prompts."""
INTEGERS = 2**63
ENDED = ("finished", "cancelled", "error")
"""Names of the states in which a run has ended."""

_KINDS = {kind.__name__: kind for kind in vars(errors).values() if isinstance(kind, type)}
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_PATH = re.compile(r"(?<![\w/:.<])(?:~|[A-Za-z]:)?[/\\](?:[\w.@+~ -]+[/\\])+[\w.@+~-]*")
_SECRET = re.compile(r"\b(?:hf|sk)[_-][A-Za-z0-9_-]{8,}")


# -- requests ---------------------------------------------------------------------------------------------------------


def check_text(name: str, value: Any, longest: int | None = NAME_CHARS) -> str:
    """Check that a value in a request is a valid string.

    Raises:
        ParameterError: the value is not a string, too long, or contains a lone surrogate.
    """
    if not isinstance(value, str):
        raise ParameterError(f"{name} is not text.", f"Give a string, not {_kind(value)}.")
    if longest is not None and len(value) > longest:
        raise ParameterError(f"{name} has {len(value):,} characters.", f"Send at most {longest:,} characters.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ParameterError(f"{name} contains a lone surrogate.", "Send valid Unicode text.") from None
    return value


def check_integer(name: str, value: Any, least: int = 0, most: int = INTEGERS - 1) -> int:
    """Check that a value in a request is an integer of at most 64 bits, in a given range.

    Raises:
        ParameterError: the value is not an integer, below `least` or above `most`.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most or value != int(value):
        to = f" to {most}" if most < INTEGERS - 1 else ""
        raise ParameterError(
            f"{name} is not a whole number from {least}{to}.", "Give a whole number in the stated range."
        )
    return int(value)


def check_prompt(value: Any) -> str | list[int]:
    """Check that a prompt is a text or a list of token ids. The backend checks its length.

    Raises:
        PromptError: the value is neither text nor token ids.
    """
    if isinstance(value, str):
        try:
            return check_text("The prompt", value, None)
        except ParameterError as error:
            raise PromptError(error.message, error.remedy) from None
    if not is_list(value) or not all(type(token) is int and 0 <= token < 2**31 for token in value):
        raise PromptError("The prompt is neither text nor token ids.", "Give a string, or a list of whole numbers.")
    return value


def check_params(value: Any) -> dict[str, Any]:
    """Check a dict of parameters from a request; the method checks names and ranges.

    Raises:
        ParameterError: the value is not an object of numbers, strings and booleans.
    """
    if value is None:
        return {}
    if not is_object(value) or len(value) > ITEMS:
        raise ParameterError("params is not an object with parameter names and values.", 'For example: {"depth": 4}.')
    for name, item in value.items():
        check_text("A parameter's name", name)
        if isinstance(item, str):
            check_text(name, item)
        elif not isinstance(item, int | float):
            raise ParameterError(f"{name} is {_kind(item)}.", "A parameter is a number, a string, true or false.")
    return value


def check_names(name: str, value: Any, most: int = ITEMS) -> list[str]:
    """Check that a value in a request is a list of one or more strings.

    Raises:
        ParameterError: the value is not a list, empty, or too long.
    """
    items = cast("Sequence[Any]", value)
    if not isinstance(value, list | tuple) or not 0 < len(items) <= most:
        raise ParameterError(f"{name} is not a list of names, or has too many or none.", f"Give 1 to {most} names.")
    return [check_text(name, item) for item in items]


def check_stops(value: Any) -> tuple[str, ...]:
    """Check the stop strings of a request: a string, a list of strings, or None.

    Raises:
        ParameterError: the value is neither a string, a list of strings nor None.
    """
    strings = [value] if isinstance(value, str) else value or []
    return tuple(check_names("stop", strings)) if strings else ()


def check_images(value: Any) -> list[str]:
    """Check that all images of a request are data-URLs; `workbench.service.image_decoding` checks their content.

    Raises:
        PromptError: an image is not a data-URL. Paths and web addresses are refused: the server must not open them.
    """
    if value is None:
        return []
    if not is_list(value) or len(value) > ITEMS:
        raise PromptError("The value of images is not a list of images.", 'Give data-URLs: "data:image/png;base64,…".')
    if not all(isinstance(url, str) and url.startswith("data:image/") for url in value):
        raise PromptError("An image is not a data-URL.", 'Give data-URLs: "data:image/png;base64,…".')
    return value


def base64_of(data: bytes) -> str:
    """Encode bytes in base64."""
    return base64.b64encode(data).decode("ascii")


def state_to_wire(answer: dict[str, Any]) -> dict[str, Any]:
    """Convert the answer of `RunHandle.memory` to JSON data: the file with the drafter's state becomes base64."""
    return answer | ({"data": base64_of(answer["data"])} if "data" in answer else {})


def state_from_wire(answer: dict[str, Any]) -> dict[str, Any]:
    """Convert JSON data back to the answer of `RunHandle.memory`, as the inverse of `state_to_wire`."""
    return answer | ({"data": decode_base64("data", answer["data"])} if "data" in answer else {})


def decode_base64(name: str, value: Any) -> bytes | None:
    """Decode a file with a drafter's state from base64; return None for None.

    Raises:
        ParameterError: the value is not base64, or it is too large.
    """
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > 4 * MOST_BYTES // 3 + 4:
        raise ParameterError(
            f"{name} is not a file with a drafter's saved state.",
            f"Give a file that `save` returned, of at most {MOST_BYTES >> 20} MiB.",
        )
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        raise ParameterError(f"{name} is not in base64.", "Send the unchanged file that `save` returned.") from None


def data_url(image: Any) -> str:
    """Convert an image to a data-URL: bytes of a file, a data-URL, a path, or a PIL image.

    Raises:
        PromptError: the file cannot be read.
    """
    if isinstance(image, str) and image.startswith("data:"):
        return image
    if isinstance(image, bytes):
        raw = image
    elif not isinstance(image, (str, Path)) and hasattr(image, "save"):
        out = io.BytesIO()
        image.save(out, "PNG")
        raw = out.getvalue()
    else:
        try:
            raw = read_regular(Path(image).expanduser())
        except (OSError, TypeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "the given value is not a path"
            raise PromptError(
                f"The image cannot be read: {reason}.", "Give the path of an image file, or the bytes of an image."
            ) from None
    return f"data:image/{_format(raw)};base64,{base64.b64encode(raw).decode('ascii')}"


def _format(raw: bytes) -> str:
    signatures = {b"\xff\xd8": "jpeg", b"GIF8": "gif", b"RIFF": "webp"}
    return next((name for signature, name in signatures.items() if raw.startswith(signature)), "png")


def check_messages(value: Any) -> list[dict[str, Any]]:
    """Check a conversation: messages with a role and a content, which is a text or a list of text and image parts.

    A part of type "image_url" (OpenAI's) or "image" becomes {"type": "image"}; `images_of` returns its image.

    Raises:
        PromptError: the value is not a valid conversation.
    """
    if not is_list(value) or not 0 < len(value) <= 8 * ITEMS:
        raise PromptError(
            "The value of messages is not a list of messages.",
            'Give a list such as [{"role": "user", "content": "Hello"}].',
        )
    return [_message(item) for item in value]


def images_of(value: list[dict[str, Any]]) -> list[str]:
    """Return the images of a conversation that `check_messages` has checked, in order.

    Raises:
        PromptError: an image is not a data-URL.
    """
    parts = [part for item in value if is_list(item["content"]) for part in item["content"]]
    return check_images([part.get("url", "") for part in parts if part["type"] == "image"])


def _part(value: Any) -> dict[str, Any]:
    kind = value.get("type") if is_object(value) else None
    if kind == "text":
        return {"type": "text", "text": check_prompt(value.get("text"))}
    if kind == "image_url" and isinstance(value.get("image_url"), dict):
        return {"type": "image", "url": value["image_url"].get("url")}
    if kind == "image":
        return {"type": "image"}
    raise PromptError("A part of a message is neither text nor an image.", "Use the types text and image_url.")


def _message(value: Any) -> dict[str, Any]:
    if not is_object(value) or value.get("role") not in ("system", "developer", "user", "assistant"):
        raise PromptError("A message has no valid role.", "Use system, user or assistant.")
    content = value.get("content")
    role = "system" if value["role"] == "developer" else value["role"]
    if is_list(content) and len(content) <= ITEMS:
        parts = [_part(part) for part in content]
        if any(part["type"] == "image" for part in parts):
            return {"role": role, "content": parts}
        content = "".join(part["text"] for part in parts)
    if not isinstance(content, str):
        raise PromptError("The content of a message is not text.", "Give a text, or a list of text and image parts.")
    return {"role": role, "content": check_prompt(content)}


def model_name(name: str, value: Any, known: Sequence[str], hub_only: bool = False) -> str | None:
    """Check the name of a model from a client. Paths on the server are refused, even of models that it may use.

    Models in folders of the server are known by listed names. A path from the server's command line is refused, too,
    because otherwise a correct guess would reveal the model's location.

    Args:
        name: name of the request field, for the error message.
        value: value from the client.
        known: names that the server lists.
        hub_only: whether unlisted names are read only as Hub ids. If so, the file system is not searched: an answer
            that depended on a folder would reveal that the folder exists.

    Returns:
        The name; None for an empty value.

    Raises:
        ModelError: the value is neither a listed name nor a Hub id.
    """
    if value is None or value == "":
        return None
    model = check_text(name, value)
    is_id = _HUB_NAME.fullmatch(model) and ".." not in model and not is_gguf(model)
    if model in known or (is_id and (hub_only or not _is_place(model))):
        return model
    raise ModelError(f"{model[:80]!r} is not the name of a model.", "Use a listed name, or a Hub id like owner/name.")


def _is_place(name: str) -> bool:
    """Return whether a name in the form of a Hub id is also a folder or file on the server.

    The folder or file would take precedence over the model on the Hub.
    """
    try:
        return Path(name).exists()
    except OSError:  # it exists, but access is denied
        return True


def _kind(value: Any) -> str:
    numbers = {bool: "true or false", int: "a number", float: "a number"}
    return (numbers | {type(None): "null", list: "a list", dict: "an object"}).get(value.__class__, "something else")


# -- errors -----------------------------------------------------------------------------------------------------------


def scrub(message: str) -> str:
    """Remove paths and access tokens from an error message for clients, and limit its length."""
    clean = _SECRET.sub("…", _PATH.sub("…", message))
    return clean if len(clean) <= MESSAGE_CHARS else clean[:MESSAGE_CHARS] + "…"


def error_to_wire(problem: BaseException) -> dict[str, Any]:
    """Convert an error to JSON data: kind, message, remedy, and the seconds to wait before a retry, if known.

    An unexpected exception is logged, and the client gets a general message.
    """
    if isinstance(problem, WorkbenchError):
        kind = type(problem).__name__
        entry: dict[str, Any] = {
            "kind": kind if kind in _KINDS else "WorkbenchError",
            "message": scrub(problem.message),
            "remedy": scrub(problem.remedy),
        }
        retry_after_s = getattr(problem, "retry_after_s", None)
        return entry if retry_after_s is None else entry | {"retry_after_s": retry_after_s}
    logging.getLogger("workbench.wire").error("unexpected error", exc_info=problem)
    return {
        "kind": "WorkbenchError",
        "message": "An internal error occurred.",
        "remedy": "The server's log has the details; the server keeps running.",
    }


def error_from_wire(data: dict[str, Any]) -> WorkbenchError:
    """Convert JSON data back to an error, as the inverse of `error_to_wire`."""
    kind = _KINDS.get(str(data.get("kind")), WorkbenchError)
    problem, retry_after_s = kind(str(data.get("message", "")), str(data.get("remedy", ""))), data.get("retry_after_s")
    if isinstance(problem, CapacityError) and type(retry_after_s) is int:
        problem.retry_after_s = retry_after_s
    return problem


def scrub_update(since: dict[str, Any]) -> dict[str, Any]:
    """Return an answer of `Run.since` without paths and access tokens in its messages."""
    footer, problem = since["footer"], since.get("problem")
    if footer is not None and footer.get("error"):
        footer = footer | {"error": scrub(footer["error"])}
    scrubbed = {"problem": error_to_wire(error_from_wire(problem))} if problem else {}
    return since | {"message": scrub(since["message"]), "footer": footer} | scrubbed
