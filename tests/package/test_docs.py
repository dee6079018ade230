"""The code in the documentation runs without changes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from support.process import ROOT, environment, run_python

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
# A program, and what it prints, where the page shows that.
PRINTS = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELL = {"sh", "bash", "shell", "console"}


def blocks(languages: set[str]) -> list[tuple[str, str]]:
    """Returns (name, text) of each code block in one of the languages."""
    found = []
    for page in PAGES:
        for number, (language, text) in enumerate(BLOCK.findall(page.read_text())):
            if language in languages:
                found.append((f"{page.relative_to(ROOT)}-{number}", text))
    return found


PYTHON = blocks({"python", "py"})
PRINTED = dict(found for page in PAGES for found in PRINTS.findall(page.read_text()))


@pytest.mark.parametrize("text", [text for _, text in PYTHON], ids=[name for name, _ in PYTHON])
def test_python_blocks_run(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str,
) -> None:
    printed = PRINTED.get(text)
    if "s3://" in text:
        # The page assumes a machine that has a bucket, and its keys in the environment.
        for name, value in request.getfixturevalue("s3").environment().items():
            monkeypatch.setenv(name, value)
    if "redis://localhost/" in text:
        # The test server is not at the default port.
        place = request.getfixturevalue("redis").url("")
        text = text.replace("redis://localhost/", place)
    if "aoti_compile" in text:
        # For one program, precompiling headers takes longer than it saves.
        monkeypatch.setattr("torch._inductor.config.aot_inductor.precompile_headers", False)
    # TorchScript reads the source of what it compiles, so the block is a module with a file.
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "shown.py").write_text(text)
    if "install_as_tensorizer" in text:
        # It affects the whole process, so it runs in one of its own.
        run_python("import shown")
        return
    sys.modules.pop("shown", None)
    try:
        __import__("shown")
    finally:
        sys.modules.pop("shown", None)
    assert torch.get_default_dtype() == torch.float32
    if printed is not None:
        # The pages show a server at a port that is easy to read.
        assert re.sub(r"(?<=127\.0\.0\.1:)\d+", "8000", capsys.readouterr().out) == printed


def test_the_pages_are_there() -> None:
    names = {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "design.md", "format.md"}
    assert names <= {page.name for page in PAGES}


def test_the_reference_has_the_signatures_of_the_sources() -> None:
    command = [sys.executable, "-W", "ignore", ROOT / "tools" / "signatures.py", "--check"]
    subprocess.run(command, env=environment(), check=True)


def test_every_make_target_that_is_named_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([\w-]+)\s*:(?!=)", makefile, re.MULTILINE))
    shown = "\n".join(text for _, text in blocks(SHELL | {""}))
    prose = "\n".join(page.read_text() for page in PAGES)
    named = set(re.findall(r"^\s*\$?\s*make ([\w-]+)", shown, re.MULTILINE))
    named |= set(re.findall(r"`make ([\w-]+)`", prose))
    assert {"demo", "test"} <= named
    assert named <= targets


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        text = page.read_text()
        pictures = re.findall(r'\b(?:src|srcset)="([^":]+)"', text)
        for target in [*pictures, *re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)]:
            assert (page.parent / target).exists(), f"{page.name}: {target}"
