"""Old import path of `workbench.models.admission`, for scripts written before the module was moved."""

from workbench.models.admission import admit

__all__ = ["admit"]
