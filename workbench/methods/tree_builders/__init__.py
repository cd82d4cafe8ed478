"""Tree builders: build a draft tree from a drafter's distributions, one way per file."""
