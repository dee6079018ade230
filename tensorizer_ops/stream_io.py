"""Opens files, URLs, S3 objects and files in Redis as Python file objects.

The library moves the bytes without holding the GIL; see "Streams" in ``docs/migrating.md``.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shutil
import typing
from collections.abc import Mapping

from tensorizer_ops import _core
from tensorizer_ops._base.options import SecretOptions, as_pairs
from tensorizer_ops._base.targets import to_uri
from tensorizer_ops._compat import s3_access
from tensorizer_ops._compat.remote_file import RemoteFile, WebFile
from tensorizer_ops._compat.s3_upload import S3UploadFile
from tensorizer_ops._compat.schemes import refuse_uri, stream_kind

__all__ = ["CAInfo", "CURLStreamFile", "RedisStreamFile", "open_stream"]

# Has tensorizer's name because programs configure logging by it.
logger = logging.getLogger("tensorizer.stream_io")
# The path of the program curl, or None. It is only part of the API: nothing here starts curl.
curl_path = shutil.which("curl")

# The endpoints for s3:// if none is configured. Programs may assign others.
default_s3_read_endpoint = "accel-object.ord1.coreweave.com"
default_s3_write_endpoint = "object.ord1.coreweave.com"

# The paths where s3cmd's configuration file is searched. Programs may assign others.
_s3_default_config_paths: tuple[s3_access.ConfigPath, ...] = (os.path.expanduser("~/.s3cfg"),)
_ParsedCredentials = s3_access.S3cfg
_enforce_scheme = s3_access.with_scheme

_S3_MODES = {"br", "bw", "+bw", "ab", "+ab"}


class CAInfo:
    """How to verify a server's certificate. ``None`` instead means the system's authorities.

    Args:
        cacert: a PEM file of certificate authorities.
        capath: a folder of such files, with names as ``openssl rehash`` makes them.
        allow_untrusted: accept any certificate.

    Exactly one argument must be given.
    """

    __slots__ = ("_curl_flags",)

    def __init__(
        self,
        *,
        cacert: str | None = None,
        capath: str | None = None,
        allow_untrusted: bool = False,
    ) -> None:
        if (cacert is not None) + (capath is not None) + bool(allow_untrusted) != 1:
            raise ValueError("CAInfo takes exactly one of cacert, capath and allow_untrusted=True")
        self._curl_flags: tuple[str, ...]
        if cacert is not None:
            if not os.path.isfile(cacert):
                raise ValueError(f"cacert is {cacert!r}, which is not a file")
            self._curl_flags = ("--cacert", str(cacert))
        elif capath is not None:
            if not os.path.isdir(capath):
                raise ValueError(f"capath is {capath!r}, which is not a folder")
            self._curl_flags = ("--capath", str(capath))
        else:
            self._curl_flags = ("--insecure",)

    @property
    def curl_flags(self) -> tuple[str, ...]:
        """The equivalent arguments of the program ``curl``."""
        return self._curl_flags

    def __hash__(self) -> int:
        return hash(self._curl_flags)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CAInfo) and self._curl_flags == other._curl_flags

    def __repr__(self) -> str:
        return f"<CAInfo {' '.join(self._curl_flags)}>"


def _certificate_options(handling: CAInfo | None) -> dict[str, str]:
    if handling is None:
        return {}
    if not isinstance(handling, CAInfo):
        raise TypeError(
            f"certificate_handling must be a CAInfo or None, not {type(handling).__name__}"
        )
    names = {"--cacert": "ca_file", "--capath": "ca_path", "--insecure": "insecure"}
    flag, *value = handling.curl_flags
    return {names[flag]: value[0] if value else "true"}


class CURLStreamFile(WebFile):
    """A file on a web server, open for reading.

    Args:
        uri: an ``http://`` or ``https://`` URL.
        begin: the offset where reading starts.
        end: the offset where reading ends; bytes behind it are treated as not part of the file.
        headers: headers to send with every request.
        buffer_size: the maximum number of bytes to read ahead, 16 MiB by default.
        certificate_handling: how to verify the server's certificate.

    Attributes:
        response_headers: the server's response headers; names are not case-sensitive.
        http_response_latencies: a list with the seconds until the first response.
        popen_latencies: a list with the seconds to start a process: always 0, as none is started.
    """

    def __init__(
        self,
        uri: str,
        begin: int | None = None,
        end: int | None = None,
        headers: Mapping[str, typing.Any] | None = None,
        *,
        buffer_size: int | None = None,
        certificate_handling: CAInfo | None = None,
    ) -> None:
        if stream_kind(uri) != "http":
            raise ValueError(f"{_core.without_secrets(uri)!r} is not an http:// or https:// URL")
        options = SecretOptions(_certificate_options(certificate_handling))
        for name, value in (headers or {}).items():
            options[f"header.{name}"] = str(value)
        super().__init__(uri, options, begin, end, buffer_size)


class _S3StreamFile(CURLStreamFile):
    """An object in S3, open for reading; accepts ``s3://`` URIs, which its base class rejects."""

    def __init__(
        self,
        uri: str,
        options: SecretOptions,
        begin: int | None,
        end: int | None,
        buffer_size: int | None,
    ) -> None:
        WebFile.__init__(self, uri, options, begin, end, buffer_size)


class RedisStreamFile(RemoteFile):
    """A file in the keys of a Redis server, open for reading.

    Args:
        uri: ``redis://[user:password@]host[:port]/prefix``, the same with ``rediss://`` for TLS, or
            ``unix://[user:password@]/path/to/socket?prefix=PREFIX&db=N``.
        begin: the offset where reading starts.
        end: the offset where reading ends; bytes behind it are treated as not part of the file.
        buffer_size: the maximum number of bytes to read ahead, 16 MiB by default.
        certificate_handling: how to verify the certificate of a ``rediss://`` server.

    Attributes:
        setup_latency: the seconds to connect and list the keys.
        response_latencies: a list with the same number.
    """

    def __init__(
        self,
        uri: str,
        *,
        begin: int | None = None,
        end: int | None = None,
        buffer_size: int | None = None,
        certificate_handling: CAInfo | None = None,
    ) -> None:
        if stream_kind(uri) != "redis":
            raise ValueError(
                f"{_core.without_secrets(uri)!r} is not a redis://, rediss:// or unix:// URI"
            )
        options = SecretOptions(_certificate_options(certificate_handling))
        super().__init__(uri, options, begin, end, buffer_size)
        self.setup_latency = self._opening_took
        self.response_latencies = [self._opening_took]


def s3_upload(
    path: str,
    target_uri: str,
    s3_access_key_id: str | None,
    s3_secret_access_key: str | None,
    s3_endpoint: str | None = default_s3_write_endpoint,
    s3_region_name: str | None = None,
    s3_signature_version: str | None = None,
) -> None:
    """Upload a file. The object appears when the upload is complete.

    Args:
        path: the path of the file.
        target_uri: ``s3://bucket/key``.
        s3_access_key_id, s3_secret_access_key: the keys; ``None`` finds them as AWS's own tools do,
            and ``""`` sends unsigned requests.
        s3_endpoint: a URL or a host; ``None`` means the endpoint of AWS's configuration, or AWS.
        s3_region_name: the bucket's region.
        s3_signature_version: applies to reads only; uploads are always signed with version 4.
    """
    access = s3_access.Access(
        s3_access_key_id, s3_secret_access_key, s3_endpoint, s3_region_name, s3_signature_version
    )
    options = s3_access.to_options(access)
    _core.upload(to_uri(os.path.abspath(path)), _s3_uri(target_uri), as_pairs(options))


def s3_download(
    path_uri: str,
    s3_access_key_id: str | None,
    s3_secret_access_key: str | None,
    s3_endpoint: str | None = default_s3_read_endpoint,
    s3_region_name: str | None = None,
    s3_signature_version: str | None = None,
    buffer_size: int | None = None,
    begin: int | None = None,
    end: int | None = None,
    certificate_handling: CAInfo | None = None,
) -> CURLStreamFile:
    """Open an object for reading; the arguments are those of :func:`open_stream`.

    Does not read s3cmd's file. Keys that are ``None`` are found as AWS's own tools do; if there are
    none, requests are not signed.
    """
    access = s3_access.Access(
        s3_access_key_id, s3_secret_access_key, s3_endpoint, s3_region_name, s3_signature_version
    )
    options = s3_access.to_options(access)
    options.update(_certificate_options(certificate_handling))
    return _S3StreamFile(_s3_uri(path_uri), options, begin, end, buffer_size)


def _s3_uri(uri: str) -> str:
    """Return the URI without leading slashes of the key, which tensorizer ignores as well."""
    if stream_kind(uri) != "s3":
        raise ValueError(f"{_core.without_secrets(uri)!r} is not an s3:// URI")
    place = uri.partition("://")[2]
    bucket, _, key = place.partition("/")
    return f"s3://{bucket}/{key.lstrip('/')}"


def _config_paths(path: s3_access.ConfigPath | None) -> tuple[s3_access.ConfigPath, ...]:
    return _s3_default_config_paths if path is None else (path,)


def _infer_credentials(
    s3_access_key_id: str | None,
    s3_secret_access_key: str | None,
    s3_config_path: s3_access.ConfigPath | None = None,
) -> _ParsedCredentials:
    """Return both keys; those that are ``None`` come from s3cmd's file.

    Raises:
        ValueError: a key is neither given nor in the file.
        FileNotFoundError: ``s3_config_path`` does not exist.
    """
    if s3_access_key_id is not None and s3_secret_access_key is not None:
        return _ParsedCredentials(
            s3_access_key=s3_access_key_id, s3_secret_key=s3_secret_access_key
        )
    paths = _config_paths(s3_config_path)
    found, _ = s3_access.read_s3cfg(paths, must_exist=s3_config_path is not None)
    key_id = found.s3_access_key if s3_access_key_id is None else s3_access_key_id
    secret = found.s3_secret_key if s3_secret_access_key is None else s3_secret_access_key
    for name, value in (("s3_access_key_id", key_id), ("s3_secret_access_key", secret)):
        if not value:
            where = found.config_file or "s3cmd's file, which does not exist"
            raise ValueError(f"{name} is neither given nor in {where}")
    return found._replace(s3_access_key=key_id, s3_secret_key=secret)


def open_stream(
    path_uri: str | os.PathLike[str],
    mode: str = "rb",
    s3_access_key_id: str | None = None,
    s3_secret_access_key: str | None = None,
    s3_endpoint: str | None = None,
    s3_config_path: s3_access.ConfigPath | None = None,
    buffer_size: int | None = None,
    force_http: bool | None = None,
    *,
    begin: int | None = None,
    end: int | None = None,
    s3_region_name: str | None = None,
    s3_signature_version: str | None = None,
    certificate_handling: CAInfo | None = None,
) -> CURLStreamFile | RedisStreamFile | typing.BinaryIO:
    """Open a file, an ``http(s)://`` URL, an ``s3://`` object or a file in Redis.

    Redis URIs start with ``redis://``, ``rediss://`` (TLS) or ``unix://`` (a Unix domain socket).

    Args:
        path_uri: the path or URI. A path-like object is always a path.
        mode: ``rb`` works for all. For S3, ``wb`` and ``ab``, with or without ``+``, replace the
            object. For files, any binary mode; missing folders are created when writing.
        s3_access_key_id, s3_secret_access_key: the keys. ``""`` sends unsigned requests, for a
            public bucket; ``None`` finds keys in s3cmd's file, or as AWS's own tools do.
        s3_endpoint: a URL or a host. If omitted, it comes from s3cmd's file (if the keys do), from
            AWS's configuration, or is ``default_s3_read_endpoint`` or
            ``default_s3_write_endpoint``.
        s3_config_path: s3cmd's file; ``~/.s3cfg`` by default.
        buffer_size: the maximum number of bytes to read ahead; for files and uploads, the size of
            their buffer.
        force_http: whether to use S3 without TLS.
        begin: the offset where reading or writing starts.
        end: the offset where reading from a server ends.
        s3_region_name: the bucket's region.
        s3_signature_version: ``s3v4``, or ``s3`` for URLs that stay the same all day, which caches
            need. ``s3`` is the default for ``accel-object`` hosts.
        certificate_handling: how to verify a server's certificate.

    Returns:
        A file object. If it was opened for writing to S3, closing it uploads the object, unless a
        ``with`` block ends with an exception.

    Raises:
        ValueError: the mode or another argument is invalid.
        OSError: an error of the server or the system: ``FileNotFoundError``, ``PermissionError``,
            ``ConnectionError`` and so on.
    """
    place = path_uri if isinstance(path_uri, str) else os.fspath(path_uri)
    kind = stream_kind(path_uri) if isinstance(path_uri, str) else ""
    letters = "".join(sorted(mode))
    if kind == "http":
        _check_mode(letters == "br", place, mode, "rb")
        return CURLStreamFile(
            place, begin, end, buffer_size=buffer_size, certificate_handling=certificate_handling
        )
    if kind == "redis":
        _check_mode(letters == "br", place, mode, "rb")
        return RedisStreamFile(
            place,
            begin=begin,
            end=end,
            buffer_size=buffer_size,
            certificate_handling=certificate_handling,
        )
    if kind != "s3":
        if isinstance(path_uri, str):
            refuse_uri(path_uri)
        return _open_file(place, mode, begin, buffer_size)

    _check_mode(letters in _S3_MODES, place, mode, "rb, wb[+] or ab[+]")
    place = _s3_uri(place)
    reads = letters == "br"
    options = s3_access.complete(
        s3_access.Access(
            s3_access_key_id,
            s3_secret_access_key,
            s3_endpoint,
            s3_region_name,
            s3_signature_version,
        ),
        config_paths=_config_paths(s3_config_path),
        must_exist=s3_config_path is not None,
        force_http=force_http,
        default_endpoint=default_s3_read_endpoint if reads else default_s3_write_endpoint,
        enforce_scheme=_enforce_scheme,
    )
    options.update(_certificate_options(certificate_handling))
    if reads:
        return _S3StreamFile(place, options, begin, end, buffer_size)
    return S3UploadFile(place, options, buffer_size)


def _check_mode(fits: bool, uri: str, mode: str, modes: str) -> None:
    if not fits:
        scheme = uri.partition("://")[0].lower()
        raise ValueError(f"the mode is {mode!r}, and for {scheme}:// it must be {modes}")


def _open_file(
    path: str | bytes, mode: str, begin: int | None, buffer_size: int | None
) -> typing.BinaryIO:
    if "b" not in mode:
        raise ValueError(f"the mode is {mode!r}, and must be a binary one: rb, wb, wb+ …")
    folder = os.path.dirname(path)
    if folder and not set(mode).isdisjoint("wax"):
        os.makedirs(folder, exist_ok=True)
    buffering = io.DEFAULT_BUFFER_SIZE if buffer_size is None else buffer_size
    with contextlib.ExitStack() as on_error:
        file = on_error.enter_context(open(path, mode, buffering=buffering))
        # A pipe cannot seek; that is an error only if `begin` asks for another position.
        if begin or file.seekable():
            file.seek(begin or 0)
        on_error.pop_all()
    return typing.cast(typing.BinaryIO, file)
