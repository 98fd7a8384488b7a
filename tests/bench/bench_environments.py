#!/usr/bin/env python3
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long a look at the SGLang environments of a host takes, which each run of role sglang does three times.

    .venv/bin/python tests/bench/bench_environments.py [--environments 6] [--packages 180] [--processes 200] [--rounds 7]

Each environment has as many packages as a real one, with RECORDs of as many bytes (28 KiB each); the processes run out of the first one,
with as many mappings as a torch process has of libraries.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.ringmaster.gpu.plugins.module_utils import environments, files  # noqa: E402 - found by the line above

RECORD = b"torch/include/ATen/ops/some_operation.h,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,1234\n" * 290
CROWD = """
import mmap, os, signal, sys
maps = [mmap.mmap(-1, 4096, prot=1 + number % 2 * 2) for number in range(800)]
for number in range(int(sys.argv[1]) - 1):
    if os.fork() == 0:
        signal.pause()
os.write(1, b"ready")
signal.pause()
"""


def make(home: str, number: int, packages: int) -> None:
    place = environments.path(home, f"0.5.{number}-cu130-0a1b2c3d")
    files.make_directory(f"{place}/bin")
    os.symlink(sys.executable, f"{place}/bin/python")
    Path(place, "pyvenv.cfg").write_text(f"home = {os.path.dirname(os.path.realpath(sys.executable))}\n")
    for package in range(packages):
        folder = Path(place, f"lib/python3.12/site-packages/package{package}-1.0.dist-info")
        folder.mkdir(parents=True)
        (folder / "RECORD").write_bytes(RECORD)
    stamp = {"lock_sha256": "0", "records": environments.records(place), "versions": {"sglang": f"0.5.{number}"}, "built": str(number)}
    files.write_json(os.path.join(place, environments.STAMP), stamp, mode=0o644)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"environments": 6, "packages": 180, "processes": 200, "rounds": 7}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        for number in range(options.environments):
            make(home, number, options.packages)
        first = environments.python(home, environments.names(home)[0])
        with subprocess.Popen([first, "-c", CROWD, str(options.processes)], stdout=subprocess.PIPE, start_new_session=True) as crowd:
            try:
                crowd.stdout.read(5)
                seconds = []
                for _round in range(options.rounds):
                    begun = time.perf_counter()
                    rows = environments.listing(home, sizes=False)
                    seconds.append(time.perf_counter() - begun)
            finally:
                os.killpg(crowd.pid, 9)
        assert [row["fault"] for row in rows] == [None] * options.environments, rows
        assert [len(row["users"]) for row in rows] == [options.processes] + [0] * (options.environments - 1)
        print(f"{options.environments} environments, {options.processes} processes: {statistics.median(seconds) * 1000:.0f} ms")


if __name__ == "__main__":
    main()
