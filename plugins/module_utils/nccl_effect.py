# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What NCCL's own log shows of the effect of settings: which had none, and which it speaks against. Pure.

Facts: NCCL's src/graph/connect.cc (channels), tuning.cc (threads, lists), init.cc (buffers, send/recv chunk) of 2.18 to 2.31.
A capture is one of `nccl_log.read`.
"""

from __future__ import annotations

import re

from .nccl_log import ALGORITHMS, PROTOCOLS

P2P_SLOTS = 8
LL_THREADS = (64, 512)
# From the smallest all-reduce of a decode step to the largest that SGLang's custom all-reduce takes off NCCL.
DECODE_BYTES = (1 << 10, 8 << 20)
NVLS = ("NVLS", "NVLSTree")
SEND_RECV_TOO = ("P2P", "BUFFSIZE", "CUMEM", "SHM", "CHUNK")  # words of variables that pipeline and expert parallelism feel as well
# {variable: the protocols or algorithms that it has to do with}
BELONGS_TO = {
    "NCCL_BUFFSIZE": ("Simple",),
    "NCCL_LL_BUFFSIZE": ("LL",),
    "NCCL_LL128_BUFFSIZE": ("LL128",),
    "NCCL_LL128_NTHREADS": ("LL128",),
    "NCCL_NVLS_ENABLE": NVLS,
    "NCCL_NVLS_NCHANNELS": NVLS,
    "NCCL_NVLS_CHUNKSIZE": NVLS,
    "NCCL_NVLSTREE_MAX_CHUNKSIZE": ("NVLSTree",),
    "NCCL_PAT_ENABLE": ("PAT",),
}


def integer(text):
    """An integer as NCCL reads it (strtoll, base 0, what follows is ignored); None where it reads none."""
    found = re.match(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)", text or "")
    if not found:
        return None
    digits = found[2].lower()
    base = 16 if digits.startswith("0x") else 8 if digits.startswith("0") else 10
    return int(found[1] + digits, base)


def speaks_against(settings, captures):
    """[sentence] for each of SETTINGS {NAME: value or None} that a capture of CAPTURES {any: capture} contradicts."""
    found = []
    for capture in _of_ranks(captures):
        values = {**{name: value for name, value in settings.items() if value is not None}, **capture["settings"]}
        for names, check in _CHECKS:
            asked = [f"{name}={settings[name]}" for name in names if settings.get(name) is not None]
            said = check(values, capture) if asked else None
            if said:
                found.append(f"NCCL's log of rank {capture['rank']}: {said}, in spite of {' and '.join(asked)}")
    return list(dict.fromkeys(found))


def without_effect(settings, captures):
    """{NAME: why} for those of SETTINGS that cannot have changed anything in these captures. {} when no rank 0 has logged collectives."""
    heads = [capture for capture in _of_ranks(captures) if capture["rank"] == 0 and _logs_collectives(capture)]
    if not heads:
        return {}
    names = [name for name, value in settings.items() if value is not None and not name.startswith("NCCL_DEBUG")]
    rows = [row for capture in heads for row in capture["collectives"]]
    found = {}
    if not any(_is_decode_reduction(row) for row in rows):
        why = "NCCL's log shows no all-reduce of the size of a decode step: they go past NCCL (custom all-reduce?)"
        found = {name: why for name in names if not any(word in name for word in SEND_RECV_TOO)}
    used = {row[part] for row in rows for part in ("protocol", "algorithm")}
    transports = {transport for capture in heads for transport in capture["transports"]}
    for name in set(names) - set(found):
        needed = BELONGS_TO.get(name)
        if needed and not used.intersection(needed) and not (name == "NCCL_NVLS_ENABLE" and integer(settings[name]) == 0):
            found[name] = f"NCCL's log shows no collective with {' or '.join(needed)}, which {name} is about"
        elif name == "NCCL_NTHREADS" and not any(_has_threads(row) for row in rows):
            found[name] = f"NCCL's log shows no collective of Ring or Tree with LL or Simple, which {name} is about"
        elif name == "NCCL_P2P_LEVEL" and settings[name] != "LOC" and transports and not any(map(_is_p2p, transports)):
            found[name] = f"NCCL's log shows no peer-to-peer connection, only {', '.join(sorted(transports))}, in spite of {name}"
    return found


def _of_ranks(captures):
    return [capture for capture in (captures or {}).values() if (capture["ranks"] or 0) > 1]


def _logs_collectives(capture):
    """From 2.22 on; and only rank 0 knows its version."""
    numbers = re.match(r"(\d+)\.(\d+)", capture["version"] or "")
    return capture["complete"] and bool(numbers) and (int(numbers[1]), int(numbers[2])) >= (2, 22)


def _is_decode_reduction(row):
    least, most = row["bytes"]
    return row["function"] in ("AllReduce", "ReduceScatter") and most >= DECODE_BYTES[0] and least <= DECODE_BYTES[1]


def _has_threads(row):
    return row["protocol"] in ("LL", "Simple") and row["algorithm"] in ("Ring", "Tree")


def _is_p2p(transport):
    return transport.split("/")[0] == "P2P"


# checks: (values, capture) -> what the log says against them, or None


def _channels(values, capture):
    """Both limits as NCCL puts them together: the smaller maximum first, then the larger minimum, which wins."""
    count = capture["channels"].get("coll")
    number = {name: integer(values.get(f"NCCL_{name}")) for name in ("MIN_NCHANNELS", "MAX_NCHANNELS", "MIN_CTAS", "MAX_CTAS")}
    ctas = [one for one in (number["MIN_CTAS"], number["MAX_CTAS"]) if one]
    low = max(number["MIN_NCHANNELS"] or 0, min(ctas) if number["MIN_CTAS"] else 0, 0)
    maxima = [max(1, one) for one in (number["MAX_NCHANNELS"], number["MAX_CTAS"]) if one is not None]
    high = max(min(maxima), low, capture["channels"].get("nvls", 0)) if maxima else 64  # NVLS has a number of its own
    if count is None or min(low, 64) <= count <= high:
        return None
    return f"{count} channels for collectives"


def _threads(values, capture):
    asked, found = integer(values.get("NCCL_NTHREADS")), capture["max_threads"].get("Ring", {}).get("LL")
    if not asked or asked < 0 or found is None:
        return None
    expected = LL_THREADS[1] if asked % 32 else min(max(asked, LL_THREADS[0]), LL_THREADS[1])
    return f"{found} threads at most for Ring with LL" if found != expected else None


def _chunk(values, capture):
    size, chunk = integer(values.get("NCCL_BUFFSIZE")), capture["p2p_chunk_bytes"]
    return f"send/recv chunks of {chunk} bytes, which need a larger buffer" if size and chunk and chunk * P2P_SLOTS > size else None


def _list(name, part, known):
    def check(values, capture):
        allowed = allowed_by(values.get(name, ""), known)
        for row in capture["collectives"]:
            if row[part] in known and row["function"] in allowed and row[part] not in allowed[row["function"]]:
                return f"{row['function']} with {row['algorithm']} and {row['protocol']}"
        return None

    return check


def allowed_by(text, known):
    """{function: names of KNOWN} that `[func:][^]name,...;func:...` leaves, for the functions it speaks of. {} when NCCL ignores it."""
    functions, found = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"), {}
    for entry in filter(None, text.split(";")):
        function, _colon, names = entry.rpartition(":")
        named = {name.lower() for name in names.lstrip("^").split(",")}
        left = {name for name in known if (name.lower() in named) != names.startswith("^")}
        found.update({one: left for one in functions if not function or one.lower() == function.lower()})
    return found


def _no_p2p(values, capture):
    used = sorted(transport for transport in capture["transports"] if _is_p2p(transport))
    return f"connections by {', '.join(used)}" if used and integer(values.get("NCCL_P2P_DISABLE")) == 1 else None


_CHECKS = (
    (("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS"), _channels),
    (("NCCL_NTHREADS",), _threads),
    (("NCCL_BUFFSIZE",), _chunk),
    (("NCCL_ALGO",), _list("NCCL_ALGO", "algorithm", ALGORITHMS)),
    (("NCCL_PROTO",), _list("NCCL_PROTO", "protocol", PROTOCOLS)),
    (("NCCL_P2P_DISABLE",), _no_p2p),
)
