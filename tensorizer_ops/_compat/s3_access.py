"""Endpoint and credentials for S3, from the arguments of ``open_stream`` and configuration."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tensorizer_ops import _core
from tensorizer_ops._base.options import SecretOptions

ConfigPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]

# botocore's names of the signature versions; ``s3`` (version 2) is for presigned URLs.
_SIGNATURES = {"v4": "s3v4", "s3v4": "s3v4", "s3": "s3"}


@dataclass(frozen=True, repr=False)
class Access:
    """The arguments of ``open_stream`` about S3; ``None`` if not given."""

    access_key_id: str | None
    secret_access_key: str | None
    endpoint: str | None
    region: str | None = None
    signature_version: str | None = None

    def __post_init__(self) -> None:
        for name, value in (
            ("s3_access_key_id", self.access_key_id),
            ("s3_secret_access_key", self.secret_access_key),
            ("s3_endpoint", self.endpoint),
            ("s3_region_name", self.region),
        ):
            if not isinstance(value, str | None):
                raise TypeError(f"{name} is {type(value).__name__}, and must be str or None")


class S3cfg(NamedTuple):
    """The settings in s3cmd's file; ``None`` if not set."""

    config_file: str | None = None
    s3_endpoint: str | None = None
    s3_access_key: str | None = None
    s3_secret_key: str | None = None
    use_https: bool | None = None

    def __repr__(self) -> str:
        return f"<what {self.config_file!r} says>"


def complete(
    given: Access,
    *,
    config_paths: Sequence[ConfigPath],
    must_exist: bool,
    force_http: bool | None,
    default_endpoint: str,
    enforce_scheme: Callable[[str, bool, bool], str],
) -> SecretOptions:
    """Return the options for an object, completed from s3cmd's file and AWS's configuration.

    Keys that are missing come from s3cmd's file, and then its endpoint is used as well. Otherwise
    the endpoint is that of AWS's configuration, or the default.

    Args:
        given: the caller's arguments.
        config_paths: possible paths of s3cmd's file; the first that exists is read.
        must_exist: whether it is an error if none exists.
        force_http: whether to use S3 without TLS.
        default_endpoint: the endpoint if none is configured.
        enforce_scheme: converts an endpoint to a URL: see :func:`with_scheme`.
    """
    session_token = ""
    if given.access_key_id is None or given.secret_access_key is None:
        found, access_token = read_s3cfg(config_paths, must_exist)
        key_id = found.s3_access_key if given.access_key_id is None else given.access_key_id
        secret = found.s3_secret_key
        if given.secret_access_key is not None:
            secret = given.secret_access_key
        if key_id and secret:
            if given.access_key_id is None and given.secret_access_key is None:
                session_token = access_token
            endpoint = given.endpoint or found.s3_endpoint
            given = replace(
                given, access_key_id=key_id, secret_access_key=secret, endpoint=endpoint
            )
            if force_http is None and found.use_https is not None:
                force_http = not found.use_https
    endpoint = given.endpoint
    from_aws = "" if endpoint else _core.aws_s3_endpoint()
    endpoint = enforce_scheme(
        endpoint or from_aws or default_endpoint, bool(from_aws), bool(force_http)
    )
    options = to_options(replace(given, endpoint=endpoint))
    if session_token:
        options["s3_session_token"] = session_token
    return options


def to_options(given: Access) -> SecretOptions:
    """Return the options for the arguments alone; an ``http://`` endpoint allows plain HTTP."""
    options = SecretOptions()
    if given.access_key_id == "" and given.secret_access_key == "":
        options["s3_anonymous"] = "true"
    elif given.access_key_id is None and given.secret_access_key is None:
        options["s3_anonymous"] = "without_keys"
    if given.access_key_id:
        options["s3_access_key_id"] = given.access_key_id
    if given.secret_access_key:
        options["s3_secret_access_key"] = given.secret_access_key
    if given.endpoint:
        options["s3_endpoint"] = given.endpoint
        if given.endpoint.lower().startswith("http://"):
            options["force_http"] = "true"
    if given.region is not None:
        options["s3_region"] = given.region
    options["s3_signature_version"] = _signature(given)
    return options


def _signature(given: Access) -> str:
    if given.signature_version:
        if given.signature_version not in _SIGNATURES:
            raise ValueError(
                f"s3_signature_version is {given.signature_version!r}, and must be 's3v4' or 's3'"
            )
        return _SIGNATURES[given.signature_version]
    # A cache in front of the store has the URL as its key, and only version 2 signatures stay the
    # same for a whole day.
    host = (given.endpoint or "").lower().rpartition("://")[2].partition("/")[0]
    return "s3" if "accel-object" in host.split(".") else "s3v4"


def with_scheme(endpoint: str, allow_http: bool = False, force_http: bool = False) -> str:
    """Return the URL of an endpoint; ``https://`` is the default scheme.

    Raises:
        ValueError: the scheme is ``http://`` and is not allowed, or is another one.
    """
    scheme, separator, place = endpoint.partition("://")
    if not separator:
        return ("http://" if force_http else "https://") + endpoint
    shown = _core.without_secrets(endpoint)
    if scheme.lower() == "http" and not force_http and not allow_http:
        raise ValueError(f"the endpoint {shown!r} does not use TLS: force_http=True allows that")
    if scheme.lower() not in ("http", "https"):
        raise ValueError(f"the endpoint {shown!r} must start with https:// or http://")
    return f"http://{place}" if force_http else endpoint


def read_s3cfg(paths: Sequence[ConfigPath], must_exist: bool = False) -> tuple[S3cfg, str]:
    """Read the first of the files that exists; return its settings and its session token.

    Raises:
        OSError: a file cannot be read, and ``must_exist`` is true.
        ValueError: the file is not a configuration file of s3cmd.
    """
    for place in (os.path.expanduser(os.fsdecode(path)) for path in paths):
        try:
            settings = _core.s3cmd_settings(os.fsencode(os.path.abspath(place)))
        except OSError:
            if must_exist:
                raise
            continue
        use_https = {"true": True, "false": False}.get(settings.get("use_https", "").lower())
        key_id, secret = settings.get("access_key"), settings.get("secret_key")
        endpoint = settings.get("host_base") or None
        found = S3cfg(place, endpoint, key_id or None, secret or None, use_https)
        return found, settings.get("access_token", "")
    return S3cfg(), ""
