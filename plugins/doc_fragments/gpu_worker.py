# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """What gpu_worker and gpu_worker_info have in common."""

    DOCUMENTATION = r"""
options:
  wedged_over_s:
    description:
      - A GPU that has memory in use and no process that has it is looked at three times over so many seconds before it is reported as
        wedged. Nothing is waited for otherwise.
    type: float
    default: 10
  lxc_paths:
    description: Folders in which LXC keeps its containers, to know those that do not run. Proxmox's own are known.
    type: list
    elements: path
    default: [/var/lib/lxc]
notes:
  - As root it sees and ends processes of every user and container, without root those of its own user only.
  - It goes by C(/proc), and by C(nvidia-smi) where there is one, for memory. It needs no Proxmox.
"""
