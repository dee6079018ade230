"""The tools that measure the tests."""

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


def test_uncovered_lines_are_listed_as_ranges() -> None:
    from line_coverage import Lines, ranges, share

    assert list(ranges([3, 7, 8, 9, 11])) == ["3", "7-9", "11"]
    assert list(ranges([])) == []
    assert share([Lines({1, 2, 3}, {1}), Lines({1}, {1})]) == 50
    assert share([]) == 100
