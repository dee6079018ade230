"""Names on servers that no file can be saved under."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tensorizer_ops
from local_servers.redis_server import RedisServer
from local_servers.s3_server import S3
from support.samples import assert_same

# Where nothing listens: the names are refused before they are sent.
NOBODY = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("uri", "options"),
    [
        (f"{NOBODY}/put/m/", {}),
        ("s3://bucket/m/", {"s3_endpoint": NOBODY, "force_http": "true", "s3_anonymous": "true"}),
        ("az://account/container/m/", {"az_endpoint": NOBODY, "force_http": "true"}),
        ("redis", {}),
    ],
)
def test_a_name_that_ends_in_a_slash(redis: RedisServer, uri: str, options: dict[str, str]) -> None:
    place = redis.url("m/") if uri == "redis" else uri
    with pytest.raises(ValueError, match="ends in a slash, and names no file"):
        tensorizer_ops.save(place, {"a": torch.ones(1)}, options=options)
    with pytest.raises(ValueError, match="ends in a slash, and names no file"):
        torch.classes.tensorizer.Writer(place, options)


def test_a_folder_is_converted_to_a_named_file(s3: S3, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    tensorizer_ops.save(model / "model.safetensors", {"a": torch.ones(3)})
    options = s3.options()
    with pytest.raises(ValueError, match=r"a folder, .* such as s3://…/model\.safetensors"):
        tensorizer_ops.convert(model, "s3://bucket/copy", target_options=options)
    assert not (s3.root / "bucket" / "copy").exists()
    uri = "s3://bucket/copy.safetensors"
    tensorizer_ops.convert(model, uri, target_options=options)
    assert_same(tensorizer_ops.load(uri, options=options), {"a": torch.ones(3)})
