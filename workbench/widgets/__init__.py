"""Show the app's views in a notebook: `from workbench import widgets as w`.

Each widget draws with the app's JavaScript modules, and synchronises its selection between Python and the browser. It
stores a snapshot in plain HTML in the notebook's output, which is readable without a kernel and without JavaScript.
"""

from importlib.util import find_spec

if find_spec("anywidget") is None:
    raise ImportError('Widgets need further packages: pip install "speculative-decoding-workbench[notebooks]"')

from workbench.widgets.bench import Bench, bench
from workbench.widgets.exercises import check
from workbench.widgets.links import app_link
from workbench.widgets.live import Live, live
from workbench.widgets.panel import Panel, panel
from workbench.widgets.plots import Figure, figure
from workbench.widgets.view import View, curves, lane, link, ribbon, show, stage, tree, vision

__all__ = [
    "Bench",
    "Figure",
    "Live",
    "Panel",
    "View",
    "app_link",
    "bench",
    "check",
    "curves",
    "figure",
    "lane",
    "link",
    "live",
    "panel",
    "ribbon",
    "show",
    "stage",
    "tree",
    "vision",
]
