"""What may be accepted: exactly what was judged, on the head that there is, with every byte that is named."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from tests.simulation.outside import Git
from tests.simulation.snapshot import Reader, Row, Snapshot, Violation

__all__ = ["Acceptance"]


def need(holds: object, number: int, text: str) -> None:
    if not holds:
        raise Violation(f"[{number}] {text}")


class Acceptance:
    """``decided`` for each decision that was committed, ``heads`` after each commit."""

    def __init__(self, reader: Reader, git: Git) -> None:
        self._reader = reader
        self._git = git
        self._accepted: dict[int, set[str]] = {}

    def stored(self, document: Row) -> None:
        data = document["data"]
        need(data is not None, 4, f"document {document['digest']} has no bytes: the simulated children hand in little")
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        need((digest, len(data)) == (document["digest"], document["size_bytes"]), 4, f"bytes of {document['digest']}")

    def _json(self, document: int) -> Any:
        data = self._reader.bytes[document]
        assert data is not None
        return json.loads(data)

    def decided(
        self, event: Row, task: Row, after: Snapshot, word: str, heads: dict[int, str | None], terms: dict[str, Any]
    ) -> None:
        """The decision binds what it judged: terms, manifest, generations, head; and it is the right one."""
        run, name = task["orchestration_id"], f"task {task['id']}"
        attempt = max(
            (a for a in after.attempts_of(task["id"]) if a["ended"] == "submitted"), key=lambda a: int(a["number"])
        )
        need(attempt["decision_id"] is not None, 5, f"{name} was {event['verb']} without a decision")
        decision, manifest = self._json(attempt["decision_id"]), self._json(attempt["manifest_id"])
        bound = decision["bound"]
        need(decision["decision"] == attempt["decision"] == word, 5, f"{name}: {word}, and the decision says "
             f"{decision['decision']}")  # fmt: skip
        need(bound["terms_digest"] == self._reader.digests[task["terms_id"]], 5, f"{name}: other terms were judged")
        judged = self._reader.digests[attempt["manifest_id"]]
        need(bound["manifest_digest"] == judged, 5, f"{name}: another result was judged")
        need(bound["generation_submitted"] == attempt["generation"], 5, f"{name}: generation at submission")
        need(bound["generation_gated"] == event["generation"], 5, f"{name}: generation at gating")
        need(bound["policy_version"] == attempt["policy_version"], 5, f"{name}: policy")
        need(bound["head"] == heads[run], 5, f"{name} was judged on {bound['head']}; the head is {heads[run]}")
        need(manifest["claim_generation"] == attempt["generation"], 5, f"{name}: a foreign result")
        if word == "accepted":
            self._accept(event, name, decision, manifest, after, terms)
            if decision["new_head"] is not None:
                heads[run] = decision["new_head"]
                self._accepted.setdefault(run, set()).add(manifest["workspace"]["candidate_commit"])

    def _accept(
        self, event: Row, name: str, decision: dict[str, Any], manifest: dict[str, Any], after: Snapshot,
        terms: dict[str, Any],
    ) -> None:  # fmt: skip
        said = {"accepted": "completed", "accepted_partial": "partial"}[event["verb"]]
        need(
            manifest["outcome"] == said, 5, f"{name}: the child said {manifest['outcome']}, and it was {event['verb']}"
        )
        need(manifest["output"]["n"] == 1, 5, f"{name}: a result was accepted that its check refuses")
        outside = (manifest["workspace"] or {}).get("outside_scope", [])
        need(not outside, 12, f"{name}: {outside} is outside of its write scope")
        people = [check for check in terms["acceptance"] if "approval" in check]
        asked = [
            row for row in after.requests.values()
            if row["task_id"] == event["task_id"] and row["kind"] == "approval" and row["approved"] == 1
        ]  # fmt: skip
        waits = [check for check in decision["checks"] if check["outcome"] not in ("passed", "skipped")]
        need(not waits, 5, f"{name} was accepted against {waits}")
        need(not people or asked, 5, f"{name} was accepted, and nobody approved it")

    def heads(self, before: Snapshot, after: Snapshot) -> None:
        """Nothing accepted is lost: the head holds every candidate that was brought onto it."""
        for key, run in after.runs.items():
            if run["head"] is not None:
                missing = self._accepted.get(key, set()) - self._git.commits[run["head"]].holds
                need(not missing, 6, f"the head of run {run['run_id']} has lost {sorted(missing)}, which were accepted")
            old = before.runs.get(key)
            moved = old is not None and old["head"] != run["head"]
            verbs = {event["verb"] for event in after.events if event["orchestration_id"] == key}
            need(not moved or verbs & {"accepted", "accepted_partial", "amended"}, 5, "the head moved by itself")
