"""Command line: `workbench …`, also `python -m workbench …`."""

from workbench.cli.main import main

__all__ = ["main"]
