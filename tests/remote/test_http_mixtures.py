"""Files that are replaced on a web server during a load, and the headers that reveal it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from support.samples import assert_same, sample
from support.scripted import Asked, ScriptedServer, scripted

ops = torch.ops.tensorizer

OLD = {f"t{i}": sample(torch.float32, (300, 1000 + i), i) for i in range(4)}  # 5 MB
NEW = {name: tensor + 1 for name, tensor in OLD.items()}
CHANGED = "has changed while it was loaded"
ONE_BY_ONE = {"chunk_size": str(1 << 20), "connections": "1"}

Files = tuple[bytes, bytes]
Headers = Callable[[int], dict[str, str]]

LONG_AGO = formatdate(1_600_000_000, usegmt=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Two files of the same size, with the same index."""
    folder = tmp_path_factory.mktemp("mixtures")
    for name, tensors in (("old", OLD), ("new", NEW)):
        ops.save(str(folder / name), tensors, hashes="all")
    old, new = ((folder / name).read_bytes() for name in ("old", "new"))
    assert len(old) == len(new) and old[:4096] == new[:4096]
    return old, new


def none(generation: int) -> dict[str, str]:
    return {}


def weak(generation: int) -> dict[str, str]:
    return {"ETag": f'W/"{generation}"'}


def same_weak(generation: int) -> dict[str, str]:
    return {"ETag": 'W/"1"'}


def malformed(generation: int) -> dict[str, str]:
    return {"ETag": f"{generation}"}


def strong(generation: int) -> dict[str, str]:
    return {"ETag": f'"{generation}"'}


def weak_with_date(generation: int) -> dict[str, str]:
    modified = formatdate(1_600_000_000 + generation, usegmt=True)
    return {"ETag": 'W/"1"', "Last_Modified": modified, "Date": formatdate(usegmt=True)}


def dated(generation: int) -> dict[str, str]:
    modified = formatdate(1_600_000_000 + generation, usegmt=True)
    return {"Last_Modified": modified, "Date": formatdate(usegmt=True)}


def same_second(generation: int) -> dict[str, str]:
    return {"Last_Modified": LONG_AGO, "Date": LONG_AGO}


def same_second_of_nginx(generation: int) -> dict[str, str]:
    return {"ETag": f'"{1_600_000_000:x}-4c5f40"', "Last_Modified": LONG_AGO, "Date": LONG_AGO}


def empty(generation: int) -> dict[str, str]:
    return {"ETag": '""'}


TELLING = [weak, malformed, strong, weak_with_date, dated]
SILENT = [none, empty, same_weak, same_second, same_second_of_nginx]


@contextmanager
def replacing(files: Files, headers: Headers, after: int) -> Iterator[ScriptedServer]:
    """A server that has the new file after `after` requests."""

    def answer(asked: Asked) -> None:
        generation = int(len(server.asked) > after)
        asked.say_range(files[generation], **headers(generation))

    with scripted(answer) as server:
        yield server


@pytest.mark.parametrize("headers", TELLING + SILENT, ids=lambda headers: headers.__name__)
@pytest.mark.parametrize("after", [1, 3])
def test_a_mixture_is_an_error(files: Files, headers: Headers, after: int) -> None:
    with (
        replacing(files, headers, after) as server,
        pytest.raises(ConnectionError, match=CHANGED),
    ):
        ops.load(server.url(), options=ONE_BY_ONE)


@pytest.mark.parametrize("headers", [weak, none], ids=lambda headers: headers.__name__)
def test_no_mixture_is_verified(files: Files, headers: Headers) -> None:
    """Each tensor is valid by itself: it matches its hashes in the old file or in the new one."""
    for look in (ops.verify, tensorizer_ops.digest):
        with (
            replacing(files, headers, 2) as server,  # after the first tensor
            pytest.raises(ConnectionError, match=CHANGED),
        ):
            look(server.url(), threads=1, options=ONE_BY_ONE)


def test_no_mixture_is_written(files: Files, path: str) -> None:
    with replacing(files, none, 2) as server:
        reader = torch.classes.tensorizer.Reader(server.url(), ONE_BY_ONE)
        with pytest.raises(ConnectionError, match=CHANGED):
            reader.rewrite(path, "all", {}, 1)
    assert not Path(path).exists()


def test_no_mixture_stays_in_outputs(files: Files) -> None:
    outputs = {name: torch.ones_like(tensor) for name, tensor in OLD.items()}
    with replacing(files, none, 2) as server, pytest.raises(ConnectionError, match=CHANGED):
        ops.load_into(server.url(), list(outputs), list(outputs.values()))
    assert not any(tensor.any() for tensor in outputs.values())


@pytest.mark.parametrize(
    ("headers", "checks"),
    [(none, 1), (same_weak, 1), (same_second, 1), (dated, 0), (strong, 0), (weak_with_date, 0)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_what_it_costs_to_know(files: Files, headers: Headers, checks: int) -> None:
    """One more request at the end of a load if the responses do not identify the file."""
    with replacing(files, headers, 1000) as server:
        reader = torch.classes.tensorizer.Reader(server.url(), {"connections": "1"})
        assert_same(reader.load(None, None, None, "none", False, 0), OLD)
        beginnings = [asked for asked in server.asked if "bytes=0-" in asked.headers["range"]]
        assert len(beginnings) == 1 + checks
        count = len(server.asked)
        reader.load([], None, None, "none", False, 0)
        assert len(server.asked) == count, "what was not asked for since need not be confirmed"
        tags = [asked.headers["if-match"] for asked in server.asked[1:]]
        assert set(tags) == ({'"0"'} if headers is strong else {None})


def test_a_second_that_is_over_tells_from_then_on(files: Files) -> None:
    def answer(asked: Asked) -> None:
        # The first response is sent in the second of the file's last change, the others later.
        date = formatdate(1_600_000_000 + (len(server.asked) > 1), usegmt=True)
        asked.say_range(files[0], Last_Modified=LONG_AGO, Date=date)

    with scripted(answer) as server:
        reader = torch.classes.tensorizer.Reader(server.url(), {"connections": "1"})
        for _ in range(3):
            assert_same(reader.load(["t3"], None, None, "none", False, 0), {"t3": OLD["t3"]})
        beginnings = [asked for asked in server.asked if "bytes=0-" in asked.headers["range"]]
        assert len(beginnings) == 2, "one to open it, and one to confirm the first load"


def test_what_one_answer_brought_is_of_one_file(path: str) -> None:
    ops.save(path, {"x": torch.ones(3)})
    content = Path(path).read_bytes()
    with replacing((content, content), none, 1) as server:
        ops.load(server.url())
        assert len(server.asked) == 1
