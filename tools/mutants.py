"""Changes single expressions of the C++ sources, and lists the changes that no C++ test notices.

    python tools/mutants.py [--files 'csrc/format/**/*.cpp'] [--count 100] [--seed 1]

A mutant is one change of one line: another comparison, another constant, a negated condition, a
statement that is left out. Lines with a limit (such as kMostTries) come first: no test of something
else reaches them by chance. A mutant is made in a copy of the sources, build/mutants/tree, and the
C++ tests run until one fails; a test that takes too long has failed. Mutants that do not compile do
not count. A survivor is either a missing test, or a change without an effect. Prints the share of
each folder that was killed, and writes the survivors to build/mutants/survivors.txt.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from copied_tree import ROOT, ChangedTree

FOLDER = ROOT / "build" / "mutants"
TREE = ChangedTree(FOLDER / "tree")
DECIDING = ("csrc/format/**/*.cpp", "csrc/engine/**/*.cpp", "csrc/io/**/*.cpp")
# The slowest test takes a few seconds.
CTEST = ("ctest", "--test-dir", str(TREE.build), "-j2", "--timeout", "60")

# The spaces tell operators from templates and pointers, as clang-format writes them.
SWAPS = {
    " == ": " != ",
    " != ": " == ",
    " < ": " <= ",
    " <= ": " < ",
    " > ": " >= ",
    " >= ": " > ",
    " && ": " || ",
    " || ": " && ",
    " + ": " - ",
    " - ": " + ",
    " += ": " -= ",
    "return true": "return false",
    "return false": "return true",
}
SWAP = re.compile("|".join(map(re.escape, SWAPS)))
CONDITION = re.compile(r"\bif \((?!!\()(.+)\) (?=return|throw|continue|break|\{|[a-z_]+[ (])")
CONSTANT = re.compile(r"(?<![\w.'])\d[\d']*(?![\w.'])")
STATEMENT = re.compile(r"^( *)((?:throw|check|require|refuse|fail)\w*[ (].*;)$")
LIMIT = re.compile(r"\bk(Most|Longest|Largest|Deepest|Least|Smallest)|_limits\b")
# Texts, characters and comments are not changed; nor are the sizes of types.
QUIET = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|//.*|^#.*|^ *\*.*|^.*static_assert.*')


@dataclass(frozen=True)
class Mutant:
    file: str
    line: int  # from 1
    before: str
    after: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}"
        return f"{place}\n  - {self.before.strip()}\n  + {self.after.strip()}\n"


def changes(line: str) -> Iterator[str]:
    """Yield what a line may become."""
    quiet = [match.span() for match in QUIET.finditer(line)]

    def free(match: re.Match[str]) -> bool:
        return not any(begin < match.end() and match.start() < end for begin, end in quiet)

    for match in filter(free, SWAP.finditer(line)):
        yield line[: match.start()] + SWAPS[match[0]] + line[match.end() :]
    for match in filter(free, CONSTANT.finditer(line)):
        more = str(int(match[0].replace("'", "")) + 1)
        yield line[: match.start()] + more + line[match.end() :]
    if condition := CONDITION.search(line):
        yield line[: condition.start(1)] + f"!({condition[1]})" + line[condition.end(1) :]
    if statement := STATEMENT.match(line):
        yield f"{statement[1]};"


def mutants_of(file: Path) -> Iterator[Mutant]:
    name = file.relative_to(ROOT).as_posix()
    for number, line in enumerate(file.read_text().split("\n"), 1):
        for after in dict.fromkeys(changes(line)):
            yield Mutant(name, number, line, after)


def passes(*command: str) -> bool:
    return TREE.run(*command).returncode == 0


def is_noticed(mutant: Mutant) -> bool:
    """Run the tests, those of the same layer first, until one fails."""
    layer = mutant.file.split("/")[1]
    ctest = (*CTEST, "--stop-on-failure")
    return not (passes(*ctest, "-R", f"^{layer}_") and passes(*ctest, "-E", f"^{layer}_"))


def try_out(mutant: Mutant) -> str:
    """Return what became of a mutant: killed, survived or invalid."""
    lines = (TREE.tree / mutant.file).read_text().split("\n")
    lines[mutant.line - 1] = mutant.after
    with TREE.changed(mutant.file, "\n".join(lines)):
        if TREE.make("layers").returncode != 0:
            return "invalid"
        return "killed" if is_noticed(mutant) else "survived"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", nargs="*", default=DECIDING, help="patterns of sources")
    parser.add_argument("--count", type=int, default=100, help="how many to try (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="chooses them (%(default)s)")
    arguments = parser.parse_args()
    files = sorted({file for pattern in arguments.files for file in ROOT.glob(pattern)})
    every = [mutant for file in files for mutant in mutants_of(file)]
    random.Random(arguments.seed).shuffle(every)
    every.sort(key=lambda mutant: LIMIT.search(mutant.before) is None)
    chosen = every[: arguments.count]
    print(f"{len(chosen)} of {len(every)} mutants, seed {arguments.seed}", flush=True)
    if TREE.prepare().returncode != 0 or TREE.make().returncode != 0:
        sys.exit("the C++ tests do not build")
    if not passes(*CTEST):
        sys.exit("the C++ tests fail without any change")
    found: Counter[tuple[str, str]] = Counter()
    survivors = []
    for mutant in chosen:
        outcome = try_out(mutant)
        found["/".join(mutant.file.split("/")[:2]), outcome] += 1
        if outcome == "survived":
            survivors.append(mutant)
            print(mutant, flush=True)
    (FOLDER / "survivors.txt").write_text("\n".join(map(str, survivors)))
    for folder in sorted({folder for folder, _ in found}):
        killed, survived = found[folder, "killed"], found[folder, "survived"]
        share = 100 * killed / max(1, killed + survived)
        print(f"{folder:14} {killed:4} killed, {survived:3} survived: {share:.0f} %")


if __name__ == "__main__":
    main()
