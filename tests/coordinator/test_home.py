"""Where a store and its files lie."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from contracts.canonical import sha256_digest
from contracts.errors import BadInput, StoreUnavailable
from coordinator.home import default_store, open_home


@pytest.fixture(autouse=True)
def _no_store_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COORDINATOR_STORE", raising=False)


def test_the_store_lies_at_the_top_of_the_repository_and_is_ignored_by_it(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "a" / "b").mkdir(parents=True)
    home = open_home(cwd=tmp_path / "a" / "b")
    assert home.url == f"sqlite:///{tmp_path}/.coordinator/store.db"
    assert home.folder == tmp_path / ".coordinator"
    assert (home.folder / ".gitignore").read_text() == "*\n"


def test_without_a_repository_it_lies_in_the_working_folder(tmp_path: Path) -> None:
    assert default_store(tmp_path) == tmp_path / ".coordinator" / "store.db"


def test_a_worktree_whose_git_is_a_file_counts_as_a_repository(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: elsewhere\n")
    (tmp_path / "sub").mkdir()
    assert default_store(tmp_path / "sub") == tmp_path / ".coordinator" / "store.db"


def test_the_argument_goes_before_the_environment_and_the_environment_before_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COORDINATOR_STORE", str(tmp_path / "env.db"))
    assert open_home(cwd=tmp_path).url == f"sqlite:///{tmp_path}/env.db"
    assert open_home(f"sqlite:///{tmp_path}/arg.db").url == f"sqlite:///{tmp_path}/arg.db"


@pytest.mark.parametrize("written", ["sqlite:///tasks.db", "tasks.db"])
def test_a_relative_store_is_pinned_to_the_folder_it_was_named_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    monkeypatch.chdir(tmp_path)
    home = open_home(written)
    assert home.url == f"sqlite:///{tmp_path}/tasks.db"
    assert home.folder == tmp_path / "tasks.db-files"
    assert tmp_path / "tasks.db" in home.own_files()
    assert tmp_path / "tasks.db-wal" in home.own_files()
    assert home.folder in home.own_files()


def test_the_files_of_a_server_lie_in_the_state_folder_or_where_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    home = open_home("postgresql://ann:secret@host/db")
    assert home.folder.parent == tmp_path / "state" / "coordinator"
    assert "secret" not in str(home.folder)
    assert open_home("postgresql://host/other").folder != home.folder
    assert open_home("postgresql://host/db", tmp_path / "here").folder == tmp_path / "here"


@pytest.mark.parametrize("url", ["mysql://host/db", "sqlite+pysqlite:///x.db", "sqlite:///", "http://x"])
def test_what_is_no_store_is_refused_with_what_would_be_right(url: str) -> None:
    with pytest.raises(BadInput, match=r"use sqlite:///PATH or postgresql://"):
        open_home(url)


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="cannot make .* give --store a path that can be written"):
        open_home(str(tmp_path / "file" / "sub" / "store.db"))


def test_a_pinned_file_is_read_only_and_mended_when_it_was_altered(tmp_path: Path) -> None:
    home = open_home(str(tmp_path / "store.db"))
    data = b"def child(a): ...\n"
    path = home.pinned_file("/some/where/work.py", sha256_digest(data), data)
    assert path.name == "work.py"
    assert path.read_bytes() == data
    assert path.stat().st_mode & 0o777 == 0o555
    path.chmod(0o644)
    path.write_bytes(b"altered")
    assert home.pinned_file("/some/where/work.py", sha256_digest(data), data).read_bytes() == data


def test_a_pinned_file_is_never_missing_while_others_ask_for_it(tmp_path: Path) -> None:
    """It may be the program of one child while the next one is prepared."""
    home = open_home(str(tmp_path / "store.db"))
    data = b"#!/bin/sh\nexit 0\n"
    digest = sha256_digest(data)
    path = home.pinned_file("child.sh", digest, data)
    wrong: list[str] = []

    def spoil_and_ask() -> None:
        for _ in range(20):
            path.chmod(0o755)
            path.write_bytes(b"changed")
            home.pinned_file("child.sh", digest, data)

    def look() -> None:
        while asking.is_alive():
            if not path.is_file():
                wrong.append("missing")

    asking = threading.Thread(target=spoil_and_ask)
    looking = threading.Thread(target=look)
    asking.start()
    looking.start()
    asking.join()
    looking.join()
    assert wrong == []
    assert path.read_bytes() == data
    assert os.access(path, os.X_OK)
