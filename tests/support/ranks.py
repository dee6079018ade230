"""Runs code on several ranks: processes of one ``torch.distributed`` group with Gloo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from local_servers.waiting import LAST_RESORT
from support.process import fork_python

_PREAMBLE = """
import datetime, json, os, signal, socket, sys, time, traceback
import torch, torch.distributed as dist
import tensorizer_ops
from tensorizer_ops import distributed
folder, count, keeper, *given = sys.argv[1:]
count, keeper = int(count), int(keeper)
timeout = datetime.timedelta(seconds={patience})
listening = socket.create_server(("127.0.0.1", 0))
port = listening.getsockname()[1]

def body(rank, size, given):
    {body}

def report(value):
    path = f"{{folder}}/{{dist.get_rank()}}.json"
    with open(path + ".part", "w") as file:
        json.dump(value, file)
    os.rename(path + ".part", path)  # also if it is killed meanwhile

def store(keeps):
    return dist.TCPStore(
        "127.0.0.1", port, count, keeps, timeout, wait_for_workers=False,
        master_listen_fd=os.dup(listening.fileno()) if keeps else None)

def main(rank):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=store(rank == keeper), rank=rank, world_size=count, timeout=timeout)
    dist.barrier()  # a rank would wait for the connection of one that has ended the group already
    body(rank, count, given)
    dist.destroy_process_group()

processes = []
for rank in range(count):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            main(rank)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    processes.append(pid)
kept = store(True) if keeper == -1 else None
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in processes]
print(json.dumps(codes))
"""

# Tensors of all kinds, on a mesh and not. `full` is what one process would save.
TENSORS = """
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
generator = torch.Generator().manual_seed(5)
line = init_device_mesh("cpu", (size,))
square = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp", "tp"))
plan = {
    "rows": ((1000, 1024), torch.float32, line, [Shard(0)]),
    "columns": ((777, 1000), torch.bfloat16, line, [Shard(1)]),
    "inner": ((5, 300, 301), torch.int16, line, [Shard(2)]),
    "middle": ((3, 33, 512), torch.complex128, line, [Shard(1)]),
    "two": ((501, 502), torch.float64, square, [Shard(0), Shard(1)]),
    "twice": ((130, 1000), torch.float8_e4m3fn, square, [Shard(0), Shard(0)]),
    "half": ((300, 1001), torch.bool, square, [Replicate(), Shard(1)]),
    "replicated": ((100, 100), torch.float32, line, [Replicate()]),
    "few": ((2, 70000), torch.uint8, line, [Shard(0)]),
    "plain": ((1 << 20,), torch.float32, None, None),
    "scalar": ((), torch.float64, None, None),
    "scalar on a mesh": ((), torch.int64, line, [Replicate()]),
    "empty": ((0, 4), torch.float32, line, [Shard(0)]),
    "empty columns": ((0, 4), torch.float32, line, [Shard(1)]),
    "empty rows": ((5, 0), torch.float32, line, [Shard(0)]),
    "a/long" + "g" * 200: ((3,), torch.complex64, line, [Shard(0)]),
}
full, tensors = {}, {}
for name, (shape, dtype, mesh, placements) in plan.items():
    data = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8, generator=generator)
    if dtype is torch.bool:
        data %= 2
    full[name] = data.view(dtype).view(shape)
    tensors[name] = full[name]
    if mesh is not None:
        tensors[name] = distribute_tensor(full[name], mesh, placements, src_data_rank=None)
"""


class Ranks:
    """The outcome of code that ran on every rank."""

    def __init__(self, folder: Path, statuses: list[int]) -> None:
        self.statuses = statuses
        self.reports: list[Any] = []
        for rank in range(len(statuses)):
            file = folder / f"{rank}.json"
            self.reports.append(json.loads(file.read_text()) if file.exists() else None)


def run_ranks(
    folder: Path, body: str, *given: object, count: int = 4, keeper: int | None = None
) -> Ranks:
    """Runs the body of a function of ``rank``, ``size`` and ``given`` on every rank.

    What it passes to ``report()`` is in the result. Asserts that every rank ends well, unless its
    process is killed. The store of the group is kept by the process that starts the ranks, as
    torchrun does, or by one of them.
    """
    folder.mkdir()
    lines = body.strip("\n").splitlines()
    code = _PREAMBLE.format(patience=LAST_RESORT, body="\n    ".join(lines))
    done = fork_python(code, folder, count, -1 if keeper is None else keeper, *given)
    outcome = Ranks(folder, json.loads(done.stdout.splitlines()[-1]))
    assert all(status <= 0 for status in outcome.statuses), done.stderr
    return outcome
