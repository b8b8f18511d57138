"""Recounts the callers of a symbol, for the gate: `python verify_callers.py INVENTORY [SOURCE]`.

It shares no code with the child that made the inventory, and goes another way: by tokens, not by syntax trees. A call
that is certainly one of the symbol and is not listed is an error (exit status 1), and so is a listed line on which
nothing of that name stands. A call that may or may not be one, and is not listed, is shown; the inventory must then own
up to gaps.
"""

from __future__ import annotations

import io
import json
import keyword
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

Dotted = tuple[str, ...]
Place = tuple[str, int]
SILENT = (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING)
OF = "()"
"""Stands before the name of a class: what is bound is an instance of it."""


@dataclass
class File:
    """One file, read by its tokens.

    ``bound``: what names stand for: something imported, an instance of a class, or () for what cannot be told.
    ``ever``: all that a name stands for somewhere in the file.
    ``around``: for each token the definitions that it stands in.
    """

    path: str
    module: Dotted
    tokens: list[tokenize.TokenInfo] = field(default_factory=list)
    bound: dict[str, Dotted] = field(default_factory=dict)
    ever: dict[str, set[Dotted]] = field(default_factory=dict)
    defined: dict[str, int] = field(default_factory=dict)
    classes: set[str] = field(default_factory=set)
    around: list[Dotted] = field(default_factory=list)
    aliases: set[str] = field(default_factory=set)
    star: bool = False

    def bind(self, name: str, to: Dotted) -> None:
        self.ever.setdefault(name, set()).add(to)
        self.bound[name] = to if self.bound.get(name, to) == to else ()


def read(path: str, text: str) -> File:
    """Raises ``SyntaxError`` and ``tokenize.TokenError``."""
    parts = path.removesuffix(".py").removeprefix("src/").split("/")
    is_package = parts[-1] == "__init__"
    file = File(path, tuple(parts[:-1] if is_package else parts))
    file.tokens = [t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type not in SILENT]
    package = file.module if is_package else file.module[:-1]
    around: list[str] = []
    head = ""
    for statement in statements(file.tokens):
        for token in statement:
            if token.type == tokenize.INDENT:
                around.append(head)
            elif token.type == tokenize.DEDENT:
                around.pop()
            file.around.append(tuple(around))
        words = [t.string for t in statement if t.type not in (tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE)]
        start = words[1:] if words[:1] == ["async"] else words
        head = f"{start[0]} {start[1]}" if start and start[0] in ("def", "class") and len(start) > 1 else ""
        if head:
            file.defined[start[1]] = file.defined.get(start[1], 0) + 1
            file.classes.update(start[1:2] if start[0] == "class" else [])
        if words[:1] in (["import"], ["from"]):
            bind_imports(file, words, package)
        else:
            made = instance(words)
            for name in names_bound(start):
                file.bind(name, (OF, *made[1]) if made and made[0] == name else ())
    return file


def statements(tokens: list[tokenize.TokenInfo]) -> Iterator[list[tokenize.TokenInfo]]:
    statement: list[tokenize.TokenInfo] = []
    for token in tokens:
        statement.append(token)
        if token.type == tokenize.NEWLINE:
            yield statement
            statement = []
    yield statement


def bind_imports(file: File, words: list[str], package: Dotted) -> None:
    source: Dotted | None = None
    if words[0] == "from":
        at = words.index("import")
        dotted = "".join(words[1:at])
        level = len(dotted) - len(dotted.lstrip("."))
        base = package[: len(package) - level + 1] if level else ()
        source = (*base, *(part for part in dotted.lstrip(".").split(".") if part))
        words = words[at:]
    for item in " ".join(word for word in words[1:] if word not in "()").split(","):
        name, _, alias = (part.replace(" ", "") for part in item.partition(" as "))
        file.star |= name == "*"
        if name and source is not None:
            file.bind(alias or name, (*source, name))
        elif name:
            dotted_name = tuple(name.split("."))
            file.bind(alias or dotted_name[0], dotted_name if alias else dotted_name[:1])


def instance(words: list[str]) -> tuple[str, Dotted] | None:
    """(name, class) of ``name = a.Class(...)`` and of ``with a.Class(...) as name:``."""
    if words[:1] == ["with"] and words[-3:-2] == ["as"]:
        name, call = words[-2], words[1:-3]
    elif words[1:2] == ["="]:
        name, call = words[0], words[2:]
    else:
        return None
    opens = call.index("(") if "(" in call else 0
    depth = [0]
    for word in call:
        depth.append(depth[-1] + (word in ("(", "[", "{")) - (word in (")", "]", "}")))
    whole = call[-1:] == [")"] and 0 not in depth[opens + 1 : -1]
    dotted = "".join(call[:opens])
    return (name, tuple(dotted.split("."))) if whole and opens and dotted.replace(".", "").isidentifier() else None


def names_bound(words: list[str]) -> Iterator[str]:
    """Names that a statement binds: more rather than fewer, whatever the scope. Definitions are counted elsewhere."""
    depth = 0
    within = ""
    for index, word in enumerate(words):
        before, after = words[index - 1] if index else "", words[index + 1] if index + 1 < len(words) else ""
        depth += (word in ("(", "[", "{")) - (word in (")", "]", "}"))
        if word in ("for", "lambda"):
            within = word
        elif (word, within) in (("in", "for"), (":", "lambda")):
            within = ""
        is_name = word.isidentifier() and not keyword.iskeyword(word) and before != "."
        is_parameter = words[0] == "def" and depth == 1 and before in ("(", ",", "*", "**")
        is_assigned = after == "=" or (after.endswith("=") and after not in ("==", "!=", "<=", ">="))
        is_listed = after in (",", ":") and not keyword.iskeyword(words[0])
        is_target = depth == 0 and (is_assigned or is_listed)
        if is_name and (is_parameter or is_target or within or before in ("as", "global", "nonlocal") or after == ":="):
            yield word


class Source:
    """All Python files of a folder."""

    def __init__(self, top: Path, name: str) -> None:
        self.files: dict[Dotted, File] = {}
        self.unread: list[Place] = []
        for path in sorted(top.rglob("*.py")):
            shown = path.relative_to(top).as_posix()
            if path.is_symlink() or not path.is_file():
                continue
            text = re.sub(r"\r\n?", "\n", path.read_bytes().decode("utf-8", "replace").removeprefix("\ufeff"))
            try:
                file = read(shown, text)
            except (SyntaxError, tokenize.TokenError, IndexError, ValueError):
                lines = enumerate(text.split("\n"), 1)
                self.unread += [(shown, line) for line, there in lines if re.search(rf"\b{re.escape(name)}\b", there)]
                continue
            self.files[file.module] = file
        self.roots = {module[:1] for module in self.files}

    def canonical(self, path: Dotted, depth: int = 0) -> Dotted:
        """Where a thing is defined, through re-exports; () when that cannot be told."""
        if OF in path:
            return ()
        for cut in range(len(path) - 1, 0, -1):
            file = self.files.get(path[:cut])
            if file is None:
                continue
            name = path[cut]
            if path[: cut + 1] in self.files:
                return path
            if file.defined.get(name):
                return path if name not in file.bound else ()
            to = file.bound.get(name, ())
            return self.canonical((*to, *path[cut + 1 :]), depth + 1) if to and depth < 20 else ()
        return path if path[:1] not in self.roots or path in self.files else ()

    def known(self, file: File, name: Dotted) -> Dotted:
        """Where a class that a file names is defined."""
        bound = file.bound.get(name[0])
        if bound is None:
            return (*file.module, *name) if file.defined.get(name[0]) == 1 else ()
        return (*bound, *name[1:]) if bound and bound[0] != OF and not file.defined.get(name[0]) else ()


@dataclass
class Recount:
    """Places by file and line: where the symbol is certainly called, where it may be, and where its name stands."""

    certain: set[Place] = field(default_factory=set)
    possible: set[Place] = field(default_factory=set)
    named: set[Place] = field(default_factory=set)
    of_class: bool = False


def recount(source: Source, target: Dotted) -> Recount:
    home = next((target[:cut] for cut in range(len(target) - 1, 0, -1) if target[:cut] in source.files), ())
    of_class = home in source.files and target[-1] in source.files[home].classes
    found = Recount(possible=set(source.unread), named=set(source.unread), of_class=of_class)
    for file in source.files.values():
        names = {target[-1]}
        names |= {
            name for name, ever in file.ever.items() if any(to and target in (to, source.canonical(to)) for to in ever)
        }
        for statement in statements(file.tokens):
            words = [token.string for token in statement if token.string.strip()]
            made = instance(words)
            if (len(words) > 2 and words[1] == "=" and words[-1] in names) or (made and made[1][-1] in names):
                other = made[0] if made else words[0]  # a second name for it, or for what a call of it made
                names.add(other)
                file.aliases.add(other)
        if of_class and file.module == home:
            names.add("cls")
        for index, token in enumerate(file.tokens):
            place = (file.path, token.start[0])
            if token.type == tokenize.STRING and re.match(r"[rR]?[fF]", token.string):
                for offset, line in enumerate(token.string.split("\n")):
                    if any(re.search(rf"\b{re.escape(name)}\s*\(", line) for name in names):
                        found.possible.add((file.path, token.start[0] + offset))
                        found.named.add((file.path, token.start[0] + offset))
            if token.type != tokenize.NAME or token.string not in names:
                continue
            found.named.add(place)
            chain, first = chain_before(file.tokens, index)
            before = file.tokens[first - 1].string if first else ""
            after = file.tokens[index + 1].string if index + 1 < len(file.tokens) else ""
            if before in ("def", "class") or (after != "(" and before != "@"):
                continue
            verdict = judge(source, file, chain, file.around[index], home, target)
            if verdict == "certain":
                found.certain.add(place)
            elif verdict == "possible":
                found.possible.add(place)
    found.possible -= found.certain
    return found


def chain_before(tokens: list[tokenize.TokenInfo], index: int) -> tuple[Dotted, int]:
    """The dotted names that end at a token, and where they begin; an empty first part for what no name can tell."""
    chain = [tokens[index].string]
    while index >= 2 and tokens[index - 1].string == "." and tokens[index - 2].type == tokenize.NAME:
        index -= 2
        chain.insert(0, tokens[index].string)
    if index and tokens[index - 1].string == ".":
        chain.insert(0, "")
    return tuple(chain), index


def judge(source: Source, file: File, chain: Dotted, around: Dotted, home: Dotted, target: Dotted) -> str:
    """``certain``, ``possible`` or ``other``, for one call in a file."""
    here, head = target[len(home) :], chain[0]
    of_method = len(here) > 1 and home in source.files and here[-2] in source.files[home].classes
    if head in ("self", "cls") and len(chain) == 2 and of_method:
        classes = tuple(name.removeprefix("class ") for name in around if name.startswith("class "))
        return "certain" if file.module == home and classes == here[:-1] else "possible"
    if file.module == home and chain == here and head not in file.bound and file.defined.get(head) == 1:
        return "certain"
    bound = file.bound.get(head)
    if bound and not file.defined.get(head):
        of_instance = bound[0] == OF
        path = source.canonical((*(source.known(file, bound[1:]) if of_instance else bound), *chain[1:]))
        if path == target and (len(chain) > 1 or not of_instance):
            return "certain"
        if path and path[:1] not in source.roots and not of_instance:
            return "other"
    if len(chain) == 1 and of_method and head not in file.aliases and not file.star:
        return "other"  # a method is not called by its bare name
    return "possible"


def main(words: list[str]) -> int:
    say = sys.stdout.write
    if len(words) not in (1, 2):
        say("usage: verify_callers.py INVENTORY [SOURCE]\n")
        return 2
    try:
        inventory = json.loads(Path(words[0]).read_bytes())
        symbol, gaps = str(inventory["symbol"]), list(inventory["not_covered"])
        listed = {(str(caller["file"]), int(caller["line"])) for caller in inventory["callers"]}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        say(f"{words[0]} is no inventory of callers: {type(error).__name__}: {error}\n")
        return 1
    target = tuple(symbol.split("."))
    found = recount(Source(Path(words[1] if len(words) > 1 else "."), target[-1]), target)
    unclear = sorted(found.possible - listed)
    for path, line in unclear:
        say(f"{path}:{line} may call {symbol}, and is not listed\n")
    wrong = [f"{path}:{line} calls {symbol}, and is not listed" for path, line in sorted(found.certain - listed)]
    # What an instance of a class is called by can be any name.
    unnamed = sorted(listed - found.named) if not found.of_class else []
    wrong += [f"{path}:{line} is listed, and nothing of that name stands there" for path, line in unnamed]
    if unclear and not gaps:
        wrong.append(f"{len(unclear)} places may be calls, and the inventory names no gap")
    say(f"{symbol}: {len(found.certain)} certain calls, {len(listed)} lines listed, {len(unclear)} unclear\n")
    say("".join(f"{line_of_text}\n" for line_of_text in wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
