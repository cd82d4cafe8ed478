"""Methods: drafters, verifiers, policies, and the catalogue that combines them."""

OWN_METHODS = "WORKBENCH_METHODS"
"""Environment variable: files (or module names) with user-defined methods, separated as in PATH."""
GROUP = "workbench.methods"
"""Entry-point group through which other packages add methods."""
