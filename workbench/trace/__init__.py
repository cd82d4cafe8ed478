"""What happened, as plain data: rounds, headers, metrics. Imports neither torch nor polars at the top."""
