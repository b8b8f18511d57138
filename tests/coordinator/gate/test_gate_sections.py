"""Required sections of a Markdown text: what counts as one, and what only looks like one."""

from __future__ import annotations

import time

import pytest

from coordinator.gate.sections import section_messages

REQUIRED = ["Background", "Risks"]


@pytest.mark.parametrize(
    "text",
    [
        "# Background\nx\n# Risks\ny",
        "# Report\n\n## Background\n\nx\n\n### Risks ###\n\ny\n",
        "Background\n==========\nx\n\nRisks\n---\ny",
        "\ufeff# Background\r\nx\r\n## Risks\r\ny",
        "   ## **Background**\nx\n## `risks`:\ny",
        "## 1. Background\nx\n## 2.1 Risks\ny",
        "# Background\n## Detail\nx\n# Risks\n- a bullet",
        "# Background\n```\ncode only\n```\n# Risks\n> a quotation",
        "# Background\n| a | b |\n|---|---|\n# Risks\n    indented code",
        "# Background\n<!-- note --> x\n# Risks <!-- later -->\ny",
        "# Background\n<!-- a\n# Hidden\n--> x\n# Risks\ny",
        "# Background\n# Background\nx\n# Risks\n\u2713",
        "```\nan example: ~~~\n```\n# Background\nx\n# Risks\ny",
        "# Background\n`` ` `` not a fence\n``` also `not`\n# Risks\ny",
        "two lines\n# Background\nx\n\nRisks\n-\ny",
    ],
)
def test_sections_are_found_in_every_form_that_people_write(text: str) -> None:
    assert section_messages(text, REQUIRED) == []


@pytest.mark.parametrize(
    "text",
    [
        "# Background\nx\n",
        "# Background\nx\nRisks: none\n",
        "# Background\nx\n#Risks\ny",
        "# Background\nx\n####### Risks\ny",
        "# Background\nx\n```\n# Risks\ny\n```\n",
        "# Background\nx\n~~~~ md\n# Risks\n~~~\ny\n",
        "# Background\nx\n````\n```\n# Risks\ny\n````\n",
        "# Background\nx\n<!--\n# Risks\ny\n-->\n",
        "# Background\nx\n<!-- never closed\n# Risks\ny\n",
        "# Background\nx\n\n    # Risks\n    y\n",
        "# Background\nx\n> # Risks\n> y\n",
        "# Background\nx\n- Risks\n---\ny\n",
        "# Background\nx\n- item\nRisks\n---\ny\n",
        "# Background\nx\n\nRisks\n\n---\ny\n",
        "# Background\nx\n# Risks and more\ny",
    ],
)
def test_what_only_looks_like_a_section_is_missing(text: str) -> None:
    assert section_messages(text, REQUIRED) == ["Missing required sections: Risks"]


@pytest.mark.parametrize(
    "nothing",
    [
        "",
        "\n\n",
        "<!-- todo -->",
        "<!--\ntodo\n-->",
        "---",
        "***",
        "- ",
        "```\n```",
        "\u200b",
        "\u00a0",
        "## Sub",
        "> ",
    ],
)
def test_a_heading_with_nothing_below_it_is_empty(nothing: str) -> None:
    text = f"# Background\nx\n# Risks\n{nothing}\n# Recommendation\ny"
    assert section_messages(text, REQUIRED) == ["Empty required sections: Risks"]


def test_missing_and_empty_sections_are_named_together_in_the_order_of_the_contract() -> None:
    assert section_messages("# C\n", ["B", "A", "C"]) == [
        "Missing required sections: B, A",
        "Empty required sections: C",
    ]
    assert section_messages("", ["A"]) == ["Missing required sections: A"]


def test_text_after_a_deeper_heading_belongs_to_the_sections_around_it_and_to_no_later_one() -> None:
    text = "# A\n## B\n### C\nx\n## D\n# E\n"
    assert section_messages(text, ["A", "B", "C", "D", "E"]) == ["Empty required sections: D, E"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    ["<!--" * 250_000, "# " + " #" * 500_000, "- " * 500_000, "`" * 1_000_000, "a\n" * 400_000 + "---", "\n" * 500_000,
     "# a\n" * 200_000, "#" * 1_000_000, "1." * 500_000, "# " + "1." * 500_000, " " * 1_000_000, "\u200b" * 1_000_000],
    ids=lambda text: f"{text[:8]!r}x{len(text)}",
)  # fmt: skip
def test_no_text_makes_reading_slow(text: str) -> None:
    start = time.process_time()
    section_messages(f"# Risks\n{text}", REQUIRED)
    assert time.process_time() - start < 5
