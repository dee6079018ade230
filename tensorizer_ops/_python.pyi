# Built from _python.cpp.

def load_constants(
    package: object,
    uri: str,
    strict: bool,
    verify: str,
    threads: int,
    options: list[tuple[str, str]],
) -> None: ...
def set_secret(name: str, secret: str) -> None: ...
