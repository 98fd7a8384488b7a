# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts that every plan for a supervisor has."""

from __future__ import annotations

import getpass
import os
import re
import secrets
import socket
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError

WORKLOAD_KEYS = {"name": str, "concurrency": int, "input_len": int, "output_len": int, "requests": int}
SETTINGS_S = ("lease_s", "stall_timeout_s", "drain_timeout_s")
SETTINGS = (
    "on_lost_controller", "port", "keep_trials", "log_cap_bytes", "time_budget_s", "smoke", "outputs", "nccl_capture", "benchmark_tool",
    "aiperf_path", "keep_cores",
)  # fmt: skip
_SPAN = re.compile(r"(?:(?P<d>\d+)d)? *(?:(?P<h>\d+)h)? *(?:(?P<m>\d+)m(?:in)?)? *(?:(?P<s>\d+(?:\.\d+)?)s?)?$")
_SPAN_S = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def who() -> str:
    """Who asks, for messages on a host."""
    return f"{getpass.getuser()}@{socket.gethostname()} (pid {os.getppid()})"


def seconds(name: str, value: Any) -> float:
    """A span of time such as 5400, "90m", "1h 30m" or "2d" in seconds; nothing and 0 are 0. Raises RingmasterError naming variable NAME."""
    match = _SPAN.match(str(value if value is not None else "").strip())
    if match is None:
        raise RingmasterError(f"{name} is {value!r}.", "Give seconds, or a span such as 90m, 2h or 1h 30m.")
    return sum(float(match[unit] or 0) * unit_s for unit, unit_s in _SPAN_S.items())


def frame(host: str, settings: Mapping[str, Any], *, unit: str | None = None) -> dict[str, Any]:
    """A plan without arms and steps: its name, who asks, and how the host protects itself (SETTINGS_S and SETTINGS; seconds as numbers)."""
    now = datetime.now(UTC)
    return {
        "plan": f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}",
        "host": host,
        "who": who(),
        "started": f"{now:%Y-%m-%dT%H:%M:%SZ}",
        "cannot_matter": "",
        "proof_of": [],
        "inventory_lines": [],
        "adopt": None,
        "arms": {},
        "steps": [],
        "workloads": [],
        "unit": unit,
        "settings": {name: float(settings[name]) for name in SETTINGS_S} | {name: settings[name] for name in SETTINGS},
    }


def workload(number: int, row: Mapping[str, Any]) -> dict[str, Any]:
    """Entry NUMBER (from 0) of a list of workloads with its types made right. Raises RingmasterError naming entry and key."""
    if not isinstance(row, Mapping):
        raise RingmasterError(f"tune_workloads: entry {number + 1} is {row!r}.", f"It has to be a mapping of {', '.join(WORKLOAD_KEYS)}.")
    unknown = sorted(set(row) - set(WORKLOAD_KEYS) - {"warmup_requests", "timeout_s"})
    if unknown:
        raise RingmasterError(f"tune_workloads: entry {number + 1} has unknown keys: {', '.join(map(str, unknown))}.")
    missing = [key for key in WORKLOAD_KEYS if key not in row]
    if missing:
        raise RingmasterError(f"tune_workloads: entry {number + 1} lacks {', '.join(missing)}.", f"It needs {', '.join(WORKLOAD_KEYS)}.")
    try:
        typed = {key: kind(row[key]) for key, kind in WORKLOAD_KEYS.items()}
    except (TypeError, ValueError) as error:
        raise RingmasterError(f"tune_workloads: entry {number + 1}: {error}.", "Lengths, concurrency and requests are integers.") from error
    small = [f"{key} {value}" for key, value in typed.items() if key != "name" and value < 1]
    if small:
        raise RingmasterError(f"tune_workloads: entry {number + 1} has {', '.join(small)}.", "Each of these has to be at least 1.")
    return {**row, **typed}


def workloads(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every entry of tune_workloads made right. Raises RingmasterError, for an empty list too: without figures there is no verdict."""
    if not rows:
        raise RingmasterError("tune_workloads is empty: nothing would be measured.", "Give at least one entry, or leave it out.")
    return [workload(number, row) for number, row in enumerate(rows)]
