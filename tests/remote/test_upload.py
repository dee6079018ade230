"""Saves to web servers with PUT."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from local_servers.waiting import wait_until
from local_servers.web import PASSWORD, Web, nginx
from support.recorder import recorder
from support.samples import assert_same, random_bytes, zoo

ops = torch.ops.tensorizer

LARGE = {f"t{i}": random_bytes((3 << 20) + i, i) for i in range(5)}


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    with nginx(tmp_path_factory.mktemp("web")) as server:
        (server.root / "put").mkdir()
        yield server


@pytest.mark.parametrize("hashes", ["all", "none"])
@pytest.mark.parametrize("name", ["zoo", "large", "none"])
def test_a_save_is_one_put(web: Web, path: str, name: str, hashes: str) -> None:
    tensors = {"zoo": zoo(), "large": LARGE, "none": {}}[name]
    web.requests()
    ops.save(web.url(f"put/a/{name}"), tensors, hashes=hashes)
    # nginx writes its log after it has sent the response.
    lines: list[str] = []

    def are_logged() -> bool:
        lines.extend(web.requests())
        return bool(lines)

    wait_until(are_logged)
    assert [line.split('"')[1].split()[0] for line in lines] == ["PUT"]
    ops.save(path, tensors, hashes=hashes)
    stored = web.root / "put" / "a" / name
    assert stored.read_bytes() == Path(path).read_bytes()
    assert_same(ops.load(web.url(f"put/a/{name}")), tensors)
    stored.unlink()


def test_redirects_and_passwords(web: Web) -> None:
    ops.save(web.url("put-moved/x"), LARGE)
    assert_same(ops.load(web.url("put/put-moved/x")), LARGE)
    secret = PASSWORD.replace(" ", "%20")
    private = web.url("put-private/y")
    ops.save(private.replace("//", f"//me:{secret}@"), LARGE)
    assert_same(ops.load(web.url("put/y")), LARGE)


@contextmanager
def moving(to: str, after: int) -> Iterator[str]:
    """Yields the URL of a server that redirects an upload to `to` after `after` bytes."""
    taken: list[int] = []

    def serve() -> None:
        client, _ = listener.accept()
        with client, client.makefile("rb") as asked:
            while asked.readline() != b"\r\n":
                pass
            client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            taken.append(len(asked.read(after)))
            answer = f"HTTP/1.1 307 Moved\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n"
            client.sendall(answer.encode())
            while asked.read1(1 << 20):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        # Otherwise the kernel might take tens of MiB more before the answer is on its way.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        # A daemon, because no client connects if the save fails before it begins.
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        thread.join()
        assert taken == [after]


@pytest.mark.parametrize("after", [1, 100_000, 1 << 20])
def test_a_late_redirect(web: Web, after: int) -> None:
    with moving(web.url("put/late"), after) as url:
        ops.save(url, LARGE)
    assert_same(ops.load(web.url("put/late"), verify="all"), LARGE)


def test_a_redirect_that_is_too_late(web: Web) -> None:
    with (
        moving(web.url("put/too-late"), 17 << 20) as url,
        pytest.raises(ConnectionError, match="more bytes were sent than are kept"),
    ):
        ops.save(url, {"x": random_bytes(18 << 20, 1)})
    assert not (web.root / "put" / "too-late").exists()


@pytest.mark.parametrize(
    ("place", "kind", "text"),
    [
        ("put-private/z", PermissionError, "401"),
        ("forbidden/z", PermissionError, "403"),
        ("put-small/z", ConnectionError, "413"),
        ("z", ConnectionError, "405"),
    ],
)
def test_refusals(web: Web, place: str, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        ops.save(web.url(place), LARGE)
    assert not (web.root / "put" / "z").exists()


@pytest.mark.parametrize("most", [0, 5 << 20])
def test_what_breaks_leaves_the_old_file(web: Web, most: int) -> None:
    old = {"x": torch.ones(3)}
    ops.save(web.url("put/old"), old)
    with recorder(web.port) as between:
        between.most = most
        with pytest.raises(ConnectionError, match="cannot save"):
            ops.save(f"http://127.0.0.1:{between.port}/put/old", LARGE)
        assert len(between.requests) == 1, "what is gone cannot be sent again"
    assert_same(ops.load(web.url("put/old"), verify="all"), old)


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    with nginx(tmp_path, largest=4 << 20) as web:
        (web.root / "put").mkdir()
        ops.save(web.url("put/old"), zoo())
        with pytest.raises(ConnectionError, match="500"):
            ops.save(web.url("put/old"), LARGE)
        assert_same(ops.load(web.url("put/old"), verify="all"), zoo())


def test_a_writer_is_refused(web: Web) -> None:
    with pytest.raises(ValueError, match="index first"):
        torch.classes.tensorizer.Writer(web.url("put/x"), None)
