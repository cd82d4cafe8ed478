"""Define the commands of the program `workbench`, which `python -m workbench` runs, too."""

from workbench.cli.main import main

__all__ = ["main"]
