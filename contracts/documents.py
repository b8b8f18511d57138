"""Documents as people write them: strict YAML and JSON, in which every fault has a file, a line and a column.

YAML is read by its 1.2 core schema: ``no``, ``on``, ``22:30`` and dates are text, ``1e6`` is a number, ``1.10`` is the
number 1.1 and ``012`` the number 12 (octal is ``0o14``): a field that wants text refuses these two and asks for
quotes. Whatever could mean two things is refused: equal keys, anchors, aliases, tags, second documents.
"""

from __future__ import annotations

import codecs
import difflib
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from contracts.errors import BadInput, Fault
from contracts.json_positions import (
    MAX_FAULTS,
    Lines,
    Location,
    Place,
    Positions,
    TreeBuilder,
    dotted,
    path_part,
    printable,
    read_json,
    short,
)

__all__ = ["Document", "Location", "Place", "dotted", "load_document", "parse_document", "pydantic_faults", "validate"]

MAX_SIZE_BYTES: Final = 1024 * 1024
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Document:
    """A JSON value, the name of the file it came from, and where everything in it stands."""

    value: Any
    file: str
    positions: Positions = field(repr=False, compare=False)

    def with_value(self, value: Any) -> Document:
        """The same places for a value that code has added to or changed."""
        return replace(self, value=value)

    def place(self, location: Location) -> Place:
        """Line and column of a value; of its nearest parent that is there, when it is not itself."""
        return self._node(location).place

    def key_place(self, location: Location) -> Place:
        """Line and column of the key before a value; as ``place`` for what has no key."""
        node = self._node(location)
        return node.key or node.place

    def locate(self, fault: Fault) -> Fault:
        """``fault`` with file, line and column of what its ``path`` names, or of the nearest parent."""
        node, rest = self.positions, fault.path.removeprefix("$")
        if rest and rest[0] not in ".[":
            rest = f".{rest}"
        while (step := _step(node, rest)) is not None:
            node, rest = step
        return fault.at(self.file, *node.place)

    def _node(self, location: Location) -> Positions:
        node = self.positions
        for part in location:
            if isinstance(node.children, list):
                child = node.children[part] if isinstance(part, int) and part < len(node.children) else None
            else:
                child = node.children.get(part) if isinstance(part, str) else None
            if child is None:
                break
            node = child
        return node


def _step(node: Positions, path: str) -> tuple[Positions, str] | None:
    """One step down along a dotted path: what the document holds says where a key with dots in it ends."""
    found: tuple[Positions, str] | None = None
    if isinstance(node.children, list):
        index = re.match(r"\[([0-9]{1,9})\]", path)
        if index and int(index[1]) < len(node.children):
            found = node.children[int(index[1])], path[index.end() :]
        return found
    for key, child in node.children.items():
        for part in (f".{key}", path_part(key)):
            rest = path.removeprefix(part)
            if len(rest) < len(path if found is None else found[1]) and rest[:1] in ("", ".", "["):
                found = child, rest
    return found


def load_document(path: Path) -> Document:
    """Read a file: JSON when its name ends in ``.json``, else YAML. Raises ``BadInput`` with every fault found."""
    file = printable(str(path))
    try:
        # Not only folders: opening a pipe would wait for a writer.
        if not stat.S_ISREG(path.stat().st_mode):
            raise BadInput([Fault("", "is not a regular file", "name a YAML or JSON file", file=file)])
        with path.open("rb") as stream:
            data = stream.read(MAX_SIZE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise BadInput([Fault("", f"cannot be read: {why}", "name a readable YAML or JSON file", file=file)]) from None
    return parse_document(data, file=file, format="json" if path.suffix.lower() == ".json" else "yaml")


def parse_document(text: bytes | str, *, file: str, format: Literal["yaml", "json"]) -> Document:  # noqa: A002
    """Read the text of one document, at most 1 MiB of UTF-8. A byte-order mark of UTF-8 at its start is skipped.

    Raises ``BadInput`` with every fault found before reading could not go on.
    """
    tree = TreeBuilder(file)
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(data) > MAX_SIZE_BYTES:
        raise tree.fail(f"more than {MAX_SIZE_BYTES} bytes", "keep large data in files of its own", (1, 1))
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        content = data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8")
        place = Lines(before).place(len(before))
        raise tree.fail(f"byte 0x{data[error.start]:02x} is not UTF-8", "save the file as UTF-8", place) from None
    if not content.strip(" \t\r\n"):
        raise tree.fail("the document is empty", "write a mapping of fields", (1, 1))
    if format == "json":
        read_json(content, tree)
    else:
        _read_yaml(content, tree)
    value, positions = tree.finish()
    return Document(value, file, positions)


_NOT_IN_YAML = re.compile("[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
"""Control characters; and what our parser, of YAML 1.1, takes as a line break or drops, where 1.2 sees text."""

_TAG: Final = "tag:yaml.org,2002:"
_SCALAR_TAGS: Final = {_TAG + name: name for name in ("str", "int", "float", "bool", "null")}
_YAML_HINTS: Final = (
    ("nesting depth", "flatten it"),
    ("mapping values are not allowed", "put text that holds ': ' in quotes, and align the keys"),
    ("scanning an alias", "put text that begins with '*' in quotes"),
    ("scanning an anchor", "put text that begins with '&' in quotes"),
    ("could not find expected ':'", "write key: value, or put text of several lines in quotes"),
    ("unexpected end of stream", "close the quotes"),
    ("tag", "put text that begins with '!' in quotes"),
    ("Unicode character escape", "write the character itself, or all of it as \\U0001f600"),
    ("cannot start any token", "put text that begins with this character in quotes"),
    ("", "check the indentation, quotes and brackets"),
)


def _read_yaml(text: str, tree: TreeBuilder) -> None:
    """Read exactly one YAML document into ``tree``, by the parser's events: nothing is built unseen."""
    # PyYAML costs 50 ms to import: programs that read no YAML do not pay for it.
    import yaml
    from yamlcore import CCoreLoader

    lines = Lines(text)
    for match in _NOT_IN_YAML.finditer(text):
        escape = f"\\u{ord(match.group()):04x}"
        tree.fault(
            f"character {escape} is not allowed", f'write "{escape}" in double quotes', lines.place(match.start())
        )
    if tree.faults:
        raise BadInput(tree.faults)
    loader = CCoreLoader(text)
    try:
        _read_events(loader, tree)
    except yaml.MarkedYAMLError as error:
        context, mark = error.context or "", error.problem_mark
        problem = f"{context} {error.problem}".strip()
        hint = next(hint for words, hint in _YAML_HINTS if words in problem)
        if mark is not None and text.startswith("\t", mark.index):
            problem, hint = "a tab in the indentation", "indent with spaces"
        elif context.startswith("while scanning a"):
            mark = error.context_mark  # the word that could not be read begins there; ``mark`` is where patience ended
        raise tree.fail(f"not YAML: {problem}", hint, lines.place(mark.index) if mark else (1, 1)) from None
    finally:
        loader.dispose()


def _read_events(loader: Any, tree: TreeBuilder) -> None:
    import yaml

    before: Any = None
    documents = 0
    while not isinstance(event := loader.get_event(), yaml.StreamEndEvent):
        place = (event.start_mark.line + 1, event.start_mark.column + 1)
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise tree.fail("a second document begins", "one file holds one document", place)
            if event.version not in (None, (1, 2)):
                raise tree.fail(
                    f"YAML {'.'.join(map(str, event.version))} was asked for", "this is read as YAML 1.2", place
                )
        elif isinstance(event, yaml.AliasEvent):
            hint = "write the value out; put text that begins with '*' in quotes"
            tree.fault(f"alias {short(f'*{event.anchor}')}", hint, place)
            tree.add("", place)
        elif isinstance(event, yaml.NodeEvent):
            _read_node(loader, event, tree, place, is_root=isinstance(before, yaml.DocumentStartEvent))
        elif isinstance(event, yaml.CollectionEndEvent):
            tree.close()
        before = event
    if not documents:
        raise tree.fail("the document is empty", "write a mapping of fields", (1, 1))


def _read_node(loader: Any, event: Any, tree: TreeBuilder, place: Place, *, is_root: bool) -> None:
    import yaml

    def constructed(written: str) -> Any:
        return loader.yaml_constructors[tag](loader, yaml.ScalarNode(tag, written))

    if event.anchor is not None:
        hint = "leave it out; put text that begins with '&' in quotes"
        tree.fault(f"anchor {short(f'&{event.anchor}')}", hint, place)
    is_scalar = isinstance(event, yaml.ScalarEvent)
    if event.tag is not None and not (is_scalar and event.tag in _SCALAR_TAGS):
        tree.fault(f"tag {short(event.tag)}", "leave it out; put text that begins with '!' in quotes", place)
    if not is_scalar:
        tree.open({} if isinstance(event, yaml.MappingStartEvent) else [], place)
        return
    text = event.value
    if is_root and text == "" and event.implicit[0]:
        raise tree.fail("the document is empty", "write a mapping of fields", place)
    plain = loader.resolve(yaml.ScalarNode, text, (True, False))
    tag = (plain if event.implicit[0] else _TAG + "str") if event.tag is None else event.tag
    if tag not in _SCALAR_TAGS or tag == _TAG + "str":
        tree.add(text, place)
    elif tag != plain and (tag, plain) != (_TAG + "float", _TAG + "int"):
        tree.fault(f"{short(text)} is no {_SCALAR_TAGS[tag]}", "leave the tag out", place)
        tree.add(text, place)
    elif tag in (_TAG + "int", _TAG + "float"):
        tree.add_number(text, place, constructed)
    else:
        tree.add(constructed(text), place)


def validate(model: type[Model], document: Document) -> Model:
    """The document as a ``model``. Raises ``BadInput`` with every fault at its place."""
    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        raise BadInput(pydantic_faults(error, document, _field_names(model))) from None


def pydantic_faults(error: ValidationError, document: Document | None, known_fields: Iterable[str] = ()) -> list[Fault]:
    """The errors of ``error``, the first 100, in words for people; with places when the ``document`` is given.

    ``known_fields``: what a mistyped field could have been. The names that pydantic gives to the members of a union
    are left out of paths where the document shows that it holds no such thing.
    """
    known = sorted(set(known_fields))
    faults = [_pydantic_fault(details, document, known) for details in error.errors(include_url=False)[:MAX_FAULTS]]
    faults = sorted(dict.fromkeys(faults), key=lambda fault: (fault.line or 0, fault.column or 0))
    if (more := error.error_count() - MAX_FAULTS) > 0:
        faults.append(Fault("", f"{more} more faults", "repair these first", document.file if document else None))
    return faults


def _pydantic_fault(details: ErrorDetails, document: Document | None, known: Iterable[str]) -> Fault:
    kind, location = details["type"], details["loc"]
    of_key = kind == "extra_forbidden" or location[-1:] == ("[key]",)
    if document is None:
        where = tuple(part for part in location if isinstance(part, int) or not part.endswith("]"))
    else:
        where = _in_document(details, document.value)
    if kind == "extra_forbidden":
        fault = _unknown_field(where, known)
    else:
        fault = Fault(dotted(where), *_explained(details))
    if document is None:
        return fault
    return fault.at(document.file, *(document.key_place(where) if of_key else document.place(where)))


def _in_document(details: ErrorDetails, root: Any) -> Location:
    """The location of an error without the parts that stand for types and validators.

    A part may be both a key and the name of a type, so every way through the document that the parts allow is
    followed; that which leads to the very value that was judged wins, then the longest.
    """
    kind, parts, judged = details["type"], details["loc"], details["input"]
    inner = parts[:-1] if kind == "missing" else parts
    reached: dict[Location, tuple[Any, int]] = {(): (root, -1)}
    for index, part in enumerate(inner):
        for location, (value, _) in list(reached.items()):
            inside = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
            if part in inside:
                reached[*location, part] = (value[part], index)
    best, (_, last) = max(reached.items(), key=lambda item: (item[1][0] is judged, len(item[0]), item[1][1]))
    if kind == "missing" or (kind == "extra_forbidden" and last != len(inner) - 1):
        return (*best, parts[-1])
    return best


def _explained(details: ErrorDetails) -> tuple[str, str]:
    """What is wrong, and what would be right."""
    kind, said, value = details["type"], printable(details["msg"])[:500], details["input"]
    if kind == "missing":
        return "required field is missing", f"add {short(details['loc'][-1])}"
    if kind in ("value_error", "assertion_error"):
        return f"{short(value)}: {said.partition(', ')[2]}", ""
    if kind == "string_type" and isinstance(value, (int, float)):
        return f"{short(value)} is not text", "put it in quotes"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"{short(value)} is not accepted", "should be a mapping of fields"
    hint = said.removeprefix("Input ")
    return f"{short(value)} is not accepted", hint[:1].lower() + hint[1:]


def _unknown_field(where: Location, known: Iterable[str]) -> Fault:
    name, names = str(where[-1]), list(known)
    if name in names:
        hint = "it is known elsewhere, not here"
    elif near := difflib.get_close_matches(name[:100], names, n=1):
        hint = f"did you mean {near[0]!r}?"
    else:
        hint = "remove it"
    return Fault(dotted(where), f"unknown field {short(name)}", hint)


def _field_names(model: type[BaseModel]) -> set[str]:
    """The names of all fields that a document of this model may hold at any depth."""
    names: set[str] = set()
    seen: set[Any] = set()
    todo: list[Any] = [model]
    while todo:
        kind = todo.pop()
        if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            todo.extend(get_args(kind))
        elif kind not in seen:
            seen.add(kind)
            for name, info in kind.model_fields.items():
                if not info.exclude:
                    names.add(info.alias or name)
                    todo.append(info.annotation)
    return names
