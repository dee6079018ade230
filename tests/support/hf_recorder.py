"""Loads hostile folders in a process of its own, and records what that leads to."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import json
import os
import pickle
import socket
import sys
import threading
import urllib.request
from collections.abc import Callable
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from support.hf_attacks import (
    EVIL,
    FOLDER,
    LLAMA,
    MAP,
    MODELS,
    PARENT,
    RAN,
    SERVER,
    TOKENIZERS,
    WORDS,
)

# What a class of a config does, as one of a later release may.
DOORS = ("dynamic", "path", "pickle", "torch.load", "hub", "urllib", "socket", "thread", "nested")


class Server(SimpleHTTPRequestHandler):
    """A web server for folders, and a Hub that has nothing, and counts what it is asked."""

    protocol_version = "HTTP/1.1"
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        if self.path.startswith("/folders/"):
            super().do_GET()
            return
        self.asked.append(self.path)
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass


def main(root: str) -> None:
    """Load all folders, and print what each led to as JSON."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Server, directory=root))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    os.environ |= {"HF_HOME": f"{root}/home", "HF_ENDPOINT": url, "TQDM_DISABLE": "1"}
    os.environ |= {"no_proxy": "127.0.0.1", "KERNELS_CACHE": f"{root}/kernels"}
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_MODULES_CACHE", "HF_HUB_CACHE"):
        os.environ.pop(name, None)
    print(json.dumps(_Runs(Path(root), url).all()))


class _Runs:
    def __init__(self, root: Path, url: str) -> None:
        import tokenizers
        import transformers

        from tensorizer_ops import hf

        self.root, self.url, self.hf = root, url, hf
        self.happened: list[str] = []
        self.results: dict[str, Any] = {}
        self.recording = False
        self.base = root / "base"
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
        words = {"<unk>": 0, "a": 1, "few": 2, "words": 3}
        made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
        made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        self.tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=made, unk_token="<unk>"
        )
        hf.save_pretrained(model.eval(), self.base, self.tokenizer)
        config = {"model_type": "evil", "auto_map": MAP}
        self.folder("elsewhere", {"config.json": config, "vocab.txt": WORDS + "stolen\n"})
        copy = self.base / "tokenizer.json"
        text = copy.read_text().replace("words", "stolen")
        (root / "folders" / "elsewhere" / "tokenizer.0.0.1.json").write_text(text)
        # After this, the hook of the package is in place, and refuses before this one records.
        hf.from_pretrained(self.base)
        sys.addaudithook(self.record)

    def record(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.recording:
            return
        if event in (RAN, "socket.getaddrinfo", "socket.connect"):
            self.happened.append(event)
        elif event in ("exec", "import"):
            file = args[0].co_filename if event == "exec" else args[1]
            if file and file.startswith(str(self.root)):
                self.happened.append(f"{event} {file}")

    def folder(self, name: str, files: dict[str, Any]) -> str:
        """Make a folder of a model, with these files instead of its own, and code."""
        folder = self.root / "folders" / name.replace(" ", "-")
        folder.mkdir(parents=True)
        given = {path.name: path.read_bytes() for path in self.base.iterdir()}
        for file, content in ({"evil.py": EVIL} | files).items():
            if content is None:
                del given[file]
                continue
            text = content if isinstance(content, str) else json.dumps(content)
            text = text.replace(FOLDER, str(folder)).replace(PARENT, str(folder.parent))
            given[file] = text.replace(SERVER, self.url).encode()
        given["x.pth"] = _evil_pickle()
        for file, data in given.items():
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_bytes(data)
        return str(folder)

    def run(self, name: str, call: Callable[[], Any]) -> None:
        self.happened, Server.asked[:] = [], []
        self.recording = True
        try:
            outcome = f"loaded {call()}"
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
        self.recording = False
        for module in [name for name in sys.modules if name.startswith("transformers_modules")]:
            del sys.modules[module]
        self.results[name] = [outcome, [*self.happened, *Server.asked]]

    def all(self) -> dict[str, Any]:
        import transformers

        def model(uri: str) -> str:
            return type(self.hf.from_pretrained(uri)).__name__

        def tokens(uri: str) -> str:
            return str(sorted(self.hf.tokenizer(uri).get_vocab()))

        self.ask_hub()  # after which its client has an open connection
        for name, (config, files) in MODELS.items():
            folder = self.folder(name, {"config.json": config, **files})
            self.run(name, functools.partial(model, folder))
            served = f"{self.url}/folders/{Path(folder).name}"
            self.run(f"{name} on a server", functools.partial(model, served))
        for name, files in TOKENIZERS.items():
            folder = self.folder(name, files)
            self.run(name, functools.partial(tokens, folder))
            served = f"{self.url}/folders/{Path(folder).name}"
            self.run(f"{name} on a server", functools.partial(tokens, served))
        transformers.AutoConfig.register("door", _door_class(self))
        for door in DOORS:
            folder = self.folder(f"door {door}", {"config.json": {"model_type": "door"}})
            self.door = functools.partial(getattr(self, f"open_{door.replace('.', '_')}"), folder)
            self.run(f"door: {door}", functools.partial(model, folder))
        self.concurrent(folder)
        return self.results

    def ask_hub(self) -> bool:
        """Ask the Hub, and return whether it answered."""
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError

        try:
            HfApi().model_info("evil/repo")
        except HfHubHTTPError:  # there is nothing
            return True
        return False

    def trust(self) -> str:
        """Load the code of a folder with transformers itself, and return the package of it."""
        import transformers

        folder = self.root / "folders" / "trusted"
        if not folder.exists():
            config = {"model_type": "trusted", "auto_map": MAP}
            self.folder("trusted", {"config.json": config})
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
        return type(config).__module__.partition(".")[0]

    def open_dynamic(self, folder: str) -> None:
        from transformers.dynamic_module_utils import get_class_from_dynamic_module

        get_class_from_dynamic_module("evil.C", folder)

    def open_path(self, folder: str) -> None:
        spec = importlib.util.spec_from_file_location("evil", f"{folder}/evil.py")
        assert spec is not None and spec.loader is not None
        spec.loader.exec_module(importlib.util.module_from_spec(spec))

    def open_pickle(self, folder: str) -> None:
        pickle.loads(pickle.dumps(_Evil()))

    def open_torch_load(self, folder: str) -> None:
        import torch

        torch.load(f"{folder}/x.pth", weights_only=False)

    def open_hub(self, folder: str) -> None:
        self.ask_hub()

    def open_urllib(self, folder: str) -> None:
        urllib.request.urlopen(self.url).close()

    def open_socket(self, folder: str) -> None:
        socket.create_connection(("127.0.0.1", int(self.url.rpartition(":")[2]))).close()

    def open_thread(self, folder: str) -> None:
        caught: list[Exception] = []

        def connect() -> None:
            try:
                self.open_socket(folder)
            except Exception as error:
                caught.append(error)

        thread = threading.Thread(target=connect)
        thread.start()
        thread.join()
        raise caught[0]

    def open_nested(self, folder: str) -> None:
        self.hf.tokenizer(self.base)
        self.open_path(folder)

    def concurrent(self, folder: str) -> None:
        """Let another thread, a thread that stays, and the caller's function do as they like."""
        inside, done = threading.Event(), threading.Event()
        allowed: dict[str, Any] = {}

        def other() -> None:
            inside.wait()
            allowed["another thread"] = self.trust(), self.ask_hub()
            done.set()

        def stays() -> None:
            over.wait()
            self.open_socket(folder)
            allowed["a thread that stays"] = True

        def door() -> None:
            inside.set()
            done.wait()
            late.start()
            installed = Path(folder, "lib")
            installed.mkdir()
            (installed / "installed_below.py").touch()
            sys.path.insert(0, str(installed))
            importlib.import_module("installed_below")
            allowed["what is installed"] = True
            self.open_path(folder)

        over = threading.Event()
        threads = [threading.Thread(target=each) for each in (other, stays)]
        threads[0].start()
        late = threads[1]
        self.door = door
        with contextlib.suppress(ValueError):
            self.hf.from_pretrained(folder)
            allowed["the folder"] = True
        over.set()
        for thread in threads:
            thread.join()

        def progress(done: int, total: int) -> None:
            self.open_socket(folder)
            allowed["progress"] = True

        self.hf.from_pretrained(self.base, progress=progress)
        allowed["afterwards"] = self.trust(), self.ask_hub()
        self.results["allowed"] = allowed


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (sys.audit, (RAN,))


def _evil_pickle() -> bytes:
    import torch

    made = io.BytesIO()
    torch.save(_Evil(), made)
    return made.getvalue()


def _door_class(runs: Any) -> type[Any]:
    import transformers

    class DoorConfig(transformers.LlamaConfig):  # type: ignore[misc,name-defined]
        model_type = "door"

        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            if kwargs:
                runs.door()

    return DoorConfig
