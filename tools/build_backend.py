"""The build backend of pyproject.toml: setuptools, with ninja from PyPI if none is installed.

ninja cannot be a requirement in pyproject.toml: front ends that check requirements do not see the
system's ninja.
"""

from __future__ import annotations

import platform
import shutil
import sys

# pip compares requires-python with the interpreter only when it has run this backend.
if sys.version_info < (3, 10):  # noqa: UP036
    sys.exit(
        f"tensorizer_ops needs Python 3.10 or later, and this is Python {platform.python_version()}"
    )

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403

ConfigSettings = dict[str, "str | list[str] | None"] | None


def _ninja() -> list[str]:
    return [] if shutil.which("ninja") else ["ninja"]


def get_requires_for_build_wheel(config_settings: ConfigSettings = None) -> list[str]:
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_ninja()]


def get_requires_for_build_editable(config_settings: ConfigSettings = None) -> list[str]:
    return [*build_meta.get_requires_for_build_editable(config_settings), *_ninja()]
