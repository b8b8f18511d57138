"""The children of the report: plain functions that draft, and build the final text from what was accepted."""

from __future__ import annotations

from coordinator import Assignment, Result


def draft(a: Assignment) -> Result:
    """The first draft forgets the risks; sent back, it adds whatever sections the findings name."""
    pilot, limits, results = a.inputs["facts"]
    sections = {
        "Background": f"{pilot} {limits}",
        "Risks": f"{results} A wrong suggestion reaches a customer if nobody reads it before it is sent.",
        "Recommendation": "Go on with the pilot, measure it, and decide on its results.",
    }
    asked_for = " ".join(finding.message for finding in a.feedback.findings) if a.feedback else ""
    if "Risks" not in asked_for:
        del sections["Risks"]
    text = "# The assistant for support\n" + "".join(f"\n## {name}\n\n{body}\n" for name, body in sections.items())
    a.artifact("draft.md", text, "text/markdown; charset=utf-8")
    a.evidence("draft", "artifact", artifact="draft.md")
    used = sum(fact in text for fact in (pilot, limits, results))
    return a.completed(
        {"sections": list(sections), "facts_used": used}, message=f"asked for: {asked_for or 'nothing yet'}"
    )


def final(a: Assignment) -> Result:
    """The accepted draft, word for word, and the digest that proves which one it was."""
    accepted = a.needs["draft"]
    digest = accepted.artifacts["draft.md"]
    text = a.read_needed("draft", "draft.md").decode()
    a.artifact("final.md", f"{text}\n## Sources\n\nThe accepted draft, {digest}\n", "text/markdown; charset=utf-8")
    a.evidence("final", "artifact", artifact="final.md")
    return a.completed({"built_from": digest})
