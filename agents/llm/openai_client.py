"""What the two APIs of the SDK `openai` share."""

from __future__ import annotations

import openai

from agents.llm.answers import client_settings
from agents.llm.failures import SdkErrors
from contracts.terms import ModelSpec

__all__ = ["SDK", "client_for", "error_text"]

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
