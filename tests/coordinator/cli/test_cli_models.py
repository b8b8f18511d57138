"""Models at the command line: what a launch would cost and need is shown before anything starts."""

from __future__ import annotations

from typing import Any

FILE = """\
schema: coordinator/v1
name: models
objective: Look.
source: .
tasks:
  look:
    objective: Look.
    agent: {anthropic: {model: claude-sonnet-4-5, api_key_env: NO_SUCH_KEY_HERE}}
    isolation: none
    workspace: clone
    on_takeover: continue
    resources: {tools: [run_command], commands: [[python, -m, pytest]], effects: declared}
    budget: {max_turns: 9, max_cost_usd: 0.5, max_tokens: 2000000}
    acceptance: [{cel: "true"}]
"""


def test_a_dry_run_shows_model_price_source_and_limits_and_starts_nothing(cli: Any) -> None:
    (cli.folder / "models.yaml").write_text(FILE)
    done = cli("run", "models.yaml", "--dry-run")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    for words in (
        "anthropic claude-sonnet-4-5", "at most 4096 tokens and 120 s a call, key from NO_SUCH_KEY_HERE",
        "a takeover continues", "USD a million tokens (from genai-prices)",
        "max_turns 9, max_cost_usd 0.5, max_tokens 2000000", "python -m pytest",
        "NO_SUCH_KEY_HERE is not set in the environment, and look cannot work without it", "nothing was started",
    ):  # fmt: skip
        assert words in said, words
    value = cli.json("run", "models.yaml", "--dry-run")
    assert (value["prices"]["look"]["source"], value["prices"]["look"]["model"]) == (
        "genai-prices",
        "claude-sonnet-4-5",
    )


def test_a_run_without_its_key_ends_before_it_begins(cli: Any) -> None:
    (cli.folder / "models.yaml").write_text(FILE)
    done = cli("run", "models.yaml")
    assert done.returncode == 2
    [line] = done.stderr.strip().splitlines()
    assert "NO_SUCH_KEY_HERE is not set" in line
    assert "look" in line


def test_a_check_of_the_file_needs_no_key_and_places_an_unknown_price(cli: Any) -> None:
    (cli.folder / "models.yaml").write_text(FILE)
    assert cli("contract", "check", "models.yaml").returncode == 0
    (cli.folder / "models.yaml").write_text(FILE.replace("claude-sonnet-4-5", "claude-of-tomorrow"))
    done = cli("contract", "check", "models.yaml")
    assert done.returncode == 2
    assert "models.yaml:8:24: tasks.look.agent.anthropic: nobody knows the price" in done.stderr
