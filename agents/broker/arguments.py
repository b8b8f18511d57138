"""Checking the arguments of a call against what the tool asks for. Strict: ``"true"`` is not ``true``."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from jsonschema import Draft202012Validator

__all__ = ["argument_faults"]

FAULTS_MAX = 5
MESSAGE_CHARS_MAX = 300


def argument_faults(schema: Mapping[str, Any], arguments: object) -> list[str]:
    """What is wrong, as ``place: what``, for somebody who can mend it. At most ``FAULTS_MAX``."""
    errors = islice(Draft202012Validator(schema).iter_errors(arguments), FAULTS_MAX)
    return [f"{error.json_path.removeprefix('$.')}: {_cut(error.message)}" for error in errors]


def _cut(message: str) -> str:
    """Messages quote the value: the end says what is wrong with it."""
    if len(message) <= MESSAGE_CHARS_MAX:
        return message
    half = MESSAGE_CHARS_MAX // 2
    return f"{message[:half]} … {message[-half:]}"
