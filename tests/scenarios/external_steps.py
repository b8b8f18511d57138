"""Every function with an effect outside of the process, and the named points around it, at which a test dies.

A row says, for a group of such functions, the points before and after what they do (a death in the midst of it leaves
what a death before its end leaves), or why none is needed. ``test_external_steps.py`` holds it against the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["STEPS", "Steps"]


@dataclass(frozen=True, slots=True)
class Steps:
    """``functions``: FILE:FUNCTION -> all of its effects, as the scan names them. ``points``: those around them."""

    functions: Mapping[str, str]
    points: tuple[str, ...] = ()
    why: str = ""


STEPS = (
    Steps(
        {
            "workspaces/candidate.py:_ignored": "git-?",
            "workspaces/repository.py:Repository.object_folders": "git-count-objects",
            "workspaces/tree.py:TreeReader._request": "subprocess.Popen write",
            "workspaces/tree.py:TreeReader._stop": "kill",
            "coordinator/store/database.py:_database_now": "execute",
            "workspaces/stamps.py:stamps_of": "tempfile.TemporaryFile",
            "coordinator/store/filesystem.py:check_store_folder": "os.open tempfile.TemporaryFile",
            "coordinator/locks.py:owner_is_gone": "os.open",
            "coordinator/cli/output.py:exit_code_of": "os.open",
        },
        why="asks git, or reads, and keeps nothing",
    ),
    Steps(
        {
            "workspaces/git.py:run_git": "git-?",
            "workspaces/git.py:ask_git": "subprocess.run",
            "workspaces/durable.py:sync": "os.fsync",
            "workspaces/durable.py:sync_tree": "sync",
            "workspaces/durable.py:make_folders": "mkdir sync",
            "coordinator/logs.py:_BestEffort.write": "write",
        },
        why="a helper: the steps are its callers', each of which is listed",
    ),
    Steps(
        {
            "workspaces/fetch.py:fetch_source": "make_folders sync",
            "workspaces/fetch.py:_make": "git-init os.rename sync_tree tempfile.mkdtemp",
            "workspaces/fetch.py:_remove": "shutil.rmtree",
            "workspaces/fetch.py:_take_objects": "git-update-ref write_bytes",
            "workspaces/fetch.py:_link_objects": "os.makedirs",
            "workspaces/fetch.py:_pack_loose": "git-? git-prune-packed",
            "workspaces/fetch.py:_link_or_copy": "open os.link os.open shutil.copyfileobj",
            "workspaces/fetch.py:_held": "os.open",
        },
        points=(
            "prepare.committed",
            "source_fetched",
        ),
        why="the run's own git directory: made beside, renamed whole, taken up again by the next launch",
    ),
    Steps(
        {
            "coordinator/launch.py:launch": "make_durable shutil.rmtree",
        },
        points=(
            "file_written",
            "file_named",
            "create_run.commit",
            "create_run.committed",
        ),
        why="files before the rows that name them; and what nobody names goes, of a launch that came second",
    ),
    Steps(
        {
            "workspaces/clone.py:add_repository": "git-? git-init mkdir open write write_bytes write_text",
            "workspaces/filling.py:fill": "os.mkdir",
            "workspaces/filling.py:_write": "os.symlink",
            "workspaces/filling.py:_put": "os.write",
            "workspaces/filling.py:_objects": "kill subprocess.Popen tempfile.TemporaryFile write",
            "workspaces/places.py:place_of": "make_folders",
            "workspaces/places.py:appearing": "delete_folder os.rename tempfile.mkdtemp",
        },
        points=(
            "record_workspace.committed",
            "workspace_filled",
            "workspace_made",
        ),
        why="and of a check: merged, workspace_filled, checkout_made",
    ),
    Steps(
        {
            "coordinator/workplaces.py:Workplaces.make": "mkdir",
        },
        points=(
            "claimed",
            "record_workspace.commit",
            "workspace_made",
            "prepared",
        ),
    ),
    Steps(
        {
            "coordinator/home.py:Home.pinned_file": "chmod replace write_durable",
        },
        points=(
            "claimed",
            "file_written",
            "file_named",
            "prepared",
        ),
        why="a pinned file; nothing of it has its name before it is whole",
    ),
    Steps(
        {
            "agents/runtimes/command.py:CommandRuntime._prepare": "mkdir write_text",
            "agents/runtimes/command.py:projection_document": "chmod mkdir write_bytes",
            "coordinator/commands.py:WorkspaceCommands.__call__": "mkdir run_process",
            "agents/broker/mcp_pipes.py:PipedServer.streams": (
                "mkdir os.mkfifo os.open run_process shutil.rmtree tempfile.mkdtemp"
            ),
        },
        points=(
            "prepared",
            "program_started",
        ),
    ),
    Steps(
        {
            "agents/runtimes/command.py:CommandRuntime.run": "run_process",
            "agents/processes/capture.py:LiveFile.__init__": "os.open",
            "agents/processes/capture.py:LiveFile.write": "os.write",
            "agents/processes/capture.py:Capture.finish": "write",
            "agents/processes/capture.py:Capture._read": "write",
            "agents/processes/running.py:_Run._start": "subprocess.Popen",
            "agents/processes/running.py:_Run._flush": "os.write",
            "agents/processes/running.py:_Run._watch": "kill send_signal",
            "agents/processes/supervisor.py:hold": "os.open",
            "agents/processes/supervisor.py:report": "os.write",
            "agents/processes/supervisor.py:Supervisor.start": "os.fork",
            "agents/processes/supervisor.py:become": "os.execvpe os.write",
            "agents/processes/supervisor.py:send": "pidfd_send_signal",
        },
        points=(
            "prepared",
            "program_started",
            "program_gone",
        ),
        why="a program under its supervisor, which outlives us and ends it; of a check: checkout_made and check_ran",
    ),
    Steps(
        {
            "agents/llm/anthropic_adapter.py:AnthropicAdapter.ask": "ask_sdk",
            "agents/llm/asking.py:ask_sdk": "create",
            "agents/llm/openai_chat_adapter.py:ChatAdapter.ask": "ask_sdk",
            "agents/llm/openai_responses_adapter.py:ResponsesAdapter.ask": "ask_sdk",
        },
        points=(
            "model_charged",
            "model_answered",
        ),
    ),
    Steps(
        {
            "agents/broker/mcp_session.py:ServerSession.call": "send_request",
            "agents/broker/mcp_pipes.py:_write": "os.write",
        },
        points=(
            "turn_answered",
            "operation_sent",
            "operation_done",
            "tool_call",
        ),
        why="a call of a server's tool",
    ),
    Steps(
        {
            "agents/broker/mcp_session.py:ServerSession._listed": "list_tools",
        },
        points=(
            "prepared",
            "model_charged",
        ),
        why="asks a server that just began for what it offers",
    ),
    Steps(
        {
            "agents/broker/broker.py:Broker._write_file": "write",
            "agents/broker/broker.py:Broker._edit_file": "write",
            "agents/broker/folder.py:Folder.write": "open os.fchmod os.replace os.unlink write",
            "agents/broker/folder.py:_enter": "os.mkdir",
        },
        points=(
            "prepared",
            "tool_call",
        ),
        why="a file in the child's own workspace, which no other attempt enters",
    ),
    Steps(
        {
            "workspaces/importer.py:keeping": "sync",
            "workspaces/importer.py:fast_import": "kill subprocess.Popen tempfile.TemporaryFile write",
            "workspaces/importer.py:begin_commit": "write",
            "workspaces/importer.py:put_file": "write",
            "workspaces/importer.py:put_known": "write",
            "workspaces/importer.py:drop": "write",
        },
        points=(
            "child_returned",
            "commit_imported",
            "candidate_kept",
        ),
        why="of a turn: between turn_answered and turn_finished; of a merge: merged",
    ),
    Steps(
        {
            "workspaces/merge.py:merge_onto": "git-? git-init tempfile.TemporaryDirectory",
            "workspaces/merge.py:_copy_differing": "git-?",
            "workspaces/merge.py:_twin": "git-hash-object",
        },
        points=(
            "tick.committed",
            "commit_imported",
            "merged",
        ),
        why="objects that nothing names",
    ),
    Steps(
        {
            "coordinator/gating.py:_CleanRun.__call__": "delete_folder mkdir run_process",
        },
        points=(
            "merged",
            "checkout_made",
            "check_ran",
        ),
    ),
    Steps(
        {
            "coordinator/api.py:AsyncRun._checked": "make_durable",
            "coordinator/delegating.py:ChildDelegator.delegate": "make_durable",
            "coordinator/launch.py:amend": "make_durable",
            "coordinator/manifests.py:ChildArtifacts.put": "make_durable",
            "coordinator/model_ports.py:AttemptJournal._blob": "make_durable",
            "coordinator/store/artifacts.py:ArtifactFiles.make_durable": "make_durable write_durable",
            "coordinator/store/filesystem.py:write_durable": (
                "make_durable mkdir open os.fsync os.replace tempfile.mkstemp unlink write"
            ),
            "coordinator/store/filesystem.py:make_durable": "os.fsync",
        },
        points=(
            "file_written",
            "file_named",
        ),
        why="bytes before rows: the commit that names them comes after",
    ),
    Steps(
        {
            "coordinator/children.py:Child._redact_output": "write_bytes",
        },
        points=(
            "child_returned",
            "workspace_renamed",
        ),
        why="beside the hand-in",
    ),
    Steps(
        {
            "workspaces/places.py:disappear": "delete_folder os.rename sync tempfile.mkdtemp",
            "coordinator/workplaces.py:Workplaces.leave": "delete_folder",
            "workspaces/trash.py:delete_folder": "os.rmdir",
            "workspaces/trash.py:_empty": "os.rename os.rmdir",
            "workspaces/trash.py:_without_files": "os.unlink",
            "workspaces/trash.py:_open_up": "os.chmod",
        },
        points=(
            "workspace_renamed",
            "workspace_deleted",
        ),
        why="and of private folders: child_returned and workspace_renamed; of checks: check_ran and judged",
    ),
    Steps(
        {
            "coordinator/cli/deciding.py:write_new": "open os.fsync os.open unlink write",
            "coordinator/cli/deciding.py:_give_name": "os.link os.rename sync unlink",
        },
        points=(
            "export_written",
            "export_named",
        ),
    ),
    Steps(
        {
            "coordinator/store/database.py:Database._prepare": "create_all write",
        },
        points=(
            "prepare.commit",
            "prepare.committed",
        ),
    ),
    Steps(
        {
            "coordinator/store/database.py:Database._transaction": "exec_driver_sql",
            "coordinator/store/database.py:_sqlite_engine": "mkdir",
            "coordinator/store/database.py:_SqliteFile.connect": "execute",
            "coordinator/store/database.py:_postgres_engine": "execute",
            "coordinator/store/database.py:_set_wal": "execute",
            "coordinator/store/database.py:_begun_writing": "execute",
        },
        why="how a connection or a transaction of the store begins; changes no row",
    ),
    Steps(
        {
            "coordinator/store/migrations/__init__.py:upgrade": "upgrade",
        },
        why="a change of the schema: one transaction, before anything of a task is done",
    ),
    Steps(
        {
            "coordinator/locks.py:OwnerLock.__init__": "mkdir os.open",
            "coordinator/locks.py:OwnerLock.release": "unlink",
            "coordinator/locks.py:forget_owner": "unlink",
        },
        why="an empty file that shows by its kernel lock who lives; who finds one free takes it away",
    ),
    Steps(
        {
            "coordinator/home.py:_make": "mkdir write_text",
        },
        why="the folders of a new home, made before its store is opened, and made again if they are not there",
    ),
    Steps(
        {
            "coordinator/logs.py:WorkerLog.__init__": "mkdir open",
        },
        why="a log, which is no authority",
    ),
    Steps(
        {
            "coordinator/crash_points.py:Fault.__call__": "os.kill",
        },
        why="the death itself",
    ),
    Steps(
        {
            "coordinator/cli/starting.py:_write": "mkdir open write write_bytes write_text",
        },
        why="the user's own first files: each is new, what is there is never overwritten",
    ),
    Steps(
        {
            "coordinator/cli/demos.py:_trials": "shutil.copytree",
            "coordinator/cli/demos.py:alter_one_byte": "execute",
            "coordinator/cli/stage.py:Stage.of": "tempfile.mkdtemp",
            "coordinator/cli/stage.py:Stage.work": "kill open subprocess.Popen",
            "coordinator/cli/stage.py:Stage.command": "subprocess.run",
        },
        why="a demonstration, in a temporary folder of its own",
    ),
)
