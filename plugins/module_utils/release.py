# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""After a server was stopped: is its port free, and the GPUs' memory back at its former level?"""

from __future__ import annotations

import time

from . import gpus, sockets

TIMEOUT_S = 20.0
NOISE_SHARE, NOISE_BYTES = 0.01, 64 << 20  # more in use than before by less than either is no server's


def wait(before, port):
    """Up to TIMEOUT_S, until all is given back. BEFORE is gpus.read() of before the launch; PORT None for one that was never this server's.

    Returns ({released_after_s}, gpus after), or ({released_after_s: None, held {bytes {uuid: more than before}, by [gpus.users],
    port_free}}, gpus after).
    """
    begun = time.monotonic()
    former = gpus.memory_used_bytes(before)
    while True:
        after = gpus.read() if former else before
        held = held_bytes(former, gpus.memory_used_bytes(after))
        port_free = port is None or sockets.is_free(port)
        waited_s = time.monotonic() - begun
        if not held and port_free:
            return {"released_after_s": round(waited_s, 2)}, after
        if waited_s > TIMEOUT_S:
            return {"released_after_s": None, "held": {"bytes": held, "by": gpus.users(), "port_free": port_free}}, after
        time.sleep(1.0 if former else 0.2)


def held_bytes(former, now):
    """{uuid: bytes} that are in use NOW {uuid: bytes} and were not FORMER, beyond noise."""
    return {
        uuid: used - former[uuid] for uuid, used in now.items() if uuid in former and used > former[uuid] * (1 + NOISE_SHARE) + NOISE_BYTES
    }
