"""A stand-in for `workbench.client.Workbench` with synthetic rounds on a timer, for tests of the page only."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any

from views.synthetic import WORDS, Writer, header

from workbench.bench.advice import Advice
from workbench.bench.pairing import Pairs, TimedPair, TimedRun
from workbench.bench.recommendation import RankedMethod, Recommendation
from workbench.bench.steps import Step
from workbench.core.errors import PromptError, TokenizerMismatchError, UnknownNameError, WorkbenchError
from workbench.service.limits import Limits
from workbench.trace.events import Change, Footer, Header, Round, Trace
from workbench.trace.metrics import DEFINITIONS
from workbench.trace.speedup import Estimate


def param(
    name: str,
    kind: str,
    default: Any,
    ge: Any = None,
    le: Any = None,
    doc: str = "",
    choices: Any = None,
    when: str = "",
) -> dict[str, Any]:
    """Return a parameter description as in the registry."""
    return {
        "name": name,
        "kind": kind,
        "default": default,
        "ge": ge,
        "le": le,
        "choices": choices,
        "doc": doc,
        "when": when,
    }


def method(name: str, title: str, promise: str, params: list[dict[str, Any]], reason: str = "") -> dict[str, Any]:
    """Return a method description as in the registry."""
    return {
        "name": name, "title": title, "promise": promise, "simulation": promise == "simulation",
        "teaches": f"Synthetic stand-in for {title}.", "needs": ["drafter"] if "draft" in name else [],
        "available": not reason, "reason": reason,
        "source": {"title": "Synthetic", "authors": "Nobody", "year": 2026, "url": "https://example.org"},
        "params": params,
    }  # fmt: skip


DEPTH = param("depth", "int", 4, 1, 12, "drafted tokens per round")


STATE = b"a state of the synthetic drafter"
"""Content of a state file."""
INACTIVE = "Speculation is inactive: synthetic had nothing to propose for 3 rounds; this is plain decoding."
OUT_OF_MEMORY = "Out of memory: the run needed 2.1 GB more. Set max_new_tokens to 512, or choose a smaller target."
SCENES = {
    "downloading": "Loads for a while and reports bytes.",
    "warming up": "Loads a local model: a stage without bytes.",
    "queued": "Waits for a sequence and reports its queue position.",
    "limit": "Is ended by the server after three rounds.",
    "out of memory": "Runs out of memory after three rounds; what was recorded is kept.",
    "inactive": "Warns from the third round on that speculation is inactive.",
    "refused": "Cannot be loaded at all.",
}
"""States of a run, selected by a prompt that ends with one of these words."""


class FakeRun:
    """Generates one round every `pace` seconds in its own thread, like the engine."""

    def __init__(
        self,
        prompt: str | list[int],
        method: str,
        params: dict[str, Any],
        max_new_tokens: int,
        seed: int,
        paused: bool,
        pace: float,
        rate: float = 0.0,
    ) -> None:
        self.id = secrets.token_urlsafe(16)
        self.state, self.message = "loading", "synthetic models"
        self.method, self.params = method, dict(params)
        self.writer = Writer(seed, max_new_tokens)
        self.header = header(method, params, max_new_tokens).to_wire() | {"seed": seed}
        if isinstance(prompt, str):
            self.header |= {"prompt": prompt, "prompt_text": [prompt], "prompt_tokens": [0]}
        else:
            words = [WORDS[token % len(WORDS)] for token in prompt]
            self.header |= {"prompt": "".join(words), "prompt_text": words, "prompt_tokens": prompt}
            prompt = ""
        self.rounds: list[dict[str, Any]] = []
        self.footer: dict[str, Any] | None = None
        self.rate, self.loaded = rate, 0
        self.pace, self.steps, self.paused, self.stopped = pace, 0, paused, False
        self.lease_s: float | None = None
        self.followed = time.monotonic()
        self.changes: list[Change] = []
        self.lock = threading.Condition()
        self.queue: dict[str, int] | None = None
        self.loading: dict[str, Any] | None = None
        self.warnings: list[str] = []
        self.scene = next((scene for scene in SCENES if prompt.endswith(scene)), "")
        threading.Thread(target=self._work, daemon=True).start()

    def _wait(self) -> None:
        """Go through the states before the first round."""
        if self.scene == "downloading":
            for done in range(0, 30_000_000, 1_000_000):
                self.loading = {"stage": "downloading synthetic-target", "done": done, "total": 30_000_000}
                self._sleep()
        elif self.scene == "warming up":
            for _ in range(30):
                self.loading = {"stage": "warming up", "done": 0, "total": None}
                self._sleep()
        elif self.scene == "queued":
            for left in range(30, 0, -1):
                self.state, self.message, self.queue = "queued", "", {"position": 1 + left // 16, "of": 3}
                self._sleep()
        self.loading = self.queue = None

    def _sleep(self) -> None:
        if not self.stopped:
            time.sleep(2 * self.pace)

    def _is_detached(self) -> bool:
        """Return whether nobody followed the run for the length of its lease."""
        return self.lease_s is not None and time.monotonic() - self.followed > self.lease_s

    def _end_scene(self) -> None:
        """End a run after three rounds in the way of its scene."""
        error = {"out of memory": OUT_OF_MEMORY}.get(self.scene, "")
        self.footer = Footer("error" if error else "limit", self.writer.text, self.writer.clock, error).to_wire()
        self.state = "error" if error else "finished"

    def _work(self) -> None:
        time.sleep(0.15)
        self._wait()
        if self.scene == "refused":
            message = "synthetic/hub-model cannot be downloaded: there is no network. Bundled: synthetic-target."
            self.footer, self.state = Footer("error", "", 0.0, message).to_wire(), "error"
            return
        while True:
            if self.scene in ("limit", "out of memory") and len(self.rounds) == 3:
                self._end_scene()
                return
            with self.lock:
                while self.paused and not self.steps and not self.stopped and not self._is_detached():
                    self.state, self.message = "paused", ""
                    self.lock.wait(0.05)
                if self.stopped or self._is_detached() or self.writer.left <= 0:
                    reason = "cancelled" if self.stopped else "lease" if self._is_detached() else "length"
                    self.footer = Footer(reason, self.writer.text, self.writer.clock).to_wire()
                    self.state = "finished" if reason == "length" else "cancelled"
                    return
                self.state, self.message = "running", ""
                self.steps = max(0, self.steps - 1)
                changes, self.changes = self.changes, []
                self.rounds.append(self.writer.round(self.method, self.params, changes).to_wire())
                if self.scene == "inactive" and len(self.rounds) >= 3:
                    self.warnings, self.rounds[-1]["notes"] = [INACTIVE], [INACTIVE]
                tokens = len(self.rounds[-1]["emitted"])
            self._hold(tokens)

    def _hold(self, tokens: int) -> None:
        """Wait until the next round may start."""
        began = time.monotonic()
        while not self.stopped and not self.steps:
            wait = max(self.pace, tokens / self.rate if self.rate else 0.0) - (time.monotonic() - began)
            if wait <= 0:
                return
            time.sleep(min(0.02, wait))

    def since(self, n: int) -> dict[str, Any]:
        self.followed = time.monotonic()
        with self.lock:
            return {
                "run": self.id, "state": self.state, "message": self.message, "seq": len(self.rounds),
                "header": None if self.state == "loading" else self.header, "rounds": self.rounds[n:],
                "footer": self.footer, "warnings": self.warnings, "queue": self.queue, "loading": self.loading,
                "pace": self.rate,
            }  # fmt: skip

    def change(
        self,
        method: str | None = None,
        params: dict[str, Any] | None = None,
        drafter: str | None = None,
        images: Any = (),
        lease_s: float | None = None,
        sees: str = "both",
        pace: float | None = None,
    ) -> None:
        with self.lock:
            self.rate = self.rate if pace is None else pace
            if method and method != self.method:
                self.changes.append(Change("method", self.method, method))
                self.method = method
            if drafter:
                self.changes.append(Change("drafter", "synthetic-drafter", drafter))
            for name, value in (params or {}).items():
                if self.params.get(name) != value:
                    self.changes.append(Change(name, self.params.get(name), value))
                    self.params[name] = value

    explain_progress: float | None = None

    @property
    def ended(self) -> bool:
        return self.footer is not None

    @property
    def trace(self) -> Trace | None:
        if self.state == "loading":
            return None
        return Trace(Header.from_wire(self.header), [Round.from_wire(r) for r in self.rounds],
                     Footer(**self.footer) if self.footer else Footer())  # fmt: skip

    def __iter__(self) -> Iterator[Round]:
        yield from self.wait().rounds

    def wait(self, timeout: float | None = None) -> Trace:
        deadline = time.monotonic() + (60.0 if timeout is None else timeout)
        while not self.ended:
            if time.monotonic() > deadline:
                raise TimeoutError(f"The run has not ended after {timeout} s.")
            time.sleep(0.005)
        assert self.footer is not None
        if self.state == "error":
            raise WorkbenchError(self.footer["error"])
        assert self.trace is not None
        return self.trace

    def explain(self) -> dict[str, Any]:
        raise PromptError("The run has no images.", "Start one with images.")

    def memory(self, action: str = "look", data: bytes | None = None) -> dict[str, Any]:
        """Return a state that grows with the rounds; every seventh draft has no entry."""
        if self.method == "autoregressive":
            return {"kind": "", "why": "Plain decoding keeps nothing that could be looked at."}
        n = len(self.rounds)
        if self.footer is not None and action in ("load", "reset"):
            raise WorkbenchError(
                "The run has ended, and its drafter's state is gone.", "Load the file into the next run."
            )
        if action == "load" and data != STATE:
            raise TokenizerMismatchError("This file was saved with the tokenizer of another model.", "Save it again.")
        if action in ("load", "reset"):
            self.loaded = 40 if action == "load" else -n
        size = max(0, self.loaded + n)
        return {
            "kind": self.method, "title": "Table of successors", "unit": "tokens", "entries": size, "bound": 4096,
            "n_bytes": 147_456, "most_bytes": 147_456, "asked": n, "hits": n * 6 // 7, "kept": 2 * n,
            "shared": bool(self.params.get("warm")), "saves": True, "counted": "times verified",
            "top": [
                {"before": word, "after": after, "count": size - i}
                for i, (word, after) in enumerate(zip(WORDS, [*WORDS[1:5], "<b>bold</b>\n"], strict=False))
                if size > i
            ],
            "made": {"round": n - 1, "before": WORDS[0], "after": WORDS[1] + WORDS[2]} if size else None,
            **({"data": STATE} if action == "save" else {}),
        }  # fmt: skip

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def step(self) -> None:
        self.paused, self.steps = True, self.steps + 1

    def cancel(self) -> None:
        self.stopped = True


def recommended(n: int, complete: bool, names: list[str]) -> dict[str, Any]:
    """Return the recommendation after n runs."""
    width = 1 + 3 / n
    choices = [
        RankedMethod(
            name, title, params, Estimate(value, value / width, value * width, n, 1), 2.1, 0.6, 1.3, 2.0, 9.0, left
        )
        for name, title, params, value, left in (
            ("draft-tree", "Draft tree", {"width": 3}, 1.8, 0),
            ("draft-model", "Draft model", {}, 0.7, 1),
        )
    ]
    machine = {"cpu": "none", "cores": 1, "torch": "–", "transformers": "–", "date": "today", "load": 0.0}
    made = Recommendation("synthetic-target", names, choices, 0.4, 2.0 * n, 1, complete, machine, {"oracle": "No."})
    return made.to_wire()


class FakeWorkbench:
    """The client's methods, without models."""

    def __init__(self, pace: float = 0.03) -> None:
        self.pace = pace
        self.runs: dict[str, FakeRun] = {}
        self.measured: list[int] = []

    def prefer_heads(self, folder: str, on: bool = True) -> int:
        return 1

    def targets(self) -> list[dict[str, Any]]:
        return [
            {
                "name": "synthetic-target",
                "title": "Synthetic target",
                "kind": "bundled",
                "detail": "no model: test data",
            }
        ]

    def drafters(self, target: str | None = None) -> list[dict[str, Any]]:
        return [
            {"name": "synthetic-drafter", "title": "Synthetic drafter", "available": True, "reason": "", "detail": ""},
            {
                "name": "other",
                "title": "Other drafter",
                "available": False,
                "reason": "another tokenizer",
                "detail": "",
                "stranger": True,
            },
        ]

    def methods(self, target: str | None = None, drafter: str | None = None) -> list[dict[str, Any]]:
        return [
            method("autoregressive", "Plain decoding", "exact", []),
            method(
                "draft-model",
                "Draft model",
                "exact",
                [
                    param("policy", "choice", "fixed", choices=["fixed", "confidence"]),
                    DEPTH,
                    param("threshold", "float", 0.4, 0, 1, when="policy = confidence"),
                    param("adaptive", "bool", False),
                ],
            ),
            method("draft-tree", "Draft tree", "exact", [DEPTH, param("width", "int", 3, 1, 8)]),
            method("oracle", "Oracle", "simulation", [DEPTH, param("alpha", "float", 0.8, 0, 1)]),
            method("medusa", "Medusa", "approximate", [], "needs Medusa heads for this target"),
        ]

    def sampling_params(self) -> list[dict[str, Any]]:
        return [
            param("temperature", "float", 0.7, 0, 2), param("top_k", "int", 0, 0, 200, when="temperature > 0"),
            param("top_p", "float", 1.0, 0, 1),
            param("min_p", "float", 0.0, 0, 1), param("repetition_penalty", "float", 1.0, 0.5, 2),
        ]  # fmt: skip

    def presets(self) -> list[dict[str, Any]]:
        return [
            {"name": "story", "title": "story", "prompt": "Synthetic prompt: a fox"},
            {"name": "copy", "title": "copy ×3", "prompt": "Synthetic prompt: copy"},
        ]

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
        user: str = "local",
        images: Any = (),
        lease_s: float | None = None,
        pace: float = 0.0,
        extras: Any = None,
        memory: bytes | None = None,
        keeps: bool = False,
    ) -> FakeRun:
        if isinstance(prompt, str) and not prompt.strip():
            raise PromptError("The prompt is empty.", "Type a prompt or choose a preset.")
        run = FakeRun(prompt, method, params or {}, max_new_tokens, seed, paused, self.pace, pace)
        run.lease_s, run.loaded = lease_s, 40 * (memory == STATE)
        self.runs[run.id] = run
        return run

    def run(self, run_id: str) -> FakeRun:
        if run_id not in self.runs:
            raise UnknownNameError(f"There is no run {run_id!r}.", "It may have been removed; start it again.")
        return self.runs[run_id]

    def stream_pairs(
        self, prompt: Any, method: str, params: Any, max_new_tokens: int = 128, stopped: Any = bool, **_: Any
    ) -> Iterator[Pairs]:
        """Yield pairs: the first call waits for the device after four pairs, the second one runs to its end."""
        self.measured.append(max_new_tokens)
        first = self.measured.count(max_new_tokens) == 1
        ratios = (0.7, 1.6, 1.5, 1.55) if first else (1.5,) * 8
        pairs = tuple(TimedPair(TimedRun(100 * ratio, 1.0, ()), TimedRun(100.0, 1.0, ())) for ratio in ratios)
        for n in range(1, len(ratios) + 1):
            time.sleep(self.pace)
            yield Pairs(pairs[:n], f"pair {n + 1}")
        while first and not stopped():
            time.sleep(self.pace)
            yield Pairs(pairs, "waiting: another run is using the device", True)
        yield Pairs(pairs, "", False, "stopped" if first else "the interval lies on one side of 1×")

    def stream_recommendation(
        self, prompts: Any, *, seconds: float = 60.0, stopped: Any = bool, target: str | None = None, **_: Any
    ) -> Iterator[Advice]:
        """Yield a recommendation of two methods, one faster; a prompt with the text "too long" is refused."""
        if any("too long" in (p if isinstance(p, str) else p.prompt) for p in prompts if not isinstance(p, tuple)):
            raise PromptError("prompt 1: it has 9,000 tokens; the context holds 1,024.", "Give a shorter one.")
        names = [p[0] if isinstance(p, tuple) else getattr(p, "name", "") for p in prompts]
        yield Advice(0.0, seconds, text="loading the models")
        for n in range(1, 31):
            if stopped():
                yield Advice(2.0 * n, seconds, n, "stopped", "", recommended(n, False, names), True)
                return
            time.sleep(4 * self.pace)
            waiting = (
                "waiting: another run is using the device" if 3 <= n < 13 else ""
            )  # for two seconds, so that a busy page shows it
            yield Advice(2.0 * n, seconds, n, f"prompt 1/1 · draft-{n}", waiting, recommended(n, True, names))
        yield Advice(seconds, seconds, 30, "done", "", recommended(30, True, names), True)

    capabilities = frozenset({"pairing", "recommending", "heads"})
    ready = True
    hub_only = False
    limits = Limits()

    def definitions(self) -> dict[str, dict[str, str]]:
        return {name: {"title": title, "formula": formula} for name, (title, formula) in DEFINITIONS.items()}

    def unavailable_actions(self) -> dict[str, str]:
        return {}

    def estimate(self, request: dict[str, Any]) -> str:
        return ""

    def admit_request(self, user: str, counted: bool = True) -> None:
        pass

    def charge_call(self, user: str, seconds: float = 0.0) -> None:
        pass

    def metrics_text(self) -> str:
        return "# HELP synthetic Nothing is measured.\n"

    def preload(self, extra_targets: Any = ()) -> None:
        pass

    def load(self, target: str | None = None, drafter: str | None = None) -> None:
        pass

    def unload(self, target: str) -> None:
        raise UnknownNameError(f"{target} is not loaded.", "Nothing is.")

    def loaded_models(self) -> list[dict[str, Any]]:
        return []

    def chat_prompt(self, messages: list[dict[str, Any]], target: str | None = None) -> list[int]:
        raise PromptError("The synthetic target has no chat format.", "Write a prompt.")

    def stream_comparison(
        self, prompts: Any, lanes: Any, *, stopped: Any = bool, user: str = "local", **settings: Any
    ) -> Iterator[Step]:
        raise WorkbenchError("Nothing is measured here.", "Use a backend.")

    def conditions(self, lane: Any, target: str | None = None) -> dict[str, Any] | None:
        return None

    def close(self) -> None:
        for run in self.runs.values():
            run.cancel()

    def health(self) -> dict[str, Any]:
        return {"status": "ok", "models": 1, "rows": 0}

    def device_label(self, target: str | None = None) -> str:
        return "synthetic device"
