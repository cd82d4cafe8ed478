"""Synchronise and execute the notebooks, and build the static web site: lessons, methods, API reference."""
