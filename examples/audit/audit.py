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
    output: dict[str, Any] = {"files": files, "dependencies": dependencies, "not_covered": gaps}
    if a.inputs["demonstrate_repair"] and a.feedback is None:
        output["dependencies"] = {item["name"]: item["constraint"] for item in dependencies}  # off its schema
    mended = f"mended after: {'; '.join(finding.message for finding in a.feedback.findings)}" if a.feedback else ""
    return a.completed(output, mended)


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
    """report.md, made from the accepted results alone."""
    callers, undocumented, dependencies = (a.needs[name].output for name in ("callers", "undocumented", "dependencies"))
    gaps = {name: result.output["not_covered"] for name, result in a.needs.items()}
    counts = {
        "callers": len(callers["callers"]),
        "undocumented": len(undocumented["items"]),
        "dependencies": len(dependencies["dependencies"]),
        "gaps": sum(len(found) for found in gaps.values()),
    }
    where = f"defined at {code(callers['defined_at'])}" if callers["defined_at"] else "not defined in this source"
    sections = {
        "Summary": [
            f"Source: {code(a.contract['input_snapshot']['repo_ref'])}",
            f"Symbol: {code(callers['symbol'] or 'none')}, {where}",
            f"{counts['callers']} calls of it in {callers['python_files']} Python files",
            f"{counts['undocumented']} of {undocumented['public']} public definitions have no docstring",
            f"{counts['dependencies']} dependencies declared in {len(dependencies['files'])} files",
            f"{counts['gaps']} coverage gaps",
        ],
        "Callers": [
            f"{place(item)} in {code(item['symbol'])}{' (by name only)' if item['match'] == 'name' else ''}: "
            f"{code(item['text'])}"
            for item in callers["callers"]
        ],
        "Undocumented": [f"{place(item)} {item['kind']} {code(item['symbol'])}" for item in undocumented["items"]],
        "Dependencies": [
            f"{code(item['name'])} {code(item['constraint'] or 'any version')} "
            f"({code(item['file'])}, {code(item['group'])})"
            for item in dependencies["dependencies"]
        ],
        "Coverage gaps": [f"{name}: {code(gap)}" for name, found in gaps.items() for gap in found],
    }
    lines = ["# Audit"]
    for title, entries in sections.items():
        lines += ["", f"## {title}", "", *([f"- {entry}" for entry in entries] or ["None found."])]
    a.artifact("report.md", "\n".join(lines) + "\n", "text/markdown; charset=utf-8")
    a.evidence("report", "artifact", artifact="report.md")
    return a.completed({**counts, "built_from": {name: result.manifest_digest for name, result in a.needs.items()}})


def code(text: str) -> str:
    """Text from the source, as inert Markdown."""
    return "`" + " ".join(str(text).replace("`", "'").split()) + "`"


def place(item: Mapping[str, Any]) -> str:
    return code(f"{item['file']}:{item['line']}")
