"""The version that the alias ``tensorizer`` reports: that of tensorizer's API, and our own."""

from tensorizer_ops import __version__ as _ours

__version__ = f"2.12.1+ops{_ours}"
