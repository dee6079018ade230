"""What the command calls its subcommands and options: the words of the functions."""

from __future__ import annotations

from inspect import signature
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from support.command import run
from tensorizer_ops._cli.parsers import make_parser


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.tensors"
    tensorizer_ops.save(path, {"weight": torch.ones(2)})
    return path


def test_without_arguments_it_shows_its_help() -> None:
    done = run(status=2)
    assert (done.stdout, done.stderr) == ("", run("--help").stdout)


@pytest.mark.parametrize("alias", ["ls", "list"])
def test_info_has_other_names(model: Path, alias: str) -> None:
    assert run(alias, model).stdout == run("info", model).stdout


# Commands, and the functions that do the same.
FUNCTIONS = {
    **{
        name: getattr(tensorizer_ops, name)
        for name in ("info", "verify", "digest", "convert", "encrypt", "decrypt", "rekey")
    },
    "copy": tensorizer_ops.update,
}


@pytest.mark.parametrize("command", FUNCTIONS)
def test_options_have_the_names_of_arguments(command: str) -> None:
    files = ["a", "b"] if "source" in signature(FUNCTIONS[command]).parameters else ["a"]
    values = {"options": "a=b", "version": "1", "verify": "crc32", "hashes": "none", "threads": "1"}
    values |= {"rename": "a=b", "dtype": "bfloat16"}
    for name, parameter in signature(FUNCTIONS[command]).parameters.items():
        if parameter.kind == parameter.KEYWORD_ONLY and name != "progress":
            given = [values.get(name.rpartition("_")[2], "min")]
            option = f"--{name.replace('_', '-')}"
            make_parser().parse_args([command, *files, option, *given * (name != "listed")])


def test_earlier_names_of_options_still_work(model: Path, tmp_path: Path) -> None:
    assert "OK" in run("verify", model, "--check=crc32", "--option", "io=mmap").stdout
    target = tmp_path / "x.pt"
    options = ["--target-option", "format=tensors", "--option", "io=mmap"]
    run("convert", model, target, *options)
    assert run("diff", model, target, "--target-option", "io=mmap").returncode == 0


def test_commands_of_other_programs() -> None:
    for word, meant in {"show": "info", "cp": "copy", "validate": "verify"}.items():
        done = run(word, "m.tensors", status=2)
        assert f"{word!r} is unknown; did you mean {meant}?" in done.stderr


def test_a_copy_to_a_folder_keeps_the_name(tmp_path: Path) -> None:
    source, folder = tmp_path / "m.tensors", tmp_path / "folder"
    tensorizer_ops.save(source, {"x": torch.ones(3)})
    folder.mkdir()
    run("copy", source, folder)
    assert (folder / "m.tensors").read_bytes() == source.read_bytes()
    run("copy", source.as_uri(), f"{folder}/", "--update")


def test_a_key_is_asked_for_by_the_names_of_the_command(tmp_path: Path) -> None:
    path, key = tmp_path / "m.tensors", tmp_path / "key"
    key.write_bytes(bytes(range(32)))
    tensorizer_ops.save(path, {"x": torch.ones(3)}, options={"key": f"file:{key}"})
    done = run("verify", path, status=3)
    assert "no key was given: give --key-file or --passphrase-file" in done.stderr
