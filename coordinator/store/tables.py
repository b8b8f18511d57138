"""The tables. Integer keys inside, readable ids outside; what must hold is a constraint before it is code.

Times are whole microseconds since 1970 (UTC); text that a child may have chosen is stored as canonical JSON bytes.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ColumnElement,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    UniqueConstraint,
    and_,
    text,
)
from sqlmodel import AutoString, Field, MetaData, SQLModel

from contracts.states import FINAL_STATES, State

__all__ = [
    "attempt",
    "charge",
    "check_run",
    "claimed",
    "document",
    "event",
    "metadata",
    "need",
    "operation",
    "orchestration",
    "overlap",
    "request",
    "task",
    "turn",
    "workspace",
]

metadata = MetaData()


def _one_of(column: str, values: list[str]) -> str:
    return f"{column} IN ({', '.join(repr(str(value)) for value in values)})"


FINAL = _one_of("state", sorted(FINAL_STATES))
ENDS = [
    "submitted", "lost", "superseded", "failed", "cancelled", "unknown", "no_result", "deadline", "released", "blocked",
]  # fmt: skip


class _Base(SQLModel):
    metadata = metadata


def _time(nullable: bool = True) -> Column[int]:
    return Column(BigInteger, nullable=nullable)


def _sum() -> Column[int]:
    """What was charged so far."""
    return Column(BigInteger, nullable=False, server_default=text("0"))


def _limit() -> Column[int]:
    """The most that may be charged; null: as much as the budgets above allow."""
    return Column(BigInteger, nullable=True)


class Document(_Base, table=True):
    """Immutable bytes by digest. ``data`` is null when they are a file in the artifact folder."""

    __tablename__ = "document"
    id: int | None = Field(default=None, primary_key=True)
    digest: str = Field(unique=True)
    size_bytes: int = Field(sa_column=Column(BigInteger, nullable=False))
    data: bytes | None = Field(default=None, sa_column=Column(LargeBinary))


class Orchestration(_Base, table=True):
    """One run. ``version`` grows with every change of what its children may build on."""

    __tablename__ = "orchestration"
    __table_args__ = (UniqueConstraint("name", "sequence"),)
    id: int | None = Field(default=None, primary_key=True)
    run_id: str = Field(unique=True)
    name: str
    sequence: int
    document_id: int = Field(foreign_key="document.id")
    authored_digest: str
    orchestration_version: int = 1
    version: int = 0
    head: str | None = None
    created_at: int = Field(sa_column=_time(nullable=False))
    closed_at: int | None = Field(default=None, sa_column=_time())
    cancelled_at: int | None = Field(default=None, sa_column=_time())
    limit_micro_usd: int | None = Field(default=None, sa_column=_limit())
    limit_tokens: int | None = Field(default=None, sa_column=_limit())
    charged_micro_usd: int = Field(default=0, sa_column=_sum())
    charged_tokens: int = Field(default=0, sa_column=_sum())


class Task(_Base, table=True):
    """One contract version of a task, with its live claim. ``ready``: nothing to wait for (kept for the index)."""

    __tablename__ = "task"
    __table_args__ = (
        UniqueConstraint("orchestration_id", "key", "contract_version"),
        CheckConstraint(_one_of("state", list(State)), name="task_state"),
        CheckConstraint("claim_kind IN ('work', 'gate')", name="task_claim_kind"),
        CheckConstraint(
            "(owner IS NULL) = (token IS NULL) AND (owner IS NULL) = (lease_until IS NULL)"
            " AND (owner IS NULL) = (claim_kind IS NULL)",
            name="task_claim_whole",
        ),
        CheckConstraint("(state = 'running') = (claim_kind IS NOT NULL AND claim_kind = 'work')", name="task_running"),
        CheckConstraint("claim_kind IS NULL OR claim_kind <> 'gate' OR state = 'submitted'", name="task_gating"),
        CheckConstraint(f"NOT ({FINAL}) OR owner IS NULL", name="task_final_unclaimed"),
        CheckConstraint(f"NOT ({FINAL}) OR NOT ready", name="task_final_not_ready"),
        CheckConstraint("generation >= 0 AND row_version >= 0 AND contract_version >= 1", name="task_counts"),
        # SQLite uses a partial index only where a query says its condition in the same words.
        Index("task_current", "orchestration_id", "key", unique=True, sqlite_where=text("is_current = 1"),
              postgresql_where=text("is_current")),
        Index("task_delegation", "orchestration_id", "delegation_id", unique=True, sqlite_where=text("is_current = 1"),
              postgresql_where=text("is_current")),
        Index("task_eligible", "state", "id", sqlite_where=text("ready = 1"), postgresql_where=text("ready")),
        Index("task_leases", "lease_until", sqlite_where=text("owner IS NOT NULL"),
              postgresql_where=text("owner IS NOT NULL")),
        Index("task_children", "parent_id", sqlite_where=text("parent_id IS NOT NULL"),
              postgresql_where=text("parent_id IS NOT NULL")),
    )  # fmt: skip
    id: int | None = Field(default=None, primary_key=True)
    orchestration_id: int = Field(foreign_key="orchestration.id")
    key: str
    contract_version: int
    is_current: bool = True
    parent_id: int | None = Field(default=None, foreign_key="task.id")
    delegation_id: str
    terms_id: int = Field(foreign_key="document.id")
    state: str
    ready: bool
    row_version: int = 0
    generation: int = 0
    owner: str | None = None
    token: str | None = None
    claim_kind: str | None = None
    lease_until: int | None = Field(default=None, sa_column=_time())
    gate_tries: int = 0
    reason: str | None = None
    limit_micro_usd: int | None = Field(default=None, sa_column=_limit())
    limit_tokens: int | None = Field(default=None, sa_column=_limit())
    charged_micro_usd: int = Field(default=0, sa_column=_sum())
    charged_tokens: int = Field(default=0, sa_column=_sum())


class Need(_Base, table=True):
    __tablename__ = "need"
    __table_args__ = (Index("need_of", "orchestration_id", "needed_key", "task_id"),)
    task_id: int = Field(foreign_key="task.id", primary_key=True)
    needed_key: str = Field(primary_key=True)
    orchestration_id: int = Field(foreign_key="orchestration.id")
    partial_ok: bool = False


class Overlap(_Base, table=True):
    """Two tasks whose write scopes meet: while one is being worked on or judged, the other is not handed out."""

    __tablename__ = "overlap"
    task_id: int = Field(foreign_key="task.id", primary_key=True)
    other_id: int = Field(foreign_key="task.id", primary_key=True)


class Attempt(_Base, table=True):
    """One holder's work on a task. ``ended_at`` stays null until the end of the child is confirmed."""

    __tablename__ = "attempt"
    __table_args__ = (
        UniqueConstraint("task_id", "number"),
        UniqueConstraint("task_id", "generation"),
        CheckConstraint(_one_of("ended", ENDS), name="attempt_ended"),
    )
    id: int | None = Field(default=None, primary_key=True)
    task_id: int = Field(foreign_key="task.id")
    number: int
    generation: int
    child_run_id: str = Field(unique=True)
    owner: str
    parent_state_version: int
    started_at: int = Field(sa_column=_time(nullable=False))
    deadline_at: int = Field(sa_column=_time(nullable=False))
    ended: str | None = None
    ended_at: int | None = Field(default=None, sa_column=_time())
    manifest_id: int | None = Field(default=None, foreign_key="document.id")
    decision: str | None = None
    decision_id: int | None = Field(default=None, foreign_key="document.id")
    policy_version: str | None = None


class Workspace(_Base, table=True):
    """The folder of an attempt, recorded before it is made; ``removed_at`` stays null while it may hold unsaved
    work."""

    __tablename__ = "workspace"
    attempt_id: int = Field(foreign_key="attempt.id", primary_key=True)
    folder: str
    kind: str
    base_commit: str
    made_at: int = Field(sa_column=_time(nullable=False))
    removed_at: int | None = Field(default=None, sa_column=_time())


class CheckRun(_Base, table=True):
    """One check on one subject under one policy: what a later gate need not do again."""

    __tablename__ = "check_run"
    __table_args__ = (UniqueConstraint("attempt_id", "check_digest", "policy_version"),)
    id: int | None = Field(default=None, primary_key=True)
    attempt_id: int = Field(foreign_key="attempt.id")
    check_digest: str
    policy_version: str
    outcome: str
    at: int = Field(sa_column=_time(nullable=False))


class Request(_Base, table=True):
    """A message that awaits a reply. States only move forward: open, then answered or void; a yes to a call that was
    not used can become void, too. ``action_id``: the call that it is about."""

    __tablename__ = "request"
    __table_args__ = (
        UniqueConstraint("orchestration_id", "dedupe_key"),
        UniqueConstraint("orchestration_id", "sequence"),
        CheckConstraint("state IN ('open', 'answered', 'void')", name="request_state"),
        CheckConstraint(
            "(state <> 'open' OR approved IS NULL) AND (state <> 'answered' OR approved IS NOT NULL)",
            name="request_answer",
        ),
        CheckConstraint("action_id IS NULL OR (kind = 'approval' AND bound_digest IS NOT NULL)", name="request_action"),
        Index("request_of_task", "task_id", "state"),
    )
    id: int | None = Field(default=None, primary_key=True)
    request_id: str = Field(unique=True)
    orchestration_id: int = Field(foreign_key="orchestration.id")
    task_id: int = Field(foreign_key="task.id")
    sequence: int
    dedupe_key: str
    kind: str
    question_id: int = Field(foreign_key="document.id")
    bound_digest: str | None = None
    action_id: int | None = Field(default=None, foreign_key="document.id")
    state: str = "open"
    asked_at: int = Field(sa_column=_time(nullable=False))
    answered_at: int | None = Field(default=None, sa_column=_time())
    approved: bool | None = None
    answer_id: int | None = Field(default=None, foreign_key="document.id")


class Turn(_Base, table=True):
    """A model's turn, paid for once. ``conversation``: the number of the attempt in which it began.

    ``late``: it came when its attempt had lost the task; nobody goes on from it. ``answers_id`` is null while the
    turn's calls are not all answered. ``base_commit``: the tree that the conversation is about.
    """

    __tablename__ = "turn"
    __table_args__ = (
        UniqueConstraint("attempt_id", "number"),
        Index("turn_of_conversation", "task_id", "conversation", "number", unique=True,
              sqlite_where=text("late = 0"), postgresql_where=text("NOT late")),
    )  # fmt: skip
    id: int | None = Field(default=None, primary_key=True)
    task_id: int = Field(foreign_key="task.id")
    attempt_id: int = Field(foreign_key="attempt.id")
    conversation: int
    number: int
    late: bool = False
    base_commit: str | None = None
    model: str
    response_id: int = Field(foreign_key="document.id")
    answers_id: int | None = Field(default=None, foreign_key="document.id")
    workspace_tree: str | None = None
    input_tokens: int | None = Field(default=None, sa_column=_time())
    output_tokens: int | None = Field(default=None, sa_column=_time())
    cost_micro_usd: int | None = Field(default=None, sa_column=_time())
    answered_at: int = Field(sa_column=_time(nullable=False))
    finished_at: int | None = Field(default=None, sa_column=_time())


class Charge(_Base, table=True):
    """What one call of a model, or one program, may cost, in every budget up the tree; settled: what it did cost.

    ``settled_at`` stays null for what nobody knows: the worst case then stands for ever. ``failed``: the try of a model
    call that brought no answer.
    """

    __tablename__ = "charge"
    __table_args__ = (
        CheckConstraint("worst_micro_usd >= 0 AND worst_tokens >= 0", name="charge_worst"),
        CheckConstraint("micro_usd >= 0 AND tokens >= 0", name="charge_stands"),
        Index("charge_of_attempt", "attempt_id"),
    )
    id: int | None = Field(default=None, primary_key=True)
    task_id: int = Field(foreign_key="task.id")
    attempt_id: int = Field(foreign_key="attempt.id")
    worst_micro_usd: int = Field(sa_column=_time(nullable=False))
    worst_tokens: int = Field(sa_column=_time(nullable=False))
    micro_usd: int = Field(sa_column=_time(nullable=False))
    tokens: int = Field(sa_column=_time(nullable=False))
    charged_at: int = Field(sa_column=_time(nullable=False))
    settled_at: int | None = Field(default=None, sa_column=_time())
    failed: bytes | None = Field(default=None, sa_column=Column(LargeBinary))


class Operation(_Base, table=True):
    """One side effect outside. ``key`` names it within its task for ever; states only move forward.

    ``approval_id``: the yes that it was sent with, which is thereby used up.
    """

    __tablename__ = "operation"
    __table_args__ = (
        UniqueConstraint("task_id", "key"),
        CheckConstraint("state IN ('prepared', 'sent', 'succeeded', 'failed')", name="operation_state"),
        CheckConstraint("(state IN ('succeeded', 'failed')) = (outcome_id IS NOT NULL)", name="operation_outcome"),
        CheckConstraint("approval_id IS NULL OR state <> 'prepared'", name="operation_approval"),
    )
    id: int | None = Field(default=None, primary_key=True)
    task_id: int = Field(foreign_key="task.id")
    attempt_id: int = Field(foreign_key="attempt.id")
    key: str
    tool: str
    arguments_id: int = Field(foreign_key="document.id")
    state: str
    outcome_id: int | None = Field(default=None, foreign_key="document.id")
    approval_id: int | None = Field(default=None, foreign_key="request.id", unique=True)
    prepared_at: int = Field(sa_column=_time(nullable=False))
    sent_at: int | None = Field(default=None, sa_column=_time())
    settled_at: int | None = Field(default=None, sa_column=_time())


class Event(_Base, table=True):
    """What happened, in order. One row for each transition, written with it."""

    __tablename__ = "event"
    __table_args__ = (Index("event_of_run", "orchestration_id", "id"),)
    id: int | None = Field(default=None, primary_key=True)
    orchestration_id: int = Field(foreign_key="orchestration.id")
    task_id: int | None = Field(default=None, foreign_key="task.id")
    at: int = Field(sa_column=_time(nullable=False))
    verb: str
    generation: int | None = None
    owner: str | None = None
    data: str | None = None


def _table(model: type[SQLModel]) -> Table:
    """The Core table, made STRICT on SQLite: without that it takes any type in any column."""
    found = metadata.tables[str(model.__tablename__)]
    found.dialect_options["sqlite"]["strict"] = True
    for column in found.columns:
        if isinstance(column.type, (String, AutoString)):
            column.type = Text()
        elif isinstance(column.type, (BigInteger, Boolean)):
            column.type = column.type.with_variant(Integer(), "sqlite")
    return found


def claimed() -> ColumnElement[bool]:
    """Tasks that somebody holds, in words by which SQLite finds the index of leases."""
    return and_(task.c.owner.is_not(None), task.c.lease_until >= 0)


document = _table(Document)
orchestration = _table(Orchestration)
task = _table(Task)
need = _table(Need)
overlap = _table(Overlap)
attempt = _table(Attempt)
charge = _table(Charge)
check_run = _table(CheckRun)
request = _table(Request)
workspace = _table(Workspace)
turn = _table(Turn)
operation = _table(Operation)
event = _table(Event)
