"""The children of orchestration.yaml: what a repository is made of. Yours to change."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePosixPath

from coordinator import Assignment, Result

KINDS = {
    ".c": "C", ".cc": "C++", ".cpp": "C++", ".cs": "C#", ".css": "CSS", ".csv": "CSV", ".go": "Go", ".h": "C header",
    ".html": "HTML", ".ini": "INI", ".ipynb": "Jupyter notebook", ".java": "Java", ".js": "JavaScript",
    ".json": "JSON", ".jsx": "JavaScript", ".kt": "Kotlin", ".lua": "Lua", ".md": "Markdown", ".php": "PHP",
    ".pl": "Perl", ".ps1": "PowerShell", ".py": "Python", ".pyi": "Python", ".r": "R", ".rb": "Ruby",
    ".rs": "Rust", ".rst": "reStructuredText", ".scala": "Scala", ".sh": "shell", ".sql": "SQL", ".svg": "SVG",
    ".swift": "Swift", ".tf": "Terraform", ".toml": "TOML", ".ts": "TypeScript", ".tsx": "TypeScript",
    ".txt": "text", ".xml": "XML", ".yaml": "YAML", ".yml": "YAML",
}  # fmt: skip
BINARY = {
    ".7z", ".avi", ".bmp", ".bz2", ".class", ".dll", ".doc", ".docx", ".eot", ".exe", ".gif", ".gz", ".ico", ".jar",
    ".jpeg", ".jpg", ".mov", ".mp3", ".mp4", ".o", ".otf", ".pdf", ".png", ".ppt", ".pptx", ".pyc", ".so", ".tar",
    ".tgz", ".ttf", ".wav", ".webm", ".webp", ".whl", ".woff", ".woff2", ".xls", ".xlsx", ".xz", ".zip",
}  # fmt: skip


def kinds(a: Assignment) -> Result:
    """Files by language or extension, and by top folder."""
    paths = a.tools.list_files("**")
    found = Counter(kind_of(path) for path in paths)
    folders = Counter(printable(path.partition("/")[0]) + "/" if "/" in path else "./" for path in paths)
    rows = [{"kind": kind, "files": count} for kind, count in found.most_common()]
    return a.completed({"total": len(paths), "kinds": rows, "folders": dict(folders.most_common(200))})


def largest(a: Assignment) -> Result:
    """Lines and size of text files; what was not read is said, not left out silently."""
    paths = a.tools.list_files("**")
    sizes: list[dict[str, str | int]] = []
    read = binary = 0
    for path in paths:
        if a.cancel.is_set():
            return a.cancelled()
        if PurePosixPath(path).suffix.lower() in BINARY:
            binary += 1
        elif read < a.inputs["files_read_max"]:
            text = a.tools.read_file(path)
            read += 1
            sizes.append({"path": printable(path), "lines": len(text.splitlines()), "characters": len(text)})
    not_read = len(paths) - read - binary
    if not_read:
        a.gap(f"not read, since files_read_max is {a.inputs['files_read_max']}: {not_read} of {len(paths)} files")
    if binary:
        a.gap(f"left out as binary, by name: {binary} of {len(paths)} files")
    a.note("coverage", f"read {read} of {len(paths)} files")
    sizes.sort(key=lambda size: (-int(size["characters"]), str(size["path"])))
    counts = {"total": len(paths), "read": read, "binary": binary, "not_read": not_read}
    return a.completed({**counts, "largest": sizes[: a.inputs["largest"]]})


def tests(a: Assignment) -> Result:
    """Which command tells whether the tests pass: running it, in a clean checkout, is the gate's own work."""
    command = next(check["command"] for check in a.contract["acceptance"] if "command" in check)
    return a.completed({"command": command})


def summary(a: Assignment) -> Result:
    """A Markdown page made of the accepted results of the others."""
    if a.feedback is not None:
        a.note("repaired", str(a.feedback))
    found, sizes = a.needs["kinds"].output, a.needs["largest"].output
    gaps = [gap for need in a.needs.values() for gap in need.gaps]
    top = ", ".join(f"{cell(row['kind'])} ({row['files']})" for row in found["kinds"][:5])
    lines = ["# Inventory", "", "## Overview", ""]
    lines += [f"{found['total']} files; pinned source: {cell(str(a.contract['input_snapshot'].get('repo_ref', '-')))}."]
    lines += [f"Mostly: {top}." if top else "There are no files.", "", "## Kinds of files", ""]
    lines += ["| kind | files |", "| --- | ---: |"] if found["kinds"] else ["No files."]
    lines += [f"| {cell(row['kind'])} | {row['files']} |" for row in found["kinds"]]
    lines += ["", "## Largest files", ""]
    lines += ["| file | lines | characters |", "| --- | ---: | ---: |"] if sizes["largest"] else ["No text files."]
    lines += [f"| {cell(row['path'])} | {row['lines']} | {row['characters']} |" for row in sizes["largest"]]
    lines += ["", "## Tests", ""]
    if "tests" in a.needs:
        command = cell(" ".join(a.needs["tests"].output["command"]))
        lines += [f"They pass: the gate ran `{command}` in a clean checkout, and it exited 0."]
    else:
        lines += ["Not run: orchestration.yaml names no test command."]
    lines += ["", "## Not covered", ""]
    lines += [f"- {gap}" for gap in gaps] or ["Every file was read."]
    a.artifact("inventory.md", "\n".join(lines) + "\n", "text/markdown; charset=utf-8")
    a.evidence("inventory", "artifact", artifact="inventory.md")
    return a.completed({"files": found["total"], "gaps": len(gaps)}, next_action="read inventory.md")


def kind_of(path: str) -> str:
    pure = PurePosixPath(path)
    suffix = pure.suffix.lower()
    return KINDS.get(suffix) or printable(suffix or pure.name)


def printable(path: str) -> str:
    """File names may hold any bytes; results are text."""
    return path.encode("utf-8", "backslashreplace").decode("utf-8")


def cell(text: str) -> str:
    """Text that cannot break out of its place in a Markdown table."""
    return " ".join(text.replace("|", "\\|").replace("`", "'").replace("<", "&lt;").split())
