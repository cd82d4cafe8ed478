"""The shared backend: models loaded once, one engine thread, runs of many users."""

from workbench.service.backend import Backend
from workbench.service.limits import Limits
from workbench.service.run import Run

__all__ = ["Backend", "Limits", "Run"]
