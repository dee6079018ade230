"""``verify`` and ``digest``. Neither needs torch."""

from __future__ import annotations

import contextlib
import os
from argparse import Namespace
from collections.abc import Callable, Set
from functools import partial
from typing import NamedTuple

from tensorizer_ops import _core, errors, trust
from tensorizer_ops._base.folder import (
    BUNDLE,
    SIGNATURE,
    USUAL,
    Folder,
    is_signed_file,
    unsigned,
)
from tensorizer_ops._base.progress import reported
from tensorizer_ops._base.quoting import quoted
from tensorizer_ops._base.signed_folder import files_in, is_harmless
from tensorizer_ops._base.tables import safe
from tensorizer_ops._base.targets import local_path, to_uri
from tensorizer_ops._chain.files import checks_of, is_own_name
from tensorizer_ops._chain.listing import DAMAGE
from tensorizer_ops._cli.main import report, status_of
from tensorizer_ops._cli.options import is_encrypted, reading
from tensorizer_ops._cli.output import bar, green, name_of
from tensorizer_ops._cli.parsers import DIFFERENT, UsageError
from tensorizer_ops._cli.signatures import policy_of
from tensorizer_ops._front.inspection import File


class _Check(NamedTuple):
    """Something to verify."""

    run: Callable[[], str]  # returns the name of it
    finds_damage: Callable[[errors.Error], bool]  # whether an error says that it has changed


def verify(given: Namespace) -> int:
    """Verify all files, and go on after one that is damaged. A file that ends too soon is, too."""
    options = reading(given)
    worst = 0
    for uri in given.uri:
        for check in _checks(uri, given, options):
            try:
                name = check.run()
            except errors.Error as error:
                report(error, given.verbose)
                worst = max(worst, DIFFERENT if check.finds_damage(error) else status_of(error))
            else:
                if not given.quiet:
                    print(f"{name}: {green('OK')}")
    return worst


def _checks(uri: str, given: Namespace, options: dict[str, str]) -> list[_Check]:
    uri = to_uri(uri)  # of a path that is not UTF-8
    if given.trust is not None:
        return [_signature(uri, policy_of(given.trust), given.signature, options)]
    if given.signature is not None:
        if "trust" not in options:
            raise UsageError("--signature is for --trust, which says whom to trust")
        options = options | {"signature": given.signature}
    return _in_folder(uri, given, options) or [_file(uri, given, options)]


def _in_folder(uri: str, given: Namespace, options: dict[str, str]) -> list[_Check]:
    """Return what to verify of a folder with a checkpoint, or with files that must be signed.

    Nothing is returned for other folders, and for files.
    """
    trusts = "trust" in options
    if _core.split_query(uri)[0].endswith((".tensors", ".safetensors")) or uri.startswith("fd:"):
        return []
    if trusts and is_signed_file(uri):
        return []
    try:
        folder = Folder(uri, unsigned(options))
        if folder.path is not None and not (trusts or os.path.isdir(folder.path)):
            return []
        found = checks_of(uri, options, given.verify, given.threads or 0)
        # A bundle, and the folder itself, may be away for a moment.
        is_signed = trusts and (not found or "signature" in options or folder.has(BUNDLE))
        beside = _beside(folder, found.keys()) if trusts and not is_signed else {}
    except errors.Error as error:
        if not trusts:
            # For a file, the error will say it; a server answers as it likes to names below one.
            is_none = isinstance(error, (errors.NotFound, errors.InvalidArgument))
            if is_none or local_path(uri) is None:
                return []
        return [_Check(partial(_raise, error), _is_damage)]
    place = folder.name.rstrip("/")

    def run(name: str, check: Callable[[], object]) -> str:
        check()
        return safe(f"{place}/{name}")

    checks = [_Check(partial(run, name, check), _is_damage) for name, check in found.items()]
    if is_signed:  # all that is in the folder
        others = {name: value for name, value in options.items() if name != "trust"}
        checks.append(
            _signature(_as_folder(uri), options["trust"], others.pop("signature", None), others)
        )
    for name, has_signature in beside.items():
        if has_signature:
            checks.append(_file(folder.below(name), given, options))
        else:
            checks.append(_Check(partial(_raise_unsigned, folder, name), _is_damage))
    return checks


def _as_folder(uri: str) -> str:
    """Return a URI by which a server cannot say that a folder is a file."""
    if local_path(uri) is not None:
        return uri
    place, query = _core.split_query(uri)
    return f"{place.rstrip('/')}/{query}"


def _beside(folder: Folder, parts: Set[str]) -> dict[str, bool]:
    """Return what is beside a chain, or a checkpoint of many ranks, and whether it has a signature.

    A signed one may have been put beside a changed model. A server cannot list what it has.
    """
    if folder.path is None:
        others = [name for name in (*USUAL, "config.json") if folder.has(name)]
    else:
        here = files_in(folder.path, ())
        others = [n for n in here if not (n in parts or is_own_name(n) or is_harmless(n))]
    return {name: "/" not in name and folder.has(name + SIGNATURE) for name in others}


def _raise_unsigned(folder: Folder, name: str) -> str:
    raise errors.Crypto(
        f"{folder.label} has files that are not signed, such as {quoted(name)}, beside a "
        f"checkpoint: move them away, or sign all of the folder with {BUNDLE!r}"
    )


def _raise(error: errors.Error) -> str:
    raise error


def _is_damage(error: errors.Error) -> bool:
    return isinstance(error, DAMAGE)


def _signature(uri: str, policy: str, signature: str | None, options: dict[str, str]) -> _Check:
    def run() -> str:
        found = trust.verify(uri, policy=policy, signature=signature, options=options)
        files = f"{len(found.files)} file{'s' * (len(found.files) != 1)}"
        place = _core.without_secrets(uri)
        return safe(f"{place}: {files}, signed by {found.signer}, root digest {found.subject}")

    return _Check(run, lambda error: isinstance(error, (errors.Crypto, errors.InvalidFormat)))


def _file(uri: str, given: Namespace, options: dict[str, str]) -> _Check:
    def run() -> str:
        file = File(uri, options)
        file.verify(given.verify, given.threads, bar(given.quiet, uri))
        return name_of(file)

    def finds_damage(error: errors.Error) -> bool:
        return isinstance(error, errors.InvalidFormat) or (
            isinstance(error, errors.Crypto)
            and ("trust" in options or ("key" in options and _is_encrypted(uri, options)))
        )

    return _Check(run, finds_damage)


def _is_encrypted(uri: str, options: dict[str, str]) -> bool:
    with contextlib.suppress(errors.Error):
        return is_encrypted(uri, options)
    return True


def digest(given: Namespace) -> int:
    """Print the digests of all files, and go on after one that has none."""
    options = reading(given)
    worst = 0
    for uri in given.uri:
        try:
            file = File(uri, options)
            with reported(file, bar(given.quiet, uri)):
                found = file.digest(given.threads, given.version, given.listed)
        except errors.Error as error:
            report(error, given.verbose)
            worst = max(worst, status_of(error))
        else:
            print(found if len(given.uri) == 1 else f"{found}  {name_of(file)}")
    return worst
