"""The tools that check the code and measure the tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.process import ROOT


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))


def test_mutants_change_what_decides() -> None:
    from mutants import changes

    assert list(changes("  if (a < b && c) return 1;  // a < 2")) == [
        "  if (a <= b && c) return 1;  // a < 2",
        "  if (a < b || c) return 1;  // a < 2",
        "  if (a < b && c) return 2;  // a < 2",
        "  if (!(a < b && c)) return 1;  // a < 2",
    ]
    assert list(changes("    throw Error(kind, text);")) == ["    ;"]
    assert list(changes('  name = "a && b" + x;')) == ['  name = "a && b" - x;']
    for quiet in ("// a == b", "#include <span>", "std::vector<int> sizes;", "char c = '1';"):
        assert list(changes(quiet)) == []


def test_every_bug_can_be_planted() -> None:
    from planted import CASES

    for bug in CASES:
        assert (ROOT / "csrc" / bug.file).read_text().count(bug.right) == 1, bug.what


def test_requests_at_other_doors_are_found() -> None:
    from check_doors import MEMORY, WORLD

    code = "t.data_ptr();\nt.mutable_data_ptr<int>(); storage(t);\nt->storage (); t.data();"
    assert MEMORY.requests(code) == [(1, "data_ptr"), (2, "mutable_data_ptr"), (3, "->storage (")]
    assert MEMORY.requests("t.dtype\ngetattr(t, '_typed_storage')") == [(2, "_typed_storage")]
    code = "std::chrono::steady_clock::now();\nstd::this_thread::sleep_for(x); std::time_t t;"
    assert WORLD.requests(code) == [(1, "steady_clock"), (2, "this_thread::sleep_for")]


def test_circles_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import check_imports

    folder = tmp_path / "tensorizer_ops" / "_base"
    folder.mkdir(parents=True)
    for code in (
        "from tensorizer_ops._base import first",
        "from importlib import import_module\nimport_module('tensorizer_ops._base.first')",
        "import importlib\nimportlib.import_module(f'tensorizer_ops._base.first.{name}')",
    ):
        (folder / "first.py").write_text("def use() -> None:\n    from . import second")
        (folder / "second.py").write_text(code)
        monkeypatch.setattr(check_imports, "ROOT", tmp_path)
        assert "files depend on each other: tensorizer_ops/_base/" in check_imports.main()


def test_every_target_is_run_by_a_workflow() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"^#   make ([\w-]+)", makefile, re.MULTILINE))
    rules = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))

    def run_by(target: str) -> set[str]:
        rule = re.search(rf"^{target}:(.*)\n((?:\t.*\n)*)", makefile, re.MULTILINE)
        assert rule, target
        steps = re.findall(r"\$\(RUN\) ([^\n\"]+)", rule[2])
        return set(" ".join([rule[1], *steps]).split()) & rules

    workflows = "".join(path.read_text() for path in (ROOT / ".github" / "workflows").iterdir())
    run: set[str] = set()
    more = set(re.findall(r"\bmake ([\w-]+)$", workflows, re.MULTILINE)) & rules
    while more:
        run |= more
        more = set().union(*map(run_by, more)) - run
    # Tests run the benchmarks with little work (test_benchmarks.py).
    left = {target for target in named if not target.startswith("bench")} - {"clean", "help"}
    assert left - run == set()
