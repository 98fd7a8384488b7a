# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How GPUs reach each other, from the matrices of an nvidia-smi that is a script on PATH."""

from __future__ import annotations

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import gpus


def matrix(*rows):
    """`nvidia-smi topo -m` with ROWS of what lies between the GPUs; a network card, as most hosts have one, is linked by PHB."""
    names = [f"GPU{number}" for number in range(len(rows))]
    head = "\t".join(["", *(f"\033[4m{name}" for name in names), "NIC0", "CPU Affinity\tNUMA Affinity\tGPU NUMA ID\033[0m"])
    body = [
        "\t".join([name, *(f" {cell} " for cell in row.split()), "PHB", "0-31\t0\t\tN/A"]) for name, row in zip(names, rows, strict=True)
    ]
    legend = "\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"
    return "\n".join([head, *body, "NIC0\t" + "PHB\t" * len(rows) + " X\t", legend])


@pytest.mark.parametrize(
    ("rows", "peers", "link"),
    [
        (["X NV18", "NV18 X"], "", "NVLink"),
        (["X NV4 SYS SYS", "NV4 X SYS SYS", "SYS SYS X NV4", "SYS SYS NV4 X"], "GPU0 X OK OK OK", "PCIe with P2P"),
        (["X NODE", "NODE X"], "GPU0 X OK\nGPU1 OK X", "PCIe with P2P"),
        (["X NODE", "NODE X"], "GPU0 X CNS\nGPU1 CNS X", "PCIe"),
        (["X"], "", None),
        ([], "", None),
    ],
)
def test_link(tmp_path, monkeypatch, rows, peers, link):
    (tmp_path / "matrix").write_text(matrix(*rows))
    (tmp_path / "peers").write_text(peers)
    script = tmp_path / "nvidia-smi"
    script.write_text(f'#!/bin/sh\n[ "$2" = -m ] && exec cat "{tmp_path}/matrix"\nexec cat "{tmp_path}/peers"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert gpus.link() == link


def test_no_nvidia_smi(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus.link() is None
