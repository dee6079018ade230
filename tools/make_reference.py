"""Writes docs/reference.md from the signatures and docstrings of the public Python names.

    python tools/make_reference.py [--check]

Every name needs a docstring, and every argument a type. What an argument means is said under
``Args`` in the docstring, or in that of the function that its text refers to. --check writes
nothing, and fails if the page is not up to date.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ForwardRef

import tensorizer_ops
from tensorizer_ops import checkpoint, distributed, errors, hf, keys, safetensors

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference.md"

HEAD = """\
# Reference

Every public function and class of Python, with the types of its arguments. This page is generated
from the docstrings that `help()` shows; [python.md](python.md) explains them with examples,
[dispatcher.md](dispatcher.md) has the operators and C++, and [migrating.md](migrating.md) the names
that `tensorizer` has too.
"""

# The functions and classes of the package, in the order in which a reader meets them.
SECTIONS = {
    "Loading": [
        "load",
        "iterate",
        "load_into",
        "IncompatibleKeys",
        "load_slices",
        "load_constants",
    ],
    "Saving": ["save", "save_async", "Save", "externalize"],
    "Looking into a file": [
        "names",
        "info",
        "Info",
        "StoredTensor",
        "metadata",
        "verify",
        "verify_tensors",
        "digest",
    ],
    "An open file": ["Reader", "Prefetch", "Writer"],
    "From one file to another": ["convert", "encrypt", "decrypt", "rekey", "update", "Updated"],
    "The process": ["set_secret", "cmake_prefix_path", "install_as_tensorizer"],
}
# The names of `tensorizer`, which docs/migrating.md lists, and types and modules.
ELSEWHERE = {
    *("CryptographyError", "DecryptionParams", "EncryptionParams", "FilterFuncType"),
    *("TensorDeserializer", "TensorSerializer", "TensorType"),
    *("Hashes", "Options", "Progress", "Sink", "Slices", "Source", "Target", "Verify"),
    *(
        "__version__",
        "checkpoint",
        "distributed",
        "errors",
        "hf",
        "keys",
        "stream_io",
        "torch_compat",
        "utils",
    ),
}
ROLE = re.compile(r":\w+:`~?([^`]+)`")
ARGUMENT = re.compile(r"^    ((?:\w+, )*\w+): (.*)$")


def prose(text: str) -> str:
    """Return a docstring's text as Markdown."""
    text = ROLE.sub(lambda role: f"``{role[1].removeprefix('tensorizer_ops.')}``", text)
    return text.replace("``", "`")


def parts(doc: str) -> tuple[str, dict[str, str], dict[str, str]]:
    """Split a docstring into its text, its ``Args``, and its other sections by title."""
    text, *found = re.split(r"\n\n(?=(?:Args|Attributes|Raises|Returns):\n)", doc)
    sections = dict(section.split(":\n", 1) for section in found)
    said: dict[str, str] = {}
    current: list[str] = []
    for line in sections.pop("Args", "").splitlines():
        if start := ARGUMENT.match(line):
            current = start[1].split(", ")
            said |= dict.fromkeys(current, start[2])
        else:
            for name in current:
                said[name] += " " + line.strip()
    return text.strip(), said, sections


def said_elsewhere(text: str) -> dict[str, str]:
    """Return the ``Args`` of the function that a docstring refers to: "Otherwise like ..."."""
    role = ROLE.search(text)
    function = getattr(tensorizer_ops, role[1].rpartition(".")[2], None) if role else None
    return parts(inspect.getdoc(function) or "")[1]


def type_name(annotation: Any) -> str:
    if isinstance(annotation, ForwardRef):
        return annotation.__forward_arg__
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def defaults(parameter: inspect.Parameter) -> str:
    if parameter.default is inspect.Parameter.empty:
        return ""
    return f"`{parameter.default!r}`"


def parameters(function: Any) -> list[inspect.Parameter]:
    found = inspect.signature(function).parameters.values()
    return [each for each in found if each.name not in ("self", "cls")]


def signature(name: str, function: Any) -> str:
    words = []
    starred = False
    for each in parameters(function):
        if each.kind is each.KEYWORD_ONLY and not starred:
            words.append("*")
            starred = True
        words.append(each.name)
    returned = type_name(inspect.signature(function).return_annotation)
    # A class is made by a function that returns None.
    result = "" if returned in ("None", "_empty") else f" -> {returned}"
    return f"`{name}({', '.join(words)}){result}`"


def argument_table(name: str, function: Any, said: dict[str, str]) -> Iterator[str]:
    given = parameters(function)
    if not given:
        return
    yield "| argument | type | default | |"
    yield "|---|---|---|---|"
    for each in given:
        if each.annotation is inspect.Parameter.empty:
            raise SystemExit(f"{name}: {each.name} has no type")
        if each.name not in said:
            raise SystemExit(f"{name}: the docstring does not say what {each.name} is")
        kind, meaning = cell(type_name(each.annotation)), cell(prose(said[each.name]))
        yield f"| `{each.name}` | `{kind}` | {defaults(each)} | {meaning} |"
    yield ""


def of_function(name: str, function: Any) -> Iterator[str]:
    text, said, others = parts(inspect.getdoc(function) or "")
    if not text:
        raise SystemExit(f"{name} has no docstring")
    yield f"### {name}\n"
    yield f"{signature(name, function)}\n"
    yield f"{prose(text)}\n"
    yield from argument_table(name, function, said_elsewhere(text) | said)
    yield from lists(others)


def lists(sections: dict[str, str]) -> Iterator[str]:
    """Show what a docstring says about results and errors."""
    for title, body in sections.items():
        yield f"{title}:\n"
        lines = textwrap.dedent(body).splitlines()
        if title == "Returns":
            yield f"{prose(' '.join(lines))}\n"
            continue
        for line in lines:
            yield prose(line) if line.startswith(" ") else f"- {prose(line)}"
        yield ""


def members(kind: type) -> Iterator[tuple[str, Any]]:
    for name, value in vars(kind).items():
        if not name.startswith("_") and (callable(value) or isinstance(value, property)):
            yield name, value


def of_class(name: str, kind: type) -> Iterator[str]:
    text, said, others = parts(inspect.getdoc(kind) or "")
    if not text:
        raise SystemExit(f"{name} has no docstring")
    yield f"### {name}\n"
    if said:
        yield f"{signature(name, kind.__init__)}\n"
    yield f"{prose(text)}\n"
    if said:
        yield from argument_table(name, kind.__init__, said)
    elif issubclass(kind, tuple):
        yield "| attribute | type |"
        yield "|---|---|"
        yield from (
            f"| `{key}` | `{cell(type_name(t))}` |" for key, t in kind.__annotations__.items()
        )
        yield ""
    yield from lists(others)
    rows = []
    for member, value in members(kind):
        function = value.fget if isinstance(value, property) else value
        doc = inspect.getdoc(function)
        if not doc:
            raise SystemExit(f"{name}.{member} has no docstring")
        first = " ".join(doc.split("\n\n")[0].split())
        shown = f"`{member}`" if isinstance(value, property) else signature(member, function)
        rows.append(f"| {cell(shown)} | {cell(prose(first))} |")
    if rows:
        yield "| method | |"
        yield "|---|---|"
        yield from rows
        yield ""


def of_names(module: ModuleType, names: list[str]) -> Iterator[str]:
    for name in names:
        value = getattr(module, name)
        yield from of_class(name, value) if inspect.isclass(value) else of_function(name, value)


def public(module: ModuleType) -> list[str]:
    """Return the functions and classes that a module defines, in the order of its source."""
    found = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    return sorted(found, key=lambda name: inspect.getsourcelines(getattr(module, name))[1])


def of_keys() -> Iterator[str]:
    yield f"## {keys.__name__}\n"
    yield f"{prose((inspect.getdoc(keys) or '').partition('::')[0])}.\n"
    yield from of_names(keys, public(keys))


def of_module(module: ModuleType) -> Iterator[str]:
    yield f"## {module.__name__}\n"
    yield f"{prose(inspect.getdoc(module) or '')}\n"
    yield from of_names(module, module.__all__)


def of_safetensors() -> Iterator[str]:
    yield f"## {safetensors.__name__}\n"
    yield "What `safetensors` and `safetensors.torch` have, with the same arguments.\n"
    yield "| function or class | |"
    yield "|---|---|"
    for name in public(safetensors):
        value = getattr(safetensors, name)
        first = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
        shown = signature(name, value.__init__ if inspect.isclass(value) else value)
        yield f"| {cell(shown)} | {cell(prose(first))} |"
    yield ""


def of_errors() -> Iterator[str]:
    yield "## tensorizer_ops.errors\n"
    yield f"{prose(inspect.getdoc(errors) or '')}\n"
    yield "| class | is also | |"
    yield "|---|---|---|"
    for name in public(errors):
        kind = getattr(errors, name)
        if not (inspect.isclass(kind) and issubclass(kind, BaseException)):
            continue
        bases = (base for base in kind.__bases__ if base.__module__ != errors.__name__)
        known = ", ".join(f"`{base.__qualname__}`" for base in bases)
        first = " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())
        yield f"| `{name}` | {known} | {cell(prose(first))} |"
    yield ""


def page() -> str:
    shown = {name for names in SECTIONS.values() for name in names}
    if wrong := set(tensorizer_ops.__all__) ^ (shown | ELSEWHERE):
        raise SystemExit(f"tools/make_reference.py does not know where to show {sorted(wrong)}")
    lines = [HEAD]
    for title, names in SECTIONS.items():
        lines.append(f"## {title}\n")
        lines += of_names(tensorizer_ops, names)
    lines += [
        *of_keys(),
        *of_module(checkpoint),
        *of_module(distributed),
        *of_module(hf),
        *of_safetensors(),
        *of_errors(),
    ]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    text = page()
    if not parser.parse_args().check:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        sys.exit(f"{PAGE.name} is not up to date: run python tools/make_reference.py")


if __name__ == "__main__":
    main()
