"""``tensorizer-ops upload`` and ``download``: folders on servers, with a list of SHA-256."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save, save_file

import tensorizer_ops
from local_servers.hub_server import Repository, hub_server
from local_servers.s3_server import S3, s3_server
from local_servers.waiting import LAST_RESORT, wait_until
from local_servers.web import Web
from support.command import COMMAND, run
from support.process import environment, fork_python
from support.recorder import Recorded, Recorder, recorder
from support.samples import flip
from tensorizer_ops import errors
from tensorizer_ops._hf.downloads import download
from tensorizer_ops._hf.uploads import upload

URI = "s3://bucket/m"
LIST = "SHA256SUMS"


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3]:
    with s3_server(tmp_path) as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "from"
    (made / "original").mkdir(parents=True)
    (made / ".git").mkdir()
    (made / ".git" / "config").touch()
    (made / "config.json").write_text("{}")
    (made / "empty").touch()
    (made / "a name with é").write_text("é")
    (made / "original" / "params.json").write_text("[]")
    tensorizer_ops.save(made / "model.safetensors", {"x": torch.rand(3 << 20)})
    save_file({"y": torch.ones(3)}, made / "plain.safetensors")
    return made


def words(options: dict[str, str]) -> list[str]:
    return [word for pair in options.items() for word in ("-o", "=".join(pair))]


def contents(folder: Path) -> dict[str, bytes]:
    """Returns the files of a folder that are uploaded."""
    found = {str(p.relative_to(folder)): p for p in folder.rglob("*") if p.is_file()}
    return {n: p.read_bytes() for n, p in found.items() if n != LIST and n[:4] != ".git"}


def table(text: str) -> dict[str, tuple[str, str]]:
    """Returns the time and the hashes of each file in a table."""
    head, *lines = text.splitlines()
    cells = [line.rsplit("  ", 3) for line in lines]
    assert head.split() == ["name", "size", "time", "checked"]
    return {name.rstrip(): (time.strip(), checked) for name, _, time, checked in map(_four, cells)}


def _four(cells: list[str]) -> list[str]:
    cut = [cell.strip() for cell in "  ".join(cells).split("  ") if cell.strip()]
    assert len(cut) == 4, cut
    return cut


def there(text: str) -> list[str]:
    return sorted(name for name, (time, _) in table(text).items() if time == "already there")


@pytest.mark.parametrize("place", ["s3", "web", "folder"])
def test_there_and_back(folder: Path, tmp_path: Path, s3: S3, web: Web, place: str) -> None:
    uri = {"s3": URI, "web": web.url(f"put/{tmp_path.name}"), "folder": str(tmp_path / "on")}[place]
    options = words(s3.options()) if place == "s3" else []
    shown = table(run("upload", folder, uri, *options).stdout)
    assert set(shown) == set(contents(folder))
    assert shown["model.safetensors"][1] == "SHA-256, own hashes"
    assert {c for n, (_, c) in shown.items() if n[:5] != "model"} == {"SHA-256"}
    if place == "s3":
        stored = s3.root / "bucket" / "m"
        assert contents(stored) == contents(folder)
        subprocess.run(["sha256sum", "--strict", "-c", LIST], cwd=stored, check=True)
    back = tmp_path / "new" / "back"
    shown = table(run("download", uri, back, *options).stdout)
    assert contents(back) == contents(folder)
    assert {checked for _, checked in shown.values()} == {"SHA-256"}
    subprocess.run(["sha256sum", "--strict", "-c", LIST], cwd=back, check=True)
    assert there(run("download", uri, back, *options).stdout) == sorted(contents(folder))
    assert there(run("upload", folder, uri, *options).stdout) == sorted(contents(folder))
    assert run("upload", back, uri, "-q", *options).stdout == ""


def test_only_what_changed_is_sent(folder: Path, s3: S3, tmp_path: Path) -> None:
    meanwhile: list[str] = []

    def is_replaced(request: Recorded) -> bool:
        if request.path.endswith("/config.json") and request.method == "PUT":
            meanwhile.append(s3.stored(f"m/{LIST}").decode())
        return False

    with recorder(s3.port) as proxy:
        options = words(s3.options(s3_endpoint=f"http://127.0.0.1:{proxy.port}"))
        run("upload", folder, URI, *options)
        proxy.take()
        proxy.breaks = is_replaced
        (folder / "config.json").write_text("[]")  # of the same size
        (folder / "empty").unlink()
        (s3.root / "bucket" / "m" / "plain.safetensors").write_bytes(b"cut off")
        done = run("upload", folder, URI, *options)
        sent = [r.path.rpartition("/")[2] for r in proxy.take() if r.method == "PUT"]
        run("upload", folder, URI, *options)
        assert {r.method for r in proxy.take()} <= {"GET", "HEAD"}  # nothing to write
    assert "# incomplete: config.json\n" in meanwhile[0] and "  config.json" not in meanwhile[0]
    assert there(done.stdout) == ["a name with é", "model.safetensors", "original/params.json"]
    changes = [LIST, "config.json", LIST, LIST, "plain.safetensors", LIST]
    assert sent == [LIST, *changes]  # first without the file that is gone
    back = tmp_path / "back"
    run("download", URI, back, *words(s3.options()))
    assert contents(back) == contents(folder)


def uploads(folder: Path, options: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "upload", str(folder), URI, *options],
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_upload_that_was_stopped_goes_on(
    folder: Path, s3: S3, tmp_path: Path, number: signal.Signals
) -> None:
    tensorizer_ops.save(folder / "z.tensors", {"x": torch.rand(4 << 20)})
    stopped: list[int] = []

    def stop(proxy: Recorder, process: subprocess.Popen[str]) -> bool:
        begun = [r for r in proxy.requests if r.path.endswith("/z.tensors") and r.method != "GET"]
        if begun and not stopped:
            stopped.append(number)
            process.send_signal(number)
        return bool(begun)

    with recorder(s3.port) as proxy:
        options = words(s3.options(s3_endpoint=f"http://127.0.0.1:{proxy.port}"))
        process = uploads(folder, [*options, "-o", "max_bandwidth=8000000"])
        wait_until(lambda: stop(proxy, process))
        _, error = process.communicate(timeout=LAST_RESORT)
        assert process.returncode == (130 if number == signal.SIGINT else -number)
        assert number == signal.SIGKILL or "interrupted" in error
        listed = s3.stored(f"m/{LIST}").decode()
        assert listed.splitlines()[-1] == "# incomplete: z.tensors"
        failed = run("download", URI, tmp_path / "back", *options, status=3).stderr
        assert "not complete" in failed and "it lacks 'z.tensors'; run" in failed
        assert not (tmp_path / "back").exists()
        proxy.take()
        done = run("upload", folder, URI, *options)
        sent = {r.path.rpartition("/")[2] for r in proxy.take() if r.method != "GET"}
    assert sent == {LIST, "z.tensors"}
    assert len(there(done.stdout)) == len(contents(folder)) - 1
    run("download", URI, tmp_path / "back", *words(s3.options()))
    assert contents(tmp_path / "back") == contents(folder)


def test_a_download_that_was_interrupted_leaves_no_part(
    folder: Path, s3: S3, tmp_path: Path
) -> None:
    options, back = words(s3.options()), tmp_path / "back"
    run("upload", folder, URI, *options)
    process = subprocess.Popen(
        [*COMMAND, "download", URI, str(back), *options, "-o", "max_bandwidth=4000000"],
        env=environment(),
    )
    # "empty" is the last of the small files, so the part is of the large one.
    wait_until(lambda: (back / "empty").exists() and bool(list(back.glob(".*.part"))))
    process.send_signal(signal.SIGINT)
    assert process.wait(LAST_RESORT) == 130
    assert sorted(p.name for p in back.iterdir()) == ["a name with é", "config.json", "empty"]
    run("download", URI, back, *options)
    assert contents(back) == contents(folder)


def test_other_bytes_never_get_the_name(folder: Path, s3: S3, tmp_path: Path) -> None:
    options, back = words(s3.options()), tmp_path / "back"
    run("upload", folder, URI, *options)
    stored = s3.root / "bucket" / "m" / "model.safetensors"
    flip(stored, stored.stat().st_size // 2)
    back.mkdir()
    (back / "model.safetensors").write_text("mine")
    error = run("download", URI, back, "--overwrite", *options, status=1).stderr
    assert "'model.safetensors' in 's3://bucket/m' has another SHA-256 than 'SHA256SUMS'" in error
    assert sorted(path.name for path in back.iterdir()) == [
        "a name with é",
        "config.json",
        "empty",
        "model.safetensors",
    ]
    assert (back / "model.safetensors").read_text() == "mine"
    stored.unlink()
    failed = run("download", URI, back, "--overwrite", *options, status=3).stderr
    assert "model.safetensors" in failed
    assert "SECRET" not in error and s3.options()["s3_secret_access_key"] not in error


def test_changed_files_are_not_overwritten(folder: Path, tmp_path: Path) -> None:
    on, back = tmp_path / "on", tmp_path / "back"
    run("upload", folder, on)
    run("download", on, back)
    (folder / "config.json").write_text("[1]")
    run("upload", folder, on)
    (back / "plain.safetensors").write_text("mine")
    error = run("download", on, back, status=2).stderr
    assert f"'{back / 'plain.safetensors'}' exists with other content" in error
    assert "--overwrite" in error
    assert (back / "config.json").read_text() == "{}"  # nothing was fetched
    (back / "plain.safetensors").unlink()
    # What an earlier download wrote is replaced by what was uploaded since.
    assert "config.json" not in there(run("download", on, back).stdout)
    (back / "config.json").write_text("mine")
    run("download", on, back, "--overwrite")
    assert contents(back) == contents(folder)


def test_changed_files_are_not_overwritten_without_a_list(folder: Path, tmp_path: Path) -> None:
    files = {"config.json": b"{}", "model.safetensors": save({"x": torch.ones(3)})}
    on, hub_files, plain = tmp_path / "on", tmp_path / "hub", tmp_path / "plain"
    on.mkdir()
    for name, data in files.items():
        (on / name).write_bytes(data)
    with hub_server() as hub:
        hub.repositories["org/m"] = Repository()
        hub.repositories["org/m"].commit(files)
        for source, target, skipped in (
            ("hf://org/m", hub_files, sorted(files)),
            (on, plain, []),  # with no hash to compare before they are fetched
        ):
            for before in ([], skipped):
                shown = run("download", source, target, *words(hub.options())).stdout
                assert there(shown) == before
            (target / "config.json").write_text("[]")
            error = run("download", source, target, *words(hub.options()), status=2).stderr
            assert f"'{target / 'config.json'}' exists with other content" in error
            assert (target / "config.json").read_text() == "[]"
            run("download", source, target, "--overwrite", *words(hub.options()))
            assert contents(target) == files


def test_damaged_files_are_not_uploaded(folder: Path, tmp_path: Path) -> None:
    model = folder / "model.safetensors"
    flip(model, model.stat().st_size - 9)
    error = run("upload", folder, tmp_path / "on", status=1).stderr
    assert "model.safetensors" in error
    assert not (tmp_path / "on" / "model.safetensors").exists()
    model.write_bytes(model.read_bytes()[:-1])
    assert "model.safetensors" in run("upload", folder, tmp_path / "on", status=3).stderr


HOSTILE = {
    "absolute": "/tmp/x",
    "parent": "../x",
    "inside": "a/../../x",
    "hidden": ".git/hooks/x",
    "backslash": "a\\x",
    "control": "a\x1b[2J",
    "slash": "a/",
    "empty part": "a//x",
    "list": LIST,
}


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_hostile_lists(tmp_path: Path, name: str) -> None:
    on, back = tmp_path / "a" / "on", tmp_path / "b" / "back"
    on.mkdir(parents=True)
    (on / LIST).write_text(f"{hashlib.sha256(b'').hexdigest()}  {name}\n")
    error = run("download", on, back, status=3).stderr
    assert "'SHA256SUMS' in " in error and "has the name" in error and "\x1b" not in error
    assert not back.exists()


def test_lists_that_are_none(tmp_path: Path) -> None:
    line = f"{hashlib.sha256(b'').hexdigest()}  x\n"
    for text, why in ((f"{line}{line}", "'x' twice"), (f"{line}<html>", "line 2 is no SHA-256")):
        (tmp_path / LIST).write_text(text)
        assert why in run("download", tmp_path, tmp_path / "back", status=3).stderr


def test_a_uri_without_a_scheme_is_no_new_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.InvalidArgument, match=r"s3://bucket/you .* \./bucket/you"):
        next(upload(folder, "bucket/you", None, lambda _: None))
    assert not (tmp_path / "bucket").exists()
    for target in ("./bucket/you", "bucket/two", Path("other")):
        list(upload(folder, target, None, lambda _: None))
        assert contents(tmp_path / target) == contents(folder)


def test_what_runs_has_a_label(folder: Path, tmp_path: Path) -> None:
    labels: list[str] = []
    copies = (lambda: upload(folder, tmp_path / "on", None, labels.append),) * 2
    for copy in (*copies, lambda: download(tmp_path / "on", tmp_path / "b", None, labels.append)):
        list(copy())
    model = [label for label in labels if label.endswith(" model.safetensors")]
    # The second upload reads each file once.
    assert [label.split()[0] for label in model] == [
        *("verifying", "sending"),
        "comparing",
        "fetching",
    ]


@pytest.mark.parametrize("command", ["copy", "convert"])
def test_a_folder_is_not_one_object(folder: Path, s3: S3, tmp_path: Path, command: str) -> None:
    (folder / "plain.safetensors").unlink()
    error = run(command, folder, URI, *words(s3.options()), status=2).stderr
    assert "tensorizer-ops upload copies all files of a folder" in error
    assert not s3.objects()


def test_a_download_of_nothing_says_why(s3: S3, tmp_path: Path) -> None:
    wrong = words(s3.options(s3_secret_access_key="another"))
    assert "SignatureDoesNotMatch" in run("download", URI, tmp_path, *wrong, status=3).stderr
    error = run("download", URI, tmp_path, *words(s3.options()), status=3).stderr
    assert "neither the list" in error and "NoSuchKey" in error
    no_bucket = run("download", "s3://none/m", tmp_path, *words(s3.options()), status=3).stderr
    assert "NoSuchBucket" in no_bucket


def test_links(folder: Path, tmp_path: Path) -> None:
    (folder / "inside").symlink_to("config.json")
    run("upload", folder, tmp_path / "on")
    assert (tmp_path / "on" / "inside").read_text() == "{}"
    for name, target in (("out", tmp_path / "x"), ("sub", folder / "original")):
        (tmp_path / "x").write_text("secret")
        (folder / name).symlink_to(target)
        error = run("upload", folder, tmp_path / "on", status=2).stderr
        assert f"/{name}' is a symbolic link" in error
        (folder / name).unlink()
    cache = tmp_path / "models--org--m"
    snapshot = cache / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    shutil.move(folder, cache / "blobs")
    (snapshot / "original").mkdir()
    (snapshot / "config.json").symlink_to("../../blobs/config.json")
    (snapshot / "original" / "p.json").symlink_to("../../../blobs/config.json")
    run("upload", snapshot, tmp_path / "hub")
    assert contents(tmp_path / "hub") == {"config.json": b"{}", "original/p.json": b"{}"}
    error = run("upload", tmp_path / "none", tmp_path / "on", status=2).stderr
    assert "no folder on this machine" in error


def test_a_model_without_a_list(folder: Path, tmp_path: Path) -> None:
    with hub_server() as hub:
        files = {n: d for n, d in contents(folder).items() if "model" in n or "config" in n}
        hub.repositories["org/m"] = Repository()
        hub.repositories["org/m"].commit({**files, "other.bin": b"x"})
        shown = run("download", "hf://org/m", tmp_path / "back", *words(hub.options())).stdout
        assert contents(tmp_path / "back") == files
        assert {name: checked for name, (_, checked) in table(shown).items()} == {
            "config.json": "the server's SHA-1 of git",
            "model.safetensors": "the server's SHA-256, own hashes",
        }
    shards = tmp_path / "shards"
    options = {"max_shard_size": "100"}
    tensors = {str(i): torch.ones(20) for i in range(4)}
    tensorizer_ops.save(shards / "model.safetensors", tensors, options=options)
    shown = run("download", shards, tmp_path / "two").stdout
    assert {checked for _, checked in table(shown).values()} == {"own hashes", "no hash"}
    assert contents(tmp_path / "two") == contents(shards)
    assert not (tmp_path / "two" / LIST).exists()
    damaged = next(shards.glob("*.safetensors"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    error = run("download", shards, tmp_path / "four", status=1).stderr
    assert f"{damaged.name}' in '{shards}': " in error
    assert not (tmp_path / "four" / damaged.name).exists()
    error = run("download", folder / "original", tmp_path / "three", status=3).stderr
    assert "neither the list 'SHA256SUMS'" in error


def test_from_python(folder: Path, s3: S3, tmp_path: Path) -> None:
    options, calls = s3.options(), []
    sent = tensorizer_ops.upload(folder, URI, options=options)
    assert {file.name: file.size for file in sent} == {
        n: len(d) for n, d in contents(folder).items()
    }
    for known in (False, True):
        found = tensorizer_ops.download(
            URI, tmp_path / "b", options=options, progress=lambda *n: calls.append(n)
        )
        assert {file.seconds is None for file in found} == {known}
    assert contents(tmp_path / "b") == contents(folder) and calls
    (tmp_path / "b" / "empty").write_text("mine")
    with pytest.raises(ValueError, match=r"would be lost.*overwrite=True"):
        tensorizer_ops.download(URI, tmp_path / "b", options=options)
    tensorizer_ops.download(URI, tmp_path / "b", overwrite=True, options=options)
    code = (
        "import sys, tensorizer_ops as t; t.download, t.Copied; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_neither_needs_torch(folder: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from tensorizer_ops._cli.main import main\n"
        "status = main(sys.argv[1:]); sys.exit(status or 'torch' in sys.modules)"
    )
    for words_ in (
        ("upload", folder, tmp_path / "on"),
        ("download", tmp_path / "on", tmp_path / "b"),
    ):
        subprocess.run([sys.executable, "-c", code, *map(os.fspath, words_)], check=True)
    assert contents(tmp_path / "b") == contents(folder)


PEAK = """
import os, sys
from tensorizer_ops._cli.main import main

def status(field):
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) << 10

folder, uri, back, *options = sys.argv[1:]
main(["upload", folder, uri, *options])
with open(f"{folder}/large", "wb") as file:
    for _ in range(192):
        file.write(os.urandom(1 << 20))
for words in (["upload", folder, uri], ["download", uri, back]):
    before = status("VmRSS")
    open("/proc/self/clear_refs", "w").write("5")  # resets the peak
    assert main([*words, *options]) == 0
    assert status("VmHWM") - before < 80 << 20, (words[0], (status("VmHWM") - before) >> 20)
"""


def test_memory_is_bounded(folder: Path, s3: S3, tmp_path: Path) -> None:
    fork_python(PEAK, folder, URI, tmp_path / "back", *words(s3.options()))


def test_files_of_the_hub_are_of_one_commit(tmp_path: Path) -> None:
    files = {"config.json": b"{}", "model.safetensors": save({"x": torch.ones(3)})}
    with hub_server() as hub:
        hub.repositories["org/m"] = Repository()
        hub.repositories["org/m"].commit(files)
        copied = download("hf://org/m", tmp_path / "back", hub.options(), lambda name: None)
        assert next(copied).name == "config.json"
        hub.repositories["org/m"].commit({**files, "model.safetensors": b"pushed meanwhile"})
        assert [file.name for file in copied] == ["model.safetensors"]
    assert contents(tmp_path / "back") == files
