"""The line to an app that runs elsewhere: calls of its endpoints, and their streams of events.

Calls go through `gradio_client`. A stream is followed over a connection of its own: the server notices at once when it
ends.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Protocol, cast

import httpx

from workbench.client.answers import checked, unreachable
from workbench.client.keys import key_for
from workbench.core.errors import ParameterError, WorkbenchError
from workbench.trace.kinds import is_object

SILENCE_S = 30.0
"""A stream that is silent for so long is lost; a living server says something twice a second."""


class _Endpoint(Protocol):
    api_name: str | bool | None


class _App(Protocol):
    """What is used of `gradio_client.Client`, which has no types."""

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
    """The line to a running app.

    Args:
        url: address of the app, or name of a Space.
        key: the key that it asks for; None: see `workbench.client.keys.key_for`.

    Raises:
        WorkbenchError: nobody answers there, or it is something else than a workbench.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # gradio_client reports to its makers otherwise
        from gradio_client import Client  # pyright: ignore[reportMissingTypeStubs]

        self.url = url
        is_hub = "://" not in url or httpx.URL(url).host.endswith(".hf.space")
        user = {"x-workbench-user": uuid.uuid4().hex}  # several streams, one user
        try:
            key = key_for(url, key)
            if key is not None and not (key.isascii() and key.isprintable()):
                raise ParameterError("The key has characters that cannot be sent.", "Check that it is copied whole.")
            user |= {"x-api-key": key} if key else {}  # a Space's token stands where keys usually do
            # The token of the environment is for Spaces: no other server gets to see it.
            token = None if is_hub else False
            asked: dict[str, Any] = {"token": token, "verbose": False, "download_files": False, "headers": user}
            self.app = cast("_App", Client(url, **asked))
        except Exception as problem:
            raise unreachable(url, problem, has_key=key is not None) from problem
        if "/stream" not in self.endpoints():
            self.app.close()
            raise WorkbenchError(f"{url} is no workbench.", "Give the address that `python app.py` prints.")
        self._sessions: list[str] = []

    def endpoints(self) -> set[str | bool | None]:
        """Names of what can be asked there."""
        return {endpoint.api_name for endpoint in self.app.endpoints.values()}

    def call(self, name: str, *arguments: Any, **named: Any) -> dict[str, Any]:
        """Ask an endpoint.

        Raises:
            WorkbenchError: what the server says is wrong, or that it cannot be reached.
        """
        try:
            answer = self.app.predict(*arguments, **named, api_name=f"/{name}")
        except Exception as problem:
            raise unreachable(self.url, problem) from problem
        return checked(answer)

    def events(self, name: str, arguments: Sequence[Any]) -> Generator[dict[str, Any], None, None]:
        """The messages of a streaming endpoint, as Gradio's queue sends them (protocol sse_v3).

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
            base_url=client.src_prefixed, headers=client.headers, cookies=client.cookies, timeout=timeout
        ) as http:
            http.post("queue/join", json=body).raise_for_status()
            with http.stream("GET", "queue/data", params={"session_hash": session}) as response:
                response.raise_for_status()
                said: Any = None
                for line in response.iter_lines():
                    message: dict[str, Any] = json.loads(line[5:]) if line.startswith("data:") else {}
                    kind = message.get("msg")
                    if kind == "process_generating" and message["success"]:
                        news = message["output"]["data"][0]  # from the second message on: what differs
                        said = news if said is None else apply_diff(said, news)
                        yield said if is_object(said) else json.loads(said or "{}")
                    elif kind == "process_completed":
                        if not message["success"]:
                            raise WorkbenchError(str(message["output"].get("error")))
                    elif kind == "close_stream":
                        break
                    elif kind == "unexpected_error":
                        raise WorkbenchError(str(message.get("message")))
        self._sessions.append(session)  # used up to its end, so it can be used again

    def explained(self, run_id: str) -> dict[str, Any]:
        """On which parts of its pictures the text of a run leans. It is broken off there when this process goes away.

        Raises:
            WorkbenchError: what the server says is wrong, or that it cannot be reached.
        """
        answer: dict[str, Any] = {}
        try:
            for message in self.events("explain", [run_id]):
                answer = checked(message)
        except httpx.HTTPError as problem:
            raise unreachable(self.url, problem) from problem
        if "attribution" not in answer:
            raise WorkbenchError("That app explains runs otherwise.", "Bring it and this one to one version.")
        return answer["attribution"]

    def hang_up(self) -> None:
        """Close the line, and its threads."""
        client = self.app
        client.close()
        for pool in (client.executor, client.helper_executor, client.stream_executor):  # which it leaves open
            pool.shutdown(wait=False, cancel_futures=True)
