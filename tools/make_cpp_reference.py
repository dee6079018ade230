"""Writes docs/cpp.md from the public headers in csrc/include/tensorizer_ops.

    python tools/make_cpp_reference.py [--check]

A header's own comment introduces its section; the comment above a declaration explains it. --check
writes nothing, and fails if the page is not up to date.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADERS = ROOT / "csrc" / "include" / "tensorizer_ops"
PAGE = ROOT / "docs" / "cpp.md"
PROGRAMS = re.compile(r"\n## Functions for whole files\n.*", re.DOTALL)

# The headers, in the order in which a reader needs them, with the titles of their sections.
SECTIONS = {
    "tensorizer": "Functions for whole files",
    "reader": "Reader",
    "writer": "Writer",
    "options": "Options, hashes and metadata",
    "module": "TorchScript modules",
    "fill": "Options for filling modules",
    "constants": "AOTInductor packages",
    "keys": "Encryption keys",
    "secrets": "Passwords and tokens",
    "error": "Errors",
    "hooks": "Interrupts and logs",
    "stored_tensor": "What a file says about a tensor",
    "version": "Version",
}
FORWARD = re.compile(r"^(?:class|struct) \w+;$")
TYPE = re.compile(r"^(?:class|struct|enum class)\s+(?:__attribute__\(\(.*?\)\)\s+)?(\w+)")
NAME = re.compile(r"(\w+)\s*\(")
# A call or an error of a kind, where it is not marked as code.
CALL = re.compile(r"(?<![`\w:])((?:\w+::)*\w+\(\w*\))(?![^`\n]*`(?:[^`\n]*`[^`\n]*`)*[^`\n]*$)")
OTHER_PAGE = re.compile(r"docs/(\w+\.md)")
TERM = re.compile(r"^  (\S+)  +(\S.*)$")


@dataclass
class Declaration:
    comment: list[str]
    code: list[str]
    follows: bool  # the declaration before it, without an empty line between them


def declarations(lines: list[str]) -> Iterator[Declaration]:
    """Split lines into declarations, each with the comment above it.

    An empty line ends a comment that belongs to nothing.
    """
    comment: list[str] = []
    code: list[str] = []
    depth = 0
    follows = False
    for line in lines:
        text = line.strip()
        if not code and text.startswith("//"):
            comment.append(re.sub(r"^// ?", "", text))
            continue
        if not code and not text:
            comment = []
            follows = False
            continue
        code.append(line)
        depth += text.count("{") - text.count("}")
        if depth == 0 and text.endswith((";", "}")):
            yield Declaration(comment, code, follows)
            comment, code, follows = [], [], True
    if code:
        raise SystemExit(f"a declaration does not end: {code[0]}")


def namespace(text: str) -> list[str]:
    """Return the lines in `namespace tensorizer`."""
    body = text.partition("\nnamespace tensorizer {\n")[2]
    return body.rpartition("\n}  // namespace tensorizer")[0].splitlines()


def prose(comment: list[str]) -> str:
    """Return a comment as Markdown: two columns become a list, and indented lines code."""
    lines: list[str] = []
    for line in comment:
        indented = line.startswith("    ")
        if lines and lines[-1] and indented != lines[-1].startswith("    ") and line:
            lines.append("")
        if indented:
            lines.append(line)
        elif term := TERM.match(line):
            lines += [""] if lines and not lines[-1].startswith("- ") else []
            lines.append(f"- `{term[1]}`: {term[2]}")
        else:
            lines.append(OTHER_PAGE.sub(r"[\1](\1)", CALL.sub(r"`\1`", line)))
    return "\n".join(lines).strip("\n")


def code_block(lines: list[str]) -> str:
    indent = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    return "\n".join(["```c++", *(line[indent:] for line in lines), "```"])


def members(lines: list[str]) -> Iterator[Declaration]:
    """Return the public methods of a class. Those that one comment is for are one declaration."""
    public = re.split(r"^ public:$", "\n".join(lines[1:-1]), flags=re.MULTILINE)[-1]
    public = re.split(r"^ private:$", public, flags=re.MULTILINE)[0]
    groups: list[Declaration] = []
    for each in declarations(public.splitlines()):
        each.code[-1] = re.sub(r" \{ return .*\}$", ";", each.code[-1])
        if each.code[0].lstrip().startswith("~"):
            continue
        if each.follows and not each.comment and groups:
            groups[-1].code += each.code
        else:
            groups.append(each)
    return iter(groups)


def of_class(name: str, declared: Declaration) -> Iterator[str]:
    yield f"### class {name}\n"
    yield f"{prose(declared.comment)}\n"
    for each in members(declared.code):
        yield f"{code_block(each.code)}\n"
        if each.comment:
            yield f"{prose(each.comment)}\n"


def of_header(header: str) -> Iterator[str]:
    text = (HEADERS / f"{header}.h").read_text()
    intro = text.partition("#pragma once")[0].splitlines()
    yield f"## {SECTIONS[header]}\n"
    yield f"`#include <tensorizer_ops/{header}.h>`\n"
    yield f"{prose([re.sub('^// ?', '', line) for line in intro])}\n"
    for each in declarations(namespace(text)):
        first = each.code[0]
        if FORWARD.match(first):
            continue
        kind = TYPE.match(first)
        if not each.comment and not kind and "TensorMap" not in first:
            raise SystemExit(f"{header}.h: {first} has no comment")
        if kind and first.startswith("class"):
            yield from of_class(kind[1], each)
            continue
        if kind:
            yield f"### {first.split()[0]} {kind[1]}\n"
        elif first.startswith("using"):
            yield f"### {first.split()[1]}\n"
        elif function := NAME.search(first):
            yield f"### {function[1]}\n"
        else:
            yield f"### {first.partition(' =')[0].split()[-1]}\n"
        yield f"{code_block(each.code)}\n"
        if each.comment:
            yield f"{prose(each.comment)}\n"


def page() -> str:
    missing = {path.stem for path in HEADERS.glob("*.h")} ^ set(SECTIONS)
    if missing:
        raise SystemExit(f"tools/make_cpp_reference.py does not know where to show {missing}")
    head = PROGRAMS.sub("", PAGE.read_text())
    lines = [line for header in SECTIONS for line in of_header(header)]
    return head.rstrip() + "\n\n" + "\n".join(lines).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    text = page()
    if not parser.parse_args().check:
        PAGE.write_text(text)
    elif PAGE.read_text() != text:
        sys.exit(f"{PAGE.name} is not up to date: run python tools/make_cpp_reference.py")


if __name__ == "__main__":
    main()
