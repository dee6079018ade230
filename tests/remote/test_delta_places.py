"""Deltas from and to all places."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tensorizer_ops
from support.places import SINKS, SOURCES, World
from tensorizer_ops.errors import InvalidArgument

Files = dict[str, bytes]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Two versions of a model, and the delta between them."""
    folder = tmp_path_factory.mktemp("deltas")
    torch.manual_seed(0)
    older = {f"layers.{i}": torch.randn(1000, 900).bfloat16() for i in range(3)}
    newer = {name: tensor * (1 + 2**-6) for name, tensor in older.items()}
    names = ("older", "newer", "delta")
    places = [folder / f"{name}.tensors" for name in names]
    tensorizer_ops.save(places[0], older)
    tensorizer_ops.save(places[1], newer)
    tensorizer_ops.delta(*places)
    found = {name: place.read_bytes() for name, place in zip(names, places, strict=True)}
    for place in places:
        place.unlink()
    return found


def write(folder: Path, files: Files, *names: str) -> list[Path]:
    places = [folder / f"{name}.tensors" for name in names]
    for place, name in zip(places, names, strict=True):
        place.write_bytes(files[name])
    return places


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("away", ["older", "newer", "delta"])
def test_from_a_source(world: World, files: Files, tmp_path: Path, kind: str, away: str) -> None:
    here = dict(zip(files, write(tmp_path, files, *files), strict=True))
    out = tmp_path / "out.tensors"
    with SOURCES[kind](world, files[away]) as place:
        uris = {**here, away: place.uri}

        def options(name: str) -> dict[str, str]:
            return dict(place.options) if name == away else {}

        def run() -> None:
            if away != "delta":
                tensorizer_ops.delta(
                    *(uris["older"], uris["newer"], out),
                    base_options=options("older"),
                    new_options=options("newer"),
                )
                assert out.read_bytes() == files["delta"]
            if away != "newer":
                tensorizer_ops.apply(
                    *(uris["delta"], uris["older"], out),
                    base_options=options("older"),
                    delta_options=options("delta"),
                )
                assert out.read_bytes() == files["newer"]

        # The first answer of a web server has all of a small file.
        if kind == "pipe" or (place.sequential and away != "delta"):
            with pytest.raises(InvalidArgument, match="read only once"):
                run()
        else:
            run()


@pytest.mark.parametrize("kind", SINKS)
def test_to_a_sink(world: World, files: Files, tmp_path: Path, kind: str) -> None:
    older, delta = write(tmp_path, files, "older", "delta")
    with SINKS[kind](world) as sink:
        tensorizer_ops.apply(delta, older, sink.uri, target_options=sink.options)
        assert sink.read() == files["newer"]
