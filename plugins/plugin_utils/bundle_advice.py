# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How to use a bundle that was made."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any


def lines(manifest: Mapping[str, Any] | None, folder: str, needed: Iterable[str]) -> list[str]:
    """What works with the bundle of MANIFEST in FOLDER, and nothing else. NEEDED: packages of the system that SGLang needs on a host."""
    if not manifest:
        return []
    sglang, cuda = manifest["sglang"] or {}, manifest["cuda"] or {}
    given = {
        "bundle_dir": folder,
        "cuda_source": "bundle" if manifest["cuda"] else None,
        "cuda_version": cuda.get("version"),
        "cuda_driver_version": cuda.get("driver_version"),
        "sglang_source": "bundle" if sglang else None,
        "sglang_version": sglang.get("version"),
        "sglang_cuda": sglang.get("cuda"),
    }
    words = [f"-e {shlex.quote(f'{name}={value}')}" for name, value in given.items() if value]
    found = [f"to use it: ansible-playbook -i YOUR-INVENTORY provision.yml {' '.join(words)}"]
    if sglang.get("flags"):
        flags = ", ".join(f"{name}: {value}" for name, value in sglang["flags"].items())
        found.append(f"it is slim and serves with these flags alone: sglang_flags: {{{flags}}}")
    if sglang and not manifest["debs"] and needed:
        found.append(
            f"it has no packages of the system (bundle_distribution is not set): the host is to have {', '.join(needed)} (sglang_packages)"
        )
    return found
