"""Shared code of the pages /gallery, /learn, /methods and /verifiers, each of which shows one view."""

from __future__ import annotations

from collections.abc import Sequence

import gradio as gr

from workbench.ui.hosting import Decode, ServerFunction, add_view


def add_page(
    demo: gr.Blocks, name: str, module: str, server_functions: Sequence[ServerFunction], decode: Decode | None = None
) -> None:
    """Add a page with one view to the app.

    Args:
        demo: the finished main page; call this outside the page's `with` block.
        name: name of the page, shown in the header; in lower case it is the page's path.
        module: name of the view whose JavaScript module draws the page; see `workbench.ui.hosting.add_view`.
        server_functions: Python functions of one request that the module may call by name.
        decode: generator function that `host.decode(request)` of the module starts; None: there is none.
    """
    with demo.route(name, f"/{name.lower()}", show_in_navbar=False):
        add_view(module, server_functions, decode=decode)
