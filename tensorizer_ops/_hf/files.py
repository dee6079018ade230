"""The files in the folder of a model of transformers or diffusers."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tensorizer_ops import errors
from tensorizer_ops._base.arguments import kind_of
from tensorizer_ops._base.folder import Folder
from tensorizer_ops._base.options import Options, bytes_of
from tensorizer_ops._base.quoting import quoted

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
CHAT_TEMPLATE = "chat_template.jinja"
OWN_WEIGHTS = "model.tensors"
# Where weights are looked for, in this order.
WEIGHTS = (
    OWN_WEIGHTS,
    "model.safetensors.index.json",
    "model.safetensors",
    "diffusion_pytorch_model.safetensors.index.json",
    "diffusion_pytorch_model.safetensors",
)
TOKENIZER_FILES = (
    TOKENIZER_CONFIG,
    "merges.txt",
    "sentencepiece.bpe.model",
    "spiece.model",
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
)
# Files that only some tokenizers, or releases of transformers, write, and all read.
NOT_ALWAYS_SAVED = (
    "added_tokens.json",
    CHAT_TEMPLATE,
    "chat_template.json",
    SPECIAL_TOKENS,
)
# The files that save_pretrained() of tokenizers, processors and schedulers writes.
SMALL_FILES = (
    CONFIG,
    GENERATION_CONFIG,
    *TOKENIZER_FILES,
    *NOT_ALWAYS_SAVED,
    "preprocessor_config.json",
    "processor_config.json",
    "scheduler_config.json",
    "video_preprocessor_config.json",
)

# Keys of a tokenizer, and the texts that they may have. Others name files that some libraries open,
# in which SudachiPy finds the names of libraries that it loads as plugins.
_HARMLESS: dict[str, tuple[str, ...]] = {
    "decompose_map": (),
    "mecab_option": ("",),
    "merge_map": (),
    "sudachi_config_path": (),
    "sudachi_dict_type": ("core", "full", "small"),
    "sudachi_resource_dir": (),
}
# Other keys whose texts are opened as files, beside those that end in "_file".
_OPENED = ("entity_vocab", "init_inputs", "merges", "source_spm", "target_spm", "vocab")
# Where older releases wrote paths of the machine, which no release opens.
_NOT_OPENED = ("added_tokens_file", "name_or_path", "special_tokens_map_file")
# In which another file of MyT5 would be named.
_BYTE_MAPS = "byte_maps.json"
# Finds every tokenizer.json whose merges have a prefix, also if the key is spelled with escapes.
_MAY_HAVE_PREFIX = re.compile(rb'subword_prefix"\s*:\s*"[^"]|\\u00[4-7]')


def name_of_loaded(folder: Folder) -> str:
    """Return where a model or a tokenizer says that it is from.

    Transformers reads more files there later, such as adapters, and compares them with nothing.
    """
    return folder.name if folder.policy is None else ""


def read_object(folder: Folder, name: str) -> dict[str, Any]:
    """Return the content of a JSON file that holds an object."""
    fields = _parsed(folder, name, folder.read(name))
    if not isinstance(fields, dict):
        raise errors.InvalidFormat(
            f"{name} in {folder.label} holds {kind_of(fields)}, and must hold an object"
        )
    return fields


def _parsed(folder: Folder, name: str, text: bytes) -> Any:
    """Return the content of a JSON file of the folder."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise errors.InvalidFormat(f"{name} in {folder.label} is not JSON: {error}") from None


def found_weights(folder: Folder) -> str:
    for name in WEIGHTS:
        if folder.has(name):
            return name
    raise errors.NotFound(
        f"{folder.label} has no weights: none of {', '.join(WEIGHTS)}; give another name as "
        "weights="
    )


def check_tokenizer(folder: Folder, place: str, *, is_copy: bool) -> None:
    """Raise if a config names a class that is no tokenizer, or a file that is not in the folder.

    Of another class of transformers, AutoTokenizer would call what loads that. In a copy, no config
    names files any more: somebody may make one under a name that was free. Transformers finds those
    of the folder by itself.
    """
    for file in (TOKENIZER_CONFIG, CONFIG, SPECIAL_TOKENS, _BYTE_MAPS):
        try:
            text = Path(place, file).read_bytes()
        except FileNotFoundError:
            continue
        fields = _parsed(folder, file, text)
        if file in (TOKENIZER_CONFIG, CONFIG):
            _check_class(
                fields.get("tokenizer_class") if isinstance(fields, dict) else None, file, folder
            )
        if file != CONFIG:
            _check_names(fields, place, f"{file} in {folder.label}")
        if is_copy and file in (TOKENIZER_CONFIG, SPECIAL_TOKENS):
            Path(place, file).write_text(json.dumps(json.loads(text, object_hook=_without_files)))
    for path in Path(place).glob("tokenizer*.json"):
        if path.is_file():
            _check_merges(path, folder)


def refuse_files(given: Mapping[str, Any]) -> None:
    """Raise for arguments of a tokenizer that name files, which would be read in their places."""
    for name, value in given.items():
        if _is_of_files(name, os.fspath(value) if isinstance(value, os.PathLike) else value):
            raise errors.InvalidArgument(
                f"{name} is given, and only the files in the folder are read: leave it out, or use "
                "AutoTokenizer of transformers itself"
            )


def _without_files(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a part of a config without the entries that name files."""
    return {key: value for key, value in fields.items() if not _is_of_files(key, value)}


def _is_of_files(key: str, value: Any) -> bool:
    named = isinstance(value, str) and (key.endswith("_file") or key in _OPENED)
    return named or key in ("init_inputs", "name_or_path")


def _check_merges(path: Path, folder: Folder) -> None:
    """Raise for merges that end the process, in the library that takes their prefix from them."""
    text = path.read_bytes()
    try:
        model = json.loads(text)["model"] if _MAY_HAVE_PREFIX.search(text) else {}
        prefix, merges = model.get("continuing_subword_prefix"), model.get("merges") or []
        seconds = [(each.split(" ") if isinstance(each, str) else each)[1] for each in merges]
        are_cut = not prefix or all(second.startswith(prefix) for second in seconds)
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return  # the library says what is wrong
    if not are_cut:
        raise errors.InvalidFormat(
            f"{path.name} in {folder.label} has merges without its continuing_subword_prefix"
        )


def _check_names(fields: Any, place: str, shown: str) -> None:
    for key, name in texts(fields):
        if name not in _HARMLESS.get(key, (name,)):
            raise errors.InvalidFormat(
                f"{shown} has {key}, which can lead to code or to files elsewhere: remove it"
            )
        path = "/" in name or "." in name or _is_of_files(key, name)
        if path and key not in _NOT_OPENED and _is_elsewhere(name, place):
            raise errors.InvalidFormat(
                f"{shown} names {quoted(name)}, which is not in that folder: remove that entry"
            )


def _check_class(name: object, file: str, folder: Folder) -> None:
    import transformers

    if not isinstance(name, str | None):
        raise errors.InvalidFormat(f"{file} in {folder.label}: tokenizer_class is no text")
    found = getattr(transformers, name or "PreTrainedTokenizerBase", None)
    base = transformers.PreTrainedTokenizerBase
    # Of a name that is unknown, AutoTokenizer says so, or finds the one with "Fast" behind it.
    if found is not None and not (isinstance(found, type) and issubclass(found, base)):
        raise errors.InvalidFormat(
            f"{file} in {folder.label} names {quoted(name)} as its tokenizer, which is none"
        )


def _is_elsewhere(name: str, place: str) -> bool:
    """Return whether a name is that of a file, as the tokenizers open it, outside of a folder.

    Names of files that do not exist, on the machine of who made the folder, mean nothing.
    """
    root = os.path.abspath(place)
    for path in (os.path.abspath(name), os.path.abspath(os.path.join(root, name))):
        inside = os.path.commonpath([root, path]) == root
        if not inside and os.path.exists(path) and not os.path.isdir(path):
            return True
    return False


def texts(value: Any) -> Iterator[tuple[str, str]]:
    """Yield the texts in the content of a JSON file, each with the key that it is behind."""
    left = [("", value)]
    while left:
        key, value = left.pop()
        if isinstance(value, str):
            yield key, value
        elif isinstance(value, dict):
            left += value.items()
        elif isinstance(value, list):
            left += ((key, each) for each in value)


def forget(tokenizer: Any, place: str) -> None:
    """Let a tokenizer name files in a folder that is gone by paths that can never be made.

    It opens them again when it is saved, copied or unpickled, and others may make the folder again.
    """
    left = [vars(tokenizer)]
    seen = set()
    while left:
        parts = left.pop()
        if id(parts) in seen:
            continue
        seen.add(id(parts))
        for key, part in parts.items() if isinstance(parts, dict) else enumerate(parts):
            if isinstance(part, str | Path):
                if str(part) == place or str(part).startswith(f"{place}/"):
                    parts[key] = f"/dev/null{str(part).removeprefix(place)}"
            elif isinstance(part, dict | list):
                left.append(part)
            elif type(part).__module__.startswith("transformers.") and hasattr(part, "__dict__"):
                left.append(vars(part))


def vocabulary_files(tokenizer_config: bytes | None) -> set[str]:
    """Return the names of the files that the class in a tokenizer's config reads."""
    import transformers

    try:
        named = json.loads(tokenizer_config or b"{}").get("tokenizer_class")
    except (ValueError, RecursionError, AttributeError):
        return set()  # AutoTokenizer says what is wrong
    kind = getattr(transformers, named, None) if isinstance(named, str) else None
    try:
        names: Mapping[str, str] = getattr(kind, "vocab_files_names", {})
    except ImportError:  # of what the tokenizer needs, which AutoTokenizer says
        return set()
    return set(names.values())


def replaced_files(weights: str, size: int, options: Options | None) -> set[str]:
    """Return the files that a save of so many bytes replaces or removes."""
    most = bytes_of(options, "max_shard_size")
    if most is None:
        return {weights}
    index = f"{weights}.index.json"
    return {weights, index} if size <= most else {index}
