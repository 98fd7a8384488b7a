# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What NCCL settings mean together. Pure: each rule looks at a Context and yields findings.

Facts: NCCL's src/graph/tuning.cc, connect.cc, paths.cc, init.cc, enqueue.cc (2.28.9, 2.30.7) and src/tuning/cost_model.cc (2.31.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from .nccl_server import size
from .nccl_values import FUNCTIONS, Version, at_least, enabled, named, parse_lists

ERROR, WARNING, NOTE = "error", "warning", "note"
SIMPLE_ONLY = frozenset({"CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"})
_DIRECT = {"Ring", "NVLS", "CollNetDirect", "PAT"}
IMPLEMENTED = {"Broadcast": {"Ring"}, "Reduce": {"Ring"}, "AllGather": _DIRECT, "ReduceScatter": _DIRECT,
               "AllReduce": {"Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree"}}
P2P_SLOTS = 8


class Finding(NamedTuple):
    """`names` are the NCCL variables concerned; a finding counts only when one of them was given."""

    severity: str
    names: tuple[str, ...]
    text: str


@dataclass
class Context:
    """What the rules look at. `values`: {NCCL name: text} in effect, `written`: names that the user wrote as NCCL_ names himself."""

    values: Mapping[str, str]
    params: Mapping[str, Any]
    version: Version = None
    sglang: Version = None
    server: Mapping[str, Any] | None = None
    written: frozenset[str] = field(default_factory=frozenset)

    def number(self, *names: str) -> int | None:
        """The first of these variables that is set, as an integer."""
        return next((int(self.values[name]) for name in names if name in self.values), None)


# numbers that belong together

CHUNKS = (("NCCL_P2P_NVL_CHUNKSIZE", "NVLink"), ("NCCL_P2P_PCI_CHUNKSIZE", "PCIe"), ("NCCL_P2P_NET_CHUNKSIZE", "the network"))
PAIRS = (
    (("NCCL_MIN_NCHANNELS", "NCCL_MIN_NRINGS"), ("NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS"), "the minimum wins: NCCL silently uses {low}"),
    (("NCCL_MIN_P2P_NCHANNELS",), ("NCCL_MAX_P2P_NCHANNELS",), "the minimum wins: it is applied last, {low} channels are used"),
    (("NCCL_MIN_CTAS",), ("NCCL_MAX_CTAS",), "the maximum wins: NCCL lowers the minimum to {high}"),
)


def min_above_max(ctx: Context) -> Iterator[Finding]:
    for low_names, high_names, effect in PAIRS:
        low, high = ctx.number(*low_names), ctx.number(*high_names)
        if low is not None and high is not None and low > high:
            then = effect.format(low=low, high=high)
            text = f"{low_names[0]}={low} is above {high_names[0]}={high}; {then}. Give a minimum up to {high}."
            yield Finding(ERROR, low_names + high_names, text)


def two_names(ctx: Context) -> Iterator[Finding]:
    for old, new, wins in (("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS", min), ("NCCL_MIN_NCHANNELS", "NCCL_MIN_CTAS", max)):
        if old in ctx.values and new in ctx.values and ctx.values[old] != ctx.values[new]:
            both = ctx.number(old), ctx.number(new)
            text = f"{old}={both[0]} and {new}={both[1]} speak of the same limit; {wins(both)} wins. Set one of them."
            yield Finding(WARNING, (old, new), text)
    for alias, param in ctx.params.items():
        name = param.get("alias_of")
        if name in ctx.values and alias in ctx.values:
            yield Finding(WARNING, (alias,), f"{alias} is only read when {name} is not set, and it is. Remove one of them.")


def deprecated(ctx: Context) -> Iterator[Finding]:
    for name in ctx.values:
        param = ctx.params.get(name, {})
        if "deprecated_since" in param and at_least(ctx.version, param["deprecated_since"]):
            better = param["replaced_by"]
            text = f"{name} works, but since NCCL {param['deprecated_since']} it is deprecated for {better}."
            yield Finding(WARNING if name in ctx.written else NOTE, (name,), text)


def channels_not_capped(ctx: Context) -> Iterator[Finding]:
    uncapped = ["NVLS (NCCL_MAX_CTAS does)"] if ctx.values.get("NCCL_NVLS_ENABLE", "0") != "0" and "NCCL_MAX_CTAS" not in ctx.values else []
    if any((size(ctx.server, key) or 1) > 1 for key in ("pp", "ep")) and "NCCL_MAX_P2P_NCHANNELS" not in ctx.values:
        uncapped.append("send/recv (NCCL_MAX_P2P_NCHANNELS does)")
    if "NCCL_MAX_NCHANNELS" in ctx.values and uncapped:
        text = f"NCCL_MAX_NCHANNELS does not limit the channels of {' and '.join(uncapped)}."
        yield Finding(WARNING, ("NCCL_MAX_NCHANNELS", "NCCL_NVLS_ENABLE"), text)


def p2p_channels_round_up(ctx: Context) -> Iterator[Finding]:
    for name in ("NCCL_MIN_P2P_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS"):
        count = ctx.number(name)
        if count is not None and count & (count - 1):
            text = f"{name}={count}: NCCL rounds send/recv channels up to a power of two, here {1 << count.bit_length()}."
            yield Finding(WARNING, (name,), text)


def small_kernels(ctx: Context) -> Iterator[Finding]:
    if ctx.values.get("NCCL_NTHREADS") == "64":
        yield Finding(NOTE, ("NCCL_NTHREADS",), "NCCL_NTHREADS=64 still launches 96 threads, NCCL's least.")


def sockets(ctx: Context) -> Iterator[Finding]:
    threads, each = ctx.number("NCCL_SOCKET_NTHREADS"), ctx.number("NCCL_NSOCKS_PERTHREAD")
    if threads is not None and each is not None and threads * each > 64:
        text = f"NCCL_SOCKET_NTHREADS times NCCL_NSOCKS_PERTHREAD is {threads * each}, above 64; NCCL lowers NCCL_NSOCKS_PERTHREAD."
        yield Finding(WARNING, ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"), text)


def p2p_off(ctx: Context) -> Iterator[Finding]:
    if ctx.values.get("NCCL_P2P_DISABLE") == "1" and "NCCL_P2P_LEVEL" in ctx.values:
        text = "NCCL_P2P_LEVEL is ignored: NCCL_P2P_DISABLE=1 is looked at first. Set one of them."
        yield Finding(WARNING, ("NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE"), text)


# protocols, algorithms and their buffers


def protocols_left(ctx: Context) -> dict[str, set[str]]:
    """{collective: protocols that NCCL_PROTO leaves it}"""
    param = ctx.params["NCCL_PROTO"]
    text = ctx.values.get("NCCL_PROTO")
    entries = parse_lists(text, param, ctx.version) if text else []
    return enabled(entries, param["values"], param["values"])


def protocols(ctx: Context) -> Iterator[Finding]:
    if "NCCL_PROTO" not in ctx.values:
        return
    entries = parse_lists(ctx.values["NCCL_PROTO"], ctx.params["NCCL_PROTO"], ctx.version)
    if any(entry.inverted != ("LL128" in entry.elements) for entry in entries):
        how = "naming it" if any("LL128" in entry.elements for entry in entries) else "'^' without it"
        text = (f"{ctx.values['NCCL_PROTO']} forces LL128 on: {how} skips NCCL's check that this platform supports it, which risks silent "
                "data corruption where it does not. Leave NCCL_PROTO alone, or exclude it: ^LL128.")
        yield Finding(WARNING, ("NCCL_PROTO",), text)
    if none := [function for function, found in protocols_left(ctx).items() if not found]:
        yield Finding(ERROR, ("NCCL_PROTO",), f"{ctx.values['NCCL_PROTO']} leaves no protocol for {_join(none)}; leave LL or Simple in.")
        return
    without = {function: found for function, found in protocols_left(ctx).items() if "Simple" not in found}
    if without:
        half = " and halves the bandwidth of large messages" if any(found == {"LL"} for found in without.values()) else ""
        text = f"{ctx.values['NCCL_PROTO']} makes NVLS, CollNet and PAT unusable (they exist with Simple only){half}, for {_join(without)}."
        yield Finding(WARNING, ("NCCL_PROTO",), text)
        if "NCCL_BUFFSIZE" in ctx.values:
            chunk = int(ctx.values["NCCL_BUFFSIZE"]) // P2P_SLOTS
            text = (f"NCCL_BUFFSIZE is the buffer of the Simple protocol, which NCCL_PROTO={ctx.values['NCCL_PROTO']} excludes for "
                    f"{_join(without)}: there it changes only the memory taken per channel. Send/recv chunks are held to {chunk} bytes.")
            yield Finding(WARNING, ("NCCL_BUFFSIZE", "NCCL_PROTO"), text)


def send_recv_chunk(ctx: Context) -> Iterator[Finding]:
    size = ctx.number("NCCL_BUFFSIZE") or ctx.params["NCCL_BUFFSIZE"]["default"]
    link = (ctx.server or {}).get("link")
    for name, where in CHUNKS:
        elsewhere = name not in ctx.values and link and not link.startswith(where)
        chunk = ctx.number(name) or ctx.params[name]["default"]
        if size < chunk * P2P_SLOTS and not elsewhere:
            text = f"NCCL_BUFFSIZE={size} silently cuts the send/recv chunk over {where} from {chunk} to {size // P2P_SLOTS} bytes."
            yield Finding(WARNING, ("NCCL_BUFFSIZE", name), text)
            return


def uncovered(ctx: Context) -> Iterator[Finding]:
    """Collectives that are left without a pair of algorithm and protocol."""
    if "NCCL_ALGO" not in ctx.values and "NCCL_SYM_KERNEL" not in ctx.values:
        return
    if missing := _missing(ctx, at_least(ctx.version, "2.31", unknown=False)):
        text = f"{_settings(ctx)} leaves {_join(missing)} without an algorithm and protocol; "
        if at_least(ctx.version, "2.24"):
            remedy = f"Cover every collective, as in NCCL_ALGO={_portable(ctx)}."
            yield Finding(ERROR, _LISTS, f"{text}NCCL 2.24 and newer fail there with ncclInvalidUsage. {remedy}")
        else:
            yield Finding(WARNING, _LISTS, f"{text}NCCL before 2.24 takes Ring there.")
    elif ctx.version is None and (missing := _missing(ctx, zero_filled=True)):
        text = f"{_settings(ctx)} leaves {_join(missing)} without an algorithm in NCCL 2.31 and newer. NCCL_ALGO={_portable(ctx)} is safe."
        yield Finding(WARNING, _LISTS, text)


_LISTS = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_SYM_KERNEL")


def _missing(ctx: Context, zero_filled: bool) -> list[str]:
    """From 2.31 on a set NCCL_ALGO empties all collectives first, and those that any list names are then held to it."""
    param = ctx.params["NCCL_ALGO"]
    entries = parse_lists(ctx.values["NCCL_ALGO"], param, ctx.version) if "NCCL_ALGO" in ctx.values else []
    protos = parse_lists(ctx.values["NCCL_PROTO"], ctx.params["NCCL_PROTO"], ctx.version) if "NCCL_PROTO" in ctx.values else []
    algorithms = enabled(entries, param["values"], [] if zero_filled else param["values"])
    held = {*named(entries), *named(protos)} if zero_filled else set(FUNCTIONS)
    usable = protocols_left(ctx)
    return [
        function for function in FUNCTIONS
        if function in held and not any(
            usable[function] & ({"Simple"} if algorithm in SIMPLE_ONLY else {"LL", "LL128", "Simple"})
            for algorithm in algorithms[function] & IMPLEMENTED[function])
    ]


def nvls_off(ctx: Context) -> Iterator[Finding]:
    if ctx.values.get("NCCL_NVLS_ENABLE") != "0" or "NCCL_ALGO" not in ctx.values:
        return
    param = ctx.params["NCCL_ALGO"]
    left = enabled(parse_lists(ctx.values["NCCL_ALGO"], param, ctx.version), param["values"], param["values"])
    only = [function for function in FUNCTIONS if (left[function] & IMPLEMENTED[function]) and left[function] <= {"NVLS", "NVLSTree"}]
    if only:
        text = (f"NCCL_ALGO allows only NVLS for {_join(only)}, but NCCL_NVLS_ENABLE is 0 (what SGLang sets by default). "
                "Set nccl_nvls_enable=1 too, or add Ring.")
        yield Finding(WARNING, ("NCCL_ALGO", "NCCL_NVLS_ENABLE"), text)


def _portable(ctx: Context) -> str:
    """The user's list with Ring and Tree for the rest, when that covers everything in every version; else just those."""
    wanted = f"ring,tree;{ctx.values.get('NCCL_ALGO', '').lower()}"
    if ":" in wanted.split(";")[1] and not _missing(replace(ctx, values={**ctx.values, "NCCL_ALGO": wanted}), zero_filled=True):
        return wanted
    return "ring,tree"


def _settings(ctx: Context) -> str:
    return " with ".join(f"{name}={ctx.values[name]}" for name in _LISTS if name in ctx.values)


def _join(words: Any) -> str:
    return "every collective" if list(words) == list(FUNCTIONS) else ", ".join(words)


RULES: tuple[Callable[[Context], Iterator[Finding]], ...] = (
    min_above_max, two_names, deprecated, channels_not_capped, p2p_channels_round_up, small_kernels, sockets, p2p_off, protocols,
    send_recv_chunk, uncovered, nvls_off,
)
