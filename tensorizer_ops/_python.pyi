# Built from _python.cpp.

from collections.abc import Callable

import torch

def load_constants(
    package: object,
    uri: str,
    strict: bool,
    verify: str,
    threads: int,
    options: list[tuple[str, str]],
) -> None: ...
def set_key(name: str, secret: bytes, passphrase: bool) -> None: ...
def set_key_function(name: str, provide: Callable[[], bytes], passphrase: bool) -> None: ...
def forget_key(name: str) -> None: ...
def set_secret(name: str, secret: str) -> None: ...

class SaveJob:
    def run(
        self,
        uri: str,
        names: list[str],
        tensors: list[torch.Tensor],
        hashes: str,
        threads: int,
        options: list[tuple[str, str]],
    ) -> None: ...
    def progress(self) -> tuple[int, int]: ...
    def cancel(self) -> None: ...
