"""Saves a model to S3 and loads it from there.

    python examples/s3.py s3://BUCKET/model.tensors

Credentials, region and endpoint come from the environment, from `~/.aws` or from a role, as with
AWS's own tools. A save uploads parts while it hashes later tensors. The object appears when the
upload is complete.
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

    # The statistics of a Reader show where the time went.
    reader = tensorizer_ops.Reader(uri, options={"connections": 8})
    loaded = reader.load()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    stats = reader.stats()
    print(f"{stats['bytes'] / 1e6:.0f} MB in {stats['seconds']:.2f} s", end=", ")
    print(f"{stats['requests']:.0f} requests over {stats['connections']:.0f} connections")


if __name__ == "__main__":
    main()
