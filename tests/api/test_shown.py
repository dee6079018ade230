"""How objects look on a terminal and in a notebook: one line, or a small table."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorizer_ops
from support.command import run
from tensorizer_ops import checkpoint, safetensors

HOSTILE = "<script>alert(1)</script>\x1b[31m\n\u202e\"&'"
URI = "s3://id:hunter22@bucket/m?X-Amz-Signature=hunter22"


def saved(tmp_path: Path, tensors: dict[str, torch.Tensor], **arguments: Any) -> str:
    path = str(tmp_path / "m.tensors")
    tensorizer_ops.save(path, tensors, **arguments)
    return path


def test_every_object_is_one_short_line(tmp_path: Path) -> None:
    path = saved(tmp_path, {f"{HOSTILE}{i}": torch.ones(2) for i in range(1000)})
    module = tmp_path / "module.tensors"
    with tensorizer_ops.TensorSerializer(module) as serializer:
        serializer.write_module(torch.nn.Linear(2, 2))
        assert repr(serializer) == (
            f"<tensorizer_ops.TensorSerializer to {str(module)!r}: 2 tensors, open>"
        )
    partly = tensorizer_ops.IncompatibleKeys([f"{HOSTILE}{i}" for i in range(1000)], [])
    opened = safetensors.safe_open(path, "pt")
    shown = {
        "Info: tensors format 1, 1000 tensors, 7.8 KiB>": tensorizer_ops.info(path),
        "1000 tensors>": opened,
        "F32 [2]>": opened.get_slice(f"{HOSTILE}0"),
        "2 tensors, 24 B>": tensorizer_ops.TensorDeserializer(module),
        "Reader of 's3://": tensorizer_ops.Reader(URI.encode()),
        "of descriptor ": tensorizer_ops.TensorDeserializer(os.open(module, os.O_RDONLY)),
        "... 980 more], unexpected_keys=[])": partly,
        "<All keys matched successfully>": tensorizer_ops.IncompatibleKeys([], []),
        "TensorizerStorageReader: 's3://": checkpoint.TensorizerStorageReader(URI),
        "TensorizerStorageWriter: no path>": checkpoint.TensorizerStorageWriter(),
        "state=finished": tensorizer_ops.save_async(tmp_path / "a.tensors", {}),
    }
    for text, given in shown.items():
        if isinstance(given, tensorizer_ops.Save):
            given.result()
        line = repr(given)
        assert text in line and line.isprintable() and len(line) < 2500
        assert "hunter22" not in line and " object at " not in line
    opened.__exit__()
    assert repr(opened).endswith(": closed>")


@pytest.mark.parametrize("count", [0, 3, 500])
def test_info_is_printed_as_the_command_prints_it(tmp_path: Path, count: int) -> None:
    tensors = {f"layers.{i}\\": torch.ones(i % 7, 2) for i in range(count)}
    path = saved(tmp_path, tensors, hashes="chunked", metadata={"k": "v" * 500})
    text, all_of_it = str(tensorizer_ops.info(path)), run("info", path).stdout.splitlines()
    assert len(all_of_it) == (7 + 2 + count if count else 5)
    if count <= 20:
        assert text.splitlines() == all_of_it
    else:
        *lines, last = text.splitlines()
        assert last == "... 480 more" and [*map(str.split, lines)] == [
            *map(str.split, all_of_it[: len(lines)])
        ]


def test_info_knows_hashes_and_the_cost_of_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_SHOWN", "hunter22")
    key = {"key": "passphrase-env:TEST_SHOWN"}
    options = {**key, "kdf": "min", "plain_digests": True}
    path = saved(tmp_path, {"a": torch.ones(2)}, hashes="chunked", options=options)
    info = tensorizer_ops.info(path, options=key)
    assert "chunked" in info.hashes and info.digest_chunk and info.key_cost == (1, 8192)
    assert "from a passphrase (1 passes over 8.0 KiB)" in str(info)
    assert "chunked" in info._repr_html_()
    assert pickle.loads(pickle.dumps(info)) == info
    # As pickles of earlier versions have it.
    assert tensorizer_ops.Info(*info[:6]).hashes == ()


def tables(tmp_path: Path, count: int) -> list[str]:
    path = saved(tmp_path, {f"{HOSTILE}{i}": torch.ones(3, 4) for i in range(count)})
    return [
        made._repr_html_()
        for made in (
            tensorizer_ops.info(path),
            tensorizer_ops.Reader(path),
            tensorizer_ops.TensorDeserializer(path),
            tensorizer_ops.TensorDeserializer(path, lazy_load=True),
        )
    ]


def test_notebooks_show_escaped_tables(tmp_path: Path) -> None:
    for html in tables(tmp_path, 2):
        assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[31m\\n\\u202e&quot;&amp;&#x27;0" in html
        assert "<script" not in html and not re.search("[\x1b\u202e]", html)
        assert "[3, 4]" in html and "float32" in html and ">48 B<" in html
        assert "mathjax_ignore" in html and "color" not in html


def test_notebooks_show_few_of_many_tensors(tmp_path: Path) -> None:
    for html in tables(tmp_path, 702 + 20):
        assert "... 702 more" in html and len(html) < 10_000


def test_notebooks_show_no_tensors_of_closed_files(tmp_path: Path) -> None:
    path = saved(tmp_path, {"weight": torch.ones(3)})
    reader = tensorizer_ops.Reader(path)
    reader.close()
    assert reader._repr_html_() == (f"&lt;tensorizer_ops.Reader of &#x27;{path}&#x27;: closed&gt;")
    lazy = tensorizer_ops.TensorDeserializer(path, lazy_load=True)
    lazy.close()
    assert "weight" in lazy._repr_html_() and "float32" not in lazy._repr_html_()
