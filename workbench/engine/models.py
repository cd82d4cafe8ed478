"""Old import path of `workbench.models.loading`, for scripts written before the module was moved."""

from workbench.models.loading import Models, load_models

__all__ = ["Models", "load_models"]
