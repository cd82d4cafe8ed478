"""Growers: how a draft tree comes of a drafter's laws, one way per file."""
