"""Size limits of comparisons, sweeps and recommendations. A request is checked without importing the engine."""

LANES, PROMPTS, REPEATS = 4, 32, 21
"""Largest numbers of lanes (methods with settings), prompts and repeats in one comparison."""
RUNS = 400
"""Largest number of runs in one comparison, warm-up included."""
CELLS = 400
"""Largest number of cells (combinations of axis values) of one sweep."""
SHORTEST_S, LONGEST_S = 5, 3600
"""Shortest and longest measuring time that a user may set for a recommendation, in seconds."""
TOKENS = 4096
"""Largest number of new tokens per run of a comparison or a sweep."""
