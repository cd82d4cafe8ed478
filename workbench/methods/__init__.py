"""Decoding methods, one package each, and the verifiers, tree builders and policies that they share."""

OWN_METHODS = "WORKBENCH_METHODS"
"""Environment variable that lists files (or module names) of user-defined methods, separated as in PATH."""
GROUP = "workbench.methods"
"""Name of the entry-point group through which other packages add decoding methods."""
