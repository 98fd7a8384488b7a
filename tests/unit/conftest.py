# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make `ansible_collections.ringmaster.gpu` importable from a clone, without installing the collection."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "collections"))


# --- a fake Proxmox VE (pve_lab), for the tests of it only: what they import is not wanted elsewhere


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    from pve_lab import Lab

    lab = Lab(str(tmp_path_factory.mktemp("pve")))
    yield lab
    lab.close()


@pytest.fixture
def pve(lab):
    from pve_lab import served

    with served(lab) as pve:
        yield pve


@pytest.fixture
def root(lab, pve):
    """The options of the API with a ticket of root@pam, the number, and nothing else."""
    from pve_lab import login

    return {**login(pve, lab.ca), "vmid": 101}


@pytest.fixture
def made(pve, root):
    """pve_lab.WHOLE is there, stopped, and nothing is recorded yet."""
    from pve_lab import WHOLE, run

    run({**root, **WHOLE})
    pve.requests.clear()
    return pve.ct(101)
