"""Policies, which decide how much to draft; one rule per file."""
