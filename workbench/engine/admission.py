"""Former path of `workbench.models.admission`, for scripts that were written before the packages were divided."""

from workbench.models.admission import admit

__all__ = ["admit"]
