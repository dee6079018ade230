"""Keeps a model in Redis, from where many processes of a cluster load it.

    python examples/redis_cache.py redis://localhost:6379/model model.tensors

Without a file it makes a small model up. The keys appear in one transaction, and go after an hour.
"""

from __future__ import annotations

import sys

import torch

import tensorizer_ops


def main() -> None:
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    uri, *file = sys.argv[1:]
    tensors = tensorizer_ops.load(file[0]) if file else torch.nn.Linear(1024, 1024).state_dict()
    tensorizer_ops.save(uri, tensors, options={"ttl": "3600"})
    loaded = tensorizer_ops.load(uri, verify="all")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    print(f"{len(loaded)} tensors, {sum(tensor.nbytes for tensor in loaded.values()):,} bytes")


if __name__ == "__main__":
    main()
