"""The engine: target, cache, loop, batching. Runs in other people's serving images: no gradio, plotly or polars."""

from workbench.engine.loop import Engine
from workbench.engine.method import Configured, Method, Promise, Source
from workbench.engine.models import Models, load_models
from workbench.engine.request import Request, Row
from workbench.engine.runner import Runner

__all__ = ["Configured", "Engine", "Method", "Models", "Promise", "Request", "Row", "Runner", "Source", "load_models"]
