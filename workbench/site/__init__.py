"""Synchronise and execute the notebooks, and build the static site: lessons, methods, API reference."""
