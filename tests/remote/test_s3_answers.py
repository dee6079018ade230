"""The responses that confirm that S3 has an object. A proxy before S3 may send others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from local_servers.s3_server import S3, s3_server
from support.aws_server import Aws
from support.recorder import Recorded, Recorder, recorder
from support.samples import assert_same, sample

ops = torch.ops.tensorizer

OLD = {"x": torch.zeros(3)}
SMALL = {"x": torch.ones(3)}
LARGE = {f"t{i}": sample(torch.float32, (1000, 1000 + i), i) for i in range(3)}  # two parts

PAGE = "<!DOCTYPE html>\n<html><body><form action='/login'>token=ABC123</form></body></html>"


def answer(status: str, body: str = "", **headers: str) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return (
        f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{lines}\r\n{body}".encode()
        if status[:3] != "204"
        else f"HTTP/1.1 {status}\r\n{lines}\r\n".encode()
    )


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def recorded(s3: S3) -> Iterator[Recorder]:
    with recorder(s3.port) as between:
        yield between
    (s3.root / "bucket" / "m").unlink(missing_ok=True)


def through(s3: S3, between: Recorder, **more: str) -> dict[str, str]:
    return s3.options(s3_endpoint=f"http://127.0.0.1:{between.port}", **more)


def begins(request: Recorded) -> bool:
    return request.method == "POST" and "uploads" in request.query


def puts_part(request: Recorded) -> bool:
    return request.method == "PUT" and "partNumber" in request.query


def puts(request: Recorded) -> bool:
    return request.method == "PUT" and not request.query


def completes(request: Recorded) -> bool:
    return request.method == "POST" and "uploadId" in request.query


ANSWERS = {
    "a page": answer("200 OK", PAGE),
    "a page with an ETag": answer("200 OK", PAGE, ETag='"x"'),
    "nothing": answer("200 OK"),
    "no content": answer("204 No Content", ETag='"x"'),
    "another result": answer("200 OK", "<Copied><UploadId>x</UploadId></Copied>"),
}


@pytest.mark.parametrize("said", ANSWERS)
@pytest.mark.parametrize("asked", [begins, puts_part, puts, completes], ids=lambda f: f.__name__)
def test_what_is_no_answer_of_s3_is_no_success(
    s3: S3, recorded: Recorder, asked: Callable[[Recorded], bool], said: str
) -> None:
    ops.save("s3://bucket/m", OLD, options=s3.options())
    tensors = SMALL if asked is puts else LARGE
    recorded.answers = lambda request: ANSWERS[said] if asked(request) else None
    with pytest.raises(ConnectionError, match="1 more try: 'this response is not") as error:
        ops.save("s3://bucket/m", tensors, options=through(s3, recorded, retries="1"))
    assert "ABC123" not in str(error.value)
    assert_same(ops.load("s3://bucket/m", options=s3.options()), OLD)

    recorded.take()

    def once(request: Recorded) -> bytes | None:
        # A part of the save before may still come.
        is_first = asked(request) and len([r for r in recorded.requests if asked(r)]) == 1
        return ANSWERS[said] if is_first else None

    recorded.answers = once
    ops.save("s3://bucket/m", tensors, options=through(s3, recorded))
    assert_same(ops.load("s3://bucket/m", verify="all", options=s3.options()), tensors)


@pytest.mark.parametrize("encoding", ["aws-chunked", "binary", "utf-8"])
def test_what_uploads_leave_as_an_encoding(aws: Aws, tmp_path: Path, encoding: str) -> None:
    ops.save(str(tmp_path / "m"), LARGE)
    aws.client().upload_file(
        str(tmp_path / "m"), "bucket", encoding, ExtraArgs={"ContentEncoding": encoding}
    )
    options = {"s3_endpoint": aws.url, "force_http": "true", "s3_anonymous": "true"}
    assert_same(ops.load(f"s3://bucket/{encoding}", options=options), LARGE)


@pytest.mark.parametrize("replaced", [True, False], ids=["another object", "no object"])
def test_an_object_that_is_there_needs_no_answer(aws: Aws, replaced: bool, path: str) -> None:
    """The response to its completion is lost, but the object itself shows that it is complete."""
    key = f"s3://bucket/lost-{replaced}"
    with recorder(aws.port) as between:
        options = {
            "s3_endpoint": f"http://127.0.0.1:{between.port}",
            "force_http": "true",
            "s3_anonymous": "true",
        }
        if replaced:
            ops.save(key, {name: tensor + 1 for name, tensor in LARGE.items()}, options=options)
            between.take()
        between.loses = lambda request: completes(request)
        ops.save(key, LARGE, options=options)
        methods = [request.method for request in between.take()]
        assert methods[-1] == "HEAD" and "DELETE" not in methods
        between.loses = lambda request: False
        assert_same(ops.load(key, verify="all", options=options), LARGE)

        # The same size, but other bytes.
        between.answers = lambda request: answer("200 OK", PAGE) if completes(request) else None
        other = {name: tensor - 1 for name, tensor in LARGE.items()}
        with pytest.raises(ConnectionError, match="200 and an HTML page"):
            ops.save(key, other, options=options | {"retries": "0"})
        methods = [request.method for request in between.take()]
        assert "HEAD" in methods and methods[-1] == "DELETE"
        assert_same(ops.load(key, verify="all", options=options), LARGE)


def written(url: str, tensors: dict[str, torch.Tensor], options: dict[str, str]) -> None:
    writer = torch.classes.tensorizer.Writer(url, options)
    for name, tensor in tensors.items():
        writer.add(name, tensor, 2, 0)
    writer.close()


PART = 5 << 20
FILES = {
    "small": {"x": torch.ones(1000)},
    "almost a part": {"x": sample(torch.uint8, (PART - (300 << 10),), 1)},
    "a long index": {f"{'name.' * 20}{i}": torch.ones(1) for i in range(8000)},
}


@pytest.mark.parametrize("name", FILES)
def test_a_writer_of_one_part_leaves_no_room(
    s3: S3, recorded: Recorder, path: str, name: str
) -> None:
    """If all fits into one part, the file is one request without reserved room, even if the index
    is longer than usual. Its bytes are those of a `save`, which knows all tensors beforehand."""
    options = through(s3, recorded, part_size=str(PART))
    written("s3://bucket/m", FILES[name], options)
    assert [(r.method, r.query) for r in recorded.take()] == [("PUT", {})]
    ops.save(path, FILES[name])
    assert (s3.root / "bucket" / "m").read_bytes() == Path(path).read_bytes()
    assert os.path.getsize(path) <= PART


def test_a_writer_of_more_parts_keeps_its_room(s3: S3, recorded: Recorder) -> None:
    tensors = {"x": sample(torch.uint8, (PART - (1 << 10),), 1)}
    written("s3://bucket/m", tensors, through(s3, recorded, part_size=str(PART)))
    parts = [r.size for r in recorded.take() if puts_part(r)]
    assert len(parts) == 2 and PART in parts
    assert_same(ops.load("s3://bucket/m", verify="all", options=s3.options()), tensors)
