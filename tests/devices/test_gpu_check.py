"""The program that checks a GPU, on the simulated device."""

from __future__ import annotations

from support.process import ROOT, fork_python

RUN = """
import runpy, sys
from support import sim_device
sim_device.set_lazy(False)
sim_device.set_codec(True)
program = sys.argv[1]
sys.argv[1:] = ["--device", "sim", "--quick"]
runpy.run_path(program, run_name="__main__")
"""


def test_a_device_that_is_right() -> None:
    done = fork_python(RUN, str(ROOT / "tools" / "gpu" / "check.py"))
    lines = done.stdout.splitlines()
    assert len(lines) == 15 and all(line.startswith("ok ") for line in lines[:-1])
    assert lines[-1] == "the device decrypts and verifies"


WRONG = """
import torch
library = torch.library.Library("tensorizer_device", "IMPL")

def chunks(data, size):
    return sum(-(-each.numel() // size) for each in data)

def crc32(data):
    return torch.zeros(len(data), dtype=torch.int32).to("sim")

def sha256_chunks(data, chunk):
    return torch.zeros((chunks(data, chunk), 32), dtype=torch.uint8).to("sim")

def decrypt(data, sizes, keys, nonces, macs):  # says that all is well, and does nothing
    count = sum(chunks([each], size) for each, size in zip(data, sizes))
    return torch.zeros(count, dtype=torch.uint8).to("sim")

for kernel in (crc32, sha256_chunks, decrypt):
    library.impl(kernel.__name__, kernel, "PrivateUse1")
"""


def test_a_device_that_is_wrong() -> None:
    code = RUN.replace("sim_device.set_codec(True)", WRONG)
    done = fork_python(code, str(ROOT / "tools" / "gpu" / "check.py"), check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert [line for line in lines if line.startswith("ok      loads")] == [
        "ok      loads: plain",
        "ok      loads: SHA-256 of tensors",
        "ok      loads: encrypted, SHA-256",
    ]
    assert any(line.startswith("FAILED  digests of memory") for line in lines)
