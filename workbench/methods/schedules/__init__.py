"""Schedules: what runs when. Draft-then-verify needs no file; overlapping schedules will live here."""
