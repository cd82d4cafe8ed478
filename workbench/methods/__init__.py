"""Methods: one package each, and the verifiers, tree builders and policies that they share."""

OWN_METHODS = "WORKBENCH_METHODS"
"""Environment variable with files (or module names) of user-defined methods, separated as in PATH."""
GROUP = "workbench.methods"
"""Entry-point group through which other packages add methods."""
