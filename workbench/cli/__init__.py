"""Commands of the program `workbench`, which can also be started by `python -m workbench`."""

from workbench.cli.main import main

__all__ = ["main"]
