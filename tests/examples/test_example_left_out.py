"""One caller left out of an inventory of real code: the gate of the audit sends it back, or it is shown as a gap."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.examples.conftest import EXAMPLES

Demo = Callable[..., subprocess.CompletedProcess[str]]
FORGETFUL = """
import hashlib
import json

from python_code import find_callers


def forget_one(a):
    result = find_callers(a)
    forgotten = result.output["callers"].pop({index})
    place = (forgotten["file"], forgotten["line"])
    text = json.dumps(result.output)
    a.tools.write_file("callers.json", text)
    digest = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    kept = [item for item in result.evidence if item.kind != "citation" or (item.path, item.line) != place]
    mended = [item.model_copy(update={{"digest": digest}}) if item.kind == "file" else item for item in kept]
    return result.model_copy(update={{"evidence": mended, "message": f"{{place[0]}}:{{place[1]}}"}})
"""


def source(package: str, make_repository: Any) -> Path:
    """A repository of an installed package, with the script that recounts callers where this repository has it."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    top = Path(spec.origin).parent
    files = {f"{package}/{path.relative_to(top)}": path.read_bytes() for path in top.rglob("*.py")}
    recount = "examples/audit/verify_callers.py"
    return make_repository({**files, recount: (EXAMPLES.parent / recount).read_bytes()})  # type: ignore[no-any-return]


def audit_callers(
    demo: Demo, folder: Path, repository: Path, symbol: str, *, forget: int | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(manifest, decision) of the first result for the audit's own contract, by a child that may forget one."""
    shutil.copytree(EXAMPLES / "audit", folder)
    file = folder / "orchestration.yaml"
    document = yaml.safe_load(file.read_text())
    callers = document["tasks"]["callers"]
    callers["limits"] = {"max_repairs": 0}
    if forget is not None:
        (folder / "forgetful.py").write_text(FORGETFUL.format(index=forget))
        callers["agent"] = {"function": "forgetful.py:forget_one"}
    document["tasks"] = {"callers": callers}
    document["inputs"]["symbol"] = symbol
    file.write_text(json.dumps(document))
    store = str(folder / "store.db")
    ran = demo("run", str(file), "--source", str(repository), "--store", store, cwd=folder)
    told = demo("evidence", "audit/callers", "--json", "--store", store, cwd=folder)
    assert told.returncode == 0, ran.stdout + ran.stderr + told.stderr
    [value] = json.loads(told.stdout)
    return value["manifest"], value["decision"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "symbol", "forgotten"),
    [
        ("structlog", "structlog._frames._format_exception", 0),
        ("typer", "typer.utils.get_params_from_function", 3),
        ("rich", "rich.cells.cell_len", 5),
    ],
)
def test_the_whole_inventory_of_a_real_package_is_accepted_and_one_without_a_certain_caller_is_sent_back(
    demo: Demo, make_repository: Any, tmp_path: Path, package: str, symbol: str, forgotten: int
) -> None:
    repository = source(package, make_repository)
    whole, accepted = audit_callers(demo, tmp_path / "whole", repository, symbol, forget=None)
    short, refused = audit_callers(demo, tmp_path / "short", repository, symbol, forget=forgotten)

    assert accepted["decision"] == "accepted", accepted["reason"]
    assert {item["found_origin"] for item in accepted["evidence"] if item["name"] == "caller inventory"} == {"verified"}
    assert len(short["output"]["callers"]) == len(whole["output"]["callers"]) - 1
    assert refused["decision"] == "repair_required"
    [finding] = refused["feedback"]
    assert f"{short['message']} calls {symbol}, and is not listed" in finding["message"]


@pytest.mark.slow
def test_a_caller_that_may_be_none_is_shown_by_the_gate_when_it_is_left_out(
    demo: Demo, make_repository: Any, tmp_path: Path
) -> None:
    repository = source("rich", make_repository)
    symbol = "rich.cells.cell_len"
    manifest, decision = audit_callers(demo, tmp_path / "short", repository, symbol, forget=0)

    assert decision["decision"] == "accepted"
    assert manifest["gaps"]
    [process] = decision["processes"]
    assert f"{manifest['message']} may call {symbol}, and is not listed" in process["output_tail"]
