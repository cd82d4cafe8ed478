"""Shared code of /gallery, /learn, /methods and /verifiers: a route of the app with one view on it."""

from __future__ import annotations

from collections.abc import Sequence

import gradio as gr

from workbench.ui.hosting import Decode, ServerFunction, add_view


def add_page(
    demo: gr.Blocks, name: str, module: str, server_functions: Sequence[ServerFunction], decode: Decode | None = None
) -> None:
    """Add a page to the app.

    Args:
        demo: the finished main page; call this outside the page's `with` block.
        name: name of the page, shown in the header; in lower case it is the page's path.
        module: the ES module that draws the page; see `workbench.ui.hosting.add_view`.
        server_functions: functions of one request that the module may call by their names.
        decode: generator function that `host.decode(request)` of the module starts; None: there is none.
    """
    with demo.route(name, f"/{name.lower()}", show_in_navbar=False):
        add_view(module, server_functions, decode=decode)
