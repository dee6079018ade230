"""Takes a Hugging Face model to a `.tensors` file and back, with its configuration and tokenizer.

    python examples/hugging_face.py save MODEL PREFIX
    python examples/hugging_face.py load PREFIX FOLDER

MODEL is a folder or a name on the hub. PREFIX is a folder or s3://BUCKET/FOLDER; below it go
`model-config.json`, `model.tensors` and `tokenizer.zip`. What is there already stays, unless
--force is given. `load` fills a model that was made without memory, so that its weights are in
memory once, and writes it to FOLDER as transformers itself does.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
import transformers

import tensorizer_ops
from tensorizer_ops.stream_io import open_stream

CONFIG, WEIGHTS, TOKENIZER = "model-config.json", "model.tensors", "tokenizer.zip"


def place(prefix: str, name: str) -> str:
    return f"{prefix.rstrip('/')}/{name}"


def read(uri: str) -> bytes | None:
    """What is there, if anything is."""
    try:
        with open_stream(uri, "rb") as stream:
            return bytes(stream.read())
    except FileNotFoundError:
        return None


def write(uri: str, content: bytes) -> None:
    with open_stream(uri, "wb") as stream:
        stream.write(content)


def exists(uri: str) -> bool:
    try:
        torch.ops.tensorizer.names(uri)
    except FileNotFoundError:
        return False
    return True


def zipped(folder: Path) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, file.relative_to(folder))
    return content.getvalue()


def model_class(config: Any) -> Any:
    """The class that the model was saved with."""
    return getattr(transformers, (config.architectures or ["AutoModel"])[0])


def save(source: str, prefix: str, force: bool = False) -> None:
    config = transformers.AutoConfig.from_pretrained(source)
    if force or read(place(prefix, CONFIG)) is None:
        write(place(prefix, CONFIG), config.to_json_string(use_diff=False).encode())
    if force or not exists(place(prefix, WEIGHTS)):
        model = model_class(config).from_pretrained(source, torch_dtype="auto")
        # Buffers that are not persistent as well, which cost little and need no code to be made.
        tensors = {**model.state_dict(), **dict(model.named_buffers())}
        tensorizer_ops.save(place(prefix, WEIGHTS), tensors, progress=True)
    if force or read(place(prefix, TOKENIZER)) is None:
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(source)
        except (OSError, ValueError):
            return  # a model need not have one
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save_pretrained(folder)
            write(place(prefix, TOKENIZER), zipped(Path(folder)))


def load_model(prefix: str, device: str = "cpu") -> Any:
    content = read(place(prefix, CONFIG))
    if content is None:
        raise FileNotFoundError(place(prefix, CONFIG))
    fields = json.loads(content)
    config = transformers.AutoConfig.for_model(**fields)
    with torch.device("meta"):
        model = model_class(config)(config)
    tensorizer_ops.load_into(model, place(prefix, WEIGHTS), device=device, progress=True)
    return model.to(config.dtype).eval()


def load_tokenizer(prefix: str) -> Any | None:
    content = read(place(prefix, TOKENIZER))
    if content is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            archive.extractall(folder)
        return transformers.AutoTokenizer.from_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    does = parser.add_subparsers(dest="do", required=True)
    saving = does.add_parser("save")
    saving.add_argument("model")
    saving.add_argument("prefix")
    saving.add_argument("--force", action="store_true")
    loading = does.add_parser("load")
    loading.add_argument("prefix")
    loading.add_argument("folder")
    arguments = parser.parse_args()
    if arguments.do == "save":
        save(arguments.model, arguments.prefix, arguments.force)
        return
    os.makedirs(arguments.folder, exist_ok=True)
    load_model(arguments.prefix).save_pretrained(arguments.folder)
    tokenizer = load_tokenizer(arguments.prefix)
    if tokenizer:
        tokenizer.save_pretrained(arguments.folder)


if __name__ == "__main__":
    main()
