"""Benchmarks. Each is a program: `python -m benchmarks.local.run` in the root of the repository."""

import os

# Set before the first import of numpy: threads of OpenBLAS would not survive a fork.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
