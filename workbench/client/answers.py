"""What a server answers, or why it does not, for people."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import httpx

from workbench.client import wire
from workbench.client.keys import variables
from workbench.core.errors import CapacityError, WorkbenchError
from workbench.trace.kinds import is_object


def checked(answer: Any) -> dict[str, Any]:
    """What an endpoint answered.

    Raises:
        WorkbenchError: what it says is wrong, or that it is no answer.
    """
    if not is_object(answer):
        raise WorkbenchError("The server answered with something else than an object.")
    if set(answer) == {"error"}:
        raise wire.error_from_wire(answer["error"])
    return answer


def unreachable(url: str, problem: BaseException, has_key: bool = False) -> WorkbenchError:
    """Why a server did not answer, for people. `has_key`: it was sent one."""
    if isinstance(problem, WorkbenchError):
        return problem
    if isinstance(problem, httpx.TimeoutException):
        return WorkbenchError(f"{url} did not answer in time.", "Try again, or look at the server's log.")
    if isinstance(problem, httpx.TransportError):
        return WorkbenchError(
            f"Nobody answers at {url}.", "Start the app there (`python app.py`), or check the address."
        )
    if isinstance(problem, httpx.HTTPStatusError):
        if problem.response.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return CapacityError(f"What was sent is more than {url} takes.", "Send less, or a smaller file.")
        return WorkbenchError(f"{url} answered with status {problem.response.status_code}.", "Check the address.")
    if type(problem).__name__ == "AuthenticationError":  # gradio_client's
        given = "Give --api-key, or Workbench(url, key=…)"
        remedy = " or set ".join([given, *variables(url)[:1]]) + "."
        return WorkbenchError(f"{url} needs a key{', and this is not it' if has_key else ''}.", remedy)
    if type(problem).__name__ == "TooManyRequestsError":
        return WorkbenchError(f"{url} has had too many requests, or wrong keys, from here.", "Try again in a minute.")
    reason = " ".join(str(problem).split())[:200] or type(problem).__name__
    return WorkbenchError(f"{url} cannot be used: {reason}", "Check the address; a private Space needs HF_TOKEN.")
