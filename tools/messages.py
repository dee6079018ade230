"""Lists the error messages in the sources by the sections of docs/troubleshooting.md.

    python tools/messages.py

A message is what its literals say, with … for each value in it. A section of the page names the
folders and files whose messages belong to it, in a comment; of two that fit, the longer path
counts. A line in quotes there is for messages that begin with this text, wherever they are. The
site shows the messages in place of the comment, and at the top the sections of each class of error.
This checks that each message and each class has a section, and each line a message.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "troubleshooting.md"
CLASSES = "<!-- classes -->"
RAISES = re.compile(r"^## ([^\n]+)\n\nRaises (.+?)\n\n", re.MULTILINE | re.DOTALL)
SECTION = re.compile(r"^## ([^\n]+)$|^<!-- messages\n(.*?)^-->$", re.MULTILINE | re.DOTALL)

# Files whose texts are no errors: schemas of operators, and code.
NO_ERRORS = {"csrc/base/condition_variable.cpp", "csrc/ops/library.cpp"}
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
# What is no code, and the literals of strings.
NO_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|#[^\n]*|R"[^(]*\(.*?\)[^"]*"|("(?:[^"\\\n]|\\.)*")|'
    r"'(?:[^'\\\n]|\\.)+'",
    re.DOTALL,
)
# A literal that is a std::string, so that + joins it.
WRAPPED = re.compile(r'\bstd::string\(\s*((?:"(?:[^"\\\n]|\\.)*"\s*)+)\)')
BETWEEN = re.compile(r"[,;{}?=&|]|<<|(?<!:):(?!:)|\b(?:return|throw)\b")
GROUP = re.compile(r"\(([^()\[\]]*)\)|\[([^()\[\]]*)\]")


def is_message(text: str) -> bool:
    if text in NAMES or NO_MESSAGE.search(text):
        return False
    words = re.findall(r"[A-Za-z][a-z']+", text)
    return len(words) >= 2 and sum(map(len, words)) >= 9 and " " in text.strip("… ")


def tidy(text: str) -> str:
    text = re.sub(r"(…[\s'\"]*)+…", "…", text)
    text = text.strip().strip("…").strip().strip(":;,").strip()
    return text if text.count("'") % 2 == 0 else text.strip("'").strip()


def of_cpp(path: Path) -> list[str]:
    """Return the texts in one file: literals that are joined by +, with … for what is not one."""
    literals: list[str] = []
    found: list[str] = []

    def mask(match: re.Match[str]) -> str:
        if not match[1]:
            return " " if match[0].startswith(("/", "#")) else " 0 "
        literals.append(ast.literal_eval(match[1]))
        return f"@{len(literals) - 1}@"

    def term(code: str) -> str:
        if not re.fullmatch(r"\s*(?:@\d+@\s*)*", code):
            return "…"
        return "".join(literals[int(number)] for number in re.findall(r"\d+", code))

    def read(code: str) -> str:
        """Find the texts in code without brackets, and return what stands for it in a sum."""
        for part in BETWEEN.split(code):
            text = tidy("".join(map(term, part.split("+"))))
            if is_message(text):
                found.append(text)
        return " 0 "

    code, before = NO_CODE.sub(mask, WRAPPED.sub(r"\1", path.read_text())), ""
    while code != before:
        before, code = code, GROUP.sub(lambda group: read(group[0][1:-1]), code)
    read(code)
    return found


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
    return {text: sorted(set(files)) for text, files in found.items()}


@dataclass
class Section:
    """What the comment of a section names, and which messages these are."""

    title: str
    lines: list[str]
    messages: list[str] = field(default_factory=list)


def sections(page: str) -> list[Section]:
    found = []
    title = ""
    for match in SECTION.finditer(page):
        if match[1]:
            title = match[1]
        else:
            found.append(Section(title, match[2].splitlines()))
    return found


def assign(found: dict[str, list[str]], to: list[Section]) -> list[str]:
    """Give each message to a section, and return what is wrong."""
    places = {line: section for section in to for line in section.lines}
    used = set()
    wrong = []
    for text, files in found.items():
        fitting = [line for line in places if line[0] == '"' and text.startswith(line[1:-1])]
        fitting = fitting or [line for line in places if files[0].startswith(line)]
        if not fitting:
            wrong.append(f"no section for {text!r} ({files[0]})")
            continue
        line = max(fitting, key=len)
        used.add(line)
        places[line].messages.append(text)
    wrong += [f"{places[line].title}: {line} has no messages" for line in places.keys() - used]
    # The messages of a new folder would have a section that nobody chose.
    wrong += [
        f"{places[line].title}: {line} has folders, so name its files"
        for line in places
        if line.startswith("csrc/") and any(path.is_dir() for path in (ROOT / line).glob("*"))
    ]
    return wrong


def by_class(page: str) -> dict[str, list[str]]:
    """Return for each class of errors the titles of the sections that name it."""
    tree = ast.parse((ROOT / "tensorizer_ops" / "errors.py").read_text())
    names = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    raises = RAISES.findall(page)
    return {
        name: [title for title, classes in raises if f"`{name}`" in classes]
        for name in names
        if name != "Error"
    }


def link(title: str) -> str:
    words = re.sub(r"[^\w\s-]", "", title).lower().split()
    return f"[{title}](#{'-'.join(words)})"


def with_messages(page: str) -> str:
    """Return the page with the sections of each class, and the messages of each section."""
    classes = "\n".join(
        f'- <a id="{name}"></a>`{name}`: {", ".join(map(link, titles))}'
        for name, titles in by_class(page).items()
    )
    page = page.replace(CLASSES, f'<a id="Error"></a>\n\n{classes}')
    parts = sections(page)
    assign(messages(), parts)
    given: Counter[str] = Counter()

    def item(text: str) -> str:
        name = "-".join(["msg", *words_of(text)[:7]])
        given[name] += 1
        number = f"-{given[name]}" if given[name] > 1 else ""
        return f'- <a id="{name}{number}"></a>{code(text)}'

    def items(section: Section) -> str:
        return "\n".join(map(item, sorted(section.messages, key=words_of)))

    shown = iter(parts)
    return SECTION.sub(lambda match: match[0] if match[1] else items(next(shown)), page)


def words_of(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower().replace("'", ""))


def code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def main() -> None:
    page = PAGE.read_text()
    wrong = assign(messages(), sections(page))
    wrong += [f"no section raises {name}" for name, titles in by_class(page).items() if not titles]
    sys.exit("\n".join(f"{PAGE.name}: {each}" for each in wrong) or None)


if __name__ == "__main__":
    main()
