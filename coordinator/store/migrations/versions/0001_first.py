"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

MICROS_OR_BYTES = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
FLAG = sa.Boolean().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "document",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("size_bytes", MICROS_OR_BYTES, nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("digest"),
        sqlite_strict=True,
    )
    op.create_table(
        "orchestration",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("document_id", sa.Integer(), nullable=False),
        sa.Column("authored_digest", sa.Text(), nullable=False),
        sa.Column("orchestration_version", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("head", sa.Text(), nullable=True),
        sa.Column("created_at", MICROS_OR_BYTES, nullable=False),
        sa.Column("closed_at", MICROS_OR_BYTES, nullable=True),
        sa.Column("cancelled_at", MICROS_OR_BYTES, nullable=True),
        sa.Column("limit_micro_usd", MICROS_OR_BYTES, nullable=True),
        sa.Column("limit_tokens", MICROS_OR_BYTES, nullable=True),
        sa.Column("charged_micro_usd", MICROS_OR_BYTES, server_default=sa.text("0"), nullable=False),
        sa.Column("charged_tokens", MICROS_OR_BYTES, server_default=sa.text("0"), nullable=False),
        sa.ForeignKeyConstraint(["document_id"], ["document.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name", "sequence"),
        sa.UniqueConstraint("run_id"),
        sqlite_strict=True,
    )
    op.create_table(
        "task",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("orchestration_id", sa.Integer(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("contract_version", sa.Integer(), nullable=False),
        sa.Column("is_current", FLAG, nullable=False),
        sa.Column("parent_id", sa.Integer(), nullable=True),
        sa.Column("delegation_id", sa.Text(), nullable=False),
        sa.Column("terms_id", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("ready", FLAG, nullable=False),
        sa.Column("row_version", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("token", sa.Text(), nullable=True),
        sa.Column("claim_kind", sa.Text(), nullable=True),
        sa.Column("lease_until", MICROS_OR_BYTES, nullable=True),
        sa.Column("gate_tries", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("limit_micro_usd", MICROS_OR_BYTES, nullable=True),
        sa.Column("limit_tokens", MICROS_OR_BYTES, nullable=True),
        sa.Column("charged_micro_usd", MICROS_OR_BYTES, server_default=sa.text("0"), nullable=False),
        sa.Column("charged_tokens", MICROS_OR_BYTES, server_default=sa.text("0"), nullable=False),
        sa.CheckConstraint(
            "(state = 'running') = (claim_kind IS NOT NULL AND claim_kind = 'work')", name="task_running"
        ),
        sa.CheckConstraint(
            "NOT (state IN ('accepted', 'cancelled', 'failed', 'partial', 'superseded')) OR NOT ready",
            name="task_final_not_ready",
        ),
        sa.CheckConstraint(
            "NOT (state IN ('accepted', 'cancelled', 'failed', 'partial', 'superseded')) OR owner IS NULL",
            name="task_final_unclaimed",
        ),
        sa.CheckConstraint("claim_kind IN ('work', 'gate')", name="task_claim_kind"),
        sa.CheckConstraint("claim_kind IS NULL OR claim_kind <> 'gate' OR state = 'submitted'", name="task_gating"),
        sa.CheckConstraint(
            "state IN ('pending', 'running', 'submitted', 'accepted', 'partial', 'failed', 'cancelled', 'superseded')",
            name="task_state",
        ),
        sa.CheckConstraint(
            "(owner IS NULL) = (token IS NULL) AND (owner IS NULL) = (lease_until IS NULL) AND (owner IS NULL) = (claim_kind IS NULL)",  # noqa: E501
            name="task_claim_whole",
        ),
        sa.CheckConstraint("generation >= 0 AND row_version >= 0 AND contract_version >= 1", name="task_counts"),
        sa.ForeignKeyConstraint(["orchestration_id"], ["orchestration.id"]),
        sa.ForeignKeyConstraint(["parent_id"], ["task.id"]),
        sa.ForeignKeyConstraint(["terms_id"], ["document.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("orchestration_id", "key", "contract_version"),
        sqlite_strict=True,
    )
    op.create_index(
        "task_children",
        "task",
        ["parent_id"],
        sqlite_where=sa.text("parent_id IS NOT NULL"),
        postgresql_where=sa.text("parent_id IS NOT NULL"),
    )
    op.create_index(
        "task_current",
        "task",
        ["orchestration_id", "key"],
        unique=True,
        sqlite_where=sa.text("is_current = 1"),
        postgresql_where=sa.text("is_current"),
    )
    op.create_index(
        "task_delegation",
        "task",
        ["orchestration_id", "delegation_id"],
        unique=True,
        sqlite_where=sa.text("is_current = 1"),
        postgresql_where=sa.text("is_current"),
    )
    op.create_index(
        "task_eligible", "task", ["state", "id"], sqlite_where=sa.text("ready = 1"), postgresql_where=sa.text("ready")
    )
    op.create_index(
        "task_leases",
        "task",
        ["lease_until"],
        sqlite_where=sa.text("owner IS NOT NULL"),
        postgresql_where=sa.text("owner IS NOT NULL"),
    )
    op.create_table(
        "attempt",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("task_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("child_run_id", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("parent_state_version", sa.Integer(), nullable=False),
        sa.Column("started_at", MICROS_OR_BYTES, nullable=False),
        sa.Column("deadline_at", MICROS_OR_BYTES, nullable=False),
        sa.Column("ended", sa.Text(), nullable=True),
        sa.Column("ended_at", MICROS_OR_BYTES, nullable=True),
        sa.Column("manifest_id", sa.Integer(), nullable=True),
        sa.Column("decision", sa.Text(), nullable=True),
        sa.Column("decision_id", sa.Integer(), nullable=True),
        sa.Column("policy_version", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "ended IN ('submitted', 'lost', 'superseded', 'failed', 'cancelled', 'unknown', 'no_result', 'deadline', 'released', 'blocked')",  # noqa: E501
            name="attempt_ended",
        ),
        sa.ForeignKeyConstraint(["decision_id"], ["document.id"]),
        sa.ForeignKeyConstraint(["manifest_id"], ["document.id"]),
        sa.ForeignKeyConstraint(["task_id"], ["task.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("child_run_id"),
        sa.UniqueConstraint("task_id", "generation"),
        sa.UniqueConstraint("task_id", "number"),
        sqlite_strict=True,
    )
    op.create_table(
        "event",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("orchestration_id", sa.Integer(), nullable=False),
        sa.Column("task_id", sa.Integer(), nullable=True),
        sa.Column("at", MICROS_OR_BYTES, nullable=False),
        sa.Column("verb", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=True),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("data", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["orchestration_id"], ["orchestration.id"]),
        sa.ForeignKeyConstraint(["task_id"], ["task.id"]),
        sa.PrimaryKeyConstraint("id"),
        sqlite_strict=True,
    )
    op.create_index("event_of_run", "event", ["orchestration_id", "id"])
    op.create_table(
        "need",
        sa.Column("task_id", sa.Integer(), nullable=False),
        sa.Column("needed_key", sa.Text(), nullable=False),
        sa.Column("orchestration_id", sa.Integer(), nullable=False),
        sa.Column("partial_ok", FLAG, nullable=False),
        sa.ForeignKeyConstraint(["orchestration_id"], ["orchestration.id"]),
        sa.ForeignKeyConstraint(["task_id"], ["task.id"]),
        sa.PrimaryKeyConstraint("task_id", "needed_key"),
        sqlite_strict=True,
    )
    op.create_index("need_of", "need", ["orchestration_id", "needed_key", "task_id"])
    op.create_table(
        "overlap",
        sa.Column("task_id", sa.Integer(), nullable=False),
        sa.Column("other_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["other_id"], ["task.id"]),
        sa.ForeignKeyConstraint(["task_id"], ["task.id"]),
        sa.PrimaryKeyConstraint("task_id", "other_id"),
        sqlite_strict=True,
    )
    op.create_table(
        "request",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("orchestration_id", sa.Integer(), nullable=False),
        sa.Column("task_id", sa.Integer(), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("dedupe_key", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("question_id", sa.Integer(), nullable=False),
        sa.Column("bound_digest", sa.Text(), nullable=True),
        sa.Column("action_id", sa.Integer(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("asked_at", MICROS_OR_BYTES, nullable=False),
        sa.Column("answered_at", MICROS_OR_BYTES, nullable=True),
        sa.Column("approved", FLAG, nullable=True),
        sa.Column("answer_id", sa.Integer(), nullable=True),
        sa.CheckConstraint(
            "(state <> 'open' OR approved IS NULL) AND (state <> 'answered' OR approved IS NOT NULL)",
            name="request_answer",
        ),
        sa.CheckConstraint(
            "action_id IS NULL OR (kind = 'approval' AND bound_digest IS NOT NULL)", name="request_action"
        ),
        sa.CheckConstraint("state IN ('open', 'answered', 'void')", name="request_state"),
        sa.ForeignKeyConstraint(["action_id"], ["document.id"]),
        sa.ForeignKeyConstraint(["answer_id"], ["document.id"]),
        sa.ForeignKeyConstraint(["orchestration_id"], ["orchestration.id"]),
        sa.ForeignKeyConstraint(["question_id"], ["document.id"]),
        sa.ForeignKeyConstraint(["task_id"], ["task.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("orchestration_id", "dedupe_key"),
        sa.UniqueConstraint("orchestration_id", "sequence"),
        sa.UniqueConstraint("request_id"),
        sqlite_strict=True,
    )
    op.create_index("request_of_task", "request", ["task_id", "state"])
    op.create_table(
        "check_run",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("attempt_id", sa.Integer(), nullable=False),
        sa.Column("check_digest", sa.Text(), nullable=False),
        sa.Column("policy_version", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("at", MICROS_OR_BYTES, nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempt.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("attempt_id", "check_digest", "policy_version"),
        sqlite_strict=True,
    )
    op.create_table(
        "workspace",
        sa.Column("attempt_id", sa.Integer(), nullable=False),
        sa.Column("folder", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("base_commit", sa.Text(), nullable=False),
        sa.Column("made_at", MICROS_OR_BYTES, nullable=False),
        sa.Column("removed_at", MICROS_OR_BYTES, nullable=True),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempt.id"]),
        sa.PrimaryKeyConstraint("attempt_id"),
        sqlite_strict=True,
    )
    op.create_table(
        "turn",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("task_id", sa.Integer(), nullable=False),
        sa.Column("attempt_id", sa.Integer(), nullable=False),
        sa.Column("conversation", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("late", FLAG, nullable=False),
        sa.Column("base_commit", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("response_id", sa.Integer(), nullable=False),
        sa.Column("answers_id", sa.Integer(), nullable=True),
        sa.Column("workspace_tree", sa.Text(), nullable=True),
        sa.Column("input_tokens", MICROS_OR_BYTES, nullable=True),
        sa.Column("output_tokens", MICROS_OR_BYTES, nullable=True),
        sa.Column("cost_micro_usd", MICROS_OR_BYTES, nullable=True),
        sa.Column("answered_at", MICROS_OR_BYTES, nullable=False),
        sa.Column("finished_at", MICROS_OR_BYTES, nullable=True),
        sa.ForeignKeyConstraint(["answers_id"], ["document.id"]),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempt.id"]),
        sa.ForeignKeyConstraint(["response_id"], ["document.id"]),
        sa.ForeignKeyConstraint(["task_id"], ["task.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("attempt_id", "number"),
        sqlite_strict=True,
    )
    op.create_index(
        "turn_of_conversation", "turn", ["task_id", "conversation", "number"], unique=True,
        sqlite_where=sa.text("late = 0"), postgresql_where=sa.text("NOT late"),
    )  # fmt: skip
    op.create_table(
        "charge",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("task_id", sa.Integer(), nullable=False),
        sa.Column("attempt_id", sa.Integer(), nullable=False),
        sa.Column("worst_micro_usd", MICROS_OR_BYTES, nullable=False),
        sa.Column("worst_tokens", MICROS_OR_BYTES, nullable=False),
        sa.Column("micro_usd", MICROS_OR_BYTES, nullable=False),
        sa.Column("tokens", MICROS_OR_BYTES, nullable=False),
        sa.Column("charged_at", MICROS_OR_BYTES, nullable=False),
        sa.Column("settled_at", MICROS_OR_BYTES, nullable=True),
        sa.Column("failed", sa.LargeBinary(), nullable=True),
        sa.CheckConstraint("micro_usd >= 0 AND tokens >= 0", name="charge_stands"),
        sa.CheckConstraint("worst_micro_usd >= 0 AND worst_tokens >= 0", name="charge_worst"),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempt.id"]),
        sa.ForeignKeyConstraint(["task_id"], ["task.id"]),
        sa.PrimaryKeyConstraint("id"),
        sqlite_strict=True,
    )
    op.create_index("charge_of_attempt", "charge", ["attempt_id"])
    op.create_table(
        "operation",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("task_id", sa.Integer(), nullable=False),
        sa.Column("attempt_id", sa.Integer(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("tool", sa.Text(), nullable=False),
        sa.Column("arguments_id", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("outcome_id", sa.Integer(), nullable=True),
        sa.Column("approval_id", sa.Integer(), nullable=True),
        sa.Column("prepared_at", MICROS_OR_BYTES, nullable=False),
        sa.Column("sent_at", MICROS_OR_BYTES, nullable=True),
        sa.Column("settled_at", MICROS_OR_BYTES, nullable=True),
        sa.CheckConstraint("(state IN ('succeeded', 'failed')) = (outcome_id IS NOT NULL)", name="operation_outcome"),
        sa.CheckConstraint("approval_id IS NULL OR state <> 'prepared'", name="operation_approval"),
        sa.CheckConstraint("state IN ('prepared', 'sent', 'succeeded', 'failed')", name="operation_state"),
        sa.ForeignKeyConstraint(["arguments_id"], ["document.id"]),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempt.id"]),
        sa.ForeignKeyConstraint(["approval_id"], ["request.id"]),
        sa.ForeignKeyConstraint(["outcome_id"], ["document.id"]),
        sa.ForeignKeyConstraint(["task_id"], ["task.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("approval_id"),
        sa.UniqueConstraint("task_id", "key"),
        sqlite_strict=True,
    )
