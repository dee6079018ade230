"""Signal handlers, progress functions and file objects that call the object they interrupted.

Each test runs in a separate interpreter, because a deadlock would hang the test run.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.process import fork_python

PREAMBLE = """
import io, os, signal, sys, threading, torch, tensorizer_ops
from tensorizer_ops import TensorDeserializer, TensorSerializer, TensorType, _core, errors
from tensorizer_ops._base.internals import reader_of, writer_to

folder = sys.argv[1]
path = folder + "/m.tensors"
Reader, Writer = torch.classes.tensorizer.Reader, torch.classes.tensorizer.Writer
caught = []


def attempt(call):
    try:
        return call()
    except BaseException as error:
        caught.append(type(error).__name__)


def on_signal(number, action):
    # Handles the signal once, and ignores later ones.
    def handler(*_):
        signal.signal(number, signal.SIG_IGN)
        action()
    signal.signal(number, handler)


def soon(action):
    # Interrupts a call that runs for more than 0.1 s.
    on_signal(signal.SIGALRM, action)
    signal.setitimer(signal.ITIMER_REAL, 0.1)


def outcome(call):
    # Returns the name of the exception that the call raises, or None.
    try:
        call()
    except BaseException as error:
        return type(error).__name__
"""

# Zeros that take no memory, and more than a second to hash, so the handler runs meanwhile.
LARGE = """
large = torch.zeros(1 << 15, 1 << 14)
"""


def run(folder: Path, code: str) -> None:
    fork_python(PREAMBLE + code, str(folder))


@pytest.mark.parametrize("call", ["abort", "close"])
def test_a_handler_ends_the_writer_that_is_adding(tmp_path: Path, call: str) -> None:
    code = f"""
writer = Writer(path, None)
soon(lambda: attempt(writer.{call}))
assert outcome(lambda: writer.add("x", large)) == "Cancelled"
assert caught == {["Cancelled"] if call == "close" else []}, caught
assert os.listdir(folder) == []
assert outcome(lambda: writer.add("x", large)) == "InvalidArgument"  # it was aborted
"""
    run(tmp_path, LARGE + code)


def test_a_handler_cannot_add_to_the_writer_that_is_adding(tmp_path: Path) -> None:
    code = """
writer = Writer(path, None)
soon(lambda: (attempt(lambda: writer.add("y", torch.ones(1))), attempt(writer._flush)))
writer.add("x", large)
assert caught == ["InvalidArgument"] * 2, caught
writer.close()
assert Reader(path, None).names() == ["x"]
"""
    run(tmp_path, LARGE + code)


@pytest.mark.parametrize("swallow", [True, False])
def test_a_handler_closes_the_serializer_that_is_writing(tmp_path: Path, swallow: bool) -> None:
    handler = "attempt(serializer.close)" if swallow else "serializer.close()"
    code = f"""
tensorizer_ops.save(path, {{"old": torch.ones(1)}})
serializer = TensorSerializer(path)
soon(lambda: {handler})
with serializer:
    assert outcome(lambda: serializer.write_state_dict({{"x": large}})) == "Cancelled"
assert os.listdir(folder) == ["m.tensors"]
assert Reader(path, None).names() == ["old"]
assert outcome(lambda: serializer.write_state_dict({{"x": large}})) == "ValueError"  # it is closed
"""
    run(tmp_path, LARGE + code)


# The file object's methods run on whichever thread writes to it.
@pytest.mark.parametrize("threads", [1, 4])
def test_a_file_object_closes_the_serializer_that_writes_to_it(
    tmp_path: Path, threads: int
) -> None:
    code = f"""
class File(io.BytesIO):
    armed = False

    def write(self, data):
        if self.armed:
            attempt(lambda: serializer.write_state_dict({{"y": x}}))
            attempt(serializer.close)
        return super().write(data)


x = torch.zeros(1 << 22)
file = File()
serializer = TensorSerializer(file, limit_cpu_concurrency={threads})
serializer.write_state_dict({{"a": x}})
file.armed = True
ended = outcome(lambda: serializer.write_state_dict({{str(i): x for i in range(8)}}))
assert ended in ("Cancelled", "ValueError"), ended  # the file may be closed before the job is
assert caught[:2] == ["InvalidArgument", "Cancelled"], caught
assert file.closed
"""
    run(tmp_path, code)


def test_a_handler_that_writes_to_the_file_that_is_written(tmp_path: Path) -> None:
    code = """
class File(io.BytesIO):
    def write(self, data):
        signal.raise_signal(signal.SIGUSR1)
        return super().write(data)


file = File()
writer = writer_to(_core.file_sink(file, 0, False), {"threads": "1"}, None)
on_signal(signal.SIGUSR1, lambda: (attempt(writer._flush), attempt(writer.abort)))
assert outcome(lambda: writer.add("x", torch.ones(1000))) == "Cancelled"
assert caught == ["InvalidArgument"], caught
"""
    run(tmp_path, code)


@pytest.mark.parametrize("call", ["close", "cancel"])
def test_a_handler_ends_the_reader_that_opens_its_file(tmp_path: Path, call: str) -> None:
    code = f"""
os.mkfifo(path)
holder = os.open(path, os.O_RDWR)  # never writes anything
reader = Reader(path, None)
soon(lambda: (attempt(reader.names), attempt(lambda: reader.load(["x"])), reader.{call}()))
assert outcome(reader.names) == "Cancelled"
assert caught == ["InvalidArgument"] * 2, caught
"""
    run(tmp_path, code)


FILE = """
class File(io.BytesIO):
    def readinto(self, buffer):
        signal.raise_signal(signal.SIGUSR1)
        return super().readinto(buffer)


tensors = {"a": torch.arange(1000.0), "b": torch.ones(3)}
tensorizer_ops.save(path, tensors)
data = open(path, "rb").read()
"""


def test_a_handler_asks_the_file_object_that_is_read(tmp_path: Path) -> None:
    code = """
with TensorDeserializer(File(data), "cpu", lazy_load=True) as lazy:
    on_signal(signal.SIGUSR1, lambda: attempt(lambda: lazy["b"]))
    assert torch.equal(lazy["a"], tensors["a"])
    assert caught == ["InvalidArgument"], caught
    assert torch.equal(lazy["b"], tensors["b"])
"""
    run(tmp_path, "signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n" + FILE + code)


def test_a_handler_asks_the_reader_that_opens_a_file_object(tmp_path: Path) -> None:
    code = """
reader = reader_of(_core.file_source(File(data), 0, True, False, False), {})
on_signal(signal.SIGUSR1, lambda: attempt(reader.names))
assert reader.names() == ["a", "b"]
assert caught == ["InvalidArgument"], caught
"""
    run(tmp_path, FILE + code)


def test_a_handler_closes_the_deserializer_that_loads(tmp_path: Path) -> None:
    code = """
lazy = TensorDeserializer(File(data), "cpu", lazy_load=True)
on_signal(signal.SIGUSR1, lazy.close)
assert outcome(lambda: lazy["a"]) in ("Cancelled", "ValueError")  # the file is closed
"""
    run(tmp_path, "signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n" + FILE + code)


# The progress function runs on a separate thread, and the load waits for it.
def test_a_progress_function_asks_for_another_tensor(tmp_path: Path) -> None:
    code = """
called = threading.Event()


class File(io.BytesIO):
    armed = False

    def readinto(self, buffer):
        if self.armed:
            called.wait()
        return super().readinto(buffer)


def progress(done, total):
    if not called.is_set():
        called.set()
        assert torch.equal(lazy["b"], torch.ones(3))


tensorizer_ops.save(path, {"a": torch.arange(1000.0), "b": torch.ones(3)})
file = File(open(path, "rb").read())
lazy = TensorDeserializer(file, "cpu", lazy_load=True, progress=progress)
file.armed = True
assert lazy["a"][-1] == 999
assert called.is_set()
"""
    run(tmp_path, code)


# Threads that load the same tensor at the same time get the same object.
def test_threads_that_load_the_same_tensor(tmp_path: Path) -> None:
    code = """
import concurrent.futures

tensorizer_ops.save(path, {"a": torch.arange(1000.0)})
for _ in range(20):
    with TensorDeserializer(path, "cpu", lazy_load=True) as lazy:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: lazy["a"], range(8)))
        assert all(tensor is lazy["a"] for tensor in found)
"""
    run(tmp_path, code)


def test_a_file_object_that_goes_with_its_reader(tmp_path: Path) -> None:
    code = """
class File(io.BytesIO):
    def __del__(self):
        caught.append(reader.progress())


tensorizer_ops.save(path, {"a": torch.ones(3)})
reader = reader_of(
    _core.file_source(File(open(path, "rb").read()), 0, True, False, False), {}
)
reader.names()
reader.close()
assert len(caught) == 1
"""
    run(tmp_path, code)


def test_a_signal_while_a_log_handler_runs(tmp_path: Path) -> None:
    code = """
import http.server, logging

signal.signal(signal.SIGINT, signal.default_int_handler)
tensorizer_ops.save(path, {"a": torch.ones(3)})
os.chdir(folder)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
threading.Thread(target=server.serve_forever, daemon=True).start()


class Log(logging.Handler):
    def emit(self, record):
        signal.raise_signal(signal.SIGINT)


logging.getLogger("tensorizer_ops").addHandler(Log())
logging.getLogger("tensorizer_ops").setLevel(logging.INFO)
url = f"http://127.0.0.1:{server.server_port}/m.tensors"
assert outcome(lambda: tensorizer_ops.load(url)) == "KeyboardInterrupt"
server.shutdown()
"""
    run(tmp_path, code)
