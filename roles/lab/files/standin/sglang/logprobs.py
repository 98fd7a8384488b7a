# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Log-probabilities of tokens: the same for the same tokens, but for the little that another order of summation changes.

A token's log-probability hangs on it and on all before it. What the settings of the all-reduce decide (algorithm, protocol, channels; or
SGLang's own) adds up to 0.02 nats, up or down, the same in every start. The fault `corrupt` adds its argument (1 nat) in the mean.
"""

from __future__ import annotations

import math
import zlib

from .latency import CUSTOM_LIMIT_BYTES, allreduce_us, channels

SCALE = 2.0  # nats: mean and spread of a text's log-probabilities
GREEDY = 0.1  # the tokens that greedy decoding takes are likelier by that factor
REORDER_NATS = 0.02


class Logprobs:
    """Of the server whose environment, flags, coefficients and active faults these are."""

    def __init__(self, env: dict, flags: dict, coefficients: dict, faults: dict) -> None:
        ranks, size_bytes = flags["tp_size"], coefficients["hidden"] * 2
        custom = ranks > 1 and not flags["disable_custom_all_reduce"] and size_bytes <= CUSTOM_LIMIT_BYTES
        way = ("custom",) if custom else (*allreduce_us(size_bytes, ranks, env, coefficients)[1:], channels(env, coefficients))
        self.way = repr(way).encode() if ranks > 1 else b""
        self.broken = "nan" in faults
        self.corrupt_nats = float(faults["corrupt"] or 1.0) if "corrupt" in faults else 0.0

    def meta(self, asked: dict, prompt: list, generated: list) -> dict:
        """The fields that `return_logprob` adds to meta_info; `top_logprobs_num`: for what was generated."""
        start = int(asked.get("logprob_start_len", -1))
        start = len(prompt) if start < 0 else start
        everything = self.of(prompt, 1.0) + self.of(prompt + generated, GREEDY)[len(prompt):]
        fields = {
            "input_token_logprobs": [[everything[at], prompt[at], None] for at in range(start, len(prompt))],
            "output_token_logprobs": [[everything[len(prompt) + at], token, None] for at, token in enumerate(generated)],
        }
        if int(asked.get("top_logprobs_num") or 0) > 1:
            second = [[item[0] and item[0] - SCALE, item[1] + 1, None] for item in fields["output_token_logprobs"]]
            fields["output_top_logprobs"] = [list(two) for two in zip(fields["output_token_logprobs"], second)]
        return fields

    def of(self, ids: list, scale: float) -> list:
        """One for each id; None for the first (and for every one when numbers are broken)."""
        key, found = 0, []
        for place, token in enumerate(ids):
            key = zlib.crc32(b"%d" % token, key)
            found.append(None if self.broken or not place else self.logprob(b"%d" % key, scale))
        return found

    def logprob(self, key: bytes, scale: float) -> float:
        moved = (2 * share(self.way + key) - 1) * REORDER_NATS if self.way else 0.0
        return scale * SCALE * math.log(share(key)) + moved - self.corrupt_nats * 2 * share(b"corrupt" + key)


def share(key: bytes) -> float:
    """A number in (0, 1], evenly spread over keys."""
    mixed = (zlib.crc32(key) * 0x9E3779B97F4A7C15) % (1 << 64)
    return ((mixed >> 32) + 1) / (1 << 32)
