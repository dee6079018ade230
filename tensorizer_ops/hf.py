"""Models of transformers and diffusers in a folder, in S3 or on a web server.

A folder has ``config.json``, ``model.tensors``, and the files of the tokenizer. A folder of the
Hugging Face Hub with safetensors files is loaded as it is.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tensorizer_ops import errors
from tensorizer_ops._base.arguments import checked, wrong
from tensorizer_ops._base.folder import Folder, unsigned
from tensorizer_ops._base.option_uses import for_saves
from tensorizer_ops._base.options import Hashes, Metadata, Options, Verify
from tensorizer_ops._base.private import temporary_folder
from tensorizer_ops._base.progress import Progress
from tensorizer_ops._base.quoting import in_one_line
from tensorizer_ops._base.targets import Target
from tensorizer_ops._distributed.together import same_after
from tensorizer_ops._front.load_save import save
from tensorizer_ops._front.serving import other_models
from tensorizer_ops._hf import configs, files, models
from tensorizer_ops._hf.downloads import refuse_others
from tensorizer_ops._hf.files import CONFIG, OWN_WEIGHTS, TOKENIZER_CONFIG
from tensorizer_ops._hf.isolation import isolated, may_open
from tensorizer_ops._hf.loading import Asked, loaded
from tensorizer_ops._hf.replacing import opened, replacing

__all__ = ["fetch", "from_pretrained", "save_pretrained", "tokenizer"]

# Arguments of transformers that say what to load; and how to ask the Hub, which is never asked.
_PLACES = ("config", "revision", "state_dict", "subfolder", "variant")
_OF_THE_HUB = ("cache_dir", "force_download", "local_files_only", "proxies", "token")
# Requests for small files at the same time.
_REQUESTS = 8


@checked
def from_pretrained(
    uri: Target,
    model_class: type[Any] | None = None,
    *,
    weights: str | None = None,
    device: torch.device | str | int | None = None,
    device_map: torch.device | str | int | Mapping[str, Any] | None = None,
    dtype: torch.dtype | str = "auto",
    verify: Verify = "none",
    copy: bool = False,
    threads: int = 0,
    options: Options | None = None,
    progress: Progress | None = None,
    **kwargs: Any,
) -> Any:
    """Load a model of transformers or of diffusers, in evaluation mode.

    The model is made without memory for its weights. They are then loaded onto their device, all at
    once, and on the CPU they are pages of a local file. ``from_pretrained`` of transformers puts
    them into the model: it converts names, ties weights, and reports what is missing, as always.
    Only installed code is executed, and only the folder is read, whatever its config names.

    Weights that are cast, quantized, or divided among devices or ranks are loaded one by one, so
    that few of them are in memory twice; unless ``verify`` or ``progress`` is given.

    Args:
        uri: the folder: a path, or a URI such as ``s3://bucket/model`` or ``https://host/model``.
        model_class: a class of transformers, such as ``AutoModelForCausalLM``, or of diffusers; by
            default the class that the config names, or else ``AutoModelForCausalLM``.
        weights: the name of the file with the weights, or of its index; by default
            ``model.tensors``, or else one of the names that transformers and diffusers give.
        device: the device of the model; torch's default device if omitted.
        device_map: devices of the parts of the model, as in transformers, instead of ``device``.
        dtype: the type of the weights; ``"auto"`` is the type in the config, or else in the file.
            Models of diffusers have no type in the config, and may have several in the file.
        verify, copy, threads, options, progress: as for :func:`tensorizer_ops.load`.
        kwargs: passed on to transformers: values of the config, ``attn_implementation``,
            ``quantization_config``, ``output_loading_info`` and so on. Those that say how to ask
            the Hub are ignored.

    Raises:
        FileNotFoundError: the folder has no config, or no weights.
        ValueError: a file is malformed, or the config is of a model that the library lacks, or
            leads to code, to a pickle or to the network.
        TypeError: ``model_class`` is not of these libraries.
    """
    folder = Folder(uri, options)
    _drop_hub(kwargs)
    for name in _PLACES:
        if name in kwargs:
            raise errors.InvalidArgument(
                f"{name}= cannot be given: uri is the folder, and weights= a file in it"
            )
    for name in ("use_safetensors", "weights_only"):
        kwargs.pop(name, None)
    dtype = kwargs.pop("torch_dtype", dtype)  # the older name
    where, device_map = configs.devices_of(device, device_map)
    how = {"device": where or "cpu", "verify": verify, "copy": copy, "threads": threads}
    asked = Asked(model_class, weights, where, device_map, dtype, how, progress, kwargs)
    load = partial(loaded, folder, asked)
    if folder.policy is None or not configs.are_parts(kwargs):
        return load()[0]
    # Afterwards, as transformers may initialise torch.distributed.
    return same_after(load, kwargs.get("device_mesh"), other_models(folder.name))


@checked
def save_pretrained(
    model: torch.nn.Module,
    uri: Target,
    tokenizer: Any = None,
    *,
    weights: str = OWN_WEIGHTS,
    hashes: Hashes = "chunked",
    threads: int = 0,
    options: Options | None = None,
    metadata: Metadata | None = None,
    progress: Progress | None = None,
) -> None:
    """Save a model of transformers or of diffusers, and its tokenizer, to a folder.

    Writes the weights, ``config.json``, ``generation_config.json`` and the files of the tokenizer.
    The weights have the names that ``save_pretrained`` of transformers gives them, and tied weights
    are stored once.

    Args:
        model: the model.
        uri: as for :func:`from_pretrained`; missing directories are created.
        tokenizer: a tokenizer or a processor, whose files are saved as well.
        weights: the name of the file with the weights, which decides about its format as in
            :func:`tensorizer_ops.save`: ``model.safetensors`` can be loaded by transformers, too.
        hashes, threads, options, metadata, progress: as for :func:`tensorizer_ops.save`.

    Raises:
        TypeError: ``model`` is not of these libraries.
        ValueError: the model is quantized, has adapters or offloaded weights, or shares tensors in
            a way that a safetensors file cannot say; or the folder has weights under another name.
    """
    folder = Folder(uri, unsigned(options))
    target = folder.uri(weights)
    if weights in files.SMALL_FILES or weights.endswith(".json"):
        raise errors.InvalidArgument(f"weights is {weights!r}, which is the name of another file")
    model = getattr(model, "_orig_mod", model)  # of torch.compile()
    if not models.is_model(model):
        raise wrong("model", model, "a model of transformers or diffusers")
    if getattr(model, "_hf_peft_config_loaded", False):
        raise errors.InvalidArgument(
            "the model has adapters: merge them into it, or call its own save_pretrained()"
        )
    if not (tokenizer is None or hasattr(tokenizer, "save_pretrained")):
        raise wrong("tokenizer", tokenizer, "a tokenizer, a processor or None")
    if getattr(model, "hf_quantizer", None) is not None:
        raise errors.InvalidArgument(
            "the model is quantized: call its own save_pretrained(), and convert() the folder"
        )
    state = models.state_of(model)
    size = sum(tensor.nbytes for tensor in state.values())
    replaced = files.replaced_files(weights, size, options)
    for name in {*files.WEIGHTS, weights, f"{weights}.index.json"} - replaced:
        with contextlib.suppress(OSError):
            if folder.has(name):
                raise errors.InvalidArgument(
                    f"{folder.label} already has weights in {name!r}: remove that file, or give "
                    "its name as weights="
                )
    usual = {"share": "true"}
    if weights.endswith(".safetensors"):  # such files would have the data of every tied name
        state = models.without_ties(model, state)
        usual = {}
    with tempfile.TemporaryDirectory() as made:
        # First, because the libraries may refuse them.
        models.save_config(model, made)
        if tokenizer is not None:
            # Several templates would be a folder, whose files a server does not list.
            templates = isinstance(getattr(tokenizer, "chat_template", None), dict)
            tokenizer.save_pretrained(made, **({"save_jinja_files": False} if templates else {}))
            for name in files.NOT_ALWAYS_SAVED:
                if not Path(made, name).exists() and folder.has(name):
                    raise errors.InvalidArgument(
                        f"{folder.label} already has {name!r}, which would change this tokenizer: "
                        "remove that file"
                    )
        save(
            target,
            state,
            hashes=hashes,
            threads=threads,
            options={**usual, **for_saves(options)},
            metadata={"format": "pt", **(metadata or {})},  # which transformers asks for
            progress=progress,
        )
        for path in sorted(Path(made).iterdir()):
            if path.is_file():
                folder.write(path.name, str(path))


def _drop_hub(kwargs: dict[str, Any]) -> None:
    """Remove the arguments that say how to ask the Hub; raise for one that allows its code."""
    if kwargs.pop("trust_remote_code", False):
        raise errors.InvalidArgument("trust_remote_code=True: code in a folder is never executed")
    for name in _OF_THE_HUB:
        kwargs.pop(name, None)


@checked
def tokenizer(uri: Target, *, options: Options | None = None, **kwargs: Any) -> Any:
    """Return the tokenizer in the folder of a model.

    Args:
        uri, options: as for :func:`from_pretrained`.
        kwargs: passed on to ``AutoTokenizer.from_pretrained``; none may name a file.

    Raises:
        FileNotFoundError: the folder has no tokenizer.
        ValueError: a file of the tokenizer is malformed, names something that is no tokenizer or
            a file elsewhere, or leads to code, to a pickle or to the network.
    """
    _drop_hub(kwargs)
    files.refuse_files(kwargs)
    import transformers

    folder = Folder(uri, options)
    with temporary_folder(is_signed=folder.policy is not None) as made:
        here = None if folder.policy is not None else folder.path
        place = here or fetch(uri, made.path, options=options)
        if not any(os.path.exists(os.path.join(place, name)) for name in files.TOKENIZER_FILES):
            raise errors.NotFound(f"{folder.label} has no tokenizer")
        with isolated(folder):
            files.check_tokenizer(folder, place, is_copy=here is None)
            may_open(place)
            try:
                found = transformers.AutoTokenizer.from_pretrained(
                    place, trust_remote_code=False, local_files_only=True, **kwargs
                )
            except (ImportError, MemoryError):
                raise
            except BaseException as error:
                # A panic of Rust is no Exception.
                if not isinstance(error, Exception) and type(error).__module__ != "pyo3_runtime":
                    raise
                raise errors.InvalidFormat(
                    f"transformers does not take the tokenizer of {folder.label}: "
                    + in_one_line(error, str(error).replace(place, folder.name))
                ) from None
        made.check()
    files.forget(found, str(made.path))
    found.name_or_path = files.name_of_loaded(folder)
    return found


@checked
def fetch(uri: Target, target: Target, *, options: Options | None = None) -> str:
    """Copy what a model has beside its weights to a folder on this machine.

    These are the configs and the files of tokenizers, processors and schedulers, as far as they
    have the names that the libraries give them. Each has 100 MB at most. If they must be signed,
    the target may not have other files, also no hidden ones.

    Args:
        uri, options: as for :func:`from_pretrained`.
        target: the path of the folder to copy to; missing directories are created.

    Returns:
        The path, for ``AutoProcessor.from_pretrained`` and others.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a file must be signed, and the target has others.
    """
    folder = Folder(uri, options)
    place = Folder(target).path
    if place is None:
        raise errors.InvalidArgument("target is not a path: the files are copied to this machine")
    with ThreadPoolExecutor(_REQUESTS) as pool:
        found = dict(
            zip(
                files.SMALL_FILES,
                pool.map(folder.read_if_there, files.SMALL_FILES),
                strict=True,
            )
        )
        more = sorted(files.vocabulary_files(found[TOKENIZER_CONFIG]) - found.keys())
        found |= dict(zip(more, pool.map(folder.read_if_there, more), strict=True))
    there = {name: content for name, content in found.items() if content is not None}
    if not there:
        raise errors.NotFound(f"{folder.label} has neither {CONFIG} nor files of a tokenizer")
    if folder.policy is not None:
        refuse_others(folder, place, there)
    with opened(place) as opened_place:
        for name, content in there.items():
            with replacing(opened_place, place, name) as file:
                file.write(content)
    if folder.policy is not None:  # another copy may have been made to the folder meanwhile
        refuse_others(folder, place, there)
    return place
