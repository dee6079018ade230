"""Compares the error messages in the sources with those in docs/troubleshooting.md.

    python tools/messages.py [--list]

A message is what its literals say, with … for each value in it. Every message in the sources must
be an item of a list on the page, with an anchor of its own, and every such item must be a message
in the sources. --list prints the messages of the sources, with their files.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "troubleshooting.md"
ITEM = re.compile(r'^- <a id="([\w-]+)"></a>(`+) ?(.+?) ?\2$', re.MULTILINE)

# Files whose texts are no errors: schemas of operators, documents and requests for servers.
NO_ERRORS = {
    "csrc/ops/library.cpp",
}
# Texts that are no errors.
NO_MESSAGE = re.compile(
    r"\n|^tensorizer_ops (?:model digest|metadata)|^[\w-]+: [\w/:=-]+$|^[A-Z][\w-]+: |^Credential="
    r"|^%|^<!doctype|^the format is little-endian$|^A file that is open|^Takes tensors one at"
    r"|^wrong version number$|^packet length too long$|^unsupported protocol$"
    r"|^alert protocol version$|^SSL-enabled server$"
    r"|^\[enforce fail|^unexpected eof$|^unknown ca$|^ERR max|^allocate memory$|^memory on cpu$"
)
# What messages call the things that they are about.
NAMES = {
    *("a buffer in memory", "a file object (…)", "a pickled Reader", "a plain path"),
    *("a traced program", "pinned memory", "the bytes in memory", "the header", "the name … in"),
    *("the path or URI", "the server of", "the tensor that holds the file"),
}
TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|#[^\n]*|R"(?:[^(]*)\(.*?\)[^"]*"|u8"|"(?:[^"\\\n]|\\.)*"|'
    r"'(?:[^'\\\n]|\\.)+'|\w+|::|->|<<|[^\s\w]",
    re.DOTALL,
)
# A literal that is a std::string, so that + joins it.
WRAPPED = re.compile(r'\bstd::string\(\s*((?:"(?:[^"\\\n]|\\.)*"\s*)+)\)')
BETWEEN = {",", ";", "{", "}", "?", ":", "=", "return", "throw", "<<", "&", "|"}


def is_message(text: str) -> bool:
    if text in NAMES or NO_MESSAGE.search(text):
        return False
    words = re.findall(r"[A-Za-z][a-z']+", text)
    return len(words) >= 2 and sum(map(len, words)) >= 9 and " " in text.strip("… ")


def tidy(text: str) -> str:
    text = re.sub(r"(…[\s'\"]*)+…", "…", text)
    text = text.strip().strip("…").strip().strip(":;,").strip()
    return text if text.count("'") % 2 == 0 else text.strip("'").strip()


class Cpp:
    """Finds the texts in one file: literals that are joined by +, with … for what is not one."""

    def __init__(self, source: str) -> None:
        source = WRAPPED.sub(r"\1", source)
        self.tokens = [t for t in TOKEN.findall(source) if not t.startswith(("//", "/*", "#"))]
        self.at = 0
        self.found: list[str] = []

    def expression(self) -> None:
        """Read up to the end of a pair of brackets, or of the file."""
        parts: list[str] = []  # of a sum
        part: str | None = ""  # the literals of a term; None if it is no literal
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            self.at += 1
            if token.startswith('"'):
                part = part + literal(token) if part is not None else None
            elif token in ("(", "["):
                self.expression()
                part = None
            elif token in (")", "]"):
                break
            elif token == "+":
                parts.append("…" if part is None else part)
                part = ""
            elif token in BETWEEN:
                self.end(parts, part)
                parts, part = [], ""
            else:
                part = None
        self.end(parts, part)

    def end(self, parts: list[str], part: str | None) -> None:
        text = tidy("".join([*parts, "…" if part is None else part]))
        if is_message(text):
            self.found.append(text)


def literal(token: str) -> str:
    text: str = ast.literal_eval(token)
    return text


def of_cpp(path: Path) -> list[str]:
    parser = Cpp(path.read_text())
    while parser.at < len(parser.tokens):
        parser.expression()
    return parser.found


def text_of(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(value) for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    return "…"


def of_python(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise) and node.exc is not None:
            calls = [call for call in ast.walk(node.exc) if isinstance(call, ast.Call)]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith("errors."):
            calls = [node]
        else:
            continue
        for call in calls:
            for argument in call.args:
                if is_message(text := tidy(text_of(argument))):
                    yield text


def messages() -> dict[str, list[str]]:
    """Return the messages in the sources, with the files that have them."""
    found: dict[str, list[str]] = {}
    for folder, pattern, read in (
        ("csrc", "*.cpp", of_cpp),
        ("csrc", "*.h", of_cpp),
        ("tensorizer_ops", "*.py", of_python),
    ):
        for path in sorted((ROOT / folder).rglob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            if name not in NO_ERRORS:
                for text in read(path):
                    found.setdefault(text, []).append(name)
    return found


def item(text: str) -> str:
    """Return the line that the page needs for a message."""
    words = re.findall(r"[a-z0-9]+", text.lower().replace("'", ""))
    return f'- <a id="msg-{"-".join(words[:7])}"></a>`{text}`'


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true")
    found = messages()
    if parser.parse_args().list:
        for text, files in sorted(found.items(), key=lambda each: each[1]):
            print(f"{', '.join(sorted(set(files)))}\t{text}")
        return
    items = ITEM.findall(PAGE.read_text())
    anchors, shown = [anchor for anchor, _, _ in items], [text for _, _, text in items]
    missing = [
        f"{item(text)} ({', '.join(sorted(set(found[text])))})"
        for text in found
        if text not in shown
    ]
    gone = [text for text in shown if text not in found]
    twice = sorted({text for each in (anchors, shown) for text in each if each.count(text) > 1})
    for title, texts in (("lacks", missing), ("has too much", gone), ("has twice", twice)):
        for text in texts:
            print(f"{PAGE.name} {title}: {text}", file=sys.stderr)
    if missing or gone or twice:
        sys.exit(1)


if __name__ == "__main__":
    main()
