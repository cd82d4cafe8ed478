"""Verifiers: rules that accept or reject drafts, one per file."""
