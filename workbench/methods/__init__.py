"""Methods: drafters, acceptance rules, policies, and the catalogue that combines them."""

from pathlib import Path

OWN_METHODS = "WORKBENCH_METHODS"
"""Variable of the environment: files (or names of modules) with methods of one's own, set apart as in PATH."""
GROUP = "workbench.methods"
"""Entry-point group through which other packages add methods."""
CATALOGUE = Path(__file__).with_name("catalogue.json")
"""What is known of the methods without PyTorch; written by `workbench docs`. See `known.py`."""
