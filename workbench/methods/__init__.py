"""Methods: drafters, verifiers, policies, and the catalogue that combines them."""

from pathlib import Path

OWN_METHODS = "WORKBENCH_METHODS"
"""Environment variable: files (or module names) with user-defined methods, separated as in PATH."""
GROUP = "workbench.methods"
"""Entry-point group through which other packages add methods."""
CATALOGUE = Path(__file__).with_name("catalogue.json")
"""Facts about the methods without PyTorch; written by `workbench docs`. See `known.py`."""
