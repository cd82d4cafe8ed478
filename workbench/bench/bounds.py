"""How much may be measured in one go. Numbers alone: who only checks a request imports no engine."""

LANES, PROMPTS, REPEATS = 4, 32, 21
"""The most of each in one comparison."""
RUNS = 400
"""The most runs in one comparison, warm-up included."""
CELLS = 400
"""The most cells of one sweep."""
SHORTEST_S, LONGEST_S = 5, 3600
"""Seconds that a recommendation may take."""
TOKENS = 4096
"""The longest run of a comparison or a sweep, in new tokens."""
