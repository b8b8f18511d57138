"""The callers that the audit finds, against marks that stand in the made source itself."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from contracts.assignment import Feedback
from contracts.canonical import sha256_digest
from contracts.requests import Answer
from contracts.results import Finding
from contracts.states import Outcome

SOURCE: dict[str, str | bytes] = {
    "pkg/__init__.py": "from pkg.core import work as exported\nfrom .core import Engine\n",
    "pkg/core.py": """\
import functools

def work(x=None):
    return x

def wrapped():
    return work()  # CALL work in wrapped

class Engine:
    def __enter__(self):
        return self

    def __exit__(self, *args):
        pass

    def run(self):
        return 1

    def again(self):
        return self.run()  # CALL Engine.run in Engine.again

    @classmethod
    def make(cls):
        return cls().run()  # CALL Engine.run in Engine.make

    @staticmethod
    def apart(self):
        return self.run()  # NAME Engine.run in Engine.apart

class Turbo(Engine):
    def boost(self):
        def later():
            return self.run()  # CALL Engine.run in Turbo.boost.later
        return later

class Other:
    def run(self):
        return 2

class Loud(Engine):
    def run(self):
        return super().run()  # NAME Engine.run in Loud.run

    def own(self):
        return self.run()
""",
    "pkg/aliases.py": """\
import pkg.core
import pkg.core as c
from pkg import exported, Engine as E
from pkg.core import work as w
from . import core as relative
from .core import work

again = work
pkg.core.work()  # CALL work in <module>
c.work()  # CALL work in <module>
w()  # CALL work in <module>
exported()  # CALL work in <module>
relative.work()  # CALL work in <module>
again()  # CALL work in <module>
"work()"
'''
work()
'''
# work()

def outer():
    def inner():
        return w()  # CALL work in outer.inner
    from pkg.core import work as local
    return local(inner)  # CALL work in outer

async def waits():
    return [await work(n) for n in range(3)]  # CALL work in waits

def chained():
    return (
        pkg
        .core
        .work()  # CALL work in chained
    )

def default(x=work()):  # CALL work in <module>
    return lambda: work()  # CALL work in default

@work  # CALL work in <module>
def marked():
    pass

class Holder:
    @work()  # CALL work in Holder
    def method(self):
        return work(work(1))  # CALL work in Holder.method

class Namesake:
    def work(self):
        return work(self.work())  # CALL work in Namesake.work

def instances(given: E, maybe: E | None, unknown, text: "E"):
    given.run()  # CALL Engine.run in instances
    maybe.run()  # CALL Engine.run in instances
    E().run()  # CALL Engine.run in instances
    made = pkg.core.Turbo()
    made.run()  # CALL Engine.run in instances
    with E() as entered:
        entered.run()  # CALL Engine.run in instances
    if (walrus := E()):
        walrus.run()  # CALL Engine.run in instances
    unknown.run()  # NAME Engine.run in instances
    text.run()  # NAME Engine.run in instances
    twice = E()
    twice = unknown
    twice.run()  # NAME Engine.run in instances
    next(given).run()  # NAME Engine.run in instances
""",
    "pkg/no_calls.py": """\
import subprocess
from elsewhere import work as foreign
from pkg.core import Loud, Other, work

def shadowed(work):
    return work()

def rebound(things):
    for work in things:
        work()
    return [work() for work in things]

def passed():
    return map(work, [1])

foreign()
subprocess.run(["true"])
Other().run()
Loud().run()
""",
    "pkg/star.py": "from pkg.core import *\n\nwork()  # NAME work in <module>\n",
    "src/lib/mod.py": "from lib.base import tool\n\ntool()  # CALL tool in <module>\n",
    "src/lib/base.py": "def tool():\n    pass\n",
    "pkg/broken.py": "def work(:\n",
    "pkg/nul.py": b"work()\0",
    "pkg/latin.py": b"# caf\xe9\nfrom pkg.core import work\nwork()  # CALL work in <module>\n",
    "pkg/windows.py": b"\xef\xbb\xbffrom pkg.core import work\r\n\x0cwork()  # CALL work in <module>\r\n",
    "docs/use.md": "Call `work()` to work.\n",
    "other.toml": 'entry = "pkg.core:work"\n',
    "plain.txt": "working\n",
}
MARK = re.compile(r"# (CALL|NAME) (\S+) in (\S+)")


def marked(symbol: str) -> list[tuple[str, int, str, str]]:
    """(file, line, enclosing symbol, match) of what the source itself says."""
    found = []
    for file, content in SOURCE.items():
        text = content.decode("utf-8", "replace") if isinstance(content, bytes) else content
        for number, line in enumerate(text.split("\n"), 1):
            mark = MARK.search(line)
            if mark and symbol == mark[2]:
                found.append((file, number, mark[3], "resolved" if mark[1] == "CALL" else "name"))
    return sorted(found)


@pytest.fixture
def code(load_example: Callable[[str], ModuleType]) -> ModuleType:
    return load_example("audit/python_code.py")


@pytest.fixture
def found(code: ModuleType, make_repository: Any, assign: Any) -> Callable[[str], dict[str, Any]]:
    repository = make_repository(SOURCE)

    def find(symbol: str) -> dict[str, Any]:
        result = code.find_callers(assign(repository, symbol=symbol))
        assert result.outcome is Outcome.COMPLETED
        cited = [f"{item.path}:{item.line}" for item in result.evidence if item.kind == "citation"]
        defined = [result.output["defined_at"]] if result.output["defined_at"] else []
        assert cited == [*defined, *(f"{item['file']}:{item['line']}" for item in result.output["callers"])]
        return dict(result.output)

    return find


def inventory(output: dict[str, Any]) -> list[tuple[str, int, str, str]]:
    return sorted((item["file"], item["line"], item["symbol"], item["match"]) for item in output["callers"])


@pytest.mark.parametrize(
    ("symbol", "mark"), [("pkg.core.work", "work"), ("pkg.core.Engine.run", "Engine.run"), ("lib.base.tool", "tool")]
)
def test_callers_are_those_that_the_source_marks(
    found: Callable[[str], dict[str, Any]], symbol: str, mark: str
) -> None:
    expected = marked(mark)
    output = found(symbol)

    assert expected
    assert inventory(output) == expected


def test_the_definition_and_each_calls_line_are_told(found: Callable[[str], dict[str, Any]]) -> None:
    output = found("pkg.core.work")

    assert output["defined_at"] == "pkg/core.py:3"
    assert {item["text"] for item in output["callers"] if item["file"] == "pkg/core.py"} == {
        "return work()  # CALL work in wrapped"
    }


def test_what_was_not_analysed_is_a_coverage_gap(found: Callable[[str], dict[str, Any]]) -> None:
    gaps = "\n".join(found("pkg.core.work")["not_covered"])

    assert "pkg/broken.py could not be parsed: SyntaxError" in gaps
    assert "pkg/nul.py could not be parsed" in gaps
    assert "pkg/latin.py is not UTF-8" in gaps
    assert "docs/use.md mentions 'work'" in gaps
    assert "other.toml mentions 'work'" in gaps
    assert "plain.txt" not in gaps
    assert "pkg/windows.py" not in gaps
    assert "1 calls fit by name only" in gaps


def test_a_symbol_of_elsewhere_is_found_where_it_is_called(found: Callable[[str], dict[str, Any]]) -> None:
    output = found("subprocess.run")

    assert output["defined_at"] is None
    assert [(item["file"], item["match"]) for item in output["callers"] if item["match"] == "resolved"] == [
        ("pkg/no_calls.py", "resolved")
    ]


def test_a_symbol_that_is_nowhere_is_asked_about_and_the_answer_is_used(
    code: ModuleType, make_repository: Any, assign: Any
) -> None:
    repository = make_repository(SOURCE)
    asked = code.find_callers(assign(repository, symbol="pkg.core.wrok"))
    answer = [(asked.question, Answer(approved=True, message="pkg.core.work"))]
    answered = code.find_callers(assign(repository, symbol="pkg.core.wrok", answers=answer))

    assert asked.outcome is Outcome.BLOCKED
    assert "pkg.core.wrok" in asked.question
    assert inventory(answered.output) == marked("work")


def test_without_a_symbol_the_most_called_public_function_is_taken_and_said(
    code: ModuleType, make_repository: Any, assign: Any
) -> None:
    result = code.find_callers(assign(make_repository(SOURCE), symbol=""))

    assert result.output["symbol"] == "pkg.core.work"
    assert any("pkg.core.work" in text for text in result.assumptions)


def test_where_nothing_can_be_cited_a_person_is_asked(code: ModuleType, make_repository: Any, assign: Any) -> None:
    repository = make_repository({"index.js": "work()\n"})
    without = code.find_callers(assign(repository, symbol=""))
    wrong = [("Which?", Answer(approved=True, message="pkg.core.work"))]
    answered = code.find_callers(assign(repository, symbol="", answers=wrong))

    assert [result.outcome for result in (without, answered)] == [Outcome.BLOCKED, Outcome.BLOCKED]
    assert "no public function is called" in without.question
    assert "pkg.core.work" in answered.question


def test_what_nobody_calls_is_an_inventory_of_its_definition(
    code: ModuleType, make_repository: Any, assign: Any
) -> None:
    result = code.find_callers(assign(make_repository(SOURCE), symbol="pkg.no_calls.passed"))

    assert result.output["callers"] == []
    assert [(item.path, item.line, item.symbol) for item in result.evidence if item.kind == "citation"] == [
        ("pkg/no_calls.py", 13, "passed")
    ]


def test_each_citation_has_its_line_as_it_stands_and_the_inventory_is_a_file_too(
    code: ModuleType, make_repository: Any, assign: Any
) -> None:
    assignment = assign(make_repository(SOURCE), symbol="pkg.core.Engine.run")
    result = code.find_callers(assignment)
    cited = [item for item in result.evidence if item.kind == "citation"]
    [written] = [item for item in result.evidence if item.kind == "file"]
    data = (assignment.workspace / "callers.json").read_bytes()

    for item in cited:
        assert item.text == (assignment.workspace / item.path).read_text("utf-8").split("\n")[item.line - 1]
    assert json.loads(data) == result.output
    assert (written.path, written.digest) == ("callers.json", sha256_digest(data))


def test_the_demonstrated_citation_is_beyond_its_file_until_it_is_sent_back(
    code: ModuleType, make_repository: Any, assign: Any
) -> None:
    repository = make_repository(SOURCE)
    finding = Finding(check="citations_resolve", message="there is no line 99", place="pkg/core.py:99")
    feedback = Feedback(attempt=1, reason="wrong", findings=[finding], manifest_digest="sha256:0")

    def beyond(result: Any) -> list[str]:
        lines = {item.path: (repository / item.path).read_bytes().count(b"\n") for item in citations(result)}
        return [item.path for item in citations(result) if item.line > lines[item.path]]

    def citations(result: Any) -> list[Any]:
        return [item for item in result.evidence if item.kind == "citation"]

    asked = {"symbol": "pkg.core.work", "demonstrate_repair": True}
    first = code.find_callers(assign(repository, **asked))
    second = code.find_callers(assign(repository, **asked, feedback=feedback))

    assert beyond(first) == ["pkg/core.py"]
    assert beyond(second) == []
    assert first.output == second.output
    assert second.message == "mended after: there is no line 99"


def test_the_tools_read_the_commit_and_not_the_working_files(
    code: ModuleType, make_repository: Any, assign: Any
) -> None:
    repository: Path = make_repository(SOURCE)
    (repository / "pkg" / "late.py").write_text("from pkg.core import work\nwork()\n")
    result = code.find_callers(assign(repository, symbol="pkg.core.work"))

    assert inventory(result.output) == marked("work")
