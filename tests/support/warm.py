"""Runs the command ``tensorizer-ops`` in processes that need not import torch first.

Each is a fork of a process that has imported torch and done nothing else: the import takes longer
than what most tests do with it.
"""

from __future__ import annotations

import atexit
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
from collections.abc import Sequence
from functools import cache

_NUMBER = struct.Struct("i")


class WarmCommand:
    def __init__(self, environment: dict[str, str]) -> None:
        here, there = socket.socketpair()
        command = [sys.executable, "-W", "ignore", "-m", "support.warm", str(there.fileno())]
        self._process = subprocess.Popen(command, env=environment, pass_fds=[there.fileno()])
        there.close()
        self._socket = here

    def run(
        self, arguments: Sequence[str], environment: dict[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Runs the command in a session of its own, without input."""
        request = json.dumps([os.getcwd(), environment, arguments]).encode()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            with open(os.devnull) as nothing:
                descriptors = [nothing.fileno(), out.fileno(), err.fileno()]
                self._socket.settimeout(timeout)
                socket.send_fds(self._socket, [_NUMBER.pack(len(request))], descriptors)
                self._socket.sendall(request)
            child = self._number()
            try:
                status = self._number()
            except TimeoutError:  # the next command must not read this one's status
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


@cache
def warm_command() -> WarmCommand:
    from support.process import environment

    command = WarmCommand(environment())
    atexit.register(command.close)
    return command


def _next_request(connection: socket.socket) -> list[str]:
    """Returns the arguments of the next command in a process of its own."""
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


if __name__ == "__main__":
    import torch  # noqa: F401

    import tensorizer_ops

    _ = tensorizer_ops.load  # imported when it is used
    gc.freeze()
    arguments = _next_request(socket.socket(fileno=int(sys.argv[1])))
    sys.argv[1:] = arguments
    status = 1
    try:
        runpy.run_module("tensorizer_ops", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0
    # As at the end of an interpreter, but for the objects of torch, whose end takes long.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
