"""Verifiers: rules that accept or reject drafted tokens, one per file."""
