"""Recorded runs as plain data: headers, rounds, metrics. Importing this package loads neither PyTorch nor Polars."""
