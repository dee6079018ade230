"""Compares loads that check a signature with loads that check none, or the hashes of the file.

    python -m benchmarks.local.signatures [--quick] [--rounds 9] [--directory DIRECTORY]
                                          [--json FILE]

A model with tensors of 64 MiB, 3 MiB and 4 KB is signed in shards of 1 MiB, and once more in whole.
A round loads it once in each way; ratios are medians over the rounds.

  memory    from a warm file, into fresh memory
  loopback  from nginx on this machine
  link      the same with 0.2 GB/s, which the option `max_bandwidth` leaves
  whole     a file that was signed in whole, against the longer of an unverified load and one
            SHA-256 of the file, and against both at the same time: a server on this machine, the
            load and the SHA-256 share its CPUs
  part      one tensor of 16 MiB from nginx: the bytes that it is asked for, against those needed
"""

from __future__ import annotations

import hashlib
import statistics
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

import tensorizer_ops
from benchmarks.harness import tables
from benchmarks.harness.results import Found, measured
from benchmarks.harness.servers import web_server

LINK = {"max_bandwidth": 200_000_000}
SMALL = 1000


def make_keys(folder: Path) -> tuple[Path, Path]:
    private, public = folder / "key.pem", folder / "key.pub"
    make = ["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", private]
    subprocess.run(make, check=True)
    subprocess.run(
        ["openssl", "ec", "-in", private, "-pubout", "-out", public],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    return private, public


def tensors_of(large: int) -> dict[str, torch.Tensor]:
    sizes = [16 << 20] * large + [3 << 18] * (2 * large) + [SMALL] * (10 * large) + [4 << 20]
    return {f"t{i}": torch.randn(size) for i, size in enumerate(sizes)}


def measure(folder: Path, large: int, rounds: int) -> Found:
    private, public = make_keys(folder)
    trust = {"trust": f"file:{public}"}
    tensors = tensors_of(large)
    size = sum(tensor.nbytes for tensor in tensors.values())
    seconds: dict[str, list[float]] = {}
    with web_server(folder / "web") as web:
        places = {}
        for name in ("shards.tensors", "whole.tensors", "shards.safetensors"):
            file = web.root / name
            tensorizer_ops.save(file, tensors)
            method = "files" if name.startswith("whole") else "shards"
            tensorizer_ops.sign(file, key=private, method=method)
            places[name] = file, web.url(name)
        file, uri = places["shards.tensors"]
        whole, whole_uri = places["whole.tensors"]
        other, _ = places["shards.safetensors"]
        ways = {
            "memory, unverified": (file, "none", {}),
            "memory, hashes": (file, "all", {}),
            "memory, signed": (file, "none", trust),
            "memory, signed in whole": (whole, "none", trust),
            "memory, hashes, safetensors": (other, "all", {}),
            "memory, signed, safetensors": (other, "none", trust),
            "loopback, hashes": (uri, "all", {}),
            "loopback, signed": (uri, "none", trust),
            "loopback, unverified": (uri, "none", {}),
            "loopback, signed in whole": (whole_uri, "none", trust),
            "link, unverified": (uri, "none", LINK),
            "link, signed": (uri, "none", LINK | trust),
            "link, signed in whole": (whole_uri, "none", LINK | trust),
        }
        content = whole.read_bytes()
        for _ in range(rounds):
            for way, (place, verify, options) in ways.items():
                begin = time.perf_counter()
                loaded = tensorizer_ops.load(place, verify=verify, options=options, copy=True)
                seconds.setdefault(way, []).append(time.perf_counter() - begin)
                assert all(torch.equal(loaded[name], value) for name, value in tensors.items())
                del loaded
            begin = time.perf_counter()
            hashlib.sha256(content)
            seconds.setdefault("SHA-256 of the file", []).append(time.perf_counter() - begin)
            for place, source in (("memory", file), ("loopback", uri)):
                begin = time.perf_counter()
                with ThreadPoolExecutor() as pool:
                    pool.submit(hashlib.sha256, content)
                    tensorizer_ops.load(source, copy=True)
                both = time.perf_counter() - begin
                seconds.setdefault(f"{place}, unverified beside SHA-256", []).append(both)
        last = f"t{len(tensors) - 1}"
        with tensorizer_ops.Reader(uri, options=trust) as reader:
            assert len(reader) == len(tensors)
            before = reader.stats()["received"]
            assert torch.equal(reader.load([last])[last], tensors[last])
            received = reader.stats()["received"] - before

    def ratio(way: str, to: str) -> float:
        return statistics.median(a / b for a, b in zip(seconds[way], seconds[to], strict=True))

    def ratio_of_whole(place: str) -> float:
        ways = (f"{place}, signed in whole", f"{place}, unverified", "SHA-256 of the file")
        rounds = zip(*(seconds[way] for way in ways), strict=True)
        return statistics.median(one / max(load, digest) for one, load, digest in rounds)

    return {
        "seconds": {way: statistics.median(found) for way, found in seconds.items()},
        "bytes": size,
        "memory, signed against hashes": ratio("memory, signed", "memory, hashes"),
        "safetensors, signed against hashes": ratio(
            "memory, signed, safetensors", "memory, hashes, safetensors"
        ),
        "loopback, signed against hashes": ratio("loopback, signed", "loopback, hashes"),
        "link, signed against unverified": ratio("link, signed", "link, unverified"),
        **{f"{place}, whole": ratio_of_whole(place) for place in ("memory", "loopback", "link")},
        **{
            f"{place}, whole against both": ratio(
                f"{place}, signed in whole", f"{place}, unverified beside SHA-256"
            )
            for place in ("memory", "loopback")
        },
        "part, received against needed": received / tensors[last].nbytes,
    }


def main() -> None:
    found = measured(__doc__, ("large", 12, 1), 9, measure, "signatures")
    print(tables.of_seconds(found.pop("seconds"), found.pop("bytes")))
    print(tables.of_ratios(found))


if __name__ == "__main__":
    main()
