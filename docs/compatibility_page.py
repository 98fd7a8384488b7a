# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make docs/compatibility.md from plugins/plugin_utils/data/compatibility.yml: `python docs/compatibility_page.py`."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "plugins" / "plugin_utils" / "data" / "compatibility.yml"
PAGE = ROOT / "docs" / "compatibility.md"
HEAD = """\
# What runs with what

`provision.yml` asks these rows before anything is installed, `tune.yml` asks them of the candidate before a launch. A combination that
cannot work is refused with the row's name; what is not in these tables is a warning. What a host's known-good configuration has already is
never refused. Who knows better says `-e provision_accept=ROW` (several with commas): then provision.yml only warns. To ask without a host:

    ansible localhost -m ringmaster.gpu.compatibility -a '{"gpus": ["NVIDIA H200"], "driver": "550.54.14", "sglang": "0.5.16"}'

This page is made by `python docs/compatibility_page.py` from `plugins/plugin_utils/data/compatibility.yml`. In conditions, `==8.*` is any
8.x, and a name in braces is a value from the tables below: `gpu_*` of each GPU, `runtime_*` of the toolkit's CUDA and of the one torch is
built for, `sglang_*` and `torch_*` of that release. `ranks` is `tp-size`; where no flags are given, the number of GPUs. What is not known
makes no condition true.
"""
TITLES = {
    "capabilities": ("GPUs by compute capability", {
        "first_cuda": "first CUDA toolkit", "torch_cuda": "first CUDA of torch", "last_cuda": "last CUDA", "first_driver": "first driver",
        "last_driver": "last driver"}),
    "names": ("GPUs by name, where neither nvidia-smi nor a PCI id tells", "words in the name"),
    "major_drivers": ("Least driver of a CUDA major", "driver"),
    "toolkit_drivers": ("Driver that came with a CUDA toolkit", "driver"),
    "torch": ("torch on PyPI", {"cuda": "CUDA", "nccl": "NCCL"}),
    "sglang": ("SGLang on PyPI", {"torch": "torch", "flashinfer": "FlashInfer", "kernel": "sglang-kernel", "python": "Python"}),
}  # fmt: skip


def page(data: dict) -> str:
    parts = [HEAD, "## Rows\n", *(_row(row, data["sources"]) for row in data["rows"])]
    for name, (title, columns) in TITLES.items():
        parts += [f"## {title}\n", _table(data[name]["rows"], columns), _sources(data[name]["source"], data["sources"])]
    return "\n".join(parts).rstrip("\n") + "\n"


def _row(row: dict, sources: dict) -> str:
    """A row as a section."""
    unless = f" and not ({_condition(row['unless'])})" if "unless" in row else ""
    none = "".join(f" and no `--{name}`" for name in row.get("no_flags", ()))
    patched = f" (warns with a patch named *{row['patchable']}*)" if row.get("patchable") else ""
    lines = (
        f"### {row['id']}\n", f"{row['about'].strip()}\n", f"- **{row['severity']}**{patched} when {_condition(row['when'])}{none}{unless}",
        f"- says: {_plain(row['text'])}", f"- do: {_plain(row['change'])}", f"- {_sources(row['source'], sources)}",
    )  # fmt: skip
    return "\n".join(lines)


def _condition(condition: dict) -> str:
    parts = [f"{name} `{constraint}`" for name, constraint in condition.items() if name != "flags"]
    flags = [
        f"`--{name}`" if values is True else " or ".join(f"`--{name} {value}`" for value in values)
        for name, values in condition.get("flags", {}).items()
    ]
    return ", ".join([*parts, *([" or ".join(flags)] if flags else [])])


def _plain(text: str) -> str:
    return re.sub(r"\{(\w+)[.\w]*\}", lambda match: f"*{match[1].replace('_', ' ')}*", text.strip())


def _table(rows: dict, columns: dict | str) -> str:
    names = {"": columns} if isinstance(columns, str) else columns
    cells = [[key, *_cells(row, names)] for key, row in rows.items()]
    lines = [["", *names.values()], ["---"] * (len(names) + 1), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _cells(row: dict | list | str, names: dict) -> list:
    return [row.get(name, "") for name in names] if isinstance(row, dict) else [row if isinstance(row, str) else ", ".join(row)]


def _sources(names: list, sources: dict) -> str:
    links = [f"[{sources[name]['what']}]({sources[name]['url']})" for name in names]
    return f"source: {'; '.join(links)}\n"


def main() -> None:
    PAGE.write_text(page(yaml.safe_load(DATA.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
