# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Generation, compute capability and kernel module of a GPU by its PCI device id. Data with its sources, and the choice for a host.

Sources:
- ids: the ranges that NVIDIA gives to its chips, as the PCI ID repository (pci.ids) lists them. From Turing on every new chip has been put
  above or between those of Turing and later ones, so an unknown id above the last range is taken for a later generation.
- modules: NVIDIA, "NVIDIA Transitions Fully Towards Open-Source GPU Kernel Modules" (July 2024): Grace Hopper and Blackwell must have the
  open ones; Turing, Ampere, Ada and Hopper should, from branch 560 on; Maxwell, Pascal and Volta cannot, nor a host that mixes them in.
- capabilities: NVIDIA, "CUDA GPU Compute Capability" and "Legacy CUDA GPU Compute Capability", by the chips of the ids.
- branches: NVIDIA, "Unix graphics feature deprecation schedule": 580 is the last branch for Maxwell, Pascal and Volta; 570 is the first
  that knows Blackwell.
"""

from __future__ import annotations

from typing import NamedTuple

from .errors import RingmasterError

OPEN, PROPRIETARY = "open", "proprietary"
OPEN_IS_DEFAULT_FROM = 560


class Generation(NamedTuple):
    """`first` to `last`: PCI device ids. `modules`: those it runs with, the better one first. Branches: None is no limit."""

    name: str
    first: int
    last: int
    modules: tuple
    first_branch: int | None = None
    last_branch: int | None = None


GENERATIONS = (
    Generation("Maxwell", 0x1340, 0x15BF, (PROPRIETARY,), last_branch=580),
    Generation("Pascal", 0x15C0, 0x15FF, (PROPRIETARY,), last_branch=580),  # GP100
    Generation("Maxwell", 0x1600, 0x17FF, (PROPRIETARY,), last_branch=580),
    Generation("Pascal", 0x1B00, 0x1D7F, (PROPRIETARY,), last_branch=580),
    Generation("Volta", 0x1D80, 0x1DFF, (PROPRIETARY,), last_branch=580),
    Generation("Turing", 0x1E00, 0x1FFF, (OPEN, PROPRIETARY)),
    Generation("Ampere", 0x2080, 0x20FF, (OPEN, PROPRIETARY)),  # GA100
    Generation("Turing", 0x2180, 0x21FF, (OPEN, PROPRIETARY)),  # TU116
    Generation("Ampere", 0x2200, 0x22FF, (OPEN, PROPRIETARY)),
    Generation("Hopper", 0x2300, 0x233F, (OPEN, PROPRIETARY)),
    Generation("Grace Hopper", 0x2340, 0x237F, (OPEN,)),
    Generation("Hopper", 0x2380, 0x23FF, (OPEN, PROPRIETARY)),
    Generation("Ampere", 0x2400, 0x25FF, (OPEN, PROPRIETARY)),
    Generation("Ada", 0x2600, 0x28FF, (OPEN, PROPRIETARY)),
    Generation("Blackwell or later", 0x2900, 0xFFFF, (OPEN,), first_branch=570),
)

CAPABILITIES = (  # first and last PCI device id of a chip's range
    (0x1340, 0x13BF, "5.0"),  # GM107, GM108
    (0x13C0, 0x15BF, "5.2"),  # GM204, GM206
    (0x15F0, 0x15FF, "6.0"),  # GP100
    (0x1600, 0x16FF, "5.2"),  # GM204
    (0x1740, 0x17BF, "5.0"),  # GM107, GM108
    (0x17C0, 0x17FF, "5.2"),  # GM200
    (0x1B00, 0x1D7F, "6.1"),  # GP102 to GP108
    (0x1D80, 0x1DFF, "7.0"),  # GV100
    (0x1E00, 0x1FFF, "7.5"),  # TU102 to TU117
    (0x2080, 0x20FF, "8.0"),  # GA100
    (0x2180, 0x21FF, "7.5"),  # TU116
    (0x2200, 0x22FF, "8.6"),  # GA102
    (0x2300, 0x23FF, "9.0"),  # GH100
    (0x2400, 0x25FF, "8.6"),  # GA103 to GA107
    (0x2600, 0x28FF, "8.9"),  # AD102 to AD107
    (0x2900, 0x29FF, "10.0"),  # GB100: B200 (2901), GB200 (2941)
    (0x2B80, 0x2BFF, "12.0"),  # GB202: RTX 5090 (2b85), RTX PRO 6000 (2bb1 to 2bb5)
    (0x2C00, 0x2DFF, "12.0"),  # GB203, GB206, GB207
    (0x2E00, 0x2E7F, "12.1"),  # GB20B: GB10 (2e12)
    (0x2F00, 0x2F7F, "12.0"),  # GB205
    (0x3180, 0x31FF, "10.3"),  # GB110: B300 (3182), GB300 (31c2)
)


def of(device):
    """The Generation of a PCI device id, None for one before Maxwell or between the ranges."""
    return next((generation for generation in GENERATIONS if generation.first <= device <= generation.last), None)


def capability_of(device):
    """'12.0' of a PCI device id; None where it is not known: unlike the generation, a newer one cannot be guessed."""
    return next((capability for first, last, capability in CAPABILITIES if first <= device <= last), None)


def branch_of(version):
    """580 of '580.105.08' or '580.105.08-1'; None of ''."""
    return int(version.partition(".")[0]) if version else None


def kernel_module(gpus, asked, version=""):
    """'open' or 'proprietary' for a host.

    gpus: [(address, PCI device id)]. asked: 'auto', 'open' or 'proprietary'. version: of the driver, '' when it is not chosen here.
    Raises RingmasterError when these GPUs cannot run together, or not with what was asked for.
    """
    branch = branch_of(version)
    known = [(address, device, of(device)) for address, device in gpus]
    for address, device, generation in known:
        if generation is None:
            _refuse(f"GPU {address} (PCI id 10de:{device:04x}) is none that a current driver of NVIDIA runs.", "Take it out of the host.")
        if branch and generation.last_branch and branch > generation.last_branch:
            _refuse(
                f"GPU {address} is a {generation.name} (10de:{device:04x}), which driver {version} no longer runs.",
                f"Set cuda_driver_version to one of branch {generation.last_branch} or before.",
            )
        if branch and generation.first_branch and branch < generation.first_branch:
            _refuse(
                f"GPU {address} is a {generation.name} (10de:{device:04x}), which driver {version} does not run yet.",
                f"Set cuda_driver_version to one of branch {generation.first_branch} or after.",
            )
        if asked != "auto" and asked not in generation.modules:
            _refuse(
                f"GPU {address} is a {generation.name} (10de:{device:04x}), which does not run with the {asked} kernel module.",
                "Set cuda_kernel_module to auto.",
            )
    if asked != "auto":
        return asked
    if not known:
        _refuse("No NVIDIA GPU is on the PCI bus, so the kernel module cannot be chosen by it.", "Set cuda_kernel_module.")
    possible = [module for module in (OPEN, PROPRIETARY) if all(module in generation.modules for _address, _device, generation in known)]
    if not possible:
        listed = ", ".join(f"{address} {generation.name}" for address, _device, generation in known)
        _refuse(f"These GPUs cannot run with one kernel module: {listed}.", "Take the older or the newer ones out of the host.")
    if len(possible) > 1 and branch and branch < OPEN_IS_DEFAULT_FROM:
        return PROPRIETARY
    return possible[0]


def _refuse(what, remedy):
    raise RingmasterError(what, remedy)
