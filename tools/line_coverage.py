"""Measures which lines of csrc and tensorizer_ops the tests run.

    python tools/line_coverage.py [--least 90] [PYTEST_ARGUMENT...]

Builds the library and the C++ tests with instrumentation in a copy of the sources, build/coverage/
tree, and runs the C++ tests and the Python tests there. Prints the coverage of each folder, writes
the lines that did not run to build/coverage/uncovered.txt, and fails if less than --least percent
of the lines of csrc or of tensorizer_ops ran. Processes that are killed leave no counts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from copied_tree import ROOT, copy_sources

FOLDER = ROOT / "build" / "coverage"
TREE = FOLDER / "tree"
COUNT = "--coverage -fprofile-update=atomic"
SETTINGS = """
[run]
source = tensorizer_ops
branch = false
parallel = true
patch = subprocess, _exit
data_file = {data}
"""


@dataclass
class Lines:
    """The lines of a file that could run, and those that did."""

    all: set[int] = field(default_factory=set)
    run: set[int] = field(default_factory=set)


def call(*command: str, **environment: str) -> int:
    print("+", *command, flush=True)
    return subprocess.run(command, cwd=TREE, env=os.environ | environment).returncode


def build() -> None:
    built = call(
        *(sys.executable, "-W", "ignore", "setup.py", "-q", "build_ext", "--inplace"),
        CFLAGS=COUNT,
        LDFLAGS="--coverage",
        CCACHE_DISABLE="1",  # the name of the file with the counts is in the object
    )
    flags = f"-DCMAKE_CXX_FLAGS={COUNT}"
    configured = call("cmake", "-S", "tests/cpp", "-B", "build/tests", "-G", "Ninja", flags)
    if built or configured or call("cmake", "--build", "build/tests"):
        sys.exit("the instrumented build failed")


def run_tests(arguments: list[str]) -> bool:
    """Run all tests, and return whether they passed."""
    for counts in TREE.rglob("*.gcda"):
        counts.unlink()
    shutil.rmtree(FOLDER / "python", ignore_errors=True)
    (FOLDER / "python").mkdir()
    settings = FOLDER / "coveragerc"
    settings.write_text(SETTINGS.format(data=FOLDER / "python" / "data"))
    cpp = call("ctest", "--test-dir", "build/tests", "-j2", "--output-on-failure", "-Q")
    tests = call(
        *(sys.executable, "-m", "coverage", "run", f"--rcfile={settings}"),
        *("-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", *(arguments or ["tests"])),
        PYTHONPATH=f"{TREE}:{TREE / 'tests'}",
    )
    return cpp == 0 and tests == 0


def of_cpp() -> dict[str, Lines]:
    report = FOLDER / "cpp.json"
    command = (sys.executable, "-m", "gcovr", "--root", ".", "--filter", "csrc/", "--json")
    merge = ("--merge-mode-functions", "merge-use-line-min", "--gcov-ignore-errors", "all")
    call(*command, str(report), *merge, "-j2", "build")
    files: dict[str, Lines] = {}
    for file in json.loads(report.read_text())["files"]:
        lines = files.setdefault(file["file"], Lines())
        for line in file["lines"]:
            lines.all.add(line["line_number"])
            if line["count"]:
                lines.run.add(line["line_number"])
    return files


def of_python() -> dict[str, Lines]:
    settings = f"--rcfile={FOLDER / 'coveragerc'}"
    coverage = (sys.executable, "-m", "coverage")
    call(*coverage, "combine", "-q", settings)
    report = FOLDER / "python.json"
    call(*coverage, "json", "-q", settings, "-i", "-o", str(report))
    files = {}
    for name, found in json.loads(report.read_text())["files"].items():
        run = set(found["executed_lines"])
        files[name] = Lines(run | set(found["missing_lines"]), run)
    return files


def ranges(numbers: list[int]) -> Iterator[str]:
    """Yield runs of lines as text: 3, 7-9."""
    start = previous = None
    for number in [*numbers, None]:
        if previous is not None and number != previous + 1:
            yield f"{start}" if start == previous else f"{start}-{previous}"
            start = None
        start = number if start is None else start
        previous = number


def share(files: list[Lines]) -> float:
    every = sum(len(lines.all) for lines in files)
    return 100 * sum(len(lines.run) for lines in files) / every if every else 100.0


def report(files: dict[str, Lines], least: float) -> bool:
    """Print the table, write the list, and return whether enough lines ran."""
    folders: dict[str, list[Lines]] = {}
    uncovered = []
    for name, lines in sorted(files.items()):
        parts = Path(name).parts
        folders.setdefault("/".join(parts[: min(2, len(parts) - 1)]), []).append(lines)
        folders.setdefault(parts[0] + " (all)", []).append(lines)
        if missing := sorted(lines.all - lines.run):
            uncovered.append(f"{name}: {', '.join(ranges(missing))}\n")
    (FOLDER / "uncovered.txt").write_text("".join(uncovered))
    for folder, of in sorted(folders.items()):
        print(f"{folder:30} {sum(len(lines.all) for lines in of):6} lines  {share(of):5.1f} %")
    print(f"The lines that did not run are in {(FOLDER / 'uncovered.txt').relative_to(ROOT)}")
    return all(share(of) >= least for folder, of in folders.items() if folder.endswith("(all)"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--least", type=float, default=90, help="percent (%(default)s)")
    parser.add_argument("tests", nargs="*", help="what pytest runs (tests)")
    arguments = parser.parse_args()
    copy_sources(TREE)
    build()
    passed = run_tests(arguments.tests)
    enough = report(of_cpp() | of_python(), arguments.least)
    if not passed:
        sys.exit("tests failed")
    if not enough:
        sys.exit(f"less than {arguments.least:g} % of the lines ran")


if __name__ == "__main__":
    main()
