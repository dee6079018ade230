"""Folders of models that try to run code, to reach the network, and to read files elsewhere."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.hf_attacks import MODELS, TOKENIZERS
from support.hf_recorder import DOORS
from support.process import run_python

pytest.importorskip("transformers")
pytestmark = pytest.mark.xdist_group("hf_isolation")

Results = dict[str, Any]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Return what loading each folder led to, in a process whose audit hook records it."""
    code = "import sys\nfrom support.hf_recorder import main\nmain(sys.argv[1])"
    done = run_python(code, str(tmp_path_factory.mktemp("hf")))
    found: Results = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("place", ["", " on a server"])
@pytest.mark.parametrize("name", [*MODELS, *TOKENIZERS])
def test_no_code_and_no_network_by_a_config(results: Results, name: str, place: str) -> None:
    outcome, happened = results[name + place]
    assert happened == []
    assert "stolen" not in outcome
    if "healthy" in name:
        assert outcome.startswith("loaded")
    if name == "a library":
        assert "has sudachi_config_path, which can lead to code" in outcome
    if name == "a kernel":
        assert "asks for the kernel 'evil/kernel', which is code" in outcome
    if "elsewhere" in name or name == "a device":
        # On this machine, the parent of a copied folder is another one.
        assert ("which is not in that folder" in outcome) != (
            "../" in str(TOKENIZERS[name]) and place
        )


@pytest.mark.parametrize("door", DOORS)
def test_no_code_and_no_network_whatever_leads_there(results: Results, door: str) -> None:
    """Here the class of the config, as one of a later release may."""
    outcome, happened = results[f"door: {door}"]
    assert happened == []
    reason = "network, and only the folder" if "socket" in door else "only installed code"
    if door in ("hub", "urllib", "thread"):
        reason = "network, and only the folder"
    assert outcome.startswith("InvalidFormat: loading '") and reason in outcome


def test_nobody_else_is_restricted(results: Results) -> None:
    """Not other threads, the caller's functions, packages, nor threads of a load that has ended."""
    own = ["transformers_modules", True]
    assert results["allowed"] == {
        "another thread": own,
        "a thread that stays": True,
        "what is installed": True,
        "progress": True,
        "afterwards": own,
    }
