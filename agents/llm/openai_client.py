"""What the two APIs of the SDK `openai` share."""

from __future__ import annotations

from typing import Any

import openai

from agents.llm.answers import client_settings
from agents.llm.failures import SdkErrors
from agents.llm.received import usage_of
from contracts.terms import ModelSpec
from contracts.turns import ModelUsage

__all__ = ["ID_HEADER", "SDK", "client_for", "error_text", "usage_in"]

ID_HEADER = "x-request-id"

BASE_URL = "https://api.openai.com/v1"

SDK = SdkErrors(openai.APIStatusError, openai.APITimeoutError, openai.APIConnectionError)


def client_for(spec: ModelSpec, api_key: str) -> openai.AsyncOpenAI:
    client = openai.AsyncOpenAI(
        api_key=api_key,
        base_url=spec.base_url or BASE_URL,
        max_retries=0,
        timeout=spec.timeout_s,
        http_client=openai.DefaultAsyncHttpxClient(**client_settings(spec)),
    )
    # These the SDK took from the environment; nothing but the named key may go to a server that a contract names.
    client.organization = client.project = None
    client._custom_headers = {}
    return client


def error_text(text: str, is_error: bool) -> str:
    """A tool's answer: these APIs have no field that says it is an error."""
    return f"ERROR: {text}" if is_error else text or "(empty)"


def usage_in(usage: Any, read: str, written: str) -> ModelUsage | None:
    """Usage as these APIs tell it. ``read`` and ``written``: what each calls input and output."""
    if not isinstance(usage, dict):
        return None
    details = usage.get(f"{read}_tokens_details")
    details = details if isinstance(details, dict) else {}
    return usage_of(
        usage.get(f"{read}_tokens"),
        details.get("cached_tokens"),
        details.get("cache_write_tokens"),
        usage.get(f"{written}_tokens"),
    )
