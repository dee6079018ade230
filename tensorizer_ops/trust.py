"""Whose signatures loads trust, and the check of a whole model.

The option ``trust`` of a load is the name of a policy: ``named:NAME``, which :func:`add` stores, or
``file:PATH``, a public key or a policy in JSON. Such a load gives only bytes that somebody whom the
policy trusts has signed::

    tensorizer_ops.trust.add("release", keys=[Path("release.pub")])
    tensorizer_ops.load("model.tensors", options={"trust": "named:release"})

:func:`sign`, which is also ``tensorizer_ops.sign``, signs models.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from tensorizer_ops import _core, errors
from tensorizer_ops._base.arguments import check_names, checked, kind_of
from tensorizer_ops._base.folder import (
    BUNDLE,
    LIST,
    NEVER_SIGNED,
    SIGNATURE,
    Folder,
    has_no_folders,
    inside,
    refuse_bundle_of_file,
    refuse_path,
    unsigned,
    within,
)
from tensorizer_ops._base.option_uses import for_loads, for_saves
from tensorizer_ops._base.options import Options, as_pairs, as_text
from tensorizer_ops._base.progress import Progress, reported
from tensorizer_ops._base.signed_folder import (
    PIECE,
    files_in,
    folders_for_files,
    found_of_tools,
    is_empty,
    read_through,
    refuse_link,
    refuse_links,
    refuse_unsigned,
    unlisted,
)
from tensorizer_ops._base.signing import key_name, root_of, write_signature
from tensorizer_ops._base.targets import Target, local_path, to_uri

__all__ = ["Signed", "add", "add_sigstore", "remove", "sign", "verify"]

Pem = str | bytes | os.PathLike[str]


class Signed(NamedTuple):
    """A model whose signature and files were verified."""

    signer: str
    subject: str
    files: list[str]


@checked
def add(
    name: str,
    *,
    keys: Sequence[Pem] = (),
    roots: Sequence[Pem] = (),
    identities: Sequence[str] = (),
    at: datetime.datetime | None = None,
    subject: str | None = None,
) -> None:
    """Store a policy under a name, replacing what the name stood for.

    Args:
        name: the name that ``named:NAME`` refers to.
        keys: public keys on the curves P-256, P-384 and P-521: PEM, or the path of a file with it.
        roots: certificates of those who issue certificates: PEM, or paths. Never those of the
            system.
        identities: to whom they were issued: email addresses, URIs or DNS names of a certificate,
            or its whole subject, such as ``"CN=signer,O=Example"``.
        at: when certificates must be valid, with a time zone; by default now.
        subject: the root digest of the only model that is wanted, which
            :func:`sign` returns. Without it, an older or another model that the
            same people have signed passes as well.

    Raises:
        ValueError: there are neither keys nor roots, roots without identities, or a text that is
            no key or certificate that can be used.
    """
    check_names("identities", identities)
    if at is not None and at.tzinfo is None:
        raise errors.InvalidArgument("at has no time zone: datetime.now(timezone.utc) has one")
    _core.set_trust(
        name,
        [_pem_of("keys", key) for key in keys],
        [_pem_of("roots", root) for root in roots],
        list(identities),
        None if at is None else int(at.timestamp()),
        subject,
    )


@checked
def add_sigstore(
    name: str,
    bundle: Target,
    *,
    identity: str,
    issuer: str,
    root: str | os.PathLike[str],
    options: Options | None = None,
) -> str:
    """Check a bundle of Sigstore without the network, and store a policy that trusts its model.

    Needs the package ``sigstore``. Loads compare with the model that was checked here, so a bundle
    of another one is refused, also by the same signer.

    Args:
        name: the name that ``named:NAME`` refers to.
        bundle: the bundle of the model.
        identity: who must have signed: an email address, or the URI of a workflow.
        issuer: who must have confirmed the identity, such as ``"https://accounts.google.com"``.
        root: the file ``trusted_root.json`` of the Sigstore that is trusted.
        options: options as for loads, for a bundle on a server.

    Returns:
        The root digest of the model, as :func:`sign` does.

    Raises:
        tensorizer_ops.errors.Crypto: somebody else has signed it, or it cannot be verified.
        tensorizer_ops.errors.InvalidFormat: it is no bundle of a model.
        ImportError: the package ``sigstore`` is not installed.
    """
    for argument, who in (("identity", identity), ("issuer", issuer)):
        if not who:  # sigstore takes none for anybody's
            raise errors.InvalidArgument(f"{argument} is empty, which would be that of anybody")
    try:
        from sigstore.errors import Error
        from sigstore.models import Bundle, TrustedRoot
        from sigstore.verify import Verifier, policy
    except ImportError as error:
        raise ImportError(
            "bundles of Sigstore need the package sigstore: run `pip install sigstore`"
        ) from error
    uri, given = to_uri(bundle), as_pairs(for_loads(options))
    label = repr(_core.without_secrets(uri))
    # The errors of sigstore repeat what is in the files, so they are the context of no other error.
    trusted, payload, fault = None, None, ""
    try:
        trusted = TrustedRoot.from_file(os.fspath(root))
    except (Error, ValueError) as error:
        fault = type(error).__name__
    if trusted is None:
        raise errors.InvalidArgument(
            f"root {os.fspath(root)!r} is not the trusted_root.json of a Sigstore ({fault})"
        )
    file = _core.SigstoreBundle(uri, given)
    text = file.read()
    try:
        wanted = policy.Identity(identity=identity, issuer=issuer)
        verifier = Verifier(trusted_root=trusted)
        _, payload = verifier.verify_dsse(Bundle.from_json(text), wanted)
    except Error as error:
        # Without values of the bundle.
        fault = re.split(r":? ?\d+ validation error|: expected |\n", str(error)[:1000])[0]
        fault = fault or type(error).__name__
    except Exception as error:  # of any kind, for a certificate that is damaged
        fault = type(error).__name__
    if payload is None:
        raise errors.Crypto(
            f"{label}: it is not a bundle of Sigstore by {identity!r} of {issuer!r}: sigstore says "
            + file.quoted(fault.encode(errors="backslashreplace"))
        )
    _core.trust_checked(name, f"{identity} of {issuer}", payload)
    try:
        _, subject, *_ = _core.open_signature(uri, uri, f"named:{name}", given)
    except errors.Error:
        remove(name)
        raise
    return subject


@checked
def remove(name: str) -> None:
    """Remove the policy of a name. Open files keep it.

    Args:
        name: the name that was given to :func:`add`.
    """
    _core.forget_trust(name)


@checked
def verify(
    model: Target,
    *,
    policy: str,
    signature: Target | None = None,
    ignore_unsigned_files: bool = False,
    options: Options | None = None,
) -> Signed:
    """Check the signature of a model, and every byte of every file that it lists.

    Args:
        model: a folder, or a file. The URI of a folder on a server whose bundle is elsewhere ends
            with a slash.
        policy: whom to trust: ``file:PATH`` or ``named:NAME``.
        signature: the bundle; by default ``model.sig`` in the folder, or the name of the file with
            ``.sig`` behind it.
        ignore_unsigned_files: whether a folder of this machine may have other files than those that
            are listed. What loads use of them is refused even then.
        options: options as for loads, for files on servers.

    Raises:
        tensorizer_ops.errors.Crypto: nobody trusted has signed it, or a file is not signed.
        tensorizer_ops.errors.HashMismatch: a file was changed.
        FileNotFoundError: a file, or the bundle, is missing.
    """
    given = as_text(for_loads(options))
    for option, argument in (("trust", "policy"), ("signature", "signature")):
        if option in given:
            raise errors.InvalidArgument(f"option {option!r} is for loads: give {argument}=")
    place = _place_of(model, unsigned(given))
    if place.only is None:
        _core.refuse_name_of_file(place.uri)
    bundle = _bundle_of(place, signature)
    own = None if signature is not None or place.only is None else place.only + SIGNATURE
    if own is not None and not place.folder.has(own):
        bundle = place.folder.below(BUNDLE)
    signer, subject, _, listed, ignored, signed = _core.open_signature(
        bundle, place.uri, policy, as_pairs(given)
    )
    every = [name for name, _ in listed]
    prefix, counted = "", dict[str, str]()
    if place.only is None:
        refuse_bundle_of_file(place.folder.label, signed, every)
        _core.refuse_name_of_file(place.uri, every)
        prefix, counted = place.folder.names_from(bundle, given.get("signed_folder"))
    names = [place.only] if place.only else place.folder.listed(prefix, every)
    if place.only is None and (folder := place.folder.path) is not None:
        refuse_links(folder, names)
        if not ignore_unsigned_files:
            never = [*NEVER_SIGNED, *map(os.path.normpath, ignored)]
            left_out = [*within(prefix, never), *inside(folder, bundle)]
            advice = "remove them, or give ignore_unsigned_files=True"
            refuse_unsigned(folder, names, left_out, advice)
    given |= {"trust": policy, "signature": bundle, "subject": subject, **counted}
    access = _core.SharedAccess()
    for name in names:
        source = _core.RemoteBytes(
            place.uri_of(name), as_pairs(given), 0, None, PIECE, access, whole=True
        )
        if _is_index(name, read_through(source)) and place.only is not None:
            raise errors.InvalidArgument(
                f"{name!r} is the index of a model in several files: give their folder"
            )
    return Signed(signer, subject, names)


@checked
def sign(
    model: Target,
    *,
    key: str | os.PathLike[str],
    passphrase: str | None = None,
    certificates: Sequence[Pem] = (),
    signature: Target | None = None,
    method: Literal["shards", "files"] = "shards",
    shard_size: int | None = None,
    ignore: Sequence[str] = (),
    threads: int = 0,
    options: Options | None = None,
    progress: Progress | None = None,
) -> str:
    """Sign a model, as OpenSSF Model Signing v1.0 says.

    Args:
        model: a folder of this machine, or a file anywhere.
        key: a private key in PEM, on the curve P-256, P-384 or P-521: a ``pathlib.Path``,
            ``file:PATH``, ``env:NAME``, or ``named:NAME`` for what :func:`set_secret` has stored.
            Certificates may follow it there.
        passphrase: of a key that is encrypted, as for the other options that are secrets.
        certificates: the certificate of the key, then those that lead to a root: PEM, or paths.
            They come after those that follow the key.
        signature: the bundle to write; by default ``model.sig`` in the folder, or the name of the
            file with ``.sig`` behind it.
        method: ``"shards"`` signs parts of files, so that loads read and check only those that they
            need; ``"files"`` whole files, which every tool can verify.
        shard_size: bytes of a part; by default 1 MiB for up to 16 GB, and more for more, so that
            the bundle has at most 8 MB.
        ignore: files and folders, relative to the model, that are left out. Loads that trust the
            signature never use them, and vLLM and SGLang refuse a folder that has them, except
            READMEs, licenses and pictures.
        threads: how many threads compute; 0 means one for every CPU that the process may use.
        options: options as for loads and saves, for files on servers.
        progress: called with the bytes read so far and the bytes to read in all.

    Returns:
        The root digest, which tells this model from all others: the ``subject`` of a policy.

    Raises:
        ValueError: a key or certificate that cannot be used, a symbolic link, a folder with the
            name of a file or of its only file, an empty file that shards would not list, a folder
            in the place of a signature, or no file.
        tensorizer_ops.errors.Crypto: the passphrase is missing or wrong.
    """
    check_names("ignore", ignore)
    place = _place_of(model, unsigned(for_loads(options)))
    if not _is_text(place.name):
        raise errors.InvalidArgument(f"{place.name!r} cannot be signed: its name is not UTF-8")
    target = _bundle_of(place, signature)
    names = [os.path.normpath(name) for name in ignore]
    for given, name in zip(ignore, names, strict=True):
        if name.split("/")[0] in ("", ".", ".."):
            raise errors.InvalidArgument(
                f"ignore has {given!r}, which is no file or folder in the model: give names that "
                "count from there"
            )
    left_out = dict.fromkeys([*NEVER_SIGNED, BUNDLE, LIST, *names])
    folder = place.folder.path
    if place.only is None and place.folder.names_from(target, None)[0]:
        raise errors.InvalidArgument(
            f"signature: {BUNDLE!r} in a folder above {place.folder.label} is that of all files "
            "there: give it another name"
        )
    if place.only is not None:
        if folder is not None:
            path = os.path.join(folder, place.only)
            refuse_link(folder, path, errors.InvalidArgument, "sign the file itself")
        files = {place.only: place.uri}
    elif folder is None:
        raise errors.InvalidArgument(
            f"{place.folder.label} is a folder on a server, which cannot be listed: sign the model "
            "before it is uploaded"
        )
    elif _core.has_name_of_file(place.uri):
        raise errors.InvalidArgument(
            f"{place.folder.label} is a folder with the name of a file, which loads with the "
            "option 'trust' refuse: rename it, or sign a file in it"
        )
    else:
        left_out |= {name: None for name in inside(folder, target) if not name.startswith("..")}
        for name in folders_for_files(folder, left_out):
            raise errors.InvalidArgument(
                f"{os.path.join(folder, name)!r} is a folder, and only a file of this name can be "
                "left out: move it away, or give it another name"
            )
        found = files_in(folder, left_out)
        if [*found] == [place.name]:
            raise errors.InvalidArgument(
                f"{place.folder.label} has the name of its only file, whose signature would look "
                "the same: rename one of them"
            )
        for name, path in found.items():
            if "\\" in name or not _is_text(name):
                raise errors.InvalidArgument(
                    f"{path!r} cannot be signed: its name has a backslash, or is not UTF-8"
                )
            advice = "put the file there, or leave it out with ignore="
            refuse_link(folder, path, errors.InvalidArgument, advice)
        listed = [
            name
            for name, path in found.items()
            if not name.endswith("/") and not (method == "shards" and is_empty(path))
        ]
        for name in unlisted(found, listed):
            raise errors.InvalidArgument(
                f"{os.path.join(folder, name)!r} is empty, and has no shards to sign: remove it, "
                "leave it out with ignore=, or, if it is a file, sign with method='files'"
            )
        for name in found_of_tools(folder, left_out):
            raise errors.InvalidArgument(
                f"{os.path.join(folder, name)!r} is not signed there, and some libraries would use "
                "it: move it away"
            )
        files = {name: to_uri(Path(found[name])) for name in listed}
    if method == "files" and shard_size is not None:
        raise errors.InvalidArgument('shard_size is for method="shards"')
    if shard_size is not None and shard_size < 1:
        raise errors.InvalidArgument(f"shard_size is {shard_size}, and must be at least 1")
    signing = _core.Signing(
        place.name, [*files.items()], 0 if method == "files" else shard_size, [*left_out]
    )
    with reported(signing, progress):
        text = signing.start(
            key_name(key),
            passphrase or "",
            [_pem_of("certificates", each) for each in certificates],
            as_pairs(for_loads(options)),
            threads,
        )
    # Others may have put a link under its usual name.
    own = {} if signature is not None else {"replace_links": "true"}
    write_signature(text, target, own | for_saves(options))
    return root_of(text)


class _Place(NamedTuple):
    folder: Folder
    only: str | None  # the name of the file in it; None for all
    bundle: str  # its URI
    name: str  # of the model
    uri: str  # of the model

    def uri_of(self, name: str) -> str:
        """Return the URI of a file."""
        return self.folder.below(name) if self.only is None else self.uri


def _place_of(model: Target, options: Options) -> _Place:
    """Find out whether a model is a folder or a file, and where its bundle is."""
    path = local_path(model)
    if path is not None and os.path.isdir(path):
        folder = Folder(model, options)
        name = os.path.basename(os.path.abspath(path))
        return _Place(folder, None, folder.below(BUNDLE), name, to_uri(model))
    if path is not None:
        parent, name = os.path.split(path.rstrip("/"))
        folder = Folder(parent or ".", options)
    else:
        place, query = _core.split_query(to_uri(model))
        parent, _, name = place.rstrip("/").rpartition("/")
        if place.lower().startswith(("http://", "https://")):
            name = urllib.parse.unquote(name)
        elif place.lower().startswith("unix://"):
            _, _, name = _core.signed_path(to_uri(model)).rpartition("/")
        folder = Folder(parent + query, options)
        whole = Folder(model, options)
        refuse_path(name, folder.label)
        is_file = has_no_folders(place) or folder.has(name + SIGNATURE)
        if place.endswith("/") or (not is_file and whole.has(BUNDLE)):
            return _Place(whole, None, whole.below(BUNDLE), name, to_uri(model))
    return _Place(folder, name, folder.below(name + SIGNATURE), name, to_uri(model))


def _is_text(name: str) -> bool:
    # Bytes of a name that are not UTF-8 are surrogates.
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _bundle_of(place: _Place, signature: Target | None) -> str:
    """Return the URI of the bundle, which is beside the model if none is given."""
    if signature is None:
        return place.bundle
    uri = to_uri(signature)
    if not uri:
        raise errors.InvalidArgument("signature is empty: leave it out, or name a bundle")
    return uri


def _is_index(name: str, text: bytes) -> bool:
    """Return whether loads take a file for the index of several, from its text if it is JSON."""
    if not text:
        return False
    if name.lower().endswith(".index.json") or b'"weight_map"' in text:
        return True
    try:
        found = json.loads(text.decode(errors="replace"), strict=False, parse_int=str)
        return "weight_map" in found
    except RecursionError:
        return True
    except ValueError:
        return False


def _pem_of(argument: str, given: Pem) -> str:
    """Return PEM, which is in a file if it is given by a path. Around it may be any bytes."""
    if isinstance(given, os.PathLike):
        return Path(given).read_bytes().decode(errors="replace")
    if not isinstance(given, str | bytes):
        raise TypeError(f"{argument} has {kind_of(given)}, and must have PEM or paths")
    given = given.encode(errors="replace") if isinstance(given, str) else given
    text = given.decode(errors="replace")
    if "-----BEGIN " not in text:
        raise errors.InvalidArgument(
            f"{argument} has a text that is no PEM: give a path as pathlib.Path"
        )
    return text
