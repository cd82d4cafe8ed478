"""The API that app, notebooks and command line share: `from workbench.client import Workbench`."""

from workbench.client.client import Workbench

__all__ = ["Workbench"]
