"""Keeps transformers and diffusers from code and from the network while they load a folder.

Many fields of a config lead to code in the folder, to a kernel, or to another model on the Hub, and
which ones depends on the release. So it is not the fields that are checked, but what happens: an
audit hook of Python sees every file that is executed, every class that is unpickled, and every
connection that is opened. It refuses them in the calls that :func:`isolated` surrounds, and in the
threads that these calls start, but in no others.

Models that read more files while they are loaded ask transformers for them, by the path that it
loads. That is ``None`` here, so they are answered with those of the folder.
"""

from __future__ import annotations

import contextvars
import functools
import hashlib
import importlib
import os
import socket
import sys
import threading
import urllib.parse
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tensorizer_ops import errors
from tensorizer_ops._base.folder import Folder
from tensorizer_ops._base.private import PrivateFolder, temporary_folder

# Modules that execute files which are not installed, after they have read them.
_LOADERS = ("transformers.dynamic_module_utils", "diffusers.utils.dynamic_modules_utils")
# Clients of the Hub: a request on a connection that is already open is no audit event.
_CLIENTS = (("requests", "Session"), ("httpx", "Client"), ("httpx2", "Client"))
# The event that asks whether the hook is in place.
_PROBE = "tensorizer_ops.isolated"
# Modules that unpickle only what this program, or another rank of it, has pickled.
_OWN_PICKLES = ("torch._", "torch.distributed.", "multiprocessing.")
# The directories that the libraries keep downloaded files, code and kernels in.
_CACHES = ("HF_HOME", "HF_HUB_CACHE", "HF_MODULES_CACHE", "KERNELS_CACHE", "HF_KERNELS_CACHE")


class _Refused(Exception):
    """What a refusal is beside the error that the libraries expect there."""


class _CodeRefused(_Refused, errors.InvalidFormat):
    pass


class _Call:
    """A call that loads a folder."""

    def __init__(self, folder: Folder) -> None:
        self.label = folder.label
        self.watched = self.over = False
        # Folders that transformers may read. A signed one is read, and compared, by this library.
        self.open = {folder.path} if folder.policy is None else set()
        self.fault: errors.Error | None = None  # of a file that transformers asked for
        self.ends = ExitStack()
        self._folder = folder
        self._copies: PrivateFolder | None = None
        places = [folder.path, *_caches()]
        named = {os.path.abspath(place) for place in places if place}
        self._places = named | {os.path.realpath(place) for place in named}
        kept = {os.path.abspath(place) for place in _caches(("HF_HUB_CACHE",))}
        self._downloads = kept | {os.path.realpath(place) for place in kept}
        if folder.path is not None and folder.policy is None:
            here = os.path.realpath(folder.path)
            if any(_is_below(here, place) for place in self._downloads):
                self._downloads = set()  # the folder's own files are links to others there

    def refuse_code(self, what: str) -> None:
        raise _CodeRefused(
            f"loading {self.label} would execute {what}, and only installed code is executed: if "
            "you trust it, load the folder with transformers itself"
        )

    def refuse_network(self, what: object) -> None:
        raise _offline()(
            f"loading {self.label} would take {what} from the network, and only the folder is "
            "read: save what the model needs into it, or load it with transformers itself"
        )

    def refuse_folder(self, path: str) -> None:
        raise _offline()(
            f"loading {self.label} would read files in {path!r}, and only the folder is read: save "
            "what the model needs into it, or load it with transformers itself"
        )

    def refuse_others(self, path: str) -> None:
        """Refuse files that nobody compares, which transformers finds by itself.

        Earlier downloads have left some in the Hub's cache; and others may make one with the name
        of the path that is ``None``.
        """
        file = os.path.abspath(path)
        is_download = any(_is_below(file, place) for place in self._downloads)
        if is_download or path.split("/")[0] == "None":
            self.refuse_folder(os.path.dirname(file))

    def copied(self, names: Iterable[str], *, needed: bool) -> str:
        """Return a folder with copies of these files of the folder, as far as it has them."""
        if self._copies is None:
            is_signed = self._folder.policy is not None
            self._copies = self.ends.enter_context(temporary_folder(is_signed=is_signed))
        for name in names:
            try:
                content = self._folder.read_if_there(name)
            except errors.Error as error:
                # Transformers may go on without it, with another file, or say that it is not there.
                self.fault = error
                raise
            if content is not None:
                Path(self._copies.path, name).write_bytes(content)
            elif needed:
                raise errors.NotFound(f"{self.label} has no {name!r}, which loading it would read")
        return str(self._copies.path)

    def end(self) -> None:
        """Raise if others may have replaced what was read, or for a file that was passed over."""
        if self.fault is not None:
            raise self.fault
        if self._copies is not None:
            self._copies.check()

    def refuse_file(self, path: str) -> None:
        """Refuse to execute a file of the folder, or of a cache of the libraries.

        A directory below them that is on ``sys.path``, such as a virtual environment, is the
        user's own.
        """
        if path.startswith("<"):
            return
        for file in {os.path.abspath(path), os.path.realpath(path)}:
            for place in self._places:
                if _is_below(file, place) and not any(
                    _is_below(entry, place) and _is_below(file, entry)
                    for entry in {*sys.path, *map(os.path.realpath, sys.path)}
                ):
                    self.refuse_code(repr(path))


def _is_below(path: str, directory: str) -> bool:
    return path.startswith(f"{directory.rstrip('/')}/")


def _caches(names: Iterable[str] = _CACHES) -> Iterator[str]:
    """Yield the caches, as the environment names them and as the libraries found them."""
    modules = [sys.modules.get(name) for name in ("huggingface_hub.constants", *_LOADERS)]
    for name in names:
        for found in (os.environ.get(name), *(getattr(each, name, None) for each in modules)):
            if isinstance(found, str):
                yield os.path.expanduser(found)


@functools.cache
def _offline() -> type[Exception]:
    """Return a class of refusals that the libraries take for a machine without a network."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    return type("_NetworkRefused", (_Refused, OfflineModeIsEnabled), {})


_call: contextvars.ContextVar[_Call | None] = contextvars.ContextVar(
    "tensorizer_ops_isolated", default=None
)
# Threads that a call has started, and that may outlive it.
_started: weakref.WeakKeyDictionary[threading.Thread, _Call] = weakref.WeakKeyDictionary()


def _running(
    current: Callable[[], _Call | None] = _call.get,
    started: weakref.WeakKeyDictionary[threading.Thread, _Call] = _started,
) -> _Call | None:
    """Return the call that this code runs in. Uses no name that is gone while Python ends."""
    call = current()
    if call is None and started:
        call = started.get(threading.current_thread())
    return None if call is None or call.over else call


def _connect(call: _Call, args: tuple[Any, ...]) -> None:
    if args[0].family in (socket.AF_INET, socket.AF_INET6):
        call.refuse_network(repr(args[1]))


def _look_up(call: _Call, args: tuple[Any, ...]) -> None:
    call.refuse_network(repr(args[0]))


def _send(call: _Call, args: tuple[Any, ...]) -> None:
    call.refuse_network(repr(args[0].host))


def _open(call: _Call, args: tuple[Any, ...]) -> None:
    if sys._getframe(2).f_globals.get("__name__") in _LOADERS:
        call.refuse_code(repr(args[0]))
    if isinstance(args[0], str | bytes | os.PathLike):
        call.refuse_others(os.fsdecode(args[0]))


def _execute(call: _Call, args: tuple[Any, ...]) -> None:
    call.refuse_file(args[0].co_filename)


def _import(call: _Call, args: tuple[Any, ...]) -> None:
    if args[1]:  # the file of a compiled module
        call.refuse_file(args[1])


def _load_library(call: _Call, args: tuple[Any, ...]) -> None:
    name = os.fsdecode(args[0] or "")
    if "/" in name:  # others are looked for where the system has its libraries
        call.refuse_file(name)


def _unpickle(call: _Call, args: tuple[Any, ...]) -> None:
    """Refuse classes and functions in pickles, but for parts of tokenizers, which are data."""
    by = sys._getframe(2).f_globals.get("__name__", "")
    if not (args[0].startswith("tokenizers.") or by.startswith(_OWN_PICKLES)):
        call.refuse_code(f"{args[0]}.{args[1]} in a pickle")


def _answer(call: _Call, args: tuple[Any, ...]) -> None:
    call.watched = True


_CHECKS: dict[str, Callable[[_Call, tuple[Any, ...]], None]] = {
    "socket.connect": _connect,
    "socket.getaddrinfo": _look_up,
    "socket.gethostbyname": _look_up,
    "http.client.send": _send,
    "open": _open,
    "exec": _execute,
    "import": _import,
    "ctypes.dlopen": _load_library,
    "pickle.find_class": _unpickle,
    _PROBE: _answer,
}

_lock = threading.Lock()
_hooked = False


def _hook() -> None:
    """Add the audit hook, once: it stays as long as the process."""
    global _hooked

    def audit(
        event: str,
        args: tuple[Any, ...],
        check_of: Callable[[str], Any] = _CHECKS.get,
        running: Callable[[], _Call | None] = _running,
    ) -> None:
        check = check_of(event)
        if check is not None and (call := running()) is not None:
            check(call, args)

    if not _hooked:
        sys.addaudithook(audit)
        _hooked = True


def _request(call: _Call, client: Any, request: Any, **kwargs: Any) -> None:
    url = urllib.parse.urlsplit(str(request.url))
    call.refuse_network(repr(f"{url.hostname}{url.path}"))


def _start(call: _Call, thread: threading.Thread) -> None:
    _started[thread] = call


def _find(
    call: _Call, path_or_repo_id: object, filenames: list[str], **kwargs: Any
) -> dict[str, str]:
    """Say where transformers finds files: it would take ``None`` for a folder of that name."""
    path = str(path_or_repo_id)
    if path in ("None", ""):
        needed = kwargs.get("_raise_exceptions_for_missing_entries", True)
        # An adapter would be for another model, which its config names.
        names = {*filenames} - {"adapter_config.json"}
        return {"path_or_repo_id": call.copied(names, needed=needed)}
    if path not in call.open:  # also a name on the Hub: an earlier download may be in its cache
        call.refuse_folder(path)
    for name in filenames:
        file = os.path.abspath(os.path.join(path, kwargs.get("subfolder") or "", name))
        if not _is_below(file, os.path.abspath(path)):
            call.refuse_folder(os.path.dirname(file))
    return {}


def _compare(call: _Call, file: str, expected_hash: str | None = None) -> dict[str, str]:
    """Say what is in a vocabulary: tiktoken keeps copies in a folder that others may have made."""
    if expected_hash is not None:
        return {}
    return {"expected_hash": hashlib.sha256(Path(file).read_bytes()).hexdigest()}


def _wrap(kind: Any, name: str, first: Callable[..., dict[str, str] | None]) -> None:
    """Make a function call another one first, in calls that load a folder.

    That one may return other arguments.
    """
    method = getattr(kind, name)
    if hasattr(method, "tensorizer_ops"):
        return

    @functools.wraps(method)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if (call := _running()) is not None:
            kwargs |= first(call, *args, **kwargs) or {}
        return method(*args, **kwargs)

    wrapped.tensorizer_ops = True  # type: ignore[attr-defined]
    setattr(kind, name, wrapped)


def _wrap_all() -> None:
    """Wrap what is no audit event, unless it is wrapped, and add the hook, unless it is there."""
    with _lock:
        _wrap(threading.Thread, "start", _start)
        for module, name in _CLIENTS:
            if client := getattr(sys.modules.get(module), name, None):
                _wrap(client, "send", _request)
        with suppress(ImportError):  # models of diffusers do without
            from transformers.utils import hub

            _wrap(hub, "cached_files", _find)  # also for cached_file()
        with suppress(ImportError):  # most tokenizers do without
            _wrap(importlib.import_module("tiktoken.load"), "load_tiktoken_bpe", _compare)
        _hook()


def _refusal(error: BaseException | None) -> _Refused | None:
    """Return the refusal that led to an error."""
    seen = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, _Refused):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def may_open(place: str | Path) -> None:
    """Let transformers read the files in a folder, until the block of :func:`isolated` ends."""
    if (call := _running()) is not None:
        call.open.add(str(place))


@contextmanager
def isolated(folder: Folder) -> Iterator[Callable[..., Any]]:
    """Execute nothing but installed code, and open no connection, until the block ends.

    The network of the engine, which reads folders on servers, is not Python's, and is not refused.
    If a refusal makes the block fail, the error says what was refused.

    Yields:
        What calls a function outside of the block's restrictions, for code of the caller.
    """
    outside = contextvars.copy_context()
    _wrap_all()
    call = _Call(folder)
    token = _call.set(call)
    try:
        sys.audit(_PROBE)
        if not call.watched:
            raise RuntimeError(
                "an audit hook of this process keeps others out, so a folder could execute code: "
                "load it with transformers itself"
            )
        yield outside.run
        call.end()
    except Exception as error:
        if call.fault is not None:
            raise call.fault from None
        refusal = _refusal(error)
        if refusal is None:
            raise
        raise errors.InvalidFormat(str(refusal)) from error
    finally:
        call.over = True
        _call.reset(token)
        call.ends.close()
