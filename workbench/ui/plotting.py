"""Where the browser finds Plotly: the file that comes with the Python package, so that nothing is fetched elsewhere."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import gradio as gr


@cache
def plotly_file() -> str:
    """The path of `plotly.min.js`, which the app then serves. Loaded by a view when it has something to plot."""
    spec = find_spec("plotly")
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent / "package_data" / "plotly.min.js"
    gr.set_static_paths([path])
    return str(path)
