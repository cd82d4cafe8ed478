"""Connect a view to Gradio: a `gr.HTML` drawn by a JavaScript module that calls Python functions.

The module also receives the messages of runs.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import gradio as gr
import orjson
from fastapi.encoders import jsonable_encoder
from starlette.responses import Response

from workbench.client import wire
from workbench.core.errors import ParameterError
from workbench.core.panics import convert_panics
from workbench.service.request_context import measure_cpu_time
from workbench.ui import files
from workbench.ui.api import is_user_request
from workbench.ui.endpoint import user_key
from workbench.views import css_variables, modules

ServerFunction = Callable[[dict[str, Any]], Any]
"""Type of a Python function that a page calls. An exception reaches the browser as an error message."""
Decode = Callable[..., AsyncGenerator[dict[str, Any], None]]
"""Type of the generator function `decode(request, user=…)`, which starts a run and yields its messages.

Closing the generator ends the run. The parameter `is_from_user`, if present, says whether the request may come from the
user of this machine.
"""

TABS = ("live", "compare", "vision", "sweep", "lab", "pair")
"""Ids of the tabs on the main page. A URL with an unknown id opens the first tab, which shows a note about it."""

BUS = "watch('value', () => { if (props.value) window.workbenchBus?.(JSON.parse(props.value)); });"


def add_view(
    module: str,
    server_functions: Sequence[ServerFunction],
    *,
    decode: Decode | None = None,
    tab: str | None = None,
    elem_id: str = "",
) -> gr.HTML:
    """Add a view to the app's `gr.Blocks`. A view in a tab is loaded when the tab is opened.

    Args:
        module: name of the view in `modules.ENTRIES`, whose JavaScript module draws it by `mount(el, {host})`. The
            stylesheet `views/<module>.css`, if there is one, is loaded, too.
        server_functions: Python functions that the module may call by name: `await host.call("name", request)`.
        decode: generator function that `host.decode(request)` in the module calls; its messages are sent to all
            listeners of `host.listen`.
        tab: id of the tab that the view is in; None: the view is a separate page.
        elem_id: id of the element, for tests.
    """
    stage = gr.HTML(
        html_template=f'<div class="wb{"" if module == modules.FIRST_MODULE else " wb-page"}"></div>',  # never replaced
        js_on_load=Path(__file__).with_name("host.js").read_text(encoding="utf-8"),
        server_functions=[answer_in_json(return_errors(answer)) for answer in server_functions],
        apply_default_css=False,
        elem_id=elem_id or None,
        palette=css_variables(),
        stylesheets=[path.name for path in modules.stylesheets(module)],
        module=files.bundle(module),
        replay=files.replay("vision" if module == "vision" else modules.FIRST_MODULE),
        version=modules.fingerprint(),
        tab=tab,
        tabs=TABS,
    )
    if decode is not None:
        _wire(stage, decode, module)
    return stage


def _wire(stage: gr.HTML, decode: Decode, module: str) -> None:
    bus = gr.HTML(value="", html_template="<i></i>", visible="hidden", js_on_load=BUS)

    passes_is_from_user = "is_from_user" in inspect.signature(decode).parameters

    async def stream(event: gr.EventData, request: gr.Request) -> AsyncIterator[str]:
        extra = {"is_from_user": is_user_request(request)} if passes_is_from_user else {}
        async for message in decode(event._data, user=user_key(request), **extra):
            yield as_text(message)

    stage.decode(
        stream,
        None,
        bus,
        show_progress="hidden",
        concurrency_limit=None,  # one run per tab; the engine has its own queue
        trigger_mode="multiple",
        api_visibility="private",
        api_name=f"view_{module}",
    )


def as_text(message: dict[str, Any]) -> str:
    """Return a message to the page as JSON text, which Gradio compares and sends as a whole, not value by value.

    `<` is escaped because Gradio looks for tags in the value of a `gr.HTML`, and model text may contain any.
    """
    return orjson.dumps(message).decode().replace("<", "\\u003c")


def return_errors(answer: ServerFunction) -> ServerFunction:
    """Wrap a function so that it returns errors (message and remedy) instead of raising them.

    The name of the function stays the same.
    """

    def call(request: dict[str, Any]) -> Any:
        try:
            with convert_panics(), measure_cpu_time():
                if not isinstance(request, dict):
                    raise ParameterError("The request is not a JSON object.", "Send a JSON object.")
                return answer(request)
        except Exception as problem:
            return {"error": wire.error_to_wire(problem)}

    call.__name__ = answer.__name__  # Gradio offers it to the browser under this name
    return call


def answer_in_json(answer: ServerFunction) -> ServerFunction:
    """Wrap a function so that it returns its result as a finished HTTP response.

    The name of the function stays the same.

    FastAPI would convert the result value by value before it writes JSON. For the catalogue of methods this takes 70 ms
    instead of 1 ms.
    """

    def call(request: dict[str, Any]) -> Response:
        content = orjson.dumps(answer(request), default=jsonable_encoder, option=orjson.OPT_NON_STR_KEYS)
        return Response(content, media_type="application/json")

    call.__name__ = answer.__name__
    return call
