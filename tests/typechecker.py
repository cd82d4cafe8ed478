"""Beartype as the tests use it: an int is a float, as everywhere else in Python."""

from __future__ import annotations

from beartype import BeartypeConf
from beartype import beartype as _beartype

beartype = _beartype(conf=BeartypeConf(is_pep484_tower=True))
