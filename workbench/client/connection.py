"""Connection to a running app: calls of its endpoints, and their event streams.

Calls go through `gradio_client`. Each event stream has its own connection, so that the server notices at once when the
stream is closed.
"""

from __future__ import annotations

import json
import os
import ssl
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Executor
from functools import cache
from typing import Any, Protocol, cast

import httpx

from workbench.client.answers import check_answer, unreachable
from workbench.client.keys import key_for
from workbench.core.errors import ParameterError, WorkbenchError
from workbench.trace.type_checks import is_object

SILENCE_S = 30.0
"""Read time-out of an event stream in seconds; a working server sends a message twice per second."""


@cache
def _certificates() -> ssl.SSLContext:
    """Return the TLS certificates to trust, which are read once per process, because this takes a tenth of a second."""
    return httpx.create_ssl_context()


class _Endpoint(Protocol):
    api_name: str | bool | None


class _App(Protocol):
    """Types of the attributes of `gradio_client.Client` that are used here; that package has no type hints."""

    src: str
    src_prefixed: str
    headers: dict[str, str]
    cookies: dict[str, str]
    endpoints: Mapping[int, _Endpoint]
    executor: Executor
    helper_executor: Executor
    stream_executor: Executor

    def predict(self, *arguments: Any, api_name: str, **named: Any) -> Any: ...

    def close(self) -> None: ...


class Connection:
    """Connection to a running app.

    Args:
        url: address of the app, or name of a Space.
        key: API key of the app; None: the key that `workbench.client.keys.key_for` chooses.

    Raises:
        WorkbenchError: the server cannot be reached, or is not a workbench.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # gradio_client sends usage statistics otherwise
        from gradio_client import Client  # pyright: ignore[reportMissingTypeStubs]

        self.url = url
        is_hub = "://" not in url or httpx.URL(url).host.endswith(".hf.space")
        user = {"x-workbench-user": uuid.uuid4().hex}  # several streams, one user
        try:
            key = key_for(url, key)
            if key is not None and not (key.isascii() and key.isprintable()):
                raise ParameterError(
                    "The API key has characters that cannot be sent in an HTTP header.",
                    "Check that you copied the whole key and nothing else.",
                )
            user |= {"x-api-key": key} if key else {}  # the header `authorization` is for a Space's token
            # The token of the environment is for Spaces: it is sent to no other server.
            token = None if is_hub else False
            options: dict[str, Any] = {"token": token, "verbose": False, "download_files": False, "headers": user}
            self.app = cast("_App", Client(url, **options))
        except Exception as problem:
            raise unreachable(url, problem, has_key=key is not None) from problem
        if not self.has("stream"):
            self.app.close()
            raise WorkbenchError(
                f"{url} is not the address of a workbench app.", "Give the address that `python app.py` prints."
            )
        self._sessions: list[str] = []

    def has(self, name: str) -> bool:
        """Return whether the app has an endpoint with a given name."""
        return any(endpoint.api_name == f"/{name}" for endpoint in self.app.endpoints.values())

    def call(self, name: str, *arguments: Any, **named: Any) -> dict[str, Any]:
        """Call an endpoint of the app and return its answer.

        Raises:
            WorkbenchError: the server answers with an error, or cannot be reached.
        """
        try:
            answer = self.app.predict(*arguments, **named, api_name=f"/{name}")
        except Exception as problem:
            raise unreachable(self.url, problem) from problem
        return check_answer(answer)

    def events(self, name: str, arguments: Sequence[Any]) -> Generator[dict[str, Any], None, None]:
        """Yield the messages of a streaming endpoint, in the format of Gradio's queue (protocol sse_v3).

        Closing the iterator closes the connection.
        """
        from gradio_client import utils  # pyright: ignore[reportMissingTypeStubs]

        apply_diff: Callable[[Any, Any], Any] = cast("Any", utils).apply_diff
        client = self.app
        index = next(i for i, e in client.endpoints.items() if e.api_name == f"/{name}")
        session = self._sessions.pop() if self._sessions else uuid.uuid4().hex
        timeout = httpx.Timeout(SILENCE_S)
        body: dict[str, Any] = {"data": arguments, "fn_index": index, "session_hash": session}
        with httpx.Client(
            base_url=client.src_prefixed,
            headers=client.headers,
            cookies=client.cookies,
            timeout=timeout,
            verify=_certificates(),
        ) as http:
            http.post("queue/join", json=body).raise_for_status()
            with http.stream("GET", "queue/data", params={"session_hash": session}) as response:
                response.raise_for_status()
                current: Any = None
                for line in response.iter_lines():
                    message: dict[str, Any] = json.loads(line[5:]) if line.startswith("data:") else {}
                    kind = message.get("msg")
                    if kind == "process_generating" and message["success"]:
                        update = message["output"]["data"][0]  # a diff from the second message on
                        current = update if current is None else apply_diff(current, update)
                        yield current if is_object(current) else json.loads(current or "{}")
                    elif kind == "process_completed":
                        if not message["success"]:
                            raise WorkbenchError(str(message["output"].get("error")))
                    elif kind == "close_stream":
                        break
                    elif kind == "unexpected_error":
                        raise WorkbenchError(str(message.get("message")))
        self._sessions.append(session)  # its stream was read to the end, so the session can be reused

    def fetch_attribution(self, run_id: str) -> dict[str, Any]:
        """Return attribution maps of a run's tokens over regions of its images.

        The server stops the computation if this process ends.


        Raises:
            WorkbenchError: the server answers with an error, or cannot be reached.
        """
        answer: dict[str, Any] = {}
        try:
            for message in self.events("explain", [run_id]):
                answer = check_answer(message)
        except httpx.HTTPError as problem:
            raise unreachable(self.url, problem) from problem
        if "attribution" not in answer:
            raise WorkbenchError(
                "The app and this client are different versions, so the app's answers have another format.",
                "Use the same version on both machines.",
            )
        return answer["attribution"]

    def close_connection(self) -> None:
        """Close the connection to the app, and stop its threads."""
        client = self.app
        client.close()
        for pool in (client.executor, client.helper_executor, client.stream_executor):  # `close` does not stop them
            pool.shutdown(wait=False, cancel_futures=True)
