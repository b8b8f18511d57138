"""What a person is asked about a call that needs a yes of its own, and what the yes is then bound to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from contracts.ports import Standing
from contracts.requests import Action, action_digest
from coordinator.redaction import Redactor
from coordinator.store.records import Claim, Question
from coordinator.text import plain

__all__ = ["call_question"]

ARGUMENTS_SHOWN_CHARS = 1_500
PATHS_SHOWN = 20
PATHS_KEPT = 500
PATH_CHARS = 200


def call_question(
    claim: Claim, tool: str, arguments: Mapping[str, Any], standing: Standing | None, redactor: Redactor
) -> Question:
    """The question about one call. What a child has chosen in it is quoted as JSON, so that none of it can pass for the
    coordinator's own words."""

    def quoted(value: Any) -> str:
        return plain(json.dumps(redactor.value(value)[0], ensure_ascii=False))

    tree_digest = None if standing is None else standing.tree_digest
    changed = [] if standing is None else list(standing.changed)
    paths: list[str] = redactor.value([plain(path)[:PATH_CHARS] for path in changed[:PATHS_KEPT]])[0]
    said = quoted(dict(arguments))
    text = f"May {tool} be called once, with {_middle_cut(said)}? "
    if tree_digest is None:
        text += "The task has no workspace."
    elif not changed:
        text += f"No file of its workspace ({tree_digest[:19]}…) differs from the base."
    else:
        more = f" and {len(changed) - PATHS_SHOWN:,} more" if len(changed) > PATHS_SHOWN else ""
        differ = "file differs" if len(changed) == 1 else "files differ"
        text += f"In its workspace ({tree_digest[:19]}…) {len(changed):,} {differ} from the base: "
        text += quoted(paths[:PATHS_SHOWN]) + more
    digest = action_digest(claim.terms_digest, tool, arguments, tree_digest)
    action = Action(
        terms_digest=claim.terms_digest, contract_version=claim.terms.contract_version, tool=tool, arguments=said,
        tree_digest=tree_digest, changed=paths, changed_count=len(changed),
    )  # fmt: skip
    return Question("approval", text, digest, f"call:{claim.task_row}:{digest}", action)


def _middle_cut(text: str) -> str:
    if len(text) <= ARGUMENTS_SHOWN_CHARS:
        return text
    half = ARGUMENTS_SHOWN_CHARS // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]} [{left_out:,} characters are left out here; `inspect --json` shows all] {text[-half:]}"
