# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a unit that was started stays up: SGLang loads for minutes, but what it cannot use at all ends it in the first seconds."""

from __future__ import annotations

import time

from . import server_absent, units
from .errors import RingmasterError

POLL_S = 0.5
LOG_TIMEOUT_S = 10.0
MOST_LINES = 5


def wait(unit, settle_s, state):
    """Returns {pid, age_s} once the present start of UNIT is SETTLE_S old, at once when it is already. Raises RingmasterError when it ends.

    STATE: the host's State, for what there is to say of it then.
    """
    first = properties = units.show(unit)
    if first is None:
        raise RingmasterError(f"There is no unit {units.unit_name(unit)}.", "Set sglang_service.")
    while units.is_up(properties) and properties["InvocationID"] == first["InvocationID"]:
        age_s = units.age_s(properties) or 0.0
        if age_s >= settle_s:
            return {"pid": units.main_pid(properties), "age_s": round(age_s, 1)}
        time.sleep(min(POLL_S, settle_s - age_s))
        properties = units.show(unit)
    raise _ended(unit, properties or first, first["InvocationID"], state)


def _ended(unit, properties, invocation, state):
    name = units.unit_name(unit)
    context = {"unit": {"name": name}, "state": state, "timeout_s": LOG_TIMEOUT_S, "stall_timeout_s": 0.0, "must_run": True}
    last = {**properties, "InvocationID": invocation or properties.get("InvocationID", "")}
    told = server_absent.of_unit(name, last, units.systemctl("cat", name, check=False), context)
    cause = told["cause"] or {}
    lines = " | ".join(line["line"].strip() for line in cause.get("evidence", [])[-MOST_LINES:])
    place = told["log"]["path"] or told["log"]["note"]
    what = [f"{name}: the server ended soon after its start: {told['why']}."]
    what += [f'Its log ({place}) ends: "{lines}".'] if lines else [f"Its log: {place}."]
    what += [f"{cause['summary']}: {cause['advice']}."] if cause else []
    return RingmasterError(" ".join(what), f"Next: {told['next']}.")
