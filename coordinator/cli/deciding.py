"""What a person decides: ``answer``, ``cancel`` and ``export``."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import select

from contracts.errors import BadInput, NotFound, Refused, WrongState
from contracts.results import ArtifactEntry, Decision, Manifest
from contracts.states import State
from coordinator import crash_points
from coordinator.cli.addresses import find, find_task
from coordinator.cli.inspecting import binding_pairs, ended_words, pairs, short_digest
from coordinator.cli.output import console, opened, print_json
from coordinator.cli.tree import follow_up, next_command, somebody_works
from coordinator.results import judged_attempt
from coordinator.store import Damaged, TaskStore
from coordinator.store import tables as t
from coordinator.store.reading import unique_prefix
from coordinator.store.views import AttemptView, RequestView, RunView, TaskView
from coordinator.text import shown
from workspaces.durable import sync

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["answer", "cancel", "export", "write_new"]


def answer(
    request: str, *, approve: bool, reject: bool, message: str, store: str | None, home: Path | None, json: bool
) -> int:
    if approve == reject:
        raise BadInput("say exactly one of --approve and --reject")
    with opened(store, home) as (task_store, _):
        request_id, run_id = _find_request(task_store, request)
        done = task_store.answer(request_id, approved=approve, message=message)
        run = task_store.run(task_store.find_run(run_id))
        asked = next(item for task in run.tasks for item in task.requests if item.request_id == request_id)
        if json:
            print_json(
                {
                    "request_id": request_id, "run_id": run_id, "task_id": asked.task_id, "approved": approve,
                    "bound_digest": asked.bound_digest, "action": asked.action,
                    "repeated": done.repeated, "state": str(done.state), "next": next_command(task_store, run),
                }
            )  # fmt: skip
            return 0
        out = console()
        if done.repeated:
            out.print(f"{request_id} had this answer already; nothing was changed")
        else:
            out.print(f"{request_id} {'approved' if approve else 'rejected'}: {_consequence(asked, approve)}")
        if asked.action is not None:
            out.print(pairs((name, short_digest(text)) for name, text in binding_pairs(asked.action)))
        _print_next(task_store, out, run)
    return 0


def _find_request(store: TaskStore, prefix: str) -> tuple[str, str]:
    """(request id, run id) of the request that is, or alone starts with, this. Raises ``NotFound``."""
    query = select(t.request.c.request_id, t.orchestration.c.run_id, t.request.c.state).join(
        t.orchestration, t.orchestration.c.id == t.request.c.orchestration_id
    )
    rows = store.read_with(lambda tx: tx.conn.execute(query.order_by(t.request.c.id)).all())
    names = [row.request_id for row in rows]
    if not prefix or not any(name.startswith(prefix) for name in names):
        waiting = ", ".join([row.request_id for row in rows if row.state == "open"][-10:])
        listed = f"open: {waiting}" if waiting else "no request is open"
        raise NotFound(f"no request is called {prefix!r}; {listed}")
    row = rows[unique_prefix(prefix, names, "request")]
    return row.request_id, row.run_id


def _consequence(asked: RequestView, approved: bool) -> str:
    address = f"{asked.run_id}/{asked.task_id}"
    match asked.kind, approved:
        case "approval", True if asked.action is not None:
            return f"{address} goes on in a new attempt, which can make this very call once"
        case "approval", False if asked.action is not None:
            return f"{address} goes on in a new attempt, which is refused this call with your message"
        case "approval", True:
            return f"{address} goes to the gate again, which accepts it if all else still holds"
        case "approval", False:
            return f"{address} goes to the gate again, which rejects it: that is final for this contract version"
        case "input", _:
            return f"{address} goes on in a new attempt, which gets the answer"
        case "operation", _:
            return f"{address} goes on, and is told what you said"
        case "damaged", True:
            return f"{address} goes on if its contract has its digest again; else it is asked about again"
        case "damaged", False:
            return f"{address} is cancelled, with all that was delegated below it"
        case _, True:
            return f"{address} is judged again"
        case _:
            return f"{address} has failed: that is final for this contract version"


def cancel(address: str, *, message: str, store: str | None, home: Path | None, json: bool) -> int:
    if "@" in address:
        raise BadInput(f"{address!r} names an attempt: cancel its task, {address.partition('@')[0]}, or the whole run")
    with opened(store, home) as (task_store, _):
        found = find(task_store, address)
        ended = task_store.cancel(found.run.row, found.task.row if found.task else None, reason=message)
        run = task_store.run(found.run.row)
        own = [task for task in run.tasks if found.task is None or _is_below(run, task, found.task.task_id)]
        unconfirmed = [task for task in own if _unconfirmed(task)]
        name = run.run_id if found.task is None else f"{run.run_id}/{found.task.task_id}"
        if json:
            waiting = [f"{run.run_id}/{task.task_id}@{task.attempts[-1].number}" for task in unconfirmed]
            print_json({"address": name, "cancelled_tasks": ended, "not_confirmed_stopped": waiting})
            return 0
        out = console()
        if ended:
            out.print(f"cancelled {name}: {ended} task{'s' if ended != 1 else ''} ended")
        else:
            out.print(f"{name} was cancelled already, or had no open task; nothing was changed")
        for task in unconfirmed:
            last = task.attempts[-1]
            out.print(f"  not yet confirmed stopped: {task.task_id}, attempt {last.number} in {shown(last.owner)}")
        if unconfirmed:
            out.print(f"next: {follow_up(task_store, 'status', run.run_id)}", soft_wrap=True)
    return 0


def _is_below(run: RunView, task: TaskView, top: str) -> bool:
    parents = {other.task_id: other.parent_task_id for other in run.tasks}
    name: str | None = task.task_id
    while name is not None and name != top:
        name = parents.get(name)
    return name == top


def _unconfirmed(task: TaskView) -> bool:
    last = task.attempts[-1] if task.attempts else None
    return task.state is State.CANCELLED and last is not None and last.ended == "cancelled" and last.ended_at is None


def export(
    address: str, artifact: str | None, *, output: Path | None, store: str | None, home: Path | None, json: bool
) -> int:
    with opened(store, home) as (task_store, _):
        _, task, named = find_task(task_store, address)
        attempt = named if "@" in address else judged_attempt(task)
        entry, data = accepted_artifact(task_store, task, attempt, artifact)
    path = write_new(output, entry.name, data)
    if json:
        value = {"path": str(path), "artifact": entry.name, "size_bytes": entry.size_bytes, "digest": entry.digest}
        print_json({"address": f"{task.run_id}/{task.task_id}", **value, "partial": task.state is State.PARTIAL})
        return 0
    whole = ", accepted as partial: scope stays open" if task.state is State.PARTIAL else ""
    out = console()
    out.print(f"wrote {shown(str(path), 4000)} ({entry.size_bytes:,} bytes, {entry.digest}{whole})", soft_wrap=True)
    return 0


def accepted_artifact(
    store: TaskStore, task: TaskView, attempt: AttemptView | None, name: str | None
) -> tuple[ArtifactEntry, bytes]:
    """An artifact of the accepted result, with its bytes; decision, manifest and bytes have the digests they should.

    ``name`` None: the only artifact. Raises ``WrongState`` when the result is not accepted, ``Refused`` when stored
    bytes were changed, ``NotFound`` naming what there is.
    """
    address = f"{task.run_id}/{task.task_id}"
    needed = "needed an accepted result, whole or partial"
    if task.state not in (State.ACCEPTED, State.PARTIAL):
        why = f": {task.why}" if task.why else ""
        raise WrongState(f"nothing of {address} can be exported: found {task.word}{shown(why, 300)}; {needed}")
    if attempt is None or attempt.decision_digest is None or attempt.decision != "accepted":
        found = f"attempt {attempt.number}, {ended_words(attempt)}" if attempt else "none"
        raise WrongState(f"this result of {address} was not accepted: found {found}; {needed}")
    try:
        decision = Decision.model_validate_json(store.bytes_of(attempt.decision_digest))
        bound = decision.bound
        if (decision.decision, bound.terms_digest, bound.manifest_digest) != (
            "accepted", task.terms_digest, attempt.manifest_digest,
        ):  # fmt: skip
            raise Refused(
                f"{address} cannot be exported: what is stored is not what was judged "
                f"(judged manifest {bound.manifest_digest}, found {attempt.manifest_digest})"
            )
        manifest = Manifest.model_validate_json(store.bytes_of(bound.manifest_digest))
        entry = _artifact_named(manifest, address, name)
        return entry, store.bytes_of(entry.digest)
    except Damaged as error:
        verify = follow_up(store, "evidence", address, "--verify")
        raise Refused(f"{address} cannot be exported: {error}; `{verify}` names all that differs") from error


def _artifact_named(manifest: Manifest, address: str, name: str | None) -> ArtifactEntry:
    entries = manifest.artifacts
    listed = ", ".join(shown(entry.name) for entry in entries[:50])
    if not entries:
        raise NotFound(f"the accepted result of {address} has no artifacts")
    if name is None:
        if len(entries) > 1:
            raise NotFound(f"{address} has several artifacts, name one: {listed}")
        return entries[0]
    for entry in entries:
        if entry.name == name:
            return entry
    raise NotFound(f"{address} has no artifact {name!r}; it has: {listed}")


def write_new(output: Path | None, name: str, data: bytes) -> Path:
    """Write a new file and flush it: whole or not at all, never over another, nor through a link. The path written.

    ``output`` None means the last part of the artifact's name, in the working folder; a folder means in that folder.
    Raises ``Refused`` when there is something of that name, ``BadInput`` when it cannot be written there.
    """
    path = output
    if output is None or output.is_dir():
        last = name.replace("\\", "/").rpartition("/")[2]
        if last in ("", ".", ".."):
            raise BadInput(f"the artifact's name {name!r} is no file name: say where to write it with -o PATH")
        path = (output or Path()) / last
    assert path is not None
    part = path.absolute().parent / f".export-{secrets.token_hex(8)}"
    try:
        if os.path.lexists(path):
            raise FileExistsError
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        raise _taken(path) from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise BadInput(f"cannot write {path}: {why}; name a file that can be written with -o PATH") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        crash_points.reached("export_written")
        _give_name(part, path)
    except FileExistsError:
        raise _taken(path) from None
    except OSError as error:
        raise Refused(f"{path} was not written: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)
    crash_points.reached("export_named")
    return path


def _give_name(part: Path, path: Path) -> None:
    """Raises ``FileExistsError`` when something has the name, ``OSError`` when the name is not there to stay."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if os.path.lexists(path):
            raise FileExistsError from None
        os.rename(part, path)
    try:
        sync(part.parent)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _taken(path: Path) -> Refused:
    return Refused(f"{path} is there already and is never overwritten; name another file with -o PATH")


def _print_next(store: TaskStore, out: Console, run: RunView) -> None:
    command = next_command(store, run)
    if somebody_works(run):
        out.print("a worker of this store goes on with it")
    if command:
        out.print(f"next: {command}", soft_wrap=True)
