"""The version under the name ``tensorizer``: the release whose interface this is, and our own."""

from tensorizer_ops import __version__ as _ours

__version__ = f"2.12.1+ops{_ours}"
