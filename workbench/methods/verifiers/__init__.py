"""Acceptance rules: one idea per file."""
