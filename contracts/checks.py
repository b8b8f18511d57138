"""Acceptance checks as they are written in a contract: a one-key map plus options."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from contracts.base import Name, StrictModel

__all__ = ["CHECK_KINDS", "Check", "CheckKind"]

CheckKind = Literal["json_schema", "sections", "cel", "approval"]
CHECK_KINDS: tuple[CheckKind, ...] = ("json_schema", "sections", "cel", "approval")


class Check(StrictModel):
    """One check. Exactly one of the kinds is set.

    ``json_schema``: a file beside the orchestration, for the output. ``sections``: headings that a Markdown text must
    have, each with text under it. ``cel``: an expression over ``output``, ``evidence``, ``contract`` and ``observed``.
    ``approval``: the question that a person answers. ``of`` names the artifact, or the key of the output, that is
    judged. ``when: end`` leaves the check out for a result that is handed in as partial.
    """

    json_schema: str | None = Field(default=None, min_length=1)
    sections: list[Name] | None = Field(default=None, min_length=1)
    cel: str | None = Field(default=None, min_length=1)
    approval: str | None = Field(default=None, min_length=1, max_length=2000)
    of: str | None = Field(default=None, min_length=1)
    when: Literal["each", "end"] = "each"

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        found = [kind for kind in CHECK_KINDS if getattr(self, kind) is not None]
        if len(found) != 1:
            what = " and ".join(found) if found else "none"
            raise ValueError(f"a check names exactly one of {', '.join(CHECK_KINDS)}; found {what}")
        if self.of is not None and found[0] not in ("json_schema", "sections"):
            raise ValueError(f"'of' goes with json_schema and sections, not with {found[0]}")
        return self

    @property
    def kind(self) -> CheckKind:
        return next(kind for kind in CHECK_KINDS if getattr(self, kind) is not None)

    def label(self) -> str:
        """For people: ``sections of report.md``."""
        return f"{self.kind} of {self.of}" if self.of else self.kind

    def document(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_defaults=True)
