"""Secrets leave no trace in what is stored, and ordinary text is not touched."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import BadInput
from coordinator.redaction import Redactor

CANARY = 'c4nary/"+\\é=s3 cret&x???>>>'
PLAIN = Redactor({})


def redactor(**environ: str) -> Redactor:
    return Redactor(environ)


# --- what is taken


@pytest.mark.parametrize(
    "name",
    [
        "API_KEY", "GITHUB_TOKEN", "githubtoken", "DB_PASSWORD", "SECRET", "client_secret", "AWS_SECRET_ACCESS_KEY",
        "PASSWD", "MY_CREDENTIALS", "PRIVATE_PART", "HTTP_AUTH", "DB_PWD", "OPENAI_APIKEY", "AWS_ACCESS_KEY_ID",
    ],
)  # fmt: skip
def test_the_value_of_a_variable_that_is_named_like_a_secret_is_replaced_by_its_name(name: str) -> None:
    assert redactor(**{name: "zx81-spectrum"}).text("so zx81-spectrum it is") == (f"so [redacted:{name}] it is", 1)


@pytest.mark.parametrize(
    "form",
    [
        CANARY,
        json.dumps(CANARY)[1:-1],
        json.dumps(CANARY, ensure_ascii=False)[1:-1],
        quote(CANARY),
        quote(CANARY, safe=""),
        quote(CANARY, safe="").lower(),
        quote_plus(CANARY),
        base64.b64encode(CANARY.encode()).decode(),
        base64.urlsafe_b64encode(CANARY.encode()).decode(),
    ],
)
def test_the_usual_encodings_of_a_secret_are_found_too(form: str) -> None:
    assert redactor(MY_TOKEN=CANARY).text(f"<{form}>") == ("<[redacted:MY_TOKEN]>", 1)


@pytest.mark.parametrize("user", ["", "a", "ab", "abc", "abcd"])
def test_a_secret_inside_longer_base64_such_as_a_basic_login_is_found(user: str) -> None:
    login = base64.b64encode(f"{user}:zx81-spectrum-48".encode()).decode()
    clean, count = redactor(MY_TOKEN="zx81-spectrum-48").text(f"Authorization: Basic {login}")
    assert count == 1
    assert "[redacted:MY_TOKEN]" in clean


def test_of_a_connection_url_only_the_password_is_taken_whatever_the_variable_is_called() -> None:
    found = redactor(DATABASE_URL="postgresql://app:p%40ss-w0rd@db.example:5432/app")
    assert found.text("postgresql://app:p%40ss-w0rd@db.example:5432/app") == (
        "postgresql://app:[redacted:DATABASE_URL]@db.example:5432/app",
        1,
    )
    assert found.text("the password is p@ss-w0rd")[0] == "the password is [redacted:DATABASE_URL]"


@pytest.mark.parametrize(
    ("name", "token"),
    [
        ("anthropic_key", "sk-ant-api03-" + "aB3_" * 10),
        ("api_key", "sk-proj-" + "aB3_" * 10),
        ("api_key", "sk-" + "0a1b2c3d" * 4),
        ("github_token", "ghp_" + "a1B2" * 9),
        ("github_token", "gho_" + "a1B2" * 9),
        ("github_token", "github_pat_" + "a1B2" * 9),
        ("aws_key_id", "AKIA" + "ABCDEFGH12345678"),
        ("slack_token", "xoxb-1234567890-abcdef"),
        ("jwt", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"),
        ("private_key", "-----BEGIN PRIVATE KEY-----\nMIIEcanary\n-----END PRIVATE KEY-----"),
        ("private_key", "-----BEGIN RSA PRIVATE KEY-----\\nMIIEcanary\\n-----END RSA PRIVATE KEY-----"),
        ("private_key", "-----BEGIN OPENSSH PRIVATE KEY-----\n" + "b3BlbnNzaC1rZXktdjEA" * 5),
    ],
)
def test_well_known_tokens_are_taken_though_no_variable_holds_them(name: str, token: str) -> None:
    assert PLAIN.text(f"key='{token}'.") == (f"key='[redacted:{name}]'.", 1)
    assert PLAIN.data(f"\xff{token}\0".encode("latin-1")) == (f"\xff[redacted:{name}]\0".encode("latin-1"), 1)


def test_a_token_that_is_glued_to_another_secret_is_taken_too() -> None:
    token = "AKIAABCDEFGH12345678"
    assert redactor(MY_TOKEN="zx81spectrum").text(f"zx81spectrum{token}") == (
        "[redacted:MY_TOKEN][redacted:aws_key_id]",
        2,
    )


def test_keys_numbers_and_nested_texts_of_a_json_value_are_cleaned_and_no_entry_is_lost() -> None:
    found = Redactor({"A_TOKEN": "zx81-spectrum", "PIN": "73190416"}, granted=["PIN"])
    value = {"zx81-spectrum": [{"deep": ("a zx81-spectrum",)}, 73190416, True, None, 1.5], "b": 2}
    assert found.value(value) == (
        {"[redacted:A_TOKEN]": [{"deep": ["a [redacted:A_TOKEN]"]}, "[redacted:PIN]", True, None, 1.5], "b": 2},
        3,
    )  # fmt: skip
    assert found.value({"zx81-spectrum": 1, "[redacted:A_TOKEN]": 2})[0] == {
        "[redacted:A_TOKEN]'": 1,
        "[redacted:A_TOKEN]": 2,
    }


def test_a_granted_credential_is_taken_although_neither_its_name_nor_its_value_shows_it() -> None:
    assert Redactor({"DEPLOY": "anonymous"}, granted=["DEPLOY"]).text("as anonymous") == ("as [redacted:DEPLOY]", 1)
    assert Redactor({"DEPLOY": "abc"}, granted=["DEPLOY"]).text("abc") == ("abc", 0)


# --- what is left alone


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PATH", "zx81-spectrum"),
        ("HOME", "zx81-spectrum"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("KEYBOARD", "zx81-spectrum"),
        ("GIT_AUTHOR_NAME", "zx81-spectrum"),
        ("API_KEY_FILE", "/run/secrets/zx81"),
        ("AUTH_URL", "https://login.example.com/v1"),
        ("AUTH_TYPE", "anonymous"),
        ("AUTH", "anonymous"),
        ("KEY_POLICY", "read-only"),
        ("TOKEN_POLICY", "Never Expire"),
        ("SECRET_TTL_MS_KEY", "86400000"),
        ("SHORT_TOKEN", "abc-123"),
        ("PWD", "zx81-spectrum"),
    ],
)
def test_ordinary_words_in_the_environment_do_not_falsify_a_text(name: str, value: str) -> None:
    text = f"It says {value} here, and false; KEY, TOKEN, PASSWORD."
    assert redactor(**{name: value}).text(text) == (text, 0)


def test_a_path_that_exists_is_no_secret(tmp_path: Path) -> None:
    place = tmp_path / "agent-4711"
    place.touch()
    assert redactor(MY_KEY=str(place)).text(f"see {place}") == (f"see {place}", 0)
    place.unlink()
    assert redactor(MY_KEY=str(place)).text(f"see {place}") == ("see [redacted:MY_KEY]", 1)


@pytest.mark.parametrize(
    "text",
    [
        "class='sk-loading-indicator-with-long-name'",
        "the head of a key is -----BEGIN PRIVATE KEY-----, and then come lines of base64",
        "eyJ is how a token begins", "AKIA", "ghp_short", "risk-12345678901234567890", "desk-ant-1234567890123456789",
        "sha256:" + "0123456789abcdef" * 4, "xoxo-kisses-and-hugs", "",
    ],
)  # fmt: skip
def test_text_that_only_resembles_a_token_is_returned_as_it_is(text: str) -> None:
    assert PLAIN.text(text) == (text, 0)


def test_this_projects_own_source_holds_nothing_that_looks_like_a_secret() -> None:
    for file in sorted(Path(__file__).parents[2].glob("co*/**/*.py")):
        assert PLAIN.data(file.read_bytes())[1] == 0, file


def test_a_secret_that_is_also_the_name_of_a_variable_does_not_eat_the_marks() -> None:
    found = redactor(FOO_TOKEN="MY_SECRET_KEY2", MY_SECRET_KEY2="zx81-spectrum")
    assert found.text("zx81-spectrum") == ("[redacted:MY_SECRET_KEY2]", 1)
    assert found.text("[redacted:MY_SECRET_KEY2] AKIAABCDEFGH12345678") == (
        "[redacted:MY_SECRET_KEY2] [redacted:aws_key_id]",
        1,
    )


# --- what always holds

SECRETS = st.text('abcXYZ019/+=%&"\\ é😀', min_size=8, max_size=24).map(lambda text: f"q7{text.strip()}.9zQk")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(value=JSON, secret=SECRETS)
def test_a_value_without_secrets_comes_back_as_the_very_same_object(value: Any, secret: str) -> None:
    found = redactor(MY_TOKEN=secret)
    clean, count = found.value(value)
    assert clean is value
    assert count == 0


@given(data=st.data(), secrets=st.lists(SECRETS, min_size=1, max_size=3, unique=True))
def test_no_secret_is_left_anywhere_and_a_second_time_changes_nothing(data: st.DataObject, secrets: list[str]) -> None:
    found = Redactor({f"TOKEN_{index}": secret for index, secret in enumerate(secrets)})
    planted = st.sampled_from(secrets).flatmap(
        lambda secret: st.tuples(st.text(), st.text()).map(lambda around: f"{around[0]}{secret}{around[1]}")
    )
    value = data.draw(
        st.recursive(
            planted | st.text(),
            lambda inner: st.lists(inner, max_size=4) | st.dictionaries(planted | st.text(), inner, max_size=4),
        )
    )

    clean, _ = found.value(value)

    for written in (json.dumps(clean), json.dumps(clean, ensure_ascii=False)):
        for secret in secrets:
            assert secret not in written
            assert json.dumps(secret)[1:-1] not in written
    assert found.value(clean) == (clean, 0)


@given(data=st.binary(), secret=SECRETS)
def test_bytes_of_any_kind_pass_unharmed_but_for_the_secret(data: bytes, secret: str) -> None:
    found = redactor(MY_TOKEN=secret)
    assert found.data(data) == (data, 0)
    assert found.data(data + secret.encode() + data) == (data + b"[redacted:MY_TOKEN]" + data, 1)


# --- hostile input


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    ["sk-" * 300_000, "eyJ" * 300_000, "eyJaaaaaaaa." * 80_000, "-----BEGIN PRIVATE KEY-----" * 40_000,
     "-----BEGIN PRIVATE KEY-----a" * 40_000, "-" * 1_000_000, "ghp_" * 250_000, "AKIA" * 250_000, "xoxb-" * 200_000],
    ids=lambda text: f"{text[:40]}x{len(text)}",
)  # fmt: skip
def test_no_text_makes_redaction_slow(text: str) -> None:
    start = time.process_time()
    PLAIN.text(text)
    assert time.process_time() - start < 5


def test_a_value_too_deep_to_be_stored_is_refused_and_not_passed_through() -> None:
    value: Any = "x"
    for _ in range(100_000):
        value = [value]
    with pytest.raises(BadInput, match="nested deeper than 100 levels"):
        PLAIN.value(value)


def test_odd_values_do_not_break_it() -> None:
    odd = {"big": 10**6000, "half": "\ud800", "nan": float("nan"), "other": object()}
    assert PLAIN.value(odd) == (odd, 0)
    assert redactor(MY_TOKEN="zx81\udcff-spectrum").data(b"zx81\xff-spectrum") == (b"[redacted:MY_TOKEN]", 1)
