"""The tools that check the code and measure the tests."""

from __future__ import annotations

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


def test_requests_for_memory_are_found_beside_quotes() -> None:
    from check_memory import in_cpp, in_python

    code = """char q = '"'; t.data_ptr(); q = '"'; q = '\\''; int n = 1'000;
    t.mutable_data(); // t.storage()
    n = 1'000; t.storage(); "x.data_ptr()"; t.accessor<float, 2>();"""
    assert list(in_cpp(code)) == [
        *((1, "data_ptr"), (2, "mutable_data"), (3, "storage"), (3, "accessor")),
    ]
    assert list(in_python("t.data_ptr\nt.dtype\ngetattr(t, '_typed_storage')")) == [
        *((1, "data_ptr"), (3, "_typed_storage")),
    ]
