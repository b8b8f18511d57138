"""Finds every function with an effect outside of the process, by the primitives that make one."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

__all__ = ["effects_in", "effects_of_packages"]

PACKAGES = ("contracts", "workspaces", "agents", "coordinator")
OS = {
    *("rename", "renames", "replace", "link", "symlink", "unlink", "remove", "mkdir", "makedirs", "rmdir"),
    *("fsync", "fdatasync", "truncate", "ftruncate", "write", "pwrite", "writev", "sendfile", "copy_file_range"),
    *("chmod", "fchmod", "chown", "lchown", "fchown", "utime", "mkfifo", "mknod", "setxattr", "removexattr"),
    *("kill", "killpg", "fork", "forkpty", "system", "popen", "execv", "execve", "execvp", "execvpe", "posix_spawn"),
}  # fmt: skip
SHUTIL_READS = {"which", "disk_usage", "get_terminal_size"}
METHODS = {
    *("write_text", "write_bytes", "unlink", "mkdir", "rename", "rmdir", "touch", "symlink_to", "hardlink_to", "chmod"),
    *("write", "writelines", "kill", "terminate", "send_signal", "pidfd_send_signal"),
    *("create_subprocess_exec", "create_subprocess_shell", "Popen", "subprocess_exec"),
    *("sendall", "sendto", "urlopen", "send_request", "send_notification", "list_tools", "call_tool"),
}  # fmt: skip
"""Of whatever they are methods: paths, open files, processes, sockets, sessions of MCP."""
SENDS = {"ask_sdk", "create"}
"""Functions of our own through which the SDKs send."""
HELPERS = {"sync", "sync_tree", "make_folders", "delete_folder", "write_durable", "make_durable", "run_process"}
"""Functions of our own that do one such thing for whoever calls them."""
GIT = {"run_git", "ask_git"}
GIT_READS = {
    *("cat-file", "check-ref-format", "config", "diff-tree", "for-each-ref", "ls-files", "ls-tree", "merge-base"),
    *("rev-list", "rev-parse", "show-ref", "status", "symbolic-ref", "version"),
}
SQL = {"execute", "executemany", "executescript", "exec_driver_sql", "create_all", "drop_all", "upgrade"}
IN_TRANSACTIONS = ("tx.conn.", "self.conn.", "operating.", "charging.")
"""Of a transaction, which only ``Database.write`` and ``Database.read`` begin: its verbs have two points each."""
CHANGES = {"insert", "update", "delete"}
WRITING_FLAGS = ("O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def effects_of_packages(top: Path) -> dict[str, frozenset[str]]:
    """``FILE:FUNCTION`` or ``FILE:CLASS.METHOD`` -> what it does. ``<module>``: what is done while it is imported."""
    found: dict[str, frozenset[str]] = {}
    for package in PACKAGES:
        for file in sorted((top / package).rglob("*.py")):
            for name, effects in effects_in(file.read_text(encoding="utf-8"), in_store=file.parent.name == "store"):
                found[f"{file.relative_to(top).as_posix()}:{name}"] = effects
    return found


def effects_in(source: str, *, in_store: bool = False) -> Iterator[tuple[str, frozenset[str]]]:
    """The functions of one module that have effects, with what is nested in them. ``in_store``: it writes rows."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, nodes in _functions(ast.parse(source)):
        for node in nodes:
            for part in ast.walk(node):
                effect = _effect(part, in_store) if isinstance(part, ast.Call) else None
                if effect is not None:
                    found[name].add(effect)
    yield from ((name, frozenset(effects)) for name, effects in found.items())


def _functions(module: ast.Module, inside: str = "") -> Iterator[tuple[str, list[ast.AST]]]:
    rest: list[ast.AST] = []
    for node in module.body:
        if isinstance(node, Function):
            yield inside + node.name, [node]
        elif isinstance(node, ast.ClassDef):
            rest += [*node.decorator_list, *node.bases]
            yield from _functions(ast.Module(node.body, []), f"{inside}{node.name}.")
        else:
            rest.append(node)
    yield f"{inside}<module>", rest


def _effect(call: ast.Call, in_store: bool) -> str | None:
    called = ast.unparse(call.func)
    owner, _, name = called.rpartition(".")
    if owner == "os":
        opens = name == "open" and any(flag in ast.unparse(call) for flag in WRITING_FLAGS)
        return f"os.{name}" if name in OS or opens else None if name != "fdopen" else _opened(call, 1)
    if owner == "shutil":
        return None if name in SHUTIL_READS else called
    if owner in ("subprocess", "tempfile") or called.startswith(("httpx.", "requests.")):
        return None if name in ("list2cmdline", "gettempdir") else called
    if name in GIT:
        words = [part.value for part in ast.walk(call) if isinstance(part, ast.Constant)]
        command = next((word for word in words if isinstance(word, str) and not word.startswith("-")), "?")
        return None if command in GIT_READS else f"git-{command}"
    if name == "open":
        return _opened(call, 0 if owner else 1)
    if owner and name == "replace":  # of a string it has two arguments, of a moment it has names
        return "replace" if len(call.args) == 1 and not call.keywords else None
    if name in SQL and owner:
        return _sql(call, owner, name, in_store)
    if name in HELPERS or (name in (METHODS if owner else SENDS) and not owner.startswith(("sys.", "self._db"))):
        return name
    return None


def _opened(call: ast.Call, position: int) -> str | None:
    """``open``, for writing: the mode is the argument at that position, or is named."""
    for mode in (*call.args[position : position + 1], *(word.value for word in call.keywords if word.arg == "mode")):
        said = mode.value if isinstance(mode, ast.Constant) and isinstance(mode.value, str) else None
        # Many things are opened by a method of that name; who computes a mode calls it so.
        if set(said or "") & set("wax+") or (said is None and (position == 1 or ast.unparse(mode) == "mode")):
            return "open"
    return None


def _sql(call: ast.Call, owner: str, name: str, in_store: bool) -> str | None:
    if not f"{owner}.".endswith(IN_TRANSACTIONS):
        return name
    if in_store:
        return None
    said = {ast.unparse(part.func) for part in ast.walk(call) if isinstance(part, ast.Call)}
    return "SQL" if said & CHANGES else None
