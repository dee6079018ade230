"""Checks what the README says of other libraries, in their newest releases on PyPI.

    python tools/check_peers.py

Says which cells of the comparison are no longer true. A cell is compared with what the files of a
wheel contain: a regular expression must be found in one of them if the library can do something,
and in none if it cannot.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parent.parent
# Distributions by the names in the table. torch is not here: it is one of the requirements.
PEERS = {
    "tensorizer": "tensorizer",
    "safetensors": "safetensors",
    "fastsafetensors": "fastsafetensors",
    "InstantTensor": "instanttensor",
    "Run:ai streamer": "runai-model-streamer",
    "ModelExpress": "modelexpress",
}
# What the files of a library contain if it can do what a row is about.
EVIDENCE = {
    "memory-mapped tensors": r"MmapStorage|UntypedStorage\.from_file\(",
    "loads part of a file": r"get_tensor|filter_func",
    "checks bytes while loading": r"verify_hash",
    "saves": r"def save_file|def save_sharded|def write_module",
    "an interrupted save keeps the old file": r"os\.replace\(|NamedTempFile.*persist",
    "loads from": r"s3://|threefs|nixl",
    "saves to servers": r"\.upload_file\(|upload_fileobj",
    "resumes broken transfers": r"Retrying object chunk",
    "encryption": r"EncryptionParams|aes_gcm|AESGCM",
    "pinned memory for GPUs": r"pin_memory|MemHostRegister|HostAlloc",
    "GPUDirect": r"cuFileRead|GPUDirect",
    "one read for several GPUs": r"all_gather|broadcast\(",
}
CANNOT = {"no", "", "files"}


def table() -> dict[tuple[str, str], str]:
    """Return the cells of the comparison by row and column."""
    section = (ROOT / "README.md").read_text().partition("## Comparison")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    names = rows[0]
    return {(row[0], name): cell for row in rows[2:] for name, cell in zip(names, row, strict=True)}


def files_of(distribution: str, folder: Path) -> list[str]:
    download = ["download", "-qq", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", *download, distribution], check=True)
    (wheel,) = folder.iterdir()
    with ZipFile(wheel) as packed:
        names = [name for name in packed.namelist() if ".dist-info/" not in name]
        return [packed.read(name).decode("latin-1") for name in names if "/tests/" not in name]


def main() -> str:
    cells = table()
    wrong = []
    for peer, distribution in PEERS.items():
        with tempfile.TemporaryDirectory() as folder:
            texts = files_of(distribution, Path(folder))
        for row, evidence in EVIDENCE.items():
            found = any(re.search(evidence, text) for text in texts)
            cell = cells[row, peer]
            # A library that saves nothing may replace files of other kinds.
            applies = "interrupted" not in row or cells["saves", peer] == "yes"
            if applies and found == (cell in CANNOT):
                wrong.append(f"{peer}: {row}: {cell or 'nothing'!r}, and {evidence} is {found}")
    return "\n".join(wrong)


if __name__ == "__main__":
    sys.exit(main() or None)
