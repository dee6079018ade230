"""``publish`` and ``follow``."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from tensorizer_ops import _core
from tensorizer_ops._cli.options import reading
from tensorizer_ops._cli.output import note


def publish(given: Namespace) -> int:
    from tensorizer_ops._versions.publisher import Publisher

    publisher = Publisher(
        given.uri,
        whole_every=given.whole_every,
        grace=given.grace,
        scratch=given.scratch,
        fenced=given.fenced,
        sign=None if given.sign_key_file is None else Path(given.sign_key_file),
        threads=given.threads,
        options=reading(given),
    )
    with publisher:
        version = publisher.publish(given.source, step=given.step)
    print(f"version {version.number}, step {version.step}, {version.digest}")
    return 0


def follow(given: Namespace) -> int:
    from tensorizer_ops._versions.follower import follow as versions

    number = None
    followed = versions(
        given.uri,
        given.target,
        interval=given.interval,
        patience=given.patience,
        threads=given.threads,
        options=reading(given),
        target_options=dict(given.target_options),
    )
    for number, step, digest in followed:
        print(f"version {number}, step {step}, {digest}", flush=True)
    if number is None:
        note(given.quiet, f"no version was published in {_core.without_secrets(given.uri)} yet")
    return 1 if number is None else 0
