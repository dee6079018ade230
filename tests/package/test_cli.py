"""The command line: what files hold, verification, exit statuses, and its help."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tensorizer_ops
from local_servers.web import nginx
from support.command import COMMAND, run
from support.process import ROOT, environment, run_python
from support.samples import flip
from support.signer import Signer
from tensorizer_ops._front.inspection import File

TENSORS = {
    "layers.0.weight": torch.arange(600, dtype=torch.float32).reshape(20, 30),
    "layers.0.bias": torch.zeros(20),
    "layers.1.weight": torch.ones(30, 4, dtype=torch.bfloat16),
    "head": torch.arange(5),
}
COMMANDS = (
    *("info", "verify", "digest", "convert", "copy", "diff", "encrypt", "decrypt", "rekey"),
    *(
        "sign",
        "delta",
        "apply",
        "publish",
        "follow",
        "consolidate",
        "upload",
        "download",
        "keygen",
        "bench",
        "env",
        "completion",
        "man",
    ),
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.tensors"
    tensorizer_ops.save(path, TENSORS, metadata={"made by": "a test"})
    return path


def test_info_shows_the_tensors(model: Path) -> None:
    shown = run("info", model).stdout
    assert re.search(r"^layers\.0\.weight +float32 +\[20, 30\] +2\.3 KiB$", shown, re.MULTILINE)
    assert re.search(r"^hashes +crc32, chunked \(chunks of 1\.0 MiB\)$", shown, re.MULTILINE)
    assert re.search(r"^encryption +none$", shown, re.MULTILINE)
    assert re.search(r"^metadata +made by = a test$", shown, re.MULTILINE)
    assert re.search(r"^tensors +4, 2\.7 KiB$", shown, re.MULTILINE)
    assert "float32 (2, 2.4 KiB)" in shown


def test_info_filters_and_adds_up(model: Path) -> None:
    assert run("info", model, model, "--names", "--filter", "*.bias").stdout.splitlines() == (
        [f"{model}: layers.0.bias"] * 2
    )
    assert run("info", model, "--names", "--filter", "*.weight").stdout.split() == [
        "layers.0.weight",
        "layers.1.weight",
    ]
    done = run("info", model, model, "--names", "--filter", "head", "--filter", "wieght", status=1)
    said = "--filter: no tensor is left that 'wieght' matches: the name most like it is 'layers."
    assert done.stdout == "" and done.stderr.count(f"{model}: {said}") == 2
    shown = run("info", model, "--by-prefix=2").stdout
    assert re.search(r"^layers\.0 +2 +2\.4 KiB$", shown, re.MULTILINE)
    assert re.search(r"^head +1 +40 B$", shown, re.MULTILINE)
    assert re.search(r"^layers +3 ", run("info", model, "--by-prefix").stdout, re.MULTILINE)


@pytest.mark.parametrize("hashes", ["all", "crc32", "chunked", "none"])
def test_info_as_json(tmp_path: Path, hashes: str) -> None:
    path = tmp_path / "m.tensors"
    tensorizer_ops.save(path, TENSORS, hashes=hashes)
    facts = json.loads(run("info", path, "--json").stdout)
    kinds = {"all": ["crc32", "sha256"], "crc32": ["crc32"], "chunked": ["crc32", "chunked"]}
    assert facts["hashes"] == kinds.get(hashes, [])
    assert facts["digest_chunk"] == (1 << 20 if hashes == "chunked" else 0)
    assert [tensor["name"] for tensor in facts["tensors"]] == list(TENSORS)
    assert facts["tensors"][0]["shape"] == [20, 30]
    assert facts["size"] == sum(tensor.nbytes for tensor in TENSORS.values())
    offsets = [tensor["offset"] for tensor in facts["tensors"]]
    assert all(offset % facts["alignment"] == 0 for offset in offsets)
    assert any(offset % (2 * facts["alignment"]) for offset in offsets)


@pytest.mark.parametrize("ending", ["tensors", "safetensors"])
def test_info_of_a_delta(tmp_path: Path, ending: str) -> None:
    older = {"a": torch.ones(3000), "b": torch.ones(5000)}
    newer = {"a": older["a"].clone(), "b": older["b"] + 1e-6, "c": torch.ones(10)}
    files = [tmp_path / name for name in ("older.tensors", "newer.tensors", f"delta.{ending}")]
    tensorizer_ops.save(files[0], older)
    tensorizer_ops.save(files[1], newer, metadata={"step": "7"})
    tensorizer_ops.delta(*files)
    base, target = (tensorizer_ops.digest(file, version=2) for file in files[:2])
    facts = json.loads(run("info", files[2], "--json").stdout)
    changes = facts["delta"]["changes"]
    assert facts["delta"] == {
        "base": base,
        "target": target,
        "target_size": 32_040,
        "changes": {"tensors": 2, "size": changes["size"]},
        "whole": {"tensors": 1, "size": 40},
    }
    assert 2 * 68 < changes["size"] == facts["size"] - 40
    shown = run("info", files[2]).stdout
    for line in (
        rf"base +{base}",
        rf"target +{target}",
        r"changes +2 tensors, .* KiB",
        r"whole +1 tensor, 40 B",
        rf"share +{100 * facts['size'] / 32_040:.2f} % of the target's 31\.3 KiB",
        r"metadata +step = 7",
    ):
        assert re.search(f"^{line}$", shown, re.MULTILINE), (line, shown)
    assert "tensorizer_ops.delta" not in shown
    assert json.loads(run("info", files[1], "--json").stdout)["delta"] is None
    # What the metadata says may be anything.
    metadata = {"tensorizer_ops.delta": "1", "tensorizer_ops.delta.size": "-1"}
    tensorizer_ops.save(files[2], older, metadata=metadata)
    assert "share" not in run("info", files[2]).stdout


def test_tied_tensors_count_once(tmp_path: Path) -> None:
    weight = torch.ones(1000)
    path = tmp_path / "m.tensors"
    tensorizer_ops.save(path, {"a": weight, "b": weight}, options={"share": "true"})
    assert json.loads(run("info", path, "--json").stdout)["size"] == 4000


# Runs the command in this interpreter, and asserts that it did not import torch.
WITHOUT_TORCH = """
import sys
from tensorizer_ops._cli.main import main
assert main(sys.argv[1:]) == 0
assert "torch" not in sys.modules and "numpy" not in sys.modules
"""


@pytest.mark.parametrize("command", ["info", "verify", "digest", "keygen"])
def test_torch_is_not_imported(model: Path, command: str) -> None:
    path = model.with_suffix(".key") if command == "keygen" else model
    run_python(WITHOUT_TORCH, command, str(path))


# An import that is interrupted, and ignores it: imports of torch do so in some places.
INTERRUPTED = """
import os, signal, sys, time
from tensorizer_ops._cli.main import main

class Deaf:
    def find_spec(self, name, path, target=None):
        if name == "tensorizer_ops._cli.rewriting":
            try:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(1)
            except KeyboardInterrupt:
                pass

sys.meta_path.insert(0, Deaf())
sys.exit(main(sys.argv[1:]))
"""


def test_interrupted_imports_end(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.tensors"
    done = run_python(INTERRUPTED, "copy", str(model), str(target), check=False)
    assert (done.returncode, done.stderr) == (130, b"tensorizer-ops: interrupted\n")
    assert not target.exists()


TIMED = """
import sys, time
from tensorizer_ops._cli.main import main
assert main(sys.argv[1:]) == 0
print(time.process_time(), file=sys.stderr)  # of the whole process
"""


def test_info_starts_at_once(model: Path) -> None:
    took = [float(run_python(TIMED, "info", str(model)).stderr)]
    # A busy machine gets up to three more attempts.
    while min(took) > 0.2 and len(took) < 4:
        took.append(float(run_python(TIMED, "info", str(model)).stderr))
    assert min(took) <= 0.2, took


def test_files_on_a_server(model: Path, tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    with nginx(tmp_path / "web") as web:
        (web.root / "m.tensors").write_bytes(model.read_bytes())
        uri = web.url("m.tensors")
        assert run("info", uri).stdout == run("info", model).stdout
        assert run("verify", uri, "-o", "connections=2", model).stdout.count(": OK\n") == 2
        run("copy", uri, tmp_path / "copied.tensors")
        assert run("diff", uri, tmp_path / "copied.tensors", "-q").stdout == ""
        unknown = run("info", uri, "-o", "conections=2", status=2).stderr
        assert "conections" in unknown and unknown.startswith("tensorizer-ops: ")


def test_verify_names_the_damage_and_goes_on(model: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.tensors"
    bad.write_bytes(model.read_bytes())
    entry = next(t for t in File(bad).index() if t.name == "layers.0.weight")
    flip(bad, entry.data_offset)
    done = run("verify", bad, model, status=1)
    assert "layers.0.weight" in done.stderr and done.stderr.count("\n") == 1
    assert done.stdout.endswith("model.tensors: OK\n")
    assert run("verify", "-q", model).stdout == ""
    bad.write_bytes(model.read_bytes()[:-100])
    run("verify", bad, status=1)
    run("verify", tmp_path / "none", status=3)
    run("verify", tmp_path / "none", bad, status=3)
    tensorizer_ops.save(bad, TENSORS, hashes="none")
    assert "there is nothing to verify" in run("verify", bad, status=2).stderr


def test_verify_holds_a_file_against_a_pinned_digest(model: Path) -> None:
    digest = tensorizer_ops.digest(model)
    run("verify", model, "-o", f"digest={digest}")
    assert "another model" in run("verify", model, "-o", f"digest={'0' * 64}", status=1).stderr


def test_digests(model: Path, tmp_path: Path) -> None:
    assert run("digest", model).stdout == tensorizer_ops.digest(model) + "\n"
    assert run("digest", model, "--version", 2).stdout.startswith("v2:")
    run("digest", model, "--listed", status=2)
    shown = run("digest", model, model).stdout.splitlines()
    assert shown == [f"{tensorizer_ops.digest(model)}  {model}"] * 2


def shell(command: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs a line of sh, in which the command takes `arguments` as $1 and so on."""
    return subprocess.run(
        ["sh", "-c", f"{shlex.join(COMMAND)} {command}", "sh", *map(str, arguments)],
        env=environment(),
        capture_output=True,
        text=True,
    )


NASTY = "a\x1b[31m\n\u202eb\x07"


def test_names_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "m.tensors"
    tensorizer_ops.save(path, {NASTY: torch.ones(2)}, metadata={"k\x1b": "v\x1b\n"})
    tensorizer_ops.save(tmp_path / "other.tensors", {NASTY: torch.zeros(2)})
    for done in (
        run("info", path),
        run("info", path, "--names"),
        run("info", path, "--by-prefix"),
        run("info", path, "--json"),
        run("diff", path, tmp_path / "other.tensors", status=1),
        run("diff", path, tmp_path / "other.tensors", "--json", status=1),
    ):
        assert not re.search("[\x1b\x07\u202e]", done.stdout + done.stderr)
        assert "u202eb" in done.stdout
    entry = File(path).index()[0]
    flip(path, entry.data_offset)
    damaged = run("verify", path, status=1).stderr
    assert not re.search("[\x1b\x07\u202e]", damaged) and damaged.count("\n") == 1


def test_errors_are_one_line(tmp_path: Path) -> None:
    error = run("info", tmp_path / "none", status=3).stderr
    assert error.startswith("tensorizer-ops: ") and error.count("\n") == 1
    assert "tensorizer.NotFound" not in error
    verbose = shell('info -v "$1"', tmp_path / f"{NASTY}none")
    assert verbose.returncode == 3 and "Traceback" in verbose.stderr
    assert not re.search("[\x1b\x07\u202e]", verbose.stderr)


@pytest.mark.parametrize(
    "arguments",
    [
        ["inof"],
        ["info"],
        ["info", "x", "--jsn"],
        ["info", "x", "-o", "hunter22"],
        ["info", "x", "--by-prefix=0"],
        ["info", "x", "--password=hunter22"],
        ["copy", "x", "y", "--update", "--hashes", "all"],
        ["decrypt", "x", "y"],
    ],
)
def test_wrong_usage(arguments: list[str]) -> None:
    done = run(*arguments, status=2)
    assert done.stderr.startswith("tensorizer-ops: ") and done.stderr.count("\n") == 1
    assert done.stdout == "" and "hunter22" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["inof"], "did you mean info?"),
        (["info", "x", "--jsn"], "did you mean --json? (see tensorizer-ops info --help)"),
        (["convert", "x", "y", "--hashes", "chunk"], "did you mean chunked?"),
        (["completion", "nushell"], "choose from bash, zsh, fish"),
        (["info", "--by-prefix", "x.tensors"], "or the URI first"),
        (["verify", "x", "--threads", "0"], "not a number from 1 on"),
        (["publish", "x", "y", "--step", "-1"], "not a number from 0 on"),
        (["copy", "x", "y", "z"], "one argument too many: z"),
        (["info", "s3:/b/x"], "two slashes: did you mean 's3://b/x'?\n"),
        (["info", "redis:/:pw@host/x"], "did you mean 'redis://host/x'?\n"),
        (["bench", "redis://localhost/x", "--cold"], "files on this machine"),
    ],
)
def test_wrong_usage_gets_advice(arguments: list[str], advice: str) -> None:
    assert advice in run(*arguments, status=2).stderr


def test_output_that_cannot_be_written(model: Path) -> None:
    full = shell("info $1 > /dev/full", model)
    assert full.returncode == 3 and full.stderr.count("\n") == 1 and "space" in full.stderr
    assert shell("info --help > /dev/full", model).returncode == 3
    # A closed stream is no error, and what is written later does not end up in another file.
    before = model.read_bytes()
    for closed in (">&-", "2>&-", ">&- 2>&-"):
        assert shell(f"verify $1 {closed}", model).returncode == 0
        assert shell(f"info -v $1.none {closed}", model).returncode == 3
        assert shell(f"convert $1 $1.safetensors {closed}", model).returncode == 0
    assert shell("copy $1 fd:1 >&-", model).returncode == 2
    assert model.read_bytes() == before
    assert run("diff", model, f"{model}.safetensors").returncode == 0


def test_a_closed_pipe_ends_it_quietly(tmp_path: Path) -> None:
    path = tmp_path / "m.tensors"
    tensorizer_ops.save(path, {f"tensor.{i}": torch.zeros(1) for i in range(20000)})
    with subprocess.Popen(
        [*COMMAND, "info", path],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith("format")
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(command: str) -> None:
    shown = run(command, "--help").stdout
    assert f"\n  tensorizer-ops {command}" in shown and "Exit status" in shown
    assert command in run("--help").stdout


def test_examples_in_help_parse() -> None:
    from tensorizer_ops._cli.parsers import COMMANDS as table, make_parser

    assert [command.name for command in table] and set(COMMANDS) == {c.name for c in table}
    for command in table:
        for example in command.examples:
            words = shlex.split(example.partition(" >")[0])
            assert words[0] == command.name and make_parser().parse_args(words).run


def test_help_and_options_in_front_of_a_command(model: Path) -> None:
    assert run("help").stdout == run("--help").stdout
    assert run("help", "info").stdout == run("info", "--help").stdout
    assert "did you mean info?" in run("help", "inof", status=2).stderr
    assert run("-q", "verify", model).stdout == ""
    assert "Traceback" in shell("-v info $1.none", model).stderr
    assert "required: COMMAND" in run("-v", status=2).stderr


def test_the_version() -> None:
    assert run("--version").stdout == f"tensorizer-ops {tensorizer_ops.__version__}\n"


def test_the_installed_command_is_this_one() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    module, function = re.search(
        r'^tensorizer-ops = "([\w.]+):(\w+)"$', text, re.MULTILINE
    ).groups()
    code = f"import sys; from {module} import {function}; sys.exit({function}(['--version']))"
    assert run_python(code).stdout.decode().startswith("tensorizer-ops ")


def test_env_has_no_secret_and_no_path() -> None:
    facts = json.loads(run("env", "--json").stdout)
    assert facts["torch"] == torch.__version__ and "libcurl" in facts["libraries"]
    assert all(value.isprintable() for value in facts.values())
    assert str(len(os.sched_getaffinity(0))) in facts["processor"]
    text = run("env").stdout
    assert all(name in text for name in facts)
    assert os.path.expanduser("~") not in text and sys.prefix not in text


@pytest.mark.parametrize("hashes", ["all", "none"])
def test_bench_measures_and_advises(tmp_path: Path, hashes: str) -> None:
    path = tmp_path / "m.tensors"
    tensorizer_ops.save(path, {"a": torch.zeros(1 << 20)}, hashes=hashes)
    shown = run("bench", path, "--cold", "--threads", 2).stdout
    assert re.search(r"^bare read +4\.0 MiB +[\d.]+ s +[\d.]+ GB/s$", shown, re.MULTILINE)
    assert ("verified load" in shown) == (hashes == "all")
    found = json.loads(run("bench", path, "--json", "-q").stdout)
    assert found["measured"]["load"]["bytes"] == 4 << 20 and found["advice"]


def test_bench_explains_a_verified_load_that_is_faster() -> None:
    from tensorizer_ops._cli.bench import explain_order

    measured = {"load": {"seconds": 2.0}, "verified load": {"seconds": 1.0}}
    assert "came second" in explain_order(measured)
    assert explain_order({**measured, "load": {"seconds": 0.9}}) == ""
    assert explain_order({"load": {"seconds": 2.0}}) == ""


def test_bench_of_a_server(model: Path, tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    with nginx(tmp_path / "web") as web:
        (web.root / "m.tensors").write_bytes(model.read_bytes())
        found = json.loads(run("bench", web.url("m.tensors"), "--json").stdout)
    assert found["measured"]["bare read"]["bytes"] == model.stat().st_size
    assert found["measured"]["load"]["requests"] >= 1


def test_all_damaged_tensors_have_a_line(tmp_path: Path) -> None:
    path = tmp_path / "m.tensors"
    tensorizer_ops.save(path, {name: torch.full((100,), 3.0) for name in "abc"})
    data = bytearray(path.read_bytes())
    for tensor in File(path).index():
        if tensor.name != "b":
            data[tensor.data_offset] ^= 1
    path.write_bytes(data)
    lines = run("verify", path, status=1).stderr.splitlines()
    assert len(lines) == 2 and "'a'" in lines[0] and "'c'" in lines[1]
    assert "Traceback" in shell("verify -v $1", path).stderr


def test_missing_keys_are_no_damage(model: Path, tmp_path: Path) -> None:
    key, secret = tmp_path / "key", tmp_path / "s.tensors"
    run("keygen", key)
    run("encrypt", model, secret, "--key-file", key)
    run("verify", secret, status=3)
    run("verify", model, "--key-file", key, status=3)
    run("verify", model, "--key-file", key, "-o", f"key=file:{key}", status=2)


def test_one_missing_file_does_not_hide_the_others(model: Path, tmp_path: Path) -> None:
    for command, shown in (("info", "layers"), ("digest", "model.tensors")):
        done = run(command, tmp_path / "missing", model, status=3)
        assert "missing" in done.stderr and shown in done.stdout


def test_different_names_are_shown_differently(tmp_path: Path) -> None:
    path = tmp_path / "m.tensors"
    tensorizer_ops.save(path, {"a\nb": torch.ones(1), "a\\nb": torch.ones(1)})
    assert run("info", path, "--names").stdout.splitlines() == ["a\\nb", "a\\\\nb"]


def test_a_dash_is_no_file(model: Path) -> None:
    assert "/dev/stdout" in run("copy", model, "-", status=2).stderr


def test_versions_are_published_and_followed(model: Path, tmp_path: Path) -> None:
    place, copy, scratch = (str(tmp_path / name) for name in ("run", "copy.tensors", "scratch"))
    nothing = run("follow", place, copy, "--patience", "0", status=1)
    assert "no version was published" in nothing.stderr
    for step in ("0", "5"):
        published = run("publish", str(model), place, "--step", step, "--scratch", scratch)
        followed = run("follow", place, copy, "--patience", "0", "--interval", "0.01")
        assert published.stdout == followed.stdout
    assert followed.stdout.startswith("version 2, step 5, v2:")
    assert any(name.endswith(".delta.tensors") for name in os.listdir(place))
    run("diff", model, copy)
    signer = Signer(tmp_path)
    trusting = ("-o", f"trust={signer.options['trust']}")
    refused = run("follow", place, copy, "--patience", "0", *trusting, status=3)
    assert "it is not signed" in refused.stderr
    run("publish", str(model), place, "--step", "6", "--sign-key-file", str(signer.private))
    assert "version 3" in run("follow", place, copy, "--patience", "0", *trusting).stdout
    for wrong in (("--step", "-1"), ("--step", "x"), ("--grace", "-1")):
        run("publish", str(model), place, *wrong, status=2)
    run("follow", place, copy, "--patience", "nan", status=2)
