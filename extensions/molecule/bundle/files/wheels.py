#!/usr/bin/env python3
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Small wheels, an index of them (PEP 503) and a lock: wheels.py DIRECTORY.

sglang needs a package that is built for one Python and machine; beside the right wheel of it lie some for others, which must not be taken.
"""

from __future__ import annotations

import hashlib
import platform
import sys
import zipfile
from pathlib import Path

MACHINE = platform.machine()
OTHER = {"x86_64": "aarch64", "aarch64": "x86_64"}[MACHINE]
WHEELS = (
    ("sglang", "0.5.16", "py3-none-any", "Requires-Dist: bundled-native\n"),
    ("bundled-native", "1.0", f"cp311-cp311-manylinux_2_28_{MACHINE}", ""),
    ("bundled-native", "1.0", f"cp312-cp312-manylinux_2_28_{MACHINE}", ""),
    ("bundled-native", "1.0", f"cp311-cp311-manylinux_2_28_{OTHER}", ""),
    ("bundled-native", "1.0", "cp311-cp311-win_amd64", ""),
    ("bundled-elsewhere", "1.0", "py3-none-any", ""),
)


def build(name, version, tag, more, folder):
    module = name.replace("-", "_")
    path = folder / f"{module}-{version}-{tag}.whl"
    info = f"{module}-{version}.dist-info"
    content = {
        f"{module}/__init__.py": f"BUILT_FOR = {tag!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: {str('none-any' in tag).lower()}\nTag: {tag}\n",
    }
    content[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in [*content, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in content.items():
            archive.writestr(zipfile.ZipInfo(file), text)  # no time of its own
    return path


def main(place):
    links, hashes = {}, {}
    for name, version, tag, more in WHEELS:
        folder = place / "simple" / name
        folder.mkdir(parents=True, exist_ok=True)
        wheel = build(name, version, tag, more, folder)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        links.setdefault(name, []).append(f'<a href="{wheel.name}#sha256={digest}">{wheel.name}</a>\n')
        hashes.setdefault((name, version), []).append(f" --hash=sha256:{digest}")
    for name, rows in links.items():
        (place / "simple" / name / "index.html").write_text(f"<!DOCTYPE html><html><body>{''.join(rows)}</body></html>\n")
    marker = {"bundled-elsewhere": " ; sys_platform == 'win32'"}
    lines = [f"{name}=={version}{marker.get(name, '')}{''.join(found)}\n" for (name, version), found in hashes.items()]
    (place / "0.5.16-cu130.txt").write_text("".join(lines))


main(Path(sys.argv[1]))
