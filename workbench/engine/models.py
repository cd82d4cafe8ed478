"""Former path of `workbench.models.loading`, for scripts that were written before the packages were divided."""

from workbench.models.loading import Models, load_models

__all__ = ["Models", "load_models"]
