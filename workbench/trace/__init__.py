"""Recorded runs as plain data: headers, rounds, metrics. Importing it loads neither torch nor polars."""
