"""Policies: how much to draft, one rule per file."""
