# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The order of the server starts of a run: randomised blocks, mirrored in pairs."""

from __future__ import annotations

import random

from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError

ARMS = ("baseline", "candidate")


def order(starts: int, *, seed: int, discard: bool = True) -> list[dict]:
    """Steps `{"arm": "baseline"|"candidate", "block": int|None, "discard": bool}`, one a server start, in the order to run them.

    First one discarded launch of each arm (`block` None), the baseline's first: where not even that starts it is the host's fault, not
    the candidate's. Then blocks 1 to `starts`, each with both arms once. Which arm leads
    is drawn for every odd block; the block after it is its mirror (AB BA), so a linear drift of the host cancels within the
    pair. The same seed gives the same order on every Python. Raises RingmasterError when `starts` is below 1.
    """
    if starts < 1:
        raise RingmasterError(f"{starts} starts an arm were asked for.", "Ask for 1 or more; a verdict needs 2, the default is 3.")
    rng = random.Random(seed)

    def drawn() -> tuple[str, ...]:
        return ARMS if rng.random() < 0.5 else ARMS[::-1]

    steps = [{"arm": arm, "block": None, "discard": True} for arm in ARMS] if discard else []
    arms = ARMS
    for block in range(1, starts + 1):
        arms = drawn() if block % 2 else arms[::-1]
        steps += [{"arm": arm, "block": block, "discard": False} for arm in arms]
    return steps
