"""Builds the site from the pages of this repository, in build/site/html.

    python tools/site/build.py

The pages keep their places, so a link that leads to a file here leads to it there. A folder that a
page links to gets a page that lists its files. Any dead link or anchor is an error.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from messages import with_messages  # noqa: E402
from signatures import entries  # noqa: E402

PAGES = ROOT / "build" / "site" / "pages"
REFERENCE = ROOT / "docs" / "reference.md"
HEADERS = ROOT / "docs" / "cpp.md"
# A search for an error message should find this page before pages that quote the message.
MESSAGES = ROOT / "docs" / "troubleshooting.md"
FIRST_IN_SEARCH = "---\nsearch:\n  boost: 10\n---\n\n"
# In a table, GitHub wants `a \| b` for what Python's Markdown writes as `a | b`.
CODE = re.compile(r"`[^`\n]*`")
# GitHub picks the picture by the theme of the system, the site by that of the page.
PICTURE = re.compile(
    r'<picture>\s*<source [^>]*srcset="([^"]+)">\s*<img src="([^"]+)"([^>]*)>\s*</picture>'
)
IMAGES = r'<img src="\2#only-light"\3><img src="\1#only-dark"\3>'
HEADER = re.compile(r"^- \[[^\]]+\]\((\S+\.h)\).*$", re.MULTILINE)
LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)]*)?\))")


def files_of(folder: Path) -> list[Path]:
    """Return the files in a folder, but for those that Python has cached."""
    return sorted(f for f in folder.rglob("*") if f.is_file() and "__pycache__" not in f.parts)


def listing(folder: Path) -> str:
    names = [file.relative_to(folder).as_posix() for file in files_of(folder)]
    items = "\n".join(f"- [{name}]({name})" for name in names)
    return f"# {folder.relative_to(ROOT).as_posix()}\n\n{items}\n"


def with_docstrings(page: str) -> str:
    """Return the page with what mkdocstrings shows in place of signatures."""
    lines = (f"::: {module}.{name}\n" if name else line for line, module, name in entries(page))
    return "\n".join(lines)


def with_headers(page: str) -> str:
    """Return the page with the headers that it links to."""

    def shown(link: re.Match[str]) -> str:
        return f"{link[0]}\n\n```cpp\n{(HEADERS.parent / link[1]).read_text()}```"

    return HEADER.sub(shown, page)


def main() -> None:
    shutil.rmtree(PAGES.parent, ignore_errors=True)
    wanted = [*ROOT.glob("*.md"), *files_of(ROOT / "docs"), ROOT / "tools" / "site" / "site.css"]
    folders: set[Path] = set()
    while wanted:
        source = wanted.pop()
        target = PAGES / source.relative_to(ROOT)
        if target.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix != ".md":
            shutil.copy(source, target)
            continue

        def lead(link: re.Match[str], page: Path = source) -> str:
            there = (page.parent / link[2]).resolve()
            if there.is_dir():
                folders.add(there)
                wanted.extend(files_of(there))
                return f"{link[1]}{link[2]}/README.md{link[3]}"
            if there.is_relative_to(ROOT) and there.is_file():
                wanted.append(there)
            return link[0]

        written = source.read_text()
        if source == MESSAGES:
            written = FIRST_IN_SEARCH + with_messages(written)
        elif source == REFERENCE:
            written = with_docstrings(written)
        elif source == HEADERS:
            written = with_headers(written)
        text = CODE.sub(lambda code: code[0].replace(r"\|", "|"), written)
        text = PICTURE.sub(IMAGES, text)
        text = LINK.sub(lead, text)
        target.write_text(text)
    for folder in folders:
        page = PAGES / folder.relative_to(ROOT) / "README.md"
        if not page.exists():
            page.write_text(listing(folder))
    configuration = str(Path(__file__).with_name("mkdocs.yml"))
    # With --quiet, warnings would not count.
    build = (sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", configuration)
    done = subprocess.run(
        build, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr)


if __name__ == "__main__":
    main()
