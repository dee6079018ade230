"""Runs Python programs in processes that need not import torch first.

Each is a fork of a process that has imported torch and done nothing else: the import takes longer
than what most tests do with it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence

_NUMBER = struct.Struct("i")


class WarmPython:
    def __init__(self, environment: dict[str, str]) -> None:
        here, there = socket.socketpair()
        command = [sys.executable, "-W", "ignore", "-m", "support.warm", str(there.fileno())]
        self._process = subprocess.Popen(command, env=environment, pass_fds=[there.fileno()])
        there.close()
        self._socket = here

    def run(
        self,
        arguments: Sequence[str],
        environment: dict[str, str],
        timeout: float,
        folder: str | os.PathLike[str] = "",
        stdin: int | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs ``python`` with these arguments in a session of its own.

        The first arguments are ``-m MODULE``, ``-c CODE``, or the path of a program. `stdin` is an
        open descriptor; without it, there is no input.
        """
        request = json.dumps([os.fspath(folder) or os.getcwd(), environment, arguments]).encode()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            with open(os.devnull) as nothing:
                given = nothing.fileno() if stdin is None else stdin
                descriptors = [given, out.fileno(), err.fileno()]
                self._socket.settimeout(timeout)
                socket.send_fds(self._socket, [_NUMBER.pack(len(request))], descriptors)
                self._socket.sendall(request)
            child = self._number()
            try:
                status = self._number()
            except TimeoutError:  # the next program must not read this one's status
                os.kill(child, signal.SIGKILL)
                self._number()
                raise
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode())
        return subprocess.CompletedProcess(arguments, status, *texts)

    def _number(self) -> int:
        (number,) = _NUMBER.unpack(self._socket.recv(_NUMBER.size, socket.MSG_WAITALL))
        return int(number)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


def _next_request(connection: socket.socket) -> list[str]:
    """Returns the arguments of the next program in a process of its own."""
    while True:
        head, descriptors, _, _ = socket.recv_fds(connection, _NUMBER.size, 3)
        if not head:
            sys.exit()
        (size,) = _NUMBER.unpack(head)
        request = connection.recv(size, socket.MSG_WAITALL)
        child = os.fork()
        if child == 0:
            connection.close()
            os.setsid()
            for number, descriptor in enumerate(descriptors):
                os.dup2(descriptor, number)
                os.close(descriptor)
            folder, environment, arguments = json.loads(request)
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            return list(arguments)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.sendall(_NUMBER.pack(child))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        connection.sendall(_NUMBER.pack(status))


def _run(program: str, *arguments: str) -> None:
    """Runs a program as the interpreter does."""
    if program == "-m":
        sys.argv = [program, *arguments[1:]]
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif program == "-c":
        sys.argv = [program, *arguments[1:]]
        exec(compile(arguments[0], "<string>", "exec"), vars(sys.modules["__main__"]))
    else:
        sys.argv = [program, *arguments]
        sys.path.insert(0, os.path.dirname(program))
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    import torch._dynamo  # which DTensor imports
    import torch.distributed.tensor  # noqa: F401

    import tensorizer_ops
    import tensorizer_ops.checkpoint
    import tensorizer_ops.distributed

    # Imported when they are used.
    _ = tensorizer_ops.load, tensorizer_ops.checkpoint.TensorizerStorageWriter
    with contextlib.suppress(
        OSError, KeyError
    ):  # torch._dynamo has made an empty folder for its files
        os.rmdir(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    gc.freeze()
    arguments = _next_request(socket.socket(fileno=int(sys.argv[1])))
    status = 1
    try:
        _run(*arguments)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    # As at the end of an interpreter, but for the objects of torch, whose end takes long.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
