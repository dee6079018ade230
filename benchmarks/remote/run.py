"""Compares loads and saves over the network with other libraries and with bare libcurl.

    python -m benchmarks.remote.run [--quick] [--workloads http,s3] [--peers us,bare]

The servers run on this machine, on the same CPUs as their clients, and their files are in the page
cache. Every loaded or saved byte is compared with the original, outside of the timing. GB are 10^9
bytes.

  http, https   1 GiB in tensors of 32 MiB, from nginx
  far           3,000 tensors of 1 KiB, from a server with a round trip of 20 ms
  lazy          1,500 tensors of 4 KiB from such a server, one after another, each by its key
  s3            1 GiB in tensors of 32 MiB, from rclone and to it, every request signed
  redis         512 MiB in tensors of 32 MiB, from Redis and to it
"""

from __future__ import annotations

from benchmarks.harness.compare import Scene, compare
from benchmarks.harness.workloads import FAR, LARGE, LAZY
from benchmarks.remote.http import far, http, https, lazy
from benchmarks.remote.redis import redis
from benchmarks.remote.s3 import s3

SCENES = {
    "http": Scene("HTTP", LARGE, http),
    "https": Scene("HTTPS", LARGE, https),
    "far": Scene("3,000 tensors of 1 KiB, far away", FAR, far),
    "lazy": Scene("1,500 tensors of 4 KiB, key after key, far away", LAZY, lazy),
    "s3": Scene("S3", LARGE, s3),
    "redis": Scene("Redis", LARGE, redis),
}


def main() -> None:
    compare(__doc__, "remote", SCENES)


if __name__ == "__main__":
    main()
