"""Former path of `workbench.models.admission`, for scripts that were written before the module moved."""

from workbench.models.admission import admit

__all__ = ["admit"]
