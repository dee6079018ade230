"""The option types of loads and saves, and their conversion to strings.

Some options are secrets, so errors show only the names of options.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NoReturn, TypedDict

from tensorizer_ops._base.arguments import is_unicode, kind_of, not_unicode, wrong


class KnownOptions(TypedDict, total=False):
    """All options, except ``header.NAME``: a type checker finds a misspelt name in such a dict."""

    ca_file: str | float
    ca_path: str | float
    client_cert: str | float
    client_key: str | float
    insecure: str | float
    http2: str | float
    header_everywhere: str | float
    insecure_redirects: str | float
    connect_timeout: str | float
    stall_timeout: str | float
    timeout: str | float
    node_folder: str | float
    trust: str | float
    signature: str | float
    subject: str | float
    signed_folder: str | float
    hash_first: str | float
    connections: str | float
    chunk_size: str | float
    retries: str | float
    max_bandwidth: str | float
    s3_access_key_id: str | float
    s3_secret_access_key: str | float
    s3_session_token: str | float
    s3_endpoint: str | float
    s3_region: str | float
    s3_profile: str | float
    s3_config_path: str | float
    force_http: str | float
    s3_anonymous: str | float
    s3_requester_pays: str | float
    s3_version_id: str | float
    s3_sse_customer_key: str | float
    s3_addressing: str | float
    s3_signature_version: str | float
    az_endpoint: str | float
    az_account_key: str | float
    az_sas_token: str | float
    az_bearer_token: str | float
    hf_endpoint: str | float
    hf_token: str | float
    redis_user: str | float
    redis_password: str | float
    db: str | float
    ttl: str | float
    overwrite: str | float
    memory_ceiling: str | float
    staging: str | float
    key: str | float
    kdf_limit: str | float
    require_authenticated: str | float
    digest: str | float
    io: str | float
    fsync: str | float
    replace_links: str | float
    kdf: str | float
    digests: str | float
    digest_chunk: str | float
    plain_digests: str | float
    format: str | float
    share: str | float
    max_shard_size: str | float


# Type checkers accept an int for a float, and a bool for an int.
Options = Mapping[str, str | float] | KnownOptions
Metadata = Mapping[str, str | float]

Verify = Literal["none", "crc32", "all"]
Hashes = Literal["all", "crc32", "sha256", "chunked", "all+chunked", "none"]


class SecretOptions(dict[str, str]):
    """Options of the ops. Some may be secrets, so its repr shows only their names."""

    def __repr__(self) -> str:
        return f"<options: {', '.join(self)}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("options cannot be pickled: they may contain secrets")


class _SecretPairs(list[tuple[str, str]]):
    def __repr__(self) -> str:
        return f"<options: {', '.join(name for name, _ in self)}>"


def _text(value: str | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def texts_of(metadata: Metadata | None) -> dict[str, str] | None:
    """Return metadata with numbers as texts; what else is no text stays, for who checks it."""
    return None if metadata is None else {key: _text(value) for key, value in metadata.items()}


def as_text(options: Options | None) -> dict[str, str]:
    """Convert options to the strings that the ops take.

    Checks types here because the dispatcher prints all options if one has the wrong type.
    """
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise wrong("options", options, "a dict or None")
    given: dict[str, str] = {}
    for name, value in options.items():
        if not isinstance(name, str):
            raise TypeError(f"options has a name that is {kind_of(name)}, and must be str")
        if isinstance(value, str | int | float):
            given[name] = _text(value)
        else:
            raise TypeError(
                f"option {name!r} is {kind_of(value)}, and must be str, int, float or bool"
            )
        if not (is_unicode(name) and is_unicode(given[name])):
            raise not_unicode(f"option {name!r}")
    return given


def as_pairs(options: Options | None) -> list[tuple[str, str]]:
    """Convert options to the pairs that ``_core`` takes, whose repr shows only names."""
    return _SecretPairs(as_text(options).items())


def bytes_of(options: Options | None, name: str) -> int | None:
    """Return an option that is a number of bytes, perhaps with a unit; ``None`` if it is none."""
    from tensorizer_ops import _core  # which is loaded after this module

    return _core.parse_bytes(as_text(options).get(name, ""))


def memory_ceiling(options: Options | None) -> int:
    """Return the bytes that a load may take beyond its tensors, of options that a reader took."""
    return bytes_of(options, "memory_ceiling") or 48 << 20


def kept(options: Options | None) -> dict[str, str]:
    """Return options for later, whose repr shows no values; they cannot be pickled if any.

    Paths in them are absolute, because the program may change its working directory meanwhile.
    """
    from tensorizer_ops import _core  # which is loaded after this module

    given = SecretOptions(_core.absolute_paths(as_pairs(options)))
    return given or {}
