"""Endpoints have the arguments of their request model and return errors."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator
from typing import Any

import gradio as gr
import pytest
from ui.fake_client import FakeWorkbench

from workbench.client.requests import ComparisonRequest, Control
from workbench.ui.endpoint import EndpointBase, json_endpoint, streaming_endpoint


class Endpoints(EndpointBase):
    """Returns its requests."""

    @streaming_endpoint(ComparisonRequest, without=("images",), text=True)
    async def compare(self, request: gr.Request, **options: Any) -> AsyncGenerator[dict[str, Any], None]:
        """Compare."""
        yield {"by": request.session_hash, "prompts": [prompt.prompt for prompt in options["prompts"]]}
        yield {name: options[name] for name in ("seed", "repeats")}
        raise RuntimeError("nobody foresaw it")

    @json_endpoint(Control, "done")
    def control(self, run: str, action: str) -> str:
        """Control."""
        return f"{action} {run}"


def test_an_endpoint_has_the_arguments_of_its_request(caplog: pytest.LogCaptureFixture) -> None:
    endpoint = Endpoints(FakeWorkbench()).compare
    assert list(inspect.signature(endpoint).parameters) == [
        "prompts", "lanes", "request", "target", "max_new_tokens", "seed", "sampling", "stop", "repeats"
    ]  # fmt: skip
    assert "    seed: seed of all random numbers" in (endpoint.__doc__ or "")

    me = gr.Request(client={"host": "203.0.113.7"}, headers={}, session_hash="me")  # type: ignore[arg-type]

    async def read_answers() -> list[str]:
        return [message async for message in endpoint(["Once"], ["autoregressive"], me, seed=7)]

    first, second, third = asyncio.run(read_answers())
    assert first == '{"by": "me", "prompts": ["Once"]}'
    assert second == '{"seed": 7, "repeats": 3}'
    assert "An internal error occurred." in third
    assert "nobody foresaw it" not in third


def test_an_endpoint_returns_its_key_or_an_error() -> None:
    control = Endpoints(FakeWorkbench()).control
    assert list(inspect.signature(control).parameters) == ["run", "action", "request"]
    assert asyncio.run(control("x", "step")) == {"done": "step x"}
    for run, action in ((None, "step"), ("x", "close")):
        assert set(asyncio.run(control(run, action))) == {"error"}
