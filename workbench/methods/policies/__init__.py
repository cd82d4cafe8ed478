"""Policies, which decide how many tokens to draft in a round; one rule per file."""
