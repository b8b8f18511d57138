"""Scopes of paths: what is matched, and the two comparisons on which authority rests, against brute force."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from contracts.scopes import covers, in_scope, matches, pattern_fault, scopes_overlap

NAMES = ["a", "b", "ab", "ba", "aab", "+"]
PATHS = ["/".join(parts) for length in (1, 2, 3) for parts in itertools.product(NAMES, repeat=length)]
PARTS = st.sampled_from(["a", "b", "ab", "*", "?", "a*", "*b", "?b", "*a*", "**", "+", "a?", "*a*b"])
PATTERNS = st.builds(
    lambda parts, folder: "/".join(parts) + folder, st.lists(PARTS, min_size=1, max_size=4), st.sampled_from(["", "/"])
)
SCOPES = st.lists(PATTERNS, max_size=3)


def by_parts(pattern: str, path: str) -> bool:
    """The meaning of a pattern, by the shortest program that has it."""
    if pattern.endswith("/"):
        pattern += "**"
    wanted, found = pattern.split("/"), path.split("/")

    def part(glob: str, name: str) -> bool:
        if not glob:
            return not name
        if glob[0] == "*":
            return any(part(glob[1:], name[taken:]) for taken in range(len(name) + 1))
        return bool(name) and glob[0] in ("?", name[0]) and part(glob[1:], name[1:])

    def parts(globs: list[str], names: list[str]) -> bool:
        if not globs:
            return not names
        if globs[0] == "**":
            least = 1 if len(globs) == 1 else 0
            return any(parts(globs[1:], names[taken:]) for taken in range(least, len(names) + 1))
        return bool(names) and part(globs[0], names[0]) and parts(globs[1:], names[1:])

    return parts(wanted, found)


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("report.md", ["report.md"], ["a/report.md", "report.md/x", "reportxmd"]),
        ("reports/", ["reports/a", "reports/a/b.md"], ["reports", "reports2/a", "x/reports/a"]),
        ("*.py", ["a.py", ".py"], ["src/a.py", "a.pyc"]),
        ("src/*/x", ["src/a/x"], ["src/x", "src/a/b/x"]),
        ("src/**/x", ["src/x", "src/a/x", "src/a/b/x"], ["srcx", "a/src/x"]),
        ("**/*.py", ["a.py", "a/b/c.py"], ["a.pyx"]),
        ("**", ["a", "a/b", "new\nline"], []),
        ("a?c", ["abc", "a+c"], ["ac", "a/c"]),
        ("c++/[x].md", ["c++/[x].md"], ["c/x.md"]),
    ],
)
def test_patterns_mean_what_people_expect(pattern: str, inside: list[str], outside: list[str]) -> None:
    assert pattern_fault(pattern) is None
    assert [path for path in inside if not matches(pattern, path)] == []
    assert [path for path in outside if matches(pattern, path)] == []


@pytest.mark.parametrize(
    "pattern", ["", "/", "/etc", "../x", "a/../b", "./a", "a//b", "a\\b", "a\0b", "src/**.py", "a**"]
)
def test_patterns_that_leave_the_tree_or_could_mean_two_things_have_a_fault(pattern: str) -> None:
    assert pattern_fault(pattern)


@given(PATTERNS)
@example("*a*a*b")
@example("**/a*b/**/ab/*")
@example("**/**/a")
def test_a_pattern_matches_exactly_the_paths_that_it_means(pattern: str) -> None:
    assert [path for path in PATHS if matches(pattern, path)] == [path for path in PATHS if by_parts(pattern, path)]


@given(SCOPES, SCOPES)
@example(["a/*"], ["a/"])
@example(["a*"], ["a*/b"])
@example(["**/b"], ["**"])
def test_a_scope_that_covers_another_matches_every_path_of_it(wide: list[str], narrow: list[str]) -> None:
    if covers(wide, narrow):
        assert [path for path in PATHS if in_scope(narrow, path) and not in_scope(wide, path)] == []


@given(SCOPES, SCOPES)
@example(["a/x"], ["a/*"])
@example(["a/"], ["a"])
@example(["*a"], ["b*"])
def test_scopes_that_do_not_overlap_share_no_path(one: list[str], other: list[str]) -> None:
    shared = [path for path in PATHS if in_scope(one, path) and in_scope(other, path)]
    assert scopes_overlap(one, other) == scopes_overlap(other, one)
    if shared:
        assert scopes_overlap(one, other)


@given(SCOPES, SCOPES, SCOPES)
def test_covering_is_reflexive_and_transitive(a: list[str], b: list[str], c: list[str]) -> None:
    assert covers(a, a)
    assert covers(a, [])
    if covers(a, b) and covers(b, c):
        assert covers(a, c)


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        (["**"], ["a/**/b*", "c"]),
        (["src/"], ["src/a.py", "src/lib/", "src/**/*.py", "src/*"]),
        (["src/**"], ["src/"]),
        (["src/"], ["src/**"]),
        (["a/", "b/"], ["b/x", "a/*"]),
        (["*"], ["?", "a*"]),
        (["**/*.py"], ["src/**/test_*.py", "setup.py"]),
        (["?", "??*"], ["*"]),
        (["?*/b"], ["*/b"]),
    ],
)
def test_a_narrower_scope_is_accepted(wide: list[str], narrow: list[str]) -> None:
    assert covers(wide, narrow)


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ([], ["a"]),
        (["src/"], ["**"]),
        (["src/"], ["src"]),
        (["src/*"], ["src/"]),
        (["src/"], ["src2/a"]),
        (["src/"], ["s*/a"]),
        (["a*/x"], ["a*/*"]),
        (["a", "b"], ["?"]),
    ],
)
def test_a_wider_scope_is_not_covered(wide: list[str], narrow: list[str]) -> None:
    assert not covers(wide, narrow)


def test_two_globs_that_begin_alike_and_end_apart_do_not_overlap() -> None:
    assert not scopes_overlap(["out/*.md"], ["out/*.json"])
    assert scopes_overlap(["out/*.md"], ["out/a*"])
    assert not scopes_overlap([], ["**"])


def test_hostile_patterns_are_neither_slow_nor_trusted() -> None:
    begin = time.monotonic()
    assert not matches("*a" * 50 + "b", "a" * 4000)
    assert not matches("**/a/" * 40 + "b", "a/" * 2000 + "c")
    assert not matches("**/*a*/" * 20 + "b", "aa/" * 1000 + "c")
    bomb = "*a" + "?" * 40
    assert not covers([bomb], ["*a*"])
    assert scopes_overlap([bomb], ["*b" + "?" * 40])
    assert time.monotonic() - begin < 20
