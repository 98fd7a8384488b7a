#!/usr/bin/env python3
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`wheels.py DIRECTORY STAND-IN UV-LOCK`: a package index with a simulated SGLang in two versions, its lock files, and uv's real wheel.

    DIRECTORY/simple/NAME/    the index (PEP 503)
    DIRECTORY/locks/          0.5.16.txt, 0.5.23.txt, and wrong.txt, which has a wrong checksum

SGLang is the stand-in of roles/lab, torch and NCCL are names and versions alone. uv comes from PyPI, checked by its lock.
"""

from __future__ import annotations

import base64
import hashlib
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

TO, STANDIN, UV_LOCK = map(pathlib.Path, sys.argv[1:4])
SIMPLE, LOCKS = TO / "simple", TO / "locks"
VERSIONS = {"0.5.16": {"torch": "2.11.0", "nvidia-nccl-cu13": "2.28.9"}, "0.5.23": {"torch": "2.14.1", "nvidia-nccl-cu13": "2.30.7"}}


def wheel(name, version, needs, files):
    """A pure wheel of NAME in the index; (requirement, checksum)."""
    plain = name.replace("-", "_")
    folder, info = SIMPLE / name, f"{plain}-{version}.dist-info"
    needed = "".join(f"Requires-Dist: {one}\n" for one in needs)
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: simulated\n{needed}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: ringmaster\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={digest(text)},{len(text.encode())}\n" for path, text in files.items()) + f"{info}/RECORD,,\n"
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"{plain}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return f"{name}=={version}", hashlib.sha256(place.read_bytes()).hexdigest()


def digest(text):
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def simulated(version, beside):
    """The wheels of one SGLang; the lock's lines."""
    text = {f"sglang/{path.name}": path.read_text() for path in sorted((STANDIN / "sglang").glob("*.py"))}
    text["sglang/__init__.py"] = text["sglang/__init__.py"].replace("0.5.16+simulated", f"{version}+simulated")
    parts = [wheel(name, f"{one}+simulated", [], {}) for name, one in beside.items()]
    parts.append(wheel("sglang", f"{version}+simulated", [part for part, _hash in parts], text))
    return "".join(f"{part} \\\n    --hash=sha256:{checksum}\n" for part, checksum in sorted(parts))


def uv():
    """uv's real wheel for this machine, in the index."""
    pin = re.search(r"^uv==\S+", UV_LOCK.read_text(), re.M)[0]
    with tempfile.TemporaryDirectory() as place:
        plain = pathlib.Path(place, "uv.txt")
        plain.write_text("\n".join([f"{pin} \\", " \\\n".join(re.findall(r"--hash=\S+", UV_LOCK.read_text()))]))
        pip = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "download", "--quiet"]
        what = ["--no-deps", "--require-hashes", "--only-binary=:all:", f"--platform=manylinux_2_17_{platform.machine()}"]
        where = ["--index-url=https://pypi.org/simple", f"--dest={place}", f"--requirement={plain}"]
        subprocess.run([*pip, *what, *where], check=True)
        (SIMPLE / "uv").mkdir()
        for found in pathlib.Path(place).glob("*.whl"):
            shutil.copy(found, SIMPLE / "uv")


def main():
    shutil.rmtree(TO, ignore_errors=True)
    LOCKS.mkdir(parents=True)
    for version, beside in VERSIONS.items():
        (LOCKS / f"{version}.txt").write_text(simulated(version, beside))
    right = (LOCKS / "0.5.23.txt").read_text()
    (LOCKS / "wrong.txt").write_text(re.sub(r"sha256:.{8}", "sha256:00000000", right, count=1))
    uv()
    for folder in SIMPLE.iterdir():
        links = "".join(f'<a href="{path.name}">{path.name}</a>\n' for path in sorted(folder.glob("*.whl")))
        (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>\n{links}</body></html>\n")


if __name__ == "__main__":
    main()
