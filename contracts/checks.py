"""Acceptance checks as they are written in a contract: a one-key map plus options."""

from __future__ import annotations

import shlex
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from contracts.base import Argument, Name, PathPattern, StrictModel

__all__ = ["CHECK_KINDS", "Check", "CheckKind"]

CheckKind = Literal["json_schema", "sections", "citations_resolve", "command", "paths_unchanged", "cel", "approval"]
CHECK_KINDS: tuple[CheckKind, ...] = (
    "json_schema",
    "sections",
    "citations_resolve",
    "command",
    "paths_unchanged",
    "cel",
    "approval",
)
EnvironmentName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")]
OPTIONS: dict[str, tuple[CheckKind, ...]] = {
    "of": ("json_schema", "sections"),
    "timeout_s": ("command",),
    "env": ("command",),
}
"""Which options go with which kinds; ``when`` goes with all."""


class Check(StrictModel):
    """One check. Exactly one of the kinds is set.

    ``json_schema``: a file beside the orchestration, for the output. ``sections``: headings that a Markdown text must
    have, each with text under it. ``cel``: an expression over ``output``, ``evidence``, ``contract`` and ``observed``.
    ``approval``: the question that a person answers. ``command``: a program that the gate runs in its own clean
    checkout
    of the tree that it judges, with no other environment than ``env``, and that has to exit 0 within ``timeout_s``.
    ``paths_unchanged``: paths that the candidate must not touch. ``citations_resolve``: the evidence whose cited
    files, lines and symbols
    the gate looks up again in the judged tree. ``of`` names the artifact, the file, or the key of the output, that is
    judged. ``when: end`` leaves the check out for a result that is handed in as partial.
    """

    json_schema: str | None = Field(default=None, min_length=1)
    sections: list[Name] | None = Field(default=None, min_length=1)
    cel: str | None = Field(default=None, min_length=1)
    approval: str | None = Field(default=None, min_length=1, max_length=2000)
    command: list[Argument] | None = Field(default=None, min_length=1)
    paths_unchanged: list[PathPattern] | None = Field(default=None, min_length=1)
    citations_resolve: Name | None = None
    timeout_s: float = Field(default=60, gt=0, le=86_400, allow_inf_nan=False)
    env: dict[EnvironmentName, str] = {}
    of: str | None = Field(default=None, min_length=1)
    when: Literal["each", "end"] = "each"

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        found = [kind for kind in CHECK_KINDS if getattr(self, kind) is not None]
        if len(found) != 1:
            what = " and ".join(found) if found else "none"
            raise ValueError(f"a check names exactly one of {', '.join(CHECK_KINDS)}; found {what}")
        for option, kinds in OPTIONS.items():
            stated = getattr(self, option) != type(self).model_fields[option].get_default()
            if stated and found[0] not in kinds:
                raise ValueError(f"{option!r} goes with {' and '.join(kinds)}, not with {found[0]}")
        return self

    @property
    def kind(self) -> CheckKind:
        return next(kind for kind in CHECK_KINDS if getattr(self, kind) is not None)

    def label(self) -> str:
        """For people: ``sections of report.md``."""
        if self.command is not None:
            return f"command {shlex.join(self.command)}"
        if self.citations_resolve is not None:
            return f"citations_resolve of {self.citations_resolve}"
        return f"{self.kind} of {self.of}" if self.of else self.kind

    def document(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_defaults=True)
