# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Misspelt variables: names that look like ours but that no role knows. Ansible itself would ignore them without a word."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import yaml

PREFIXES = (
    "nccl_", "sglang_", "tune_", "ringmaster_", "lab_", "rollback_", "diagnose_", "cuda_", "proxmox_host_", "proxmox_container_",
    "proxmox_api_", "reap_", "provision_", "bundle_",
)  # fmt: skip


def unknown_variables(names: Iterable[str], known: Iterable[str]) -> list[tuple[str, str | None]]:
    """[(name, nearest known name or None)] of those names that have one of our prefixes and that nobody knows, in their order.

    A prefix is ours as soon as a known variable has it. Capitals and '-' for '_' are how ours are misspelt, too. Names that begin with
    '_' are registers and internals, never ours to judge.
    """
    spellings = sorted(set(known))
    prefixes = tuple(prefix for prefix in PREFIXES if any(name.startswith(prefix) for name in spellings))
    found = []
    for name in names:
        plain = name.lower().replace("-", "_")
        if name not in spellings and not name.startswith("_") and prefixes and plain.startswith(prefixes):
            found.append((name, _nearest(plain, spellings)))
    return found


def _nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was meant."""
    same = [candidate for candidate in known if candidate.split("_")[0] == name.split("_")[0]]
    close = difflib.get_close_matches(name, same, n=1, cutoff=0.75)
    return close[0] if close else None


def misspelt(name: str, nearest: str | None) -> str:
    """One sentence for the user."""
    return f"{name}: no such variable; did you mean {nearest}?" if nearest else f"{name}: no such variable, and none has a similar name."


def known_variables(collection_root: Path) -> frozenset[str]:
    """Every option of every entry point in roles/*/meta/argument_specs.yml below a collection or clone. Read once a process.

    Raises OSError or yaml.YAMLError when one of these files, which are ours, cannot be read.
    """
    return _read(str(Path(collection_root).resolve()))


@lru_cache(maxsize=8)
def _read(root: str) -> frozenset[str]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    names: set[str] = set()
    for path in sorted(Path(root).glob("roles/*/meta/argument_specs.yml")):
        specs = (yaml.load(path.read_text(encoding="utf-8"), Loader=loader) or {}).get("argument_specs") or {}
        for entry_point in specs.values():
            names |= set((entry_point or {}).get("options") or ())
    return frozenset(names)
