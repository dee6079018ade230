"""Saves a model to Redis, so that many processes can load it from there.

    python examples/redis_cache.py redis://localhost:6379/model model.tensors

Without a file, it saves a small random model. The keys appear in one transaction, and expire after
an hour.
"""

from __future__ import annotations

import argparse

import torch

import tensorizer_ops


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("uri")
    parser.add_argument("file", nargs="?")
    given = parser.parse_args()
    uri = given.uri
    tensors = torch.nn.Linear(1024, 1024).state_dict()
    if given.file is not None:
        tensors = tensorizer_ops.load(given.file)
    tensorizer_ops.save(uri, tensors, options={"ttl": "3600"})
    loaded = tensorizer_ops.load(uri, verify="all")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    print(f"{len(loaded)} tensors, {sum(tensor.nbytes for tensor in loaded.values()):,} bytes")


if __name__ == "__main__":
    main()
