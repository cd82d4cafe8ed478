"""Methods: drafters, acceptance rules, policies, and the catalogue that combines them."""

OWN_METHODS = "WORKBENCH_METHODS"
"""Variable of the environment: files (or names of modules) with methods of one's own, set apart as in PATH."""
GROUP = "workbench.methods"
"""Entry-point group through which other packages add methods."""
