"""Saves a model to S3 and loads it from there.

    python examples/s3.py s3://BUCKET/model.tensors

Credentials, region and endpoint are found as AWS's own tools find them: in the environment, in
`~/.aws`, from a role. The parts of a save go up while later tensors are still being hashed, and the
object appears when all of it is there.
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
    uri = parser.parse_args().uri
    tensors = {f"layer{i}": torch.randn(1024, 1024) for i in range(8)}
    tensorizer_ops.save(uri, tensors)

    # A reader says where the time went.
    reader = torch.classes.tensorizer.Reader(uri, {"connections": "8"})
    loaded = reader.load()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    stats = reader.stats()
    print(f"{stats['bytes'] / 1e6:.0f} MB in {stats['seconds']:.2f} s", end=", ")
    print(f"{stats['requests']:.0f} requests over {stats['connections']:.0f} connections")


if __name__ == "__main__":
    main()
