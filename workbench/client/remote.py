"""A backend in another process: the same calls, through the endpoints that `workbench.ui.api` adds to the app.

Calls go through `gradio_client`. A run is followed over an event stream of its own: the server notices at once when
the stream ends, and gives the run's row to somebody else.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx

from workbench.client import wire
from workbench.client.keys import key_for, variables
from workbench.core.errors import ParameterError, WorkbenchError
from workbench.trace.events import Footer, Header, Round, Trace

SILENCE_S = 30.0
"""A stream that is silent for so long is lost; a living server says something twice a second."""


class Remote:
    """The backend of a running app.

    Args:
        url: address of the app, or name of a Space.
        key: the key that it asks for; None: see `workbench.client.keys.key_for`.

    Raises:
        WorkbenchError: nobody answers there, or it is something else than a workbench.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # gradio_client reports to its makers otherwise
        from gradio_client import Client

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
            self._client = Client(url, token=token, verbose=False, download_files=False, headers=user)  # pyright: ignore
        except Exception as problem:
            raise _unreachable(url, problem, has_key=key is not None) from problem
        if "/stream" not in self._endpoints():
            self._client.close()
            raise WorkbenchError(f"{url} is no workbench.", "Give the address that `python app.py` prints.")
        self._runs: list[RemoteRun] = []
        self._sessions: list[str] = []

    def _endpoints(self) -> set[Any]:
        """Names of what can be asked there."""
        return {endpoint.api_name for endpoint in self._client.endpoints.values()}

    # -- what there is: see `workbench.client.Workbench` ---------------------------------------------------------------

    def targets(self) -> list[dict[str, Any]]:
        return self._call("targets")["targets"]

    def drafters(self, target: str | None = None) -> list[dict[str, Any]]:
        return self._call("drafters", target)["drafters"]

    def methods(self, target: str | None = None, drafter: str | None = None) -> list[dict[str, Any]]:
        return self._call("methods", target, drafter)["methods"]

    def sampling_params(self) -> list[dict[str, Any]]:
        return self._call("sampling_params")["sampling_params"]

    def presets(self) -> list[dict[str, Any]]:
        return self._call("presets")["presets"]

    def definitions(self) -> dict[str, Any]:
        return self._call("definitions")["definitions"]

    def device_label(self) -> str:
        return self._call("device_label")["device_label"]

    @property
    def limits(self) -> dict[str, Any]:
        return self._call("limits")["limits"]

    def health(self) -> dict[str, Any]:
        return self._call("health")["health"]

    def metrics_text(self) -> str:
        answer = httpx.get(f"{self._client.src}metrics", headers=self._client.headers, timeout=30)
        answer.raise_for_status()
        return answer.text

    def preload(self, also: Sequence[str] = ()) -> None:
        """A running app has its models loaded."""

    def load(self, target: str | None = None, drafter: str | None = None) -> None:
        self._call("load", target, drafter)

    def unload(self, target: str) -> None:
        self._call("unload", target)

    def loaded(self) -> list[dict[str, Any]]:
        return self._call("loaded")["loaded"]

    def chat_prompt(self, messages: list[dict[str, Any]], target: str | None = None) -> list[int]:
        return self._call("chat_prompt", messages, target)["chat_prompt"]

    # -- runs ----------------------------------------------------------------------------------------------------

    def start(
        self,
        prompt: str | list[int],
        method: str = "draft-model",
        params: dict[str, Any] | None = None,
        target: str | None = None,
        drafter: str | None = None,
        max_new_tokens: int = 128,
        seed: int = 0,
        stop: tuple[str, ...] = (),
        paused: bool = False,
        *,
        images: Sequence[Any] = (),
        pace: float = 0.0,
    ) -> RemoteRun:
        """Start a generation there and follow it. It ends there when this process goes away."""
        pictures = [wire.data_url(image) for image in images]
        asked = (prompt, method, params, target, drafter, max_new_tokens, seed, list(stop), paused, pictures, pace)
        return self._follow("stream", asked)

    def run(self, run_id: str) -> RemoteRun:
        """Follow a run that somebody else started. It goes on when this process goes away."""
        return self._follow("follow", (run_id,))

    def comparing(
        self,
        prompts: str | Sequence[Any],
        lanes: Sequence[Any],
        *,
        stopped: Callable[[], bool] = lambda: False,
        user: str = "",
        **settings: Any,
    ) -> Iterator[Any]:
        """The steps of a comparison there, which ends when nobody listens. `user` is decided by the server.

        Ctrl-C, or `stopped`, ends it there; what was measured until then is in the last step here.
        """
        from dataclasses import replace

        from workbench.bench.compare import Plan, prepare
        from workbench.bench.steps import Hearing, Step

        plan = Plan(**settings)
        checked = prepare([prompts] if isinstance(prompts, str) else prompts, lanes, plan)
        texts = [{"text": p.prompt, "name": p.name, "group": p.group, "chat": p.chat} for p in checked.prompts]
        wanted = [measured.lane.to_wire() for measured in checked.lanes if not measured.added]
        given = (plan.target, plan.max_new_tokens, plan.seed, plan.sampling, list(plan.stop), plan.repeats)
        asked, heard = (texts, wanted, *given, list(plan.images)), Hearing(checked)
        last = Step(0, 0, "")
        try:
            with contextlib.closing(self._events("comparing", asked)) as messages:  # pyright: ignore
                for message in messages:
                    last = heard.step(_checked(message))
                    if last.last:
                        break
                    yield last
                    if stopped():
                        break
        except KeyboardInterrupt:
            pass
        except httpx.HTTPError as problem:
            raise _unreachable(self.url, problem) from problem
        yield replace(last, text=last.text if last.last else "stopped", comparison=checked, last=True)

    def conditions(self, lane: Any, target: str | None = None) -> dict[str, Any] | None:
        """What decides a measurement there; None where that app is too old to say."""
        from workbench.bench.lanes import Lane

        if "/conditions" not in self._endpoints():
            return None
        return self._call("conditions", Lane.of(lane).to_wire(), target)["conditions"]

    def explained(self, run_id: str) -> dict[str, Any]:
        """On which parts of its pictures the text of a run leans. It is broken off there when this process goes away.

        Raises:
            WorkbenchError: what the server says is wrong, or that it cannot be reached.
        """
        answer: dict[str, Any] = {}
        try:
            for message in self._events("explain", (run_id,)):
                answer = _checked(message)
        except httpx.HTTPError as problem:
            raise _unreachable(self.url, problem) from problem
        if "attribution" not in answer:
            raise WorkbenchError("That app explains runs otherwise.", "Bring it and this one to one version.")
        return answer["attribution"]

    def close(self) -> None:
        """End the runs that were started here, and the threads."""
        for run in self._runs:
            run._leave()
        client = self._client
        client.close()
        for pool in (client.executor, client.helper_executor, client.stream_executor):  # which it leaves open
            pool.shutdown(wait=False, cancel_futures=True)

    # -- the wire ------------------------------------------------------------------------------------------------

    def _call(self, name: str, *arguments: Any, **named: Any) -> dict[str, Any]:
        """Ask an endpoint.

        Raises:
            WorkbenchError: what the server says is wrong, or that it cannot be reached.
        """
        try:
            answer = self._client.predict(*arguments, **named, api_name=f"/{name}")
        except Exception as problem:
            raise _unreachable(self.url, problem) from problem
        return _checked(answer)

    def _follow(self, name: str, arguments: tuple[Any, ...]) -> RemoteRun:
        run = RemoteRun(self, self._events(name, arguments))
        self._runs = [other for other in self._runs if not other.ended] + [run]
        return run

    def _events(self, name: str, arguments: tuple[Any, ...]) -> Iterator[dict[str, Any]]:
        """The messages of a streaming endpoint, as Gradio's queue sends them (protocol sse_v3).

        Closing the iterator closes the connection.
        """
        from gradio_client.utils import apply_diff

        client = self._client
        index = next(i for i, e in client.endpoints.items() if e.api_name == f"/{name}")
        session = self._sessions.pop() if self._sessions else uuid.uuid4().hex
        timeout = httpx.Timeout(SILENCE_S)
        with httpx.Client(
            base_url=client.src_prefixed, headers=client.headers, cookies=client.cookies, timeout=timeout
        ) as http:
            body = {"data": arguments, "fn_index": index, "session_hash": session}
            http.post("queue/join", json=body).raise_for_status()
            with http.stream("GET", "queue/data", params={"session_hash": session}) as response:
                response.raise_for_status()
                said: Any = None
                for line in response.iter_lines():
                    message = json.loads(line[5:]) if line.startswith("data:") else {}
                    kind = message.get("msg")
                    if kind == "process_generating" and message["success"]:
                        news = message["output"]["data"][0]  # from the second message on: what differs
                        said = news if said is None else apply_diff(said, news)
                        yield said if isinstance(said, dict) else json.loads(said or "{}")
                    elif kind == "process_completed":
                        if not message["success"]:
                            raise WorkbenchError(str(message["output"].get("error")))
                    elif kind == "close_stream":
                        break
                    elif kind == "unexpected_error":
                        raise WorkbenchError(str(message.get("message")))
        self._sessions.append(session)  # used up to its end, so it can be used again


class RemoteRun:
    """A run in a backend elsewhere, mirrored here by a thread; a `workbench.client.RunHandle`.

    Args:
        remote: where it runs.
        events: its messages; the first one says its id, or why there is no run.

    Raises:
        WorkbenchError: the run could not be started, or is not known there.
    """

    def __init__(self, remote: Remote, events: Iterator[dict[str, Any]]) -> None:
        self._remote = remote
        self._events = events
        self._news = threading.Condition()
        self._trace: Trace | None = None
        self._last: dict[str, Any] = {}
        self._left = False
        try:
            first = _checked(next(events))
        except (httpx.HTTPError, StopIteration) as problem:
            raise _unreachable(remote.url, problem) from problem
        self.id: str = first["run"]
        self._take(first)
        threading.Thread(target=self._mirror, name=f"workbench-follow-{self.id[:6]}", daemon=True).start()

    # -- following: see `workbench.client.RunHandle` -------------------------------------------------------------------

    @property
    def state(self) -> str:
        return self._last["state"]

    @property
    def ended(self) -> bool:
        return self.state in wire.ENDED

    @property
    def message(self) -> str:
        """What the backend has to say about the run: that it loads a model, why it failed."""
        return self._last["message"]

    @property
    def trace(self) -> Trace | None:
        return self._trace

    def since(self, n: int) -> dict[str, Any]:
        with self._news:
            rounds = self._rounds(n)
            header = self._trace.header.to_wire() if self._trace is not None else None
            return self._last | {"header": header, "rounds": [r.to_wire() for r in rounds], "seq": n + len(rounds)}

    def __iter__(self) -> Iterator[Round]:
        n = 0
        while True:
            with self._news:
                while not (rounds := self._rounds(n)) and not self.ended:
                    self._news.wait()
            if not rounds:
                return
            yield from rounds
            n += len(rounds)

    def wait(self, timeout: float | None = None) -> Trace:
        with self._news:
            if not self._news.wait_for(lambda: self.ended, timeout):
                raise TimeoutError(f"The run has not ended after {timeout:g} s.")
        if self.state == "error":
            problem = self._last.get("problem")
            raise wire.error_from_wire(problem or {"message": self._last["footer"]["error"]})
        if self._trace is None:
            raise WorkbenchError("The run was cancelled before it started.")
        return self._trace

    # -- steering ------------------------------------------------------------------------------------------------

    def change(
        self,
        method: str | None = None,
        params: dict[str, Any] | None = None,
        drafter: str | None = None,
        images: Sequence[Any] = (),
        sees: str = "both",
        pace: float | None = None,
    ) -> None:
        pictures = [wire.data_url(image) for image in images]
        self._remote._call("change", self.id, method, params, drafter, pictures, sees, pace)

    def explain(self) -> dict[str, Any]:
        found = self._remote.explained(self.id)
        if self._trace is not None:
            self._trace.attribution = found
        return found

    def pause(self) -> None:
        self._remote._call("control", self.id, "pause")

    def resume(self) -> None:
        self._remote._call("control", self.id, "resume")

    def step(self) -> None:
        self._remote._call("control", self.id, "step")

    def cancel(self) -> None:
        if not self.ended:
            self._remote._call("control", self.id, "cancel")

    def _rounds(self, n: int) -> list[Round]:
        return self._trace.rounds[n:] if self._trace is not None else []

    # -- the mirror ----------------------------------------------------------------------------------------------

    def _mirror(self) -> None:
        problem: WorkbenchError | None = None
        try:
            for message in self._events:
                self._take(_checked(message))
                if self._left:
                    break
        except (WorkbenchError, httpx.HTTPError) as error:
            problem = _unreachable(self._remote.url, error)
        except BaseException as error:  # this thread's end would leave those who wait for it waiting
            problem = WorkbenchError(f"The server's answer was not understood: {type(error).__name__}.")
        finally:
            with contextlib.suppress(Exception):
                self._events.close()  # pyright: ignore[reportAttributeAccessIssue]
        if not self.ended:
            self._lost(problem or WorkbenchError("The connection was closed before the run ended."))

    def _take(self, message: dict[str, Any]) -> None:
        if not message:
            return  # a sign of life
        with self._news:
            if message["header"] is not None:
                header = Header.from_wire(message["header"])
                if self._trace is None:
                    self._trace = Trace(header)
                self._trace.header = header  # once more when prefill has ended
            if self._trace is not None:
                self._trace.rounds += [Round.from_wire(r) for r in message["rounds"]]
                if message["footer"] is not None:
                    self._trace.footer = Footer(**message["footer"])
            self._last = {**message, "rounds": []}
            self._news.notify_all()

    def _lost(self, problem: WorkbenchError) -> None:
        with self._news:
            footer = Footer(reason="error", error=str(problem))
            if self._trace is not None:
                footer.text = self._trace.text
                self._trace.footer = footer
            told = wire.error_to_wire(problem)
            self._last |= {"state": "error", "message": str(problem), "problem": told, "footer": footer.to_wire()}
            self._news.notify_all()

    def _leave(self) -> None:
        """Stop following; the server ends the run if it was started here."""
        self._left = True


def _checked(answer: Any) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise WorkbenchError("The server answered with something else than an object.")
    if set(answer) == {"error"}:
        raise wire.error_from_wire(answer["error"])
    return answer


def _unreachable(url: str, problem: BaseException, has_key: bool = False) -> WorkbenchError:
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
        return WorkbenchError(f"{url} answered with status {problem.response.status_code}.", "Check the address.")
    if type(problem).__name__ == "AuthenticationError":  # gradio_client's
        given = "Give --api-key, or Workbench(url, key=…)"
        remedy = " or set ".join([given, *variables(url)[:1]]) + "."
        return WorkbenchError(f"{url} needs a key{', and this is not it' if has_key else ''}.", remedy)
    if type(problem).__name__ == "TooManyRequestsError":
        return WorkbenchError(f"{url} has had too many requests, or wrong keys, from here.", "Try again in a minute.")
    reason = " ".join(str(problem).split())[:200] or type(problem).__name__
    return WorkbenchError(f"{url} cannot be used: {reason}", "Check the address; a private Space needs HF_TOKEN.")
