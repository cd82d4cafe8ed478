"""The page: one visible `gr.HTML` that hosts the Live view, one hidden one through which the rounds arrive."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import gradio as gr

from workbench import views
from workbench.ui.session import Session
from workbench.views import modules

TITLE = "Speculative Decoding Workbench"
BUS = "watch('value', () => { if (props.value) window.workbenchBus?.(JSON.parse(props.value)); });"


def build(client: Any) -> gr.Blocks:
    """The page over `client`. Nothing is loaded or started before the browser asks."""
    gr.set_static_paths([modules.JS, modules.STYLESHEET])
    with gr.Blocks(title=TITLE, fill_width=True, analytics_enabled=False) as demo:
        live_view(Session(client))
    return demo


def live_view(session: Session) -> None:
    """The Live view with its wiring. Call inside the app's one `gr.Blocks`."""

    # Gradio passes one argument and takes the names of plain functions, so the methods get a coat.
    def catalogue(request: dict[str, Any]) -> dict[str, Any]:
        return session.catalogue(request)

    def control(request: dict[str, Any]) -> dict[str, Any]:
        return session.control(request)

    def change(request: dict[str, Any]) -> dict[str, Any]:
        return session.change(request)

    def fetch_trace(request: dict[str, Any]) -> dict[str, Any]:
        return session.fetch_trace(request)

    stage = gr.HTML(
        html_template='<div class="wb"></div>',  # static: what the modules draw into it is never replaced
        js_on_load=Path(__file__).with_name("host.js").read_text(encoding="utf-8"),
        server_functions=[catalogue, control, change, fetch_trace],
        apply_default_css=False,
        elem_id="wb-page",
        palette=views.css_variables(),
        stylesheet=str(modules.STYLESHEET),
        modules={name: str(views.module_path(name)) for name in views.module_names()},
        version=modules.fingerprint(),
    )
    bus = gr.HTML(value="", html_template="<i></i>", visible="hidden", js_on_load=BUS, elem_id="wb-bus")

    async def decode(event: gr.EventData) -> AsyncIterator[str]:
        async for message in session.decode(event._data):
            yield as_text(message)

    stage.decode(
        decode,
        None,
        bus,
        show_progress="hidden",
        concurrency_limit=None,  # one run per tab; the engine has its own queue
        trigger_mode="multiple",
        api_visibility="private",
    )


def as_text(message: dict[str, Any]) -> str:
    """One message for the bus. A string: Gradio then compares and sends it as a whole, not path by path.

    `<` is escaped because Gradio looks for tags in the value of a `gr.HTML`, and model text may contain any.
    """
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
