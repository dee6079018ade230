"""Objects in S3, on a server that checks signatures."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from local_servers.s3_server import KEY_ID, S3, SECRET, s3_server
from local_servers.waiting import wait_until
from support.process import fork, wait
from support.recorder import Recorded, Recorder, recorder
from support.samples import assert_same, sample, zoo

ops = torch.ops.tensorizer
Writer = torch.classes.tensorizer.Writer

LARGE = {f"t{i}": sample(torch.float32, (1000, 1000 + i), i) for i in range(12)}  # 48 MB


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        ops.save(str(server.root / "bucket" / "zoo.tensors"), zoo())
        ops.save(str(server.root / "bucket" / "large.tensors"), LARGE)
        yield server


@pytest.fixture
def recorded(s3: S3) -> Iterator[Recorder]:
    with recorder(s3.port) as between:
        yield between


def through(s3: S3, between: Recorder, **more: str) -> dict[str, str]:
    return s3.options(s3_endpoint=f"http://127.0.0.1:{between.port}", **more)


@pytest.mark.parametrize("name", ["zoo", "large"])
def test_loads(s3: S3, name: str) -> None:
    expected = zoo() if name == "zoo" else LARGE
    options = s3.options(chunk_size="1000000")
    assert_same(ops.load(f"s3://bucket/{name}.tensors", verify="all", options=options), expected)


KEYS = ["a b", "a+b", "a%20b", "a=b&c=d", "deep/er/x", "ü/日本", "a'(b)*!~", "x?y#z", "a;b,c:@d"]


@pytest.mark.parametrize("key", KEYS)
def test_keys_of_every_kind(s3: S3, key: str) -> None:
    tensors = {"x": torch.arange(5)}
    ops.save(f"s3://bucket/keys/{key}", tensors, options=s3.options())
    assert f"keys/{key}" in s3.objects()
    assert_same(ops.load(f"s3://bucket/keys/{key}", options=s3.options()), tensors)
    (s3.root / "bucket" / "keys" / key).unlink()


@pytest.mark.parametrize("key", ["a/../b", "./c", "d/./e", "../other/f"])
def test_dots_lead_nowhere_else(s3: S3, recorded: Recorder, key: str) -> None:
    recorded.answers = lambda request: b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    with pytest.raises(FileNotFoundError):
        ops.load(f"s3://bucket/{key}", options=through(s3, recorded))
    assert recorded.requests[0].path == f"/bucket/{key}"


@pytest.mark.parametrize("hashes", ["all", "none"])
@pytest.mark.parametrize("name", ["zoo", "large"])
def test_saves(s3: S3, path: str, name: str, hashes: str) -> None:
    tensors = zoo() if name == "zoo" else LARGE
    ops.save(f"s3://bucket/saved-{name}-{hashes}", tensors, hashes=hashes, options=s3.options())
    ops.save(path, tensors, hashes=hashes)
    stored = s3.root / "bucket" / f"saved-{name}-{hashes}"
    assert stored.read_bytes() == Path(path).read_bytes()
    stored.unlink()


def test_what_cannot_be_lent_is_copied(s3: S3, path: str) -> None:
    """Views that are not contiguous are copied to a buffer that is reused."""
    tensors = {f"t{i}": sample(torch.int64, (1500, 1000 + i), i).t() for i in range(4)}
    ops.save("s3://bucket/views", tensors, options=s3.options())
    assert_same(ops.load(str(s3.root / "bucket" / "views"), verify="all"), tensors)
    (s3.root / "bucket" / "views").unlink()


def parts_of(requests: list[Recorded]) -> dict[int, int]:
    return {int(r.query["partNumber"]): r.size for r in requests if "partNumber" in r.query}


def test_parts_have_one_size(s3: S3, recorded: Recorder) -> None:
    ops.save("s3://bucket/parts", LARGE, options=through(s3, recorded))
    requests = recorded.take()
    sizes = parts_of(requests)
    assert sorted(sizes) == list(range(1, len(sizes) + 1)) and len(sizes) > 3
    *equal, last = (sizes[number] for number in sorted(sizes))
    assert set(equal) == {8 << 20} and 0 < last <= 8 << 20
    assert sum(sizes.values()) == (s3.root / "bucket" / "parts").stat().st_size
    assert [r.method for r in requests if r.method == "POST"] == ["POST", "POST"]
    assert "uploads" in requests[0].query and "uploadId" in requests[-1].query
    assert all("x-amz-checksum-crc32" in r.headers for r in requests if r.method == "PUT")
    (s3.root / "bucket" / "parts").unlink()


def test_a_small_save_is_one_request(s3: S3, recorded: Recorder) -> None:
    ops.save("s3://bucket/small", {"x": torch.ones(1000)}, options=through(s3, recorded))
    assert [(r.method, r.query) for r in recorded.take()] == [("PUT", {})]
    (s3.root / "bucket" / "small").unlink()


@pytest.mark.parametrize("count", [1, 12])
def test_writer(s3: S3, recorded: Recorder, count: int) -> None:
    """Parts are uploaded while tensors are added. The first part has the index, and comes last."""
    options = through(s3, recorded, part_size=str(6 << 20), hashes="all")
    writer = torch.classes.tensorizer.Writer("s3://bucket/written", options)
    tensors = dict(list(LARGE.items())[:count])
    for name, tensor in tensors.items():
        writer.add(name, tensor, 2, 0)
    # All parts but the first and the last are complete now, and are being uploaded.
    whole = sum(tensor.nbytes for tensor in tensors.values()) // (6 << 20) - 1
    begun = parts_of(recorded.take())

    def are_begun() -> bool:
        begun.update(parts_of(recorded.take()))
        return len(begun) >= whole

    wait_until(are_begun)
    assert not (s3.root / "bucket" / "written").exists()
    writer.close()
    assert_same(ops.load("s3://bucket/written", verify="all", options=s3.options()), tensors)
    rest = parts_of(recorded.take())
    if count == 12:
        assert len(begun) == whole and 1 in rest and len(rest) == 2
        assert set(begun.values()) == {6 << 20}
    else:
        assert not begun and not rest
    (s3.root / "bucket" / "written").unlink()


def test_an_error_leaves_the_old_object(s3: S3, recorded: Recorder) -> None:
    ops.save("s3://bucket/old", {"x": torch.zeros(3)}, options=s3.options())
    recorded.breaks = lambda request: request.query.get("partNumber") == "3"
    with pytest.raises(ConnectionError, match="cannot save 's3://bucket/old'"):
        ops.save("s3://bucket/old", LARGE, options=through(s3, recorded, retries="1"))
    assert recorded.requests[-1].method == "DELETE"
    assert not s3.uploads()
    assert ops.load("s3://bucket/old", options=s3.options())["x"].tolist() == [0, 0, 0]
    (s3.root / "bucket" / "old").unlink()


def test_a_part_that_comes_after_the_removal_is_removed_too(s3: S3, recorded: Recorder) -> None:
    """The upload still exists after the first DELETE, so the save removes it again."""
    removals: list[Recorded] = []

    def answers(request: Recorded) -> bytes | None:
        if request.method == "DELETE":
            removals.append(request)
        return b"HTTP/1.1 204 No Content\r\n\r\n" if len(removals) == 1 else None

    recorded.answers = answers
    recorded.breaks = lambda request: request.query.get("partNumber") == "3"
    with pytest.raises(ConnectionError, match="cannot save"):
        ops.save("s3://bucket/x", LARGE, options=through(s3, recorded, retries="0"))
    assert len(removals) == 3, "the last one is told that there is no such upload"
    assert not s3.uploads()


def test_a_writer_that_is_dropped_leaves_nothing(s3: S3) -> None:
    writer = torch.classes.tensorizer.Writer("s3://bucket/dropped", s3.options())
    for name, tensor in LARGE.items():
        writer.add(name, tensor, 2, 0)
    assert s3.uploads()
    del writer
    assert not s3.uploads()
    assert not (s3.root / "bucket" / "dropped").exists()


def test_a_writer_is_not_its_childrens(s3: S3) -> None:
    writer = torch.classes.tensorizer.Writer("s3://bucket/forked", s3.options())
    for name, tensor in LARGE.items():
        writer.add(name, tensor, 2, 0)

    def child() -> None:
        nonlocal writer
        with pytest.raises(ValueError, match="before a fork"):
            writer.close()
        writer.abort()
        del writer
        gc.collect()

    assert wait(fork(child)) == 0
    writer.close()
    assert_same(ops.load("s3://bucket/forked", verify="all", options=s3.options()), LARGE)
    (s3.root / "bucket" / "forked").unlink()


def test_a_part_that_breaks_is_sent_again(s3: S3, recorded: Recorder) -> None:
    broken: list[str] = []

    def breaks(request: Recorded) -> bool:
        number = request.query.get("partNumber")
        if number is None or broken.count(number) >= 2:
            return False
        broken.append(number)
        return True

    recorded.breaks = breaks
    ops.save("s3://bucket/broken", LARGE, options=through(s3, recorded))
    assert len(broken) > 6
    assert_same(ops.load(str(s3.root / "bucket" / "broken"), verify="all"), LARGE)
    (s3.root / "bucket" / "broken").unlink()


def failing(code: str) -> bytes:
    """Returns an error with status 200, as of a server that begins to respond too early."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>again</Message></Error>"
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def is_completion(request: Recorded) -> bool:
    return request.method == "POST" and "uploadId" in request.query


def test_a_completion_that_fails_late_is_asked_again(s3: S3, recorded: Recorder) -> None:
    asked: list[Recorded] = []

    def answers(request: Recorded) -> bytes | None:
        if not is_completion(request):
            return None
        asked.append(request)
        return failing("InternalError") if len(asked) == 1 else None

    recorded.answers = answers
    ops.save("s3://bucket/late", LARGE, options=through(s3, recorded))
    assert len(asked) == 2
    assert_same(ops.load("s3://bucket/late", verify="all", options=s3.options()), LARGE)

    recorded.answers = lambda request: failing("InternalError") if is_completion(request) else None
    with pytest.raises(ConnectionError, match="after 1 more try: 'InternalError: again'"):
        ops.save("s3://bucket/late", LARGE, options=through(s3, recorded, retries="1"))
    assert not s3.uploads()
    (s3.root / "bucket" / "late").unlink()


def test_a_completion_whose_answer_is_lost_says_so(s3: S3, recorded: Recorder) -> None:
    """The server has completed the upload, so a retry finds no such upload."""
    asked: list[Recorded] = []

    def first(request: Recorded) -> bool:
        if is_completion(request):
            asked.append(request)
        return len(asked) == 1

    recorded.loses = first
    with pytest.raises(ConnectionError, match="completed by a request whose response was lost"):
        ops.save("s3://bucket/lost", LARGE, options=through(s3, recorded))
    assert_same(ops.load("s3://bucket/lost", verify="all", options=s3.options()), LARGE)
    (s3.root / "bucket" / "lost").unlink()


def test_who_gives_up_does_not_wait_for_a_server_that_hangs(s3: S3, recorded: Recorder) -> None:
    """The DELETE for the parts gets no response, and the save gives up before `stall_timeout`."""

    def hangs(request: Recorded) -> bytes | None:
        return b"" if request.method == "DELETE" else None

    recorded.answers = hangs
    recorded.breaks = lambda request: request.query.get("partNumber") == "2"
    start = time.monotonic()
    options = through(s3, recorded, retries="0", stall_timeout="600")
    with pytest.raises(ConnectionError, match="cannot save"):
        ops.save("s3://bucket/x", LARGE, options=options)
    assert 1.5 < time.monotonic() - start < 100
    # A part that was under way may be recorded after it.
    assert [request.method for request in recorded.requests].count("DELETE") == 1


ERRORS = [
    ({"s3_secret_access_key": "wrong"}, "zoo.tensors", PermissionError, "SignatureDoesNotMatch"),
    ({"s3_access_key_id": "AKIAWRONG"}, "zoo.tensors", PermissionError, "403"),
    ({}, "missing", FileNotFoundError, "NoSuchKey"),
]


@pytest.mark.parametrize(("wrong", "key", "kind", "text"), ERRORS, ids=["secret", "id", "key"])
def test_refusals(
    s3: S3, wrong: dict[str, str], key: str, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text) as error:
        ops.load(f"s3://bucket/{key}", options=s3.options(**wrong))
    assert SECRET not in str(error.value) and "wrong" not in str(error.value)
    if wrong:
        with pytest.raises(kind, match="403"):
            ops.save(f"s3://bucket/{key}", LARGE, options=s3.options(**wrong))


@pytest.mark.parametrize("uri", ["s3://", "s3://bucket", "s3://bucket/", "s3:///key"])
def test_uris_that_name_no_object(s3: S3, uri: str) -> None:
    for call in (ops.names, lambda *a, **k: ops.save(a[0], {}, **k)):
        with pytest.raises(ValueError, match="BUCKET/KEY"):
            call(uri, options=s3.options())


def test_a_server_that_dies_in_the_middle(tmp_path: Path) -> None:
    with s3_server(tmp_path) as server, recorder(server.port) as between:

        def breaks(request: Recorded) -> bool:
            if request.query.get("partNumber") == "4":
                server.process.kill()
            return False

        between.breaks = breaks
        options = through(server, between, retries="1", connect_timeout="1")
        with pytest.raises(ConnectionError):
            ops.save("s3://bucket/x", LARGE, options=options)
        with pytest.raises(ConnectionError):
            ops.load("s3://bucket/x", options=options)


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    with s3_server(tmp_path, largest=10 << 20) as server:
        ops.save("s3://bucket/old", zoo(), options=server.options())
        with pytest.raises((ConnectionError, OSError), match="s3://bucket/old"):
            ops.save("s3://bucket/old", LARGE, options=server.options(retries="1"))
        assert not server.uploads()
        assert_same(ops.load("s3://bucket/old", verify="all", options=server.options()), zoo())


def test_nothing_secret_travels(s3: S3) -> None:
    import pickle

    with pytest.raises(ValueError, match="s3_secret_access_key"):
        pickle.dumps(torch.classes.tensorizer.Reader("s3://bucket/zoo.tensors", s3.options()))
    tensorizer_ops.set_secret("a test's", SECRET)
    os.environ["TENSORIZER_TEST_ID"] = KEY_ID
    named = s3.options(
        s3_access_key_id="env:TENSORIZER_TEST_ID", s3_secret_access_key="named:a test's"
    )
    reader = torch.classes.tensorizer.Reader("s3://bucket/zoo.tensors", named)
    assert_same(pickle.loads(pickle.dumps(reader)).load(None, None, None, "all", False, 0), zoo())
    tensorizer_ops.set_secret("a test's", None)
    with pytest.raises(ValueError, match="no secret named"):
        ops.load("s3://bucket/zoo.tensors", options=named)


def test_a_writer_refuses_tensors_for_which_the_index_has_no_room(s3: S3) -> None:
    """Before their data is sent. What was added before can be saved."""
    uri = "s3://bucket/room.tensors"
    first = {"first": LARGE["t0"], "second": sample(torch.float32, (4_000_000,))}  # 20 MB
    writer = Writer(uri, s3.options(digest_chunk="65536", expected_bytes="1"))
    for name, tensor in first.items():
        writer.add(name, tensor)
    large = torch.empty(2_200_000_000, dtype=torch.uint8)  # whose pages nobody touches
    sent = writer.progress()
    with pytest.raises(
        ValueError, match=r"no room for more.*'expected_tensors'.*, and 'expected_bytes'"
    ):
        writer.add("large", large)
    assert writer.progress() == sent
    writer.add("third", torch.ones(3))
    writer.close()
    loaded = ops.load(uri, verify="all", options=s3.options())
    assert_same(loaded, first | {"third": torch.ones(3)})


@pytest.mark.parametrize("hashes", ["crc32", "chunked"])
def test_a_writer_reserves_room_for_the_expected_tensors(s3: S3, hashes: str) -> None:
    uri = "s3://bucket/expected.tensors"
    names = [f"model.layers.{i}.some_module.weight" for i in range(20_000)]
    tensors = [torch.full((1, 1), float(i)) for i in range(len(names))]
    numbers = [2] * len(names), [0] * len(names)
    large = sample(torch.float32, (5_000_000,))
    for expected in ("0", str(len(names) + 1)):
        counts = {"expected_tensors": expected, "expected_bytes": "1"}
        writer = Writer(uri, s3.options(hashes=hashes, **counts))
        writer.add("large", large)
        if expected == "0":
            with pytest.raises(ValueError, match="'expected_tensors'"):
                writer._add_all(names, tensors, *numbers)
            writer.abort()
        else:
            writer._add_all(names, tensors, *numbers)
            writer.close()
    loaded = ops.load(uri, verify="all", options=s3.options())
    assert_same(loaded, {"large": large} | dict(zip(names, tensors, strict=True)))
