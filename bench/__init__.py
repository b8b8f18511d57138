"""Measures this project beside the floor of its databases and beside other durable systems: ``python -m bench``."""

from __future__ import annotations
