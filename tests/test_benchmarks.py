"""The benchmark for devices, which few machines can run: on the simulated one."""

from __future__ import annotations

import json
from pathlib import Path

from process import ROOT, run_python

RUN = """
import runpy, sys
import sim_device
sim_device.set_lazy(False)
sys.path.insert(0, sys.argv[1])
runpy.run_path(sys.argv.pop(1) + "/gpu.py", run_name="__main__")
"""


def test_devices_are_measured(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    options = ["--quick", "--repeat", "1", "--json", str(result)]
    done = run_python(RUN, str(ROOT / "benchmarks"), *options)
    assert b"us against the limit" in done.stdout
    for rows in json.loads(result.read_text())["results"].values():
        assert {"limit, pinned copy", "us", "us, save hashes=all"} <= rows["seconds"].keys()
        assert not [name for name in rows["errors"] if name.startswith("us")]
