"""Where an object in S3 is and who asks for it, as callers of ``open_stream`` say it."""

from __future__ import annotations

import configparser
import os
from dataclasses import dataclass, replace

from tensorizer_ops import _python
from tensorizer_ops._options import SecretOptions

_DEFAULT_CONFIG = "~/.s3cfg"
# What botocore calls its two ways to sign; the second one is for URLs.
_SIGNATURES = {"v4": "s3v4", "s3v4": "s3v4", "s3": "s3"}


@dataclass(frozen=True, repr=False)
class Access:
    """What the caller of ``open_stream`` says, where nothing is said ``None``."""

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


@dataclass(frozen=True, repr=False)
class _S3cfg:
    access_key: str
    secret_key: str
    access_token: str
    host_base: str
    use_https: bool | None


def complete(
    given: Access,
    *,
    config_path: str | bytes | os.PathLike[str] | os.PathLike[bytes] | None,
    force_http: bool | None,
    default_endpoint: str,
) -> SecretOptions:
    """The options for an object, with what s3cmd's file and AWS's configuration add.

    s3cmd's file fills in keys that are missing, and comes with its own endpoint; then come AWS's
    endpoint and the default.
    """
    session_token = ""
    if given.access_key_id is None or given.secret_access_key is None:
        found = _read_s3cfg(config_path)
        key_id = found.access_key if given.access_key_id is None else given.access_key_id
        secret = found.secret_key if given.secret_access_key is None else given.secret_access_key
        if key_id and secret:
            if given.access_key_id is None and given.secret_access_key is None:
                session_token = found.access_token
            endpoint = given.endpoint or found.host_base or None
            given = replace(
                given, access_key_id=key_id, secret_access_key=secret, endpoint=endpoint
            )
            if force_http is None and found.use_https is not None:
                force_http = not found.use_https
    endpoint = given.endpoint
    from_aws = "" if endpoint else _python.aws_s3_endpoint()
    endpoint = _with_scheme(
        endpoint or from_aws or default_endpoint, bool(from_aws), bool(force_http)
    )
    options = to_options(replace(given, endpoint=endpoint))
    if session_token:
        options["s3_session_token"] = session_token
    return options


def to_options(given: Access) -> SecretOptions:
    """The options for an object, with nothing added; an endpoint with ``http://`` is meant."""
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
    # A cache in front of the store finds what it has by the URL, and only signatures of version 2
    # are the same for a whole day.
    host = (given.endpoint or "").lower().rpartition("://")[2].partition("/")[0]
    return "s3" if "accel-object" in host.split(".") else "s3v4"


def _with_scheme(endpoint: str, may_be_http: bool, force_http: bool) -> str:
    scheme, separator, place = endpoint.partition("://")
    if not separator:
        return ("http://" if force_http else "https://") + endpoint
    if scheme.lower() == "http" and not force_http and not may_be_http:
        raise ValueError(
            f"the endpoint {_python.without_secrets(endpoint)!r} has no TLS: "
            "force_http=True says that this is meant"
        )
    return f"http://{place}" if force_http else endpoint


def _read_s3cfg(
    path: str | bytes | os.PathLike[str] | os.PathLike[bytes] | None,
) -> _S3cfg:
    """s3cmd's file; empty where it is not there, unless the caller has named it."""
    place = os.path.expanduser(os.fsdecode(_DEFAULT_CONFIG if path is None else path))
    # A secret may have a "%" in it.
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        with open(place, encoding="utf-8") as file:
            parser.read_file(file)
        section = parser["default"]
    except OSError:
        if path is not None:
            raise
        section = parser["DEFAULT"]
    except (configparser.Error, UnicodeDecodeError, KeyError):
        # The errors themselves quote lines of the file, which may be its secrets.
        raise ValueError(f"{place!r} is no file of s3cmd's with a section [default]") from None
    return _S3cfg(
        section.get("access_key", ""),
        section.get("secret_key", ""),
        section.get("access_token", ""),
        section.get("host_base", ""),
        {"true": True, "false": False}.get(section.get("use_https", "").lower()),
    )
