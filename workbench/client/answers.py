"""Check the answers of a server, and turn connection problems into error messages."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import httpx

from workbench.client import wire
from workbench.client.keys import variables
from workbench.core.errors import CapacityError, WorkbenchError
from workbench.trace.type_checks import is_object


def check_answer(answer: Any) -> dict[str, Any]:
    """Return the answer of a server's endpoint; if the answer describes an error, raise it.

    Raises:
        WorkbenchError: the answer is an error, or not a JSON object.
    """
    if not is_object(answer):
        raise WorkbenchError("The server's answer is not a JSON object.")
    if set(answer) == {"error"}:
        raise wire.error_from_wire(answer["error"])
    return answer


def unreachable(url: str, problem: BaseException, has_key: bool = False) -> WorkbenchError:
    """Return the error for a server that did not answer. `has_key` says whether an API key was sent."""
    if isinstance(problem, WorkbenchError):
        return problem
    if isinstance(problem, httpx.TimeoutException):
        return WorkbenchError(f"{url} did not answer in time.", "Try again, or look at the server's log.")
    if isinstance(problem, httpx.TransportError):
        return WorkbenchError(
            f"No server answers at {url}.", "Start the app at this address (`python app.py`), or check the address."
        )
    if isinstance(problem, httpx.HTTPStatusError):
        if problem.response.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return CapacityError(
                f"The request is larger than the server at {url} allows.", "Send less text, or a smaller file."
            )
        return WorkbenchError(f"{url} answered with status {problem.response.status_code}.", "Check the address.")
    if type(problem).__name__ == "AuthenticationError":  # gradio_client's
        options = "Give --api-key, or Workbench(url, key=…)"
        remedy = " or set ".join([options, *variables(url)[:1]]) + "."
        return WorkbenchError(f"{url} needs an API key{', and the given key is wrong' if has_key else ''}.", remedy)
    if type(problem).__name__ == "TooManyRequestsError":
        return WorkbenchError(
            f"{url} received too many requests, or too many wrong keys, from this machine.", "Try again in a minute."
        )
    reason = " ".join(str(problem).split())[:200] or type(problem).__name__
    return WorkbenchError(
        f"{url} cannot be used: {reason}", "Check the address; for a private Hugging Face Space, set HF_TOKEN."
    )
