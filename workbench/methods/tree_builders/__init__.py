"""Tree builders, which build a draft tree from a drafter's distributions, one rule per file."""
