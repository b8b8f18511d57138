"""The children of the audit that list the dependencies and write the report."""

from __future__ import annotations

import configparser
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from coordinator import Assignment, Result

# -- dependencies ------------------------------------------------------------------------------------------------------

REQUIREMENT = re.compile(r"([A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*([^;#]*?)\s*(?:;.*|\s#.*)?")
Found = Iterator[tuple[str, str, str]]
"""(group, name, constraint); the name is empty for a line that could not be read."""


def list_dependencies(a: Assignment) -> Result:
    """What pyproject.toml, requirements files, setup.cfg and package.json declare."""
    gaps: list[str] = []
    files: list[str] = []
    dependencies: list[dict[str, str]] = []
    for path in a.tools.list_files("**"):
        reader = next((read for pattern, read in READERS.items() if re.search(pattern, path)), None)
        if reader is None:
            if re.search(UNREAD, path):
                gaps.append(f"{path} declares dependencies in a form that is not read")
            continue
        try:
            found = list(reader(a.tools.read_file(path)))
        except (ValueError, AttributeError, TypeError, configparser.Error, RecursionError) as error:
            gaps.append(f"{path} could not be read: {type(error).__name__}: {str(error).splitlines()[0][:100]}")
            continue
        files.append(path)
        a.evidence("dependency file", "file", path=path)
        for group, name, constraint in found:
            if name:
                dependencies.append({"name": name, "constraint": constraint, "file": path, "group": group})
            else:
                gaps.append(f"{path}: not a plain requirement: {constraint[:100]}")
    for gap in gaps:
        a.gap(gap)
    a.note("coverage gaps", f"{len(gaps)} gaps" if gaps else "none known")
    return a.completed({"files": files, "dependencies": dependencies, "not_covered": gaps})


def requirement(group: str, text: str) -> tuple[str, str, str]:
    parsed = REQUIREMENT.fullmatch(text.strip())
    return (group, parsed[1], parsed[2].strip("() ")) if parsed else (group, "", text.strip())


def read_pyproject(text: str) -> Found:
    data = tomllib.loads(text)
    project, poetry = data.get("project", {}), data.get("tool", {}).get("poetry", {})
    groups = {
        "build-system.requires": data.get("build-system", {}).get("requires", []),
        "dependencies": project.get("dependencies", []),
        **{f"optional-dependencies.{name}": found for name, found in project.get("optional-dependencies", {}).items()},
        **{f"dependency-groups.{name}": found for name, found in data.get("dependency-groups", {}).items()},
    }
    for group, lines in groups.items():
        yield from (requirement(group, line) for line in lines if isinstance(line, str))
    tables = {"poetry": poetry, **{f"poetry.group.{name}": table for name, table in poetry.get("group", {}).items()}}
    for group, table in tables.items():
        for name, wanted in table.get("dependencies", {}).items():
            yield group, name, wanted if isinstance(wanted, str) else json.dumps(wanted, default=str)


def read_requirements(text: str) -> Found:
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        line = re.sub(r"\s--hash[= ]\S+|(^|\s)#.*", "", line).strip()
        if re.match(r"(-r|-c|--requirement|--constraint|-e|--editable|https?:|git\+|\.)", line):
            yield "requirements", "", line
        elif line and not line.startswith("-"):
            yield requirement("requirements", line)


def read_setup_cfg(text: str) -> Found:
    config = configparser.ConfigParser(interpolation=None)
    config.read_string(text)
    extras = dict(config["options.extras_require"]) if config.has_section("options.extras_require") else {}
    groups = {"install_requires": config.get("options", "install_requires", fallback=""), **extras}
    for group, lines in groups.items():
        yield from (requirement(group, line) for line in lines.splitlines() if line.strip())


def read_package_json(text: str) -> Found:
    data = json.loads(text)
    for group in ("dependencies", "devDependencies", "peerDependencies", "optionalDependencies"):
        yield from ((group, name, str(wanted)) for name, wanted in data.get(group, {}).items())


READERS: Mapping[str, Callable[[str], Found]] = {
    r"(^|/)pyproject\.toml$": read_pyproject,
    r"(^|/)requirements[^/]*\.txt$|(^|/)requirements/[^/]+\.txt$": read_requirements,
    r"(^|/)setup\.cfg$": read_setup_cfg,
    r"(^|/)package\.json$": read_package_json,
}
UNREAD = (
    r"(^|/)(setup\.py|Pipfile|Cargo\.toml|go\.mod|Gemfile|pom\.xml|build\.gradle|composer\.json|environment\.ya?ml)$"
)


# -- the report --------------------------------------------------------------------------------------------------------


def write_report(a: Assignment) -> Result:
    """report.md, made from the accepted results alone; what was left out of the audit stands there as a gap."""
    found = {name: result.output for name, result in a.needs.items()}
    left_out = {name: f"left out: {why}" for name, why in a.inputs["left_out"].items()}
    gaps = [(name, gap) for name, result in a.needs.items() for gap in result.gaps] + list(left_out.items())
    parts = {
        name: tell(found[name]) if name in found else ([left_out.get(name, f"no {name} in this audit")], [])
        for name, tell in PARTS.items()
    }
    summary = [f"Source: {code(a.contract['input_snapshot']['repo_ref'])}"]
    summary += [line for told, _ in parts.values() for line in told]
    sections = {
        "Summary": [*summary, f"{len(gaps)} coverage gaps"],
        **{name.capitalize(): entries or told for name, (told, entries) in parts.items()},
        "Coverage gaps": [f"{name}: {code(gap)}" for name, gap in gaps],
    }
    lines = ["# Audit"]
    for title, entries in sections.items():
        lines += ["", f"## {title}", "", *([f"- {entry}" for entry in entries] or ["None found."])]
    text = "\n".join(lines) + "\n"
    a.tools.write_file("report.md", text)
    ref = a.artifact("report.md", text, "text/markdown; charset=utf-8")  # `coordinator export` hands this one out
    a.evidence("report", "file", path="report.md", digest=ref.digest)
    return a.completed({"built_from": {name: result.manifest_digest for name, result in a.needs.items()}})


Told = tuple[list[str], list[str]]
"""What the summary says of a result, and the entries of its section."""


def tell_callers(found: Mapping[str, Any]) -> Told:
    where = f"defined at {code(found['defined_at'])}" if found["defined_at"] else "not defined in this source"
    told = [
        f"Symbol: {code(found['symbol'])}, {where}",
        f"{len(found['callers'])} calls of it in {found['python_files']} Python files",
    ]
    entries = [
        f"{place(item)} in {code(item['symbol'])}{' (by name only)' if item['match'] == 'name' else ''}: "
        f"{code(item['text'])}"
        for item in found["callers"]
    ]
    return told, entries


def tell_undocumented(found: Mapping[str, Any]) -> Told:
    told = [f"{len(found['items'])} of {found['public']} public definitions have no docstring"]
    return told, [f"{place(item)} {item['kind']} {code(item['symbol'])}" for item in found["items"]]


def tell_dependencies(found: Mapping[str, Any]) -> Told:
    told = [f"{len(found['dependencies'])} dependencies declared in {len(found['files'])} files"]
    entries = [
        f"{code(item['name'])} {code(item['constraint'] or 'any version')} "
        f"({code(item['file'])}, {code(item['group'])})"
        for item in found["dependencies"]
    ]
    return told, entries


def tell_tests(found: Mapping[str, Any]) -> Told:
    names = ("tests", "failures", "errors", "skipped")
    counts = ", ".join(f"{found['counts'][name]} {name}" for name in names if name in found["counts"])
    told = [f"{code(' '.join(found['command']))} exited {found['exit_status']} after {found['seconds']} s: {counts}"]
    return told, [*told, f"The run as the child saw it is in {code('reports/junit.xml')}; the gate ran it again"]


PARTS: Mapping[str, Callable[[Mapping[str, Any]], Told]] = {
    "callers": tell_callers,
    "undocumented": tell_undocumented,
    "dependencies": tell_dependencies,
    "tests": tell_tests,
}


def code(text: str) -> str:
    """Text from the source, as inert Markdown."""
    return "`" + " ".join(str(text).replace("`", "'").split()) + "`"


def place(item: Mapping[str, Any]) -> str:
    return code(f"{item['file']}:{item['line']}")
