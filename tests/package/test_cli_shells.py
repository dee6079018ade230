"""Completion scripts, the manual page, and the command on a real terminal."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from support.command import Terminal, run

COMPLETE = """
eval "$1"
COMP_WORDS=(tensorizer-ops "${@:2}")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_tensorizer_ops
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["in"], ["info"]),
        (["c"], ["convert", "consolidate", "copy", "completion"]),
        (["info", "--f"], ["--filter"]),
        (["verify", "--verify", ""], ["all", "crc32"]),
        (["l"], ["ls", "list"]),
        (["ls", "--f"], ["--filter"]),
        (["completion", "z"], ["zsh"]),
        (["info", "mod"], []),  # files, which bash adds
    ],
)
def test_bash_completes(words: list[str], expected: list[str]) -> None:
    script = run("completion", "bash").stdout
    done = subprocess.run(
        ["bash", "-c", COMPLETE, "bash", script, *words], capture_output=True, text=True
    )
    assert done.stderr == "" and done.stdout.split() == expected


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_every_command_and_option(shell: str) -> None:
    script = run("completion", shell).stdout
    for word in ("info", "rekey", "new-key-file", "chunked", "crc32"):
        assert word in script
    # zsh takes one argument for all other files, but not two.
    assert script.count("'*:URI:_files'") == (3 if shell == "zsh" else 0)
    assert "'*:TARGET" not in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_the_manual_page_is_valid_and_complete() -> None:
    page = run("man").stdout
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tascii", "-P-cbou"], input=page, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stderr == ""
    for text in ("tensorizer-ops", "--by-prefix", "rekey", "EXIT STATUS", "'*.bias'"):
        assert text in done.stdout


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.tensors"
    tensorizer_ops.save(path, {"a": torch.arange(1000)})
    return path


def test_a_terminal_shows_a_bar_and_a_pipe_does_not(model: Path) -> None:
    terminal = Terminal("verify", model)
    assert terminal.end() == 0
    assert re.search(r"model\.tensors ━{20} 100% of 7\.8 KiB, .*B/s", terminal.shown)
    assert "OK" in terminal.shown
    quiet = Terminal("verify", "-q", model)
    assert quiet.end() == 0 and quiet.shown == ""
    assert run("verify", model).stderr == ""


def test_passphrases_are_asked_for_and_not_shown(model: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.tensors"
    terminal = Terminal("encrypt", model, secret, "--kdf", "min")
    terminal.wait_for("Passphrase: ")
    terminal.type("hunter22\n")
    terminal.wait_for("again: ")
    terminal.type("hunter22\n")
    assert terminal.end() == 0, terminal.shown
    assert "hunter22" not in terminal.shown

    (tmp_path / "passphrase").write_text("hunter22\n")
    plain = tmp_path / "plain.tensors"
    run("decrypt", secret, plain, "--passphrase-file", tmp_path / "passphrase")
    assert run("diff", model, plain).stdout == "all 1 tensors agree\n"

    wrong = Terminal("encrypt", model, secret)
    wrong.wait_for("Passphrase: ")
    wrong.type("one\n")
    wrong.wait_for("again: ")
    wrong.type("other\n")
    assert wrong.end() == 2 and "differ" in wrong.shown

    asked = Terminal("verify", "--ask-passphrase", secret)
    asked.wait_for("Passphrase: ")
    asked.type("wrong\n")
    assert asked.end() == 1, asked.shown


@pytest.mark.parametrize("command", ["info", "decrypt"])
def test_ctrl_c_ends_it_in_one_line(tmp_path: Path, command: str) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    keep = os.open(fifo, os.O_RDWR)  # reads see no end of file
    try:
        targets = [tmp_path / "out"] if command == "decrypt" else []
        terminal = Terminal(command, fifo, *targets, *(["--ask-passphrase"] if targets else []))
        if targets:
            terminal.wait_for("Passphrase: ")
        else:
            time.sleep(1)
        terminal.type("\x03")
        assert terminal.end() == 128 + signal.SIGINT
        last = "\n\x1b[31mtensorizer-ops\x1b[0m: interrupted\n"
        assert terminal.shown.replace("\r", "").endswith(last)
        assert "Traceback" not in terminal.shown
    finally:
        os.close(keep)


def test_a_terminal_gets_colours(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for command, marked in (("info", "\x1b[1mname "), ("verify", "\x1b[32mOK\x1b[0m")):
        terminal = Terminal(command, model)
        assert terminal.end() == 0 and marked in terminal.shown
    wrong = Terminal("info", model.parent / "none")
    assert wrong.end() == 3 and wrong.shown.startswith("\x1b[31mtensorizer-ops\x1b[0m: ")
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as patched:
            patched.setenv(name, value)
            plain = Terminal("info", model)
            assert plain.end() == 0 and "\x1b" not in plain.shown
    assert "\x1b" not in run("info", model).stdout + run("info", "none", status=3).stderr


def test_a_key_is_printed_for_the_environment(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = run("keygen", "--hex").stdout.strip()
    assert re.fullmatch("[0-9a-f]{64}", key) and key != run("keygen", "--hex").stdout.strip()
    monkeypatch.setenv("TEST_CLI_KEY", key)
    secret, other = tmp_path / "secret.tensors", tmp_path / "other.tensors"
    run("encrypt", model, secret, "--key", "env:TEST_CLI_KEY")
    run("verify", secret, "--key", "env:TEST_CLI_KEY")
    run("keygen", tmp_path / "key")
    new = ["--new-key", f"file:{tmp_path / 'key'}"]
    run("rekey", secret, other, "--old-key", "env:TEST_CLI_KEY", *new)
    run("verify", other, "--key-file", tmp_path / "key")
    assert key not in run("verify", secret, "--key", key, status=2).stderr
    run("keygen", status=2)
    run("keygen", "--hex", tmp_path / "third", status=2)
    assert not (tmp_path / "third").exists()


def test_a_terminal_gets_the_beginning_of_a_long_table(tmp_path: Path) -> None:
    path = tmp_path / "many.tensors"
    tensorizer_ops.save(path, {f"{i}.weight": torch.ones(1) for i in range(722)})
    for arguments in ([], ["--by-prefix"]):
        terminal = Terminal("info", path, *arguments)
        assert terminal.end() == 0 and terminal.shown.endswith("\r\n... 702 more\r\n")
        shown = run("info", path, *arguments).stdout
        assert "more" not in shown and shown.count("\n") == 722 + 8
    names = Terminal("info", path, "--names")
    assert names.end() == 0 and names.shown.count("\n") == 722
