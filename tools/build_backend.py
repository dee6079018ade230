"""The build backend of pyproject.toml: setuptools, and ninja from PyPI only where there is none.

A front end that checks what a build requires does not know a ninja of the system, so it may not
stand in pyproject.toml.
"""

from __future__ import annotations

import shutil

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403

ConfigSettings = dict[str, "str | list[str] | None"] | None


def _ninja() -> list[str]:
    return [] if shutil.which("ninja") else ["ninja"]


def get_requires_for_build_wheel(config_settings: ConfigSettings = None) -> list[str]:
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_ninja()]


def get_requires_for_build_editable(config_settings: ConfigSettings = None) -> list[str]:
    return [*build_meta.get_requires_for_build_editable(config_settings), *_ninja()]
