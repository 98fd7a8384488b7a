# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a combination of GPUs, driver and software, as somebody gave it, to facts that rows can be asked of. Pure, but for reading the data.

What was not given follows from what was, as far as data/compatibility.yml says so: SGLang 0.5.16 has torch 2.11.0, which is built for CUDA
13.0, which came with driver 580.65.06. Each fact says in its words where it comes from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from ansible_collections.ringmaster.gpu.plugins.module_utils import gpu_generations
from ansible_collections.ringmaster.gpu.plugins.module_utils.server_command import flag_name, flag_value

DATA = Path(__file__).parent / "data" / "compatibility.yml"
# What may be given -> the words for it. "" is a plain value.
FIELDS = {
    "driver": "", "cuda": "CUDA ", "torch_cuda": "torch is built for CUDA ", "torch": "torch ", "nccl": "NCCL ",
    "flashinfer": "FlashInfer ", "sglang": "SGLang ", "python": "",
}  # fmt: skip
LOCAL_CUDA = re.compile(r"\+cu(\d+)(\d)$")  # of torch's wheels: 2.11.0+cu130
VERSION = re.compile(r"v?(\d+(?:\.\d+)*)(?:[.-]?(a|b|rc|dev|post)(\d*))?")


@lru_cache(maxsize=1)
def data() -> dict[str, Any]:
    """data/compatibility.yml. Read once a process."""
    return yaml.load(DATA.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


class Version(NamedTuple):
    """A version as it is compared: `release` without zeros at its end, `stage` below 0 for what comes before it and above for .postN.

    Not told apart: release candidates of one release. Left aside: what follows, such as "+cu130", "+simulated" and Debian's revision.
    """

    release: tuple[int, ...]
    stage: int


def version(text: str) -> Version | None:
    match = VERSION.match(text)
    if not match:
        return None
    release = [int(number) for number in match[1].split(".")]
    while len(release) > 1 and not release[-1]:
        release.pop()
    stage = 0 if match[2] is None else 1 + int(match[3] or 0) if match[2] == "post" else -1
    return Version(tuple(release), stage)


class Known(NamedTuple):
    """A value, and the words for it in a sentence."""

    value: str
    words: str

    def __str__(self) -> str:
        return self.words


@dataclass
class Facts:
    """`of`: {field: Known}. `gpus` and `runtimes`: more of them for each kind of GPU (gpu_*), and each CUDA that has to run (runtime_*).

    `flags` {name: value}; `host` its name; `unknown` [(row id, its fields)].
    """

    of: dict[str, Known] = field(default_factory=dict)
    gpus: list[dict[str, Known]] = field(default_factory=list)
    runtimes: list[dict[str, Known]] = field(default_factory=list)
    flags: dict[str, Any] = field(default_factory=dict)
    host: str = "this host"
    unknown: list[tuple[str, dict[str, str]]] = field(default_factory=list)


def facts_of(combination: Mapping[str, Any]) -> Facts:
    """COMBINATION as `compatibility.check` takes it."""
    facts = Facts(host=combination.get("host") or "this host")
    for name, words in FIELDS.items():
        text, hint = _text(combination.get(name))
        if text and version(text):
            facts.of[name] = Known(text, f"{words}{text}{hint}")
        elif text:
            facts.unknown.append(("no-version", {"name": name, "value": repr(text)}))
    _software(facts)
    for name in ("cuda", "torch_cuda"):
        if name in facts.of:
            facts.runtimes.insert(0, _runtime(facts.of[name], facts))
    facts.flags = {flag_name(name): flag_value(value) for name, value in (combination.get("flags") or {}).items()}
    gpus = list(_gpus(combination, facts))
    facts.gpus = list({gpu["gpu_capability"].value: gpu for gpu in reversed(gpus)}.values())
    count = str(combination.get("gpu_count") or len(_listed(combination.get("gpus"))))
    ranks = str(facts.flags.get("tp-size") or ("" if facts.flags else count))
    if ranks.isdecimal() and ranks != "0":
        facts.of["ranks"] = Known(ranks, ranks)
    if combination.get("nvlink") is not None:
        facts.of["nvlink"] = Known(str(int(bool(combination["nvlink"]))), "")
    return facts


def _text(value: Any) -> tuple[str, str]:
    """VALUE as text, and what to say of it where it is shown: YAML makes numbers of 13.0, rightly, and of 3.10, which becomes 3.1."""
    if value is None or isinstance(value, (bool, Mapping, list)):
        return ("", "") if value is None else (repr(value), "")
    text = str(value).strip()
    doubtful = isinstance(value, float) and not text.endswith(".0")
    return text, " (a number to YAML, which drops an ending zero: quote it)" if doubtful else ""


def _listed(value: Any) -> list[Any]:
    """VALUE as a list, where somebody gave one thing only, too."""
    return list(value) if isinstance(value, (list, tuple)) else [value] if value else []


def _row(table: str, known: Known | None) -> Any:
    """The entry of KNOWN in TABLE of the data; 13.0 is 13.0.0 there."""
    wanted = version(known.value) if known else None
    return next((row for key, row in data()[table]["rows"].items() if version(key) == wanted), None)


def _not_in(table: str, row: str, known: Known, facts: Facts) -> None:
    keys = list(data()[table]["rows"])
    said = (row, {"value": known.value, "first": keys[0], "last": keys[-1]})
    if said not in facts.unknown:
        facts.unknown.append(said)


def _software(facts: Facts) -> None:
    """What follows from SGLang and torch."""
    of, sglang = facts.of, facts.of.get("sglang")
    release = _row("sglang", sglang)
    if release:
        of["sglang_python"] = Known(release["python"], release["python"])
        of["sglang_torch"] = Known(release["torch"], release["torch"])
        of["sglang_flashinfer"] = Known(release["flashinfer"], release["flashinfer"])
        of["sglang_cuda"] = Known((built := _row("torch", of["sglang_torch"])["cuda"]), built)
        of.setdefault("torch", Known(release["torch"], f"{sglang} has torch {release['torch']}"))
        of.setdefault("flashinfer", Known(release["flashinfer"], f"FlashInfer {release['flashinfer']} (which {sglang} brings)"))
    elif sglang:
        _not_in("sglang", "unknown-sglang", sglang, facts)
    torch = of.get("torch")
    wheel, local = _row("torch", torch), LOCAL_CUDA.search(torch.value if torch else "")
    if wheel:
        of["torch_nccl"] = Known(wheel["nccl"], wheel["nccl"])
        of.setdefault("nccl", Known(wheel["nccl"], f"NCCL {wheel['nccl']}"))
    built = of["torch_cuda"].value if "torch_cuda" in of else ".".join(local.groups()) if local else wheel["cuda"] if wheel else None
    if torch and built:
        hint = of["torch_cuda"].words.removeprefix(f"torch is built for CUDA {built}") if "torch_cuda" in of else ""
        verb = ", built" if " has " in torch.words else " is built"
        of["torch_cuda"] = Known(built, f"{torch}{verb} for CUDA {built}{hint}")
    elif torch:
        _not_in("torch", "unknown-torch", torch, facts)


def _runtime(cuda: Known, facts: Facts) -> dict[str, Known]:
    """A CUDA that has to run on the driver, and what it wants of it."""
    major = str(version(cuda.value).release[0])
    least, own = data()["major_drivers"]["rows"].get(major), _row("toolkit_drivers", cuda)
    if own is None:
        _not_in("toolkit_drivers", "unknown-cuda", cuda, facts)
    drivers = {"runtime_major_driver": least, "runtime_driver": own or least}
    words = Known(cuda.value, f"the toolkit is {cuda}") if cuda is facts.of.get("cuda") else cuda
    return {"runtime": words, "runtime_major": Known(major, major)} | {name: Known(text, text) for name, text in drivers.items() if text}


def _gpus(combination: Mapping[str, Any], facts: Facts) -> Iterator[dict[str, Known]]:
    names, capabilities = _listed(combination.get("gpus")), _listed(combination.get("capability"))
    length = max(len(names), len(capabilities))
    names += [None] * (length - len(names))
    capabilities += [None] * (length - len(capabilities))
    for given, stated in zip(names, capabilities, strict=True):
        gpu = given if isinstance(given, Mapping) else {"name": given}
        name = str(gpu.get("name") or gpu.get("model") or "")
        text, _hint = _text(stated or gpu.get("compute_capability") or gpu.get("capability"))
        capability = text or _by_device(gpu.get("device_id")) or _by_name(name)
        place = [gpu.get("address"), gpu.get("device_id") and f"of PCI id 10de:{gpu['device_id']}"]
        label = name or " ".join(filter(None, ["GPU" if any(place) else None, *place]))
        if not capability or version(capability) is None:
            said = ("unknown-gpu", {"value": label or f"GPU {text}"})
            facts.unknown += [] if said in facts.unknown else [said]
            continue
        shown = Known(capability, f"{label} (SM {capability})" if label else f"a GPU of SM {capability}")
        row = _row("capabilities", shown)
        if row is None:
            _not_in("capabilities", "unknown-capability", shown, facts)
        yield {"gpu": shown, "gpu_capability": shown} | {f"gpu_{key}": Known(value, value) for key, value in (row or {}).items()}


def _by_device(device_id: str | None) -> str | None:
    """By a PCI device id as pcie_info tells it: four hexadecimal digits."""
    try:
        return gpu_generations.capability_of(int(str(device_id), 16))
    except ValueError:
        return None


def _by_name(name: str) -> str | None:
    rows = data()["names"]["rows"].items()
    return next((capability for capability, names in rows if any(re.search(rf"\b{words}\b", name) for words in names)), None)
