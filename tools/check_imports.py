"""Checks imports between parts of the Python code against the table that docs/design.md describes.

Every edge that is used must be allowed, every edge that is allowed must be used, and imports may
not form a cycle. Imports inside functions, and for type checkers only, count.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from edges import faults_of

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "tensorizer_ops"

# The files at the root of the package that are not public modules. Its folders are layers, too.
AT_THE_ROOT = {
    "__main__": "_cli",
    "_core": "native",
    "errors": "errors",
}

# A layer, and the layers that its files may import beside their own.
ALLOWED = {
    "native": [],
    "errors": [],
    "_base": ["native", "errors"],
    "_compile": ["native", "errors", "_base"],
    "_registration": ["errors", "_base", "_compile"],
    "_front": ["native", "errors", "_base", "_compile", "_registration", "_distributed"],
    "_compat": ["native", "errors", "_base"],
    "_distributed": ["errors", "_base"],
    "_dcp": ["native", "errors", "_base", "_front", "_distributed"],
    "_chain": ["errors", "_base", "_front", "_dcp", "_distributed"],
    "_versions": ["native", "errors", "_base", "_front", "_attest"],
    "_attest": ["errors", "_base", "_front", "_distributed"],
    "_vllm": ["errors", "_base", "_front", "_versions", "_attest"],
    "_hf": ["errors", "_base", "_front"],
    "_cli": ["native", "errors", "_base", "_front", "_chain", "_versions", "_hf", "public"],
    "public": [
        *("native", "errors", "_base", "_registration", "_front"),
        *("_compat", "_distributed", "_dcp", "_chain", "_versions", "_attest", "_vllm", "_hf"),
    ],
    "local_servers": [],
    "benchmarks": [],
    "benchmarks/harness": ["public", "local_servers"],
    "benchmarks/local": ["public", "benchmarks/harness"],
    "benchmarks/curves": ["public", "benchmarks/harness", "local_servers"],
    "benchmarks/remote": ["benchmarks/harness", "local_servers"],
    "benchmarks/scale": ["public", "benchmarks/harness", "local_servers"],
    "benchmarks/charts": ["benchmarks/harness"],
    "examples": ["public", "local_servers"],
    "tools": ["errors", "public", "local_servers"],
    "support": ["public", "local_servers", "_versions"],
    "tests": [
        *("native", "errors", "_base", "_front", "_cli", "_compat", "_compile"),
        *("_distributed", "_dcp", "_chain", "_versions", "_hf"),
        *("public", "local_servers", "support"),
        *("benchmarks/charts", "benchmarks/harness", "benchmarks/scale"),
    ],
}
# Files that may import more than their layer, and why.
EXCEPTIONS = {
    # A key object is registered under a name with keys.add(), like a key of the program.
    "tensorizer_ops/_compat/named_key.py": ["tensorizer_ops/keys.py"],
    # The default device is that of utils.get_device(), which programs may replace.
    "tensorizer_ops/_compat/deserializer.py": ["tensorizer_ops/utils.py"],
    # A URI is opened by open_stream().
    "tensorizer_ops/_compat/files.py": ["tensorizer_ops/stream_io.py"],
}


def layer_of(name: str) -> str:
    """Return the layer of a file, given by its path from the root of the repository."""
    folder, *rest = name.split("/")
    if folder == PACKAGE:
        if rest[0].startswith("_") and len(rest) > 1:
            return rest[0]
        return AT_THE_ROOT.get(Path(name).stem, "public")
    if folder == "benchmarks":
        return name.rpartition("/")[0]
    return "support" if name.startswith("tests/support/") else folder


def file_of(module: str, folder: str) -> str | None:
    """Return the file that a script in ``folder`` imports as ``module``; None if it is not ours."""
    path = module.replace(".", "/")
    # The folder of a script is on sys.path; that of a module in the package is not.
    beside = [] if folder.startswith(PACKAGE) else [f"{folder}/", "tests/"]
    for place in ("", *beside):
        for candidate in (f"{path}.py", f"{path}.pyi", f"{path}/__init__.py"):
            if (ROOT / (place + candidate)).is_file():
                return place + candidate
    return None


def named_by(argument: ast.expr, name: str) -> str:
    """Return the module that an argument of import_module() names in a file, as far as it is known.

    It is a text, or an f-string, of which the package before the first unknown part counts.
    """
    known = ""
    for part in argument.values if isinstance(argument, ast.JoinedStr) else [argument]:
        if isinstance(part, ast.Constant):
            known += part.value
        elif isinstance(part, ast.FormattedValue) and ast.unparse(part.value) == "__name__":
            known += name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        else:
            return known.rpartition(".")[0]
    return known


def imports(name: str) -> Iterator[str]:
    """Yield each file of ours that a file imports."""
    folder = name.rpartition("/")[0]
    for node in ast.walk(ast.parse((ROOT / name).read_text())):
        modules: list[str] = []
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            modules = [named_by(node.args[0], name)]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # A relative import counts from the folder of the file, one level up for each dot more.
            base = folder.split("/")[: folder.count("/") + 2 - node.level] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            # A name that is imported from a package may be a module.
            names = [f"{origin}.{alias.name}" for alias in node.names]
            modules = [m if file_of(m, folder) else origin for m in names]
        for module in modules:
            found = file_of(module, folder)
            if found not in (None, name):
                yield found


def main() -> str:
    folders = [PACKAGE, "local_servers", "benchmarks", "examples", "tools", "tests"]
    names = sorted(
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
    )
    files = {name: set(imports(name)) for name in names}
    faults = [
        f"{name} imports {other}: tests share code through tests/support"
        for name in names
        for other in files[name]
        if layer_of(name) == layer_of(other) == "tests"
    ]
    return "\n".join(faults + faults_of(files, ALLOWED, layer_of, exceptions=EXCEPTIONS))


if __name__ == "__main__":
    sys.exit(main() or None)
