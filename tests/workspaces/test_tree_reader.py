"""Reading a pinned tree."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from workspaces import GitError, TreeReader, fetch_source, pin_source
from workspaces.git import run_git

Git = Callable[..., str]


@pytest.fixture
def own(repository: Path, tmp_path: Path) -> Path:
    fetch_source(pin_source(repository), tmp_path / "own")
    return tmp_path / "own"


@pytest.fixture
def reader(repository: Path, own: Path) -> Iterator[TreeReader]:
    with TreeReader(own, pin_source(repository).commit) as reader:
        yield reader


def test_files_come_with_mode_size_and_id_sorted_by_the_bytes_of_the_path(
    repository: Path, git: Git, tmp_path: Path
) -> None:
    for name in (b"src-x", b"src.x", b"z", b"caf\xe9", b"caf\xc3\xa9"):
        with open(os.path.join(os.fsencode(repository), name), "wb") as out:
            out.write(name)
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "-m", "names")
    pin = pin_source(repository)
    fetch_source(pin, tmp_path / "own")

    with TreeReader(tmp_path / "own", pin.commit) as reader:
        files = reader.files()
        assert reader.read_bytes("caf\udce9") == b"caf\xe9"

    names = [os.fsencode(file.path) for file in files]
    assert names == sorted(names)
    assert set(names) == {b"caf\xe9", b"caf\xc3\xa9", b"link", b"readme.md", b"src-x", b"src.x", b"src/run.sh", b"z"}
    readme = next(file for file in files if file.path == "readme.md")
    assert (readme.mode, readme.size_bytes) == ("100644", 8)
    assert readme.object_id == git(repository, "rev-parse", "HEAD:readme.md")


@pytest.mark.parametrize(
    "path",
    [
        "absent",
        "",
        "src",
        "/readme.md",
        "./readme.md",
        "../own",
        "src/../readme.md",
        "HEAD",
        "HEAD:readme.md",
        "readme.md\n",
        "src/",
        "\udcff",
    ],
)
def test_only_listed_paths_can_be_read(reader: TreeReader, path: str) -> None:
    with pytest.raises(FileNotFoundError):
        reader.read_bytes(path)


def test_an_object_id_is_no_path(reader: TreeReader) -> None:
    with pytest.raises(FileNotFoundError):
        reader.read_bytes(reader.files()[0].object_id)


def test_submodules_are_listed_apart(repository: Path, git: Git, tmp_path: Path) -> None:
    head = git(repository, "rev-parse", "HEAD")
    git(repository, "update-index", "--add", "--cacheinfo", f"160000,{head},vendor/lib")
    git(repository, "commit", "--quiet", "-m", "submodule")
    pin = pin_source(repository)
    fetch_source(pin, tmp_path / "own")

    with TreeReader(tmp_path / "own", pin.commit) as reader:
        assert reader.gitlinks == ("vendor/lib",)
        assert "vendor/lib" not in [file.path for file in reader.files()]
        with pytest.raises(FileNotFoundError):
            reader.read_bytes("vendor/lib")


def test_many_threads_share_one_reader(repository: Path, git: Git, tmp_path: Path) -> None:
    expected = {f"f{number}": os.urandom(number * 97) for number in range(200)}
    for name, data in expected.items():
        (repository / name).write_bytes(data)
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "-m", "many")
    pin = pin_source(repository)
    fetch_source(pin, tmp_path / "own")

    with TreeReader(tmp_path / "own", pin.commit) as reader, ThreadPoolExecutor(8) as pool:
        assert dict(zip(expected, pool.map(reader.read_bytes, expected), strict=True)) == expected


def test_the_git_process_is_replaced_when_it_was_killed(reader: TreeReader) -> None:
    reader.read_bytes("readme.md")
    assert reader._process is not None
    os.kill(reader._process.pid, signal.SIGKILL)
    reader._process.wait()

    assert reader.read_bytes("readme.md") == b"second\r\n"


def test_nothing_is_read_after_close_and_the_process_is_gone(reader: TreeReader) -> None:
    reader.read_bytes("readme.md")
    process = reader._process
    assert process is not None

    reader.close()
    reader.close()

    assert process.poll() is not None
    with pytest.raises(ValueError, match="closed"):
        reader.read_bytes("readme.md")
    with pytest.raises(ValueError, match="closed"):
        reader.files()


def test_a_damaged_object_is_never_handed_out(reader: TreeReader, own: Path) -> None:
    files = {file.path: file for file in reader.files()}
    paths = {path: own / "objects" / file.object_id[:2] / file.object_id[2:] for path, file in files.items()}
    other = paths["src/run.sh"].read_bytes()
    for path in ("readme.md", "link"):
        paths[path].unlink()
    paths["readme.md"].write_bytes(other)

    for path in ("readme.md", "link"):
        with pytest.raises(GitError):
            reader.read_bytes(path)

    assert reader.read_bytes("src/run.sh") == b"#!/bin/sh\n"


@pytest.mark.parametrize("commit", ["HEAD", "--all", "a" * 39, "refs/coordinator/source", "A" * 40])
def test_a_reader_takes_only_a_full_commit_id(own: Path, commit: str) -> None:
    with pytest.raises(ValueError, match="full commit id"):
        TreeReader(own, commit)


def test_git_that_fails_or_hangs_gives_a_typed_error(own: Path, tmp_path: Path) -> None:
    with pytest.raises(GitError, match="rev-parse: fatal") as failed:
        run_git(["rev-parse", "--verify", "absent^{absent}"], git_dir=own)
    assert failed.value.returncode == 128

    os.mkfifo(tmp_path / "never")
    with pytest.raises(GitError, match="did not end") as hung:
        run_git(["hash-object", str(tmp_path / "never")], git_dir=own, timeout_s=0.2)
    assert hung.value.returncode is None
