"""Former path of `workbench.models.loading`, for scripts that were written before the module moved."""

from workbench.models.loading import Models, load_models

__all__ = ["Models", "load_models"]
