"""Verifiers: acceptance rules, one per file."""
