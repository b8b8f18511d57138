"""The children of the audit that read Python code: who calls a symbol, and what has no docstring.

Each reads the pinned commit through its tools alone, and says what it did not cover.
"""

from __future__ import annotations

import ast
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any

from coordinator import Assignment, Result

Dotted = tuple[str, ...]
"""A name by its parts; the part ``()`` means *an instance of*, or *what it returns*."""
Binding = Dotted | ast.expr | None
"""What a name stands for: something dotted, the value of an expression, or nothing that can be told."""

BINARY = re.compile(r"\.(png|jpe?g|gif|ico|webp|pdf|zip|gz|xz|whl|so|dll|exe|woff2?|ttf|pyc|db|sqlite)$", re.IGNORECASE)
TESTS = re.compile(r"(^|/)(tests?/|test_[^/]*\.py$|conftest\.py$|[^/]*_test\.py$)")
PARSING = threading.Lock()
"""Children of one worker share its process, and CPython 3.11 cannot make two syntax trees at once."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITIONS = (*FUNCTIONS, ast.ClassDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
STATEMENTS = (ast.stmt, ast.ExceptHandler, ast.match_case)
SCOPES = (*DEFINITIONS, ast.Lambda, *COMPREHENSIONS)


# -- callers -----------------------------------------------------------------------------------------------------------


def find_callers(a: Assignment) -> Result:
    """Every call of ``inputs.symbol``: resolved through imports, aliases and classes, or else by its name alone."""
    gaps: list[str] = []
    code = Code()
    for path, text, tree in python_files(a, gaps):
        code.add(path, text, tree)
    symbol = which_symbol(a, code)
    target = tuple(symbol.split(".")) if symbol else ()
    calls = code.callers(target)
    definition = code.defined.get(target)
    if not calls and definition is None:
        what = f"{symbol!r} is neither defined nor called" if symbol else "no public function is called"
        return a.blocked(f"{what} in this source; which symbol is meant?")
    gaps += not_seen(a, target, calls, is_defined=definition is not None)
    cite(a, [*([definition] if definition else []), *calls], code)
    output = {
        "symbol": symbol,
        "defined_at": f"{definition.file}:{definition.line}" if definition else None,
        "callers": [asdict(call) for call in calls],
        "python_files": len(code.modules),
        "not_covered": gaps,
    }
    text = json.dumps(output, indent=1, ensure_ascii=False) + "\n"
    a.tools.write_file("callers.json", text)
    a.evidence("inventory file", "file", path="callers.json", digest=f"sha256:{sha256(text.encode()).hexdigest()}")
    mended = f"mended after: {'; '.join(finding.message for finding in a.feedback.findings)}" if a.feedback else ""
    return covered(a, output, gaps, mended)


def which_symbol(a: Assignment, code: Code) -> str:
    """What was named, by a person's answer before all; else the public function that is called most."""
    symbol = str(a.inputs["symbol"])
    for _question, answer in a.answers:
        symbol = answer.message or symbol
    if not symbol:
        symbol = code.most_called()
        a.assume(f"no symbol was named; the public function that is called most: {symbol or 'there is none'}")
    return symbol


def not_seen(a: Assignment, target: Dotted, calls: Sequence[Call], *, is_defined: bool) -> Iterator[str]:
    """What such an inventory cannot tell."""
    if not is_defined:
        yield f"{'.'.join(target)} is not defined in this source: nothing was matched through classes that inherit it"
    by_name = sum(call.match == "name" for call in calls)
    if by_name:
        yield f"{by_name} calls fit by name only ('match: name'): what they are called on could not be told"
    yield "calls through getattr, containers, callbacks and other indirections are not seen"
    for path in other_files(a):
        if re.search(rf"\b{re.escape(target[-1])}\b", a.tools.read_file(path)):
            yield f"{path} mentions {target[-1]!r} and is not Python: not analysed"


def cite(a: Assignment, places: Sequence[Definition | Call], code: Code) -> None:
    """The definition and each call, with its line as it stands there: the gate looks all of them up again."""
    first_is_wrong = a.inputs["demonstrate_repair"] and a.feedback is None
    for number, place in enumerate(places):
        lines = code.lines[place.file]
        line = len(lines) + 1 if first_is_wrong and number == 0 else place.line
        a.cite("caller inventory", place.file, line, symbol=place.symbol, text=lines[place.line - 1])


@dataclass(frozen=True)
class Definition:
    file: str
    line: int
    symbol: str


@dataclass(frozen=True, order=True)
class Call:
    file: str
    line: int
    symbol: str
    text: str
    match: str


@dataclass
class Scope:
    """The names of a module, a class body, a function or a comprehension."""

    path: Dotted
    kind: str
    names: dict[str, Binding] = field(default_factory=dict)
    star: bool = False

    def bind(self, name: str, value: Binding) -> None:
        """A name that is bound to two things stands for neither; a definition outweighs what falls back to it."""
        own = (*self.path, name)
        if self.names.get(name, value) != value and own != self.names[name]:
            value = own if value == own else None
        self.names[name] = own if self.names.get(name) == own else value


@dataclass
class Module:
    file: str
    tree: ast.Module
    scope: Scope
    package: Dotted


class Code:
    """All Python files of a source, by their dotted names."""

    def __init__(self) -> None:
        self.modules: dict[Dotted, Module] = {}
        self.lines: dict[str, list[str]] = {}
        self.defined: dict[Dotted, Definition] = {}
        self.classes: dict[Dotted, tuple[ast.ClassDef, Scope]] = {}
        self._functions: list[Dotted] = []
        self._roots: set[str] = set()

    def add(self, file: str, text: str, tree: ast.Module) -> None:
        parts = file.removesuffix(".py").removeprefix("src/").split("/")
        path = tuple(parts[:-1] if parts[-1] == "__init__" else parts)
        package = path if parts[-1] == "__init__" else path[:-1]
        module = Module(file, tree, Scope(path, "module"), package)
        self.modules[path] = module
        self.lines[file] = re.split(r"\r\n|\r|\n", text)
        self._roots.update(path[:1])
        self._fill(module.scope, tree.body, module)
        self._define(tree.body, path, module)

    def callers(self, target: Dotted) -> list[Call]:
        is_method = target[:-1] in self.classes or target not in self.defined
        found: dict[tuple[str, int, str], Call] = {}
        for module, callee, path, enclosing in self._calls:
            line = callee.end_lineno or callee.lineno  # of a chain over several lines, where the name stands
            match = "resolved" if path == target else None
            if path is None and isinstance(callee, ast.Attribute):
                match = "name" if is_method and callee.attr == target[-1] else None
            elif path is None and isinstance(callee, ast.Name):
                match = "name" if module.scope.star and callee.id == target[-1] else None
            if match:
                symbol = ".".join(enclosing) or "<module>"
                call = Call(module.file, line, symbol, self.lines[module.file][line - 1].strip()[:200], match)
                found[call.file, call.line, call.symbol] = call
        return sorted(found.values()) if target else []

    def most_called(self) -> str:
        """The public function outside of tests with the most resolved calls; of equals, the first by name."""
        counts: Counter[Dotted] = Counter(called for _, _, called, _ in self._calls if called)
        public = [path for path in self._functions if not any(part.startswith("_") for part in path)]
        called = [path for path in public if counts[path] and not TESTS.search(self.defined[path].file)]
        return ".".join(min((-counts[path], path) for path in called)[1]) if called else ""

    def _define(self, body: Sequence[ast.AST], path: Dotted, module: Module) -> None:
        for node in in_scope(body, STATEMENTS):
            if isinstance(node, DEFINITIONS):
                own = (*path, node.name)
                self.defined.setdefault(
                    own, Definition(module.file, node.lineno, ".".join(own[len(module.scope.path) :]))
                )
                if isinstance(node, ast.ClassDef):
                    self.classes.setdefault(own, (node, module.scope))
                elif path == module.scope.path:
                    self._functions.append(own)
                self._define(node.body, own, module)

    def _fill(self, scope: Scope, body: Sequence[ast.AST], module: Module) -> None:
        """Bind what is bound in one scope."""
        valued: set[int] = set()
        for node in in_scope(body):
            match node:
                case ast.Import():
                    for alias in node.names:
                        dotted = tuple(alias.name.split("."))
                        scope.bind(alias.asname or dotted[0], dotted if alias.asname else dotted[:1])
                case ast.ImportFrom():
                    base = module.package[: len(module.package) - node.level + 1] if node.level else ()
                    base = (*base, *(node.module.split(".") if node.module else ()))
                    scope.star |= any(alias.name == "*" for alias in node.names)
                    for alias in node.names:
                        scope.bind(alias.asname or alias.name, (*base, alias.name))
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    scope.bind(name, (*scope.path, name))
                case (
                    ast.Assign(targets=[ast.Name() as bound], value=value)
                    | ast.withitem(optional_vars=ast.Name() as bound, context_expr=value)
                    | ast.NamedExpr(target=ast.Name() as bound, value=value)
                ):
                    valued.add(id(bound))
                    scope.bind(bound.id, value)
                case ast.AnnAssign(target=ast.Name() as bound):
                    valued.add(id(bound))
                    scope.bind(bound.id, instance_of(node.annotation))
                case ast.Name(id=name, ctx=ast.Store() | ast.Del()) if id(node) not in valued:
                    scope.bind(name, None)
                case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                    scope.bind(name, None)
        for node in in_scope(body, STATEMENTS):
            if isinstance(node, (ast.Global, ast.Nonlocal)):
                for name in node.names:
                    scope.names.pop(name, None)

    def _inner(self, node: ast.AST, scopes: Sequence[Scope], module: Module) -> Scope:
        """The scope that a definition, a lambda or a comprehension opens."""
        outer = scopes[-1]
        path = (*outer.path, node.name) if isinstance(node, DEFINITIONS) else outer.path
        scope = Scope(path, "class" if isinstance(node, ast.ClassDef) else "function")
        if isinstance(node, (*FUNCTIONS, ast.Lambda)):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            for arg in given:
                scope.names[arg.arg] = instance_of(arg.annotation)
            for rest in (node.args.vararg, node.args.kwarg):
                scope.names.update({rest.arg: None} if rest else {})
            marks = [getattr(mark, "id", "") for mark in getattr(node, "decorator_list", [])]
            if outer.kind == "class" and given and "staticmethod" not in marks:
                scope.names[given[0].arg] = outer.path if "classmethod" in marks else (*outer.path, "()")
        if isinstance(node, DEFINITIONS):
            self._fill(scope, node.body, module)
        elif isinstance(node, COMPREHENSIONS):
            targets = [name for part in node.generators for name in ast.walk(part.target) if isinstance(name, ast.Name)]
            scope.names.update({name.id: None for name in targets})
        return scope

    @cached_property
    def _calls(self) -> list[tuple[Module, ast.expr, Dotted | None, Dotted]]:
        """(module, what is called, its dotted name if it can be told, the definition that it stands in)."""
        found: list[tuple[Module, ast.expr, Dotted | None, Dotted]] = []

        def visit(node: ast.AST, scopes: list[Scope], module: Module) -> None:
            called = [node.func] if isinstance(node, ast.Call) else []
            if isinstance(node, DEFINITIONS):
                called += [mark for mark in node.decorator_list if not isinstance(mark, ast.Call)]
            for callee in called:
                name = self._canonical(self._resolve(callee, scopes))
                found.append((module, callee, name, scopes[-1].path[len(scopes[0].path) :]))
            if isinstance(node, SCOPES):
                inner = [*scopes, self._inner(node, scopes, module)]
                body = node.body if isinstance(node, DEFINITIONS) else [getattr(node, "body", None)]
                inside = {id(child) for child in body} if not isinstance(node, COMPREHENSIONS) else None
                for child in ast.iter_child_nodes(node):
                    visit(child, inner if inside is None or id(child) in inside else scopes, module)
            else:
                for child in ast.iter_child_nodes(node):
                    if not isinstance(child, ast.expr_context):
                        visit(child, scopes, module)

        for module in self.modules.values():
            for statement in module.tree.body:
                visit(statement, [module.scope], module)
        return found

    def _resolve(self, node: ast.expr, scopes: Sequence[Scope], depth: int = 0) -> Dotted | None:
        """What an expression names, by the names that can be seen from the innermost of the scopes."""
        if depth > 50:
            return None
        match node:
            case ast.Attribute(value=value, attr=attribute):
                base = self._resolve(value, scopes, depth + 1)
                return (*base, attribute) if base is not None else None
            case ast.Call(func=function):
                base = self._resolve(function, scopes, depth + 1)
                return (*base, "()") if base is not None else None
            case ast.Name(id=name):
                for index in range(len(scopes) - 1, -1, -1):
                    if name in scopes[index].names and (scopes[index].kind != "class" or index == len(scopes) - 1):
                        bound = scopes[index].names[name]
                        if isinstance(bound, ast.expr):
                            return self._resolve(bound, scopes[: index + 1], depth + 1)
                        return bound
                return None if scopes[0].star else (name,)
        return None

    def _canonical(self, path: Dotted | None, depth: int = 0) -> Dotted | None:
        """Follow re-exports, aliases and inheritance to where a thing is defined; as it is when it is not from here."""
        if path is None or depth > 50:
            return None
        for cut in range(len(path), 0, -1):
            head, rest = path[:cut], path[cut:]
            if head in self.classes and rest:
                return self._member(head, rest[1:] if rest[0] == "()" else rest, depth)
            if head in self.defined:
                return None if rest else head
            if head in self.modules:
                if not rest:
                    return head
                scope = self.modules[head].scope
                bound = scope.names.get(rest[0])
                if isinstance(bound, ast.expr):
                    bound = self._resolve(bound, [scope])
                return self._canonical((*bound, *rest[1:]), depth + 1) if bound and bound != head + rest[:1] else None
        ours = path[0] in self._roots
        return None if ours or "()" in path[:-1] else path  # what foreign functions return may well be from here

    def _member(self, owner: Dotted, rest: Dotted, depth: int) -> Dotted | None:
        if not rest or (*owner, rest[0]) in self.defined:
            return self._canonical((*owner, *rest), depth + 1) if rest else owner
        node, scope = self.classes[owner]
        for base in node.bases:
            path = self._canonical(self._resolve(base, [scope]), depth + 1)
            found = self._canonical((*path, *rest), depth + 1) if path in self.classes and path != owner else None
            if found is not None:
                return found
        return None


def in_scope(body: Sequence[ast.AST], kinds: tuple[type[ast.AST], ...] = (ast.AST,)) -> Iterator[ast.AST]:
    """Every node of a body, but not what stands inside the scopes that it opens, nor below what is of no such kind."""
    waiting = list(reversed(body))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, SCOPES):
            children = [child for child in ast.iter_child_nodes(node) if isinstance(child, kinds)]
            waiting += reversed(children)


def instance_of(annotation: ast.expr | None) -> ast.expr | None:
    """The value of something annotated ``C`` or ``C | None``."""
    match annotation:
        case ast.BinOp(left=left, op=ast.BitOr(), right=ast.Constant(value=None)):
            return instance_of(left)
        case ast.Name() | ast.Attribute():
            return ast.Call(func=annotation, args=[], keywords=[])
    return None


# -- what is undocumented ----------------------------------------------------------------------------------------------


def find_undocumented(a: Assignment) -> Result:
    """Public functions, classes and methods without a docstring, outside of tests."""
    gaps: list[str] = []
    items: list[dict[str, Any]] = []
    public = 0
    for path, _text, tree in python_files(a, gaps, skip=TESTS):
        for node, symbol, kind in public_definitions(tree.body):
            public += 1
            if ast.get_docstring(node) is None:
                items.append({"file": path, "line": node.lineno, "symbol": symbol, "kind": kind})
                a.cite("undocumented", path, node.lineno, symbol=symbol)
    skipped = sum(1 for path in a.tools.list_files("**") if path.endswith(".py") and TESTS.search(path))
    if skipped:
        gaps.append(f"{skipped} Python files of tests were left out")
    return covered(a, {"public": public, "items": items}, gaps)


def public_definitions(
    body: Sequence[ast.AST], owner: str = ""
) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, str, str]]:
    """(node, symbol, kind); what is overloaded, or only sets a property, is documented elsewhere."""
    for node in in_scope(body, STATEMENTS):
        if not isinstance(node, DEFINITIONS) or node.name.startswith("_"):
            continue
        marks = {getattr(mark, "attr", getattr(mark, "id", "")) for mark in node.decorator_list}
        if not marks & {"overload", "setter", "deleter"}:
            is_class = isinstance(node, ast.ClassDef)
            yield node, owner + node.name, "class" if is_class else "method" if owner else "function"
            if is_class:
                yield from public_definitions(node.body, f"{owner}{node.name}.")


# -- shared ------------------------------------------------------------------------------------------------------------


def python_files(
    a: Assignment, gaps: list[str], *, skip: re.Pattern[str] | None = None
) -> Iterator[tuple[str, str, ast.Module]]:
    """(path, text, syntax tree) of each Python file; what cannot be read or parsed is a gap."""
    for path in a.tools.list_files("**"):
        if not path.endswith(".py") or (skip and skip.search(path)) or a.cancel.is_set():
            continue
        text = a.tools.read_file(path).removeprefix("\ufeff")
        if "\ufffd" in text:
            gaps.append(f"{path} is not UTF-8 text throughout: names in it may be wrong")
        try:
            with PARSING:
                tree = ast.parse(text, path)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            gaps.append(f"{path} could not be parsed: {type(error).__name__}: {error}"[:200])
            continue
        yield path, text, tree


def other_files(a: Assignment) -> list[str]:
    return [path for path in a.tools.list_files("**") if not path.endswith(".py") and not BINARY.search(path)]


def covered(a: Assignment, output: dict[str, Any], gaps: list[str], message: str = "") -> Result:
    """Complete, with what was not covered in the output, in the evidence and in the manifest's own list."""
    for gap in gaps:
        a.gap(gap)
    a.note("coverage gaps", f"{len(gaps)} gaps" if gaps else "none known")
    if a.cancel.is_set():
        return a.cancelled()
    return a.completed({**output, "not_covered": gaps}, message)
