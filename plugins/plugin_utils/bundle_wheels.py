# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The wheels of a lock, one by one with pip, which knows the indexes, proxies and certificates that this machine is set up for."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from ansible_collections.ringmaster.gpu.plugins.module_utils import bundle_files
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError

from .bundle_lock import Pin
from .bundle_target import Target

AT_ONCE = 4  # downloads
_ABSENT = re.compile(r"No matching distribution found|Could not find a version")
# Of pip's lines on a file that has another checksum: '    NAME==1 from URL (from -r ...):' and '        Got        SUM'
_FROM = re.compile(r"(?m)^ +\S.* from ([^\s#]+)\S*(?: \(from .*\))?:$")
_GOT = re.compile(r"(?m)^ +Got +([0-9a-f]{64})$")


def there(pins: Iterable[Pin], folder: Path, target: Target) -> tuple[dict[Pin, Path], list[Pin], list[Path]]:
    """({pin: its wheel}, pins without one, files that are none of them) of FOLDER. A wheel counts with the right checksum only."""
    files = sorted(path for path in folder.iterdir() if not path.name.startswith(".")) if folder.is_dir() else []
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        sums = dict(zip(files, pool.map(lambda path: bundle_files.sha256(str(path)), files), strict=True))
    found: dict[Pin, Path] = {}
    for pin in pins:
        fits = [path for path in files if pin.is_named(path.name) and sums[path] in pin.sha256 and target.takes(path.name)]
        if fits:
            found[pin] = fits[0]
    return found, [pin for pin in pins if pin not in found], [path for path in files if path not in found.values()]


def fetch(pins: list[Pin], folder: Path, target: Target, options: list[str], say: Callable[[str], None]) -> int:
    """Make FOLDER hold the wheels of PINS and nothing else; returns how many came. What is there already stays.

    A wheel appears under its name when it is whole. Raises RingmasterError with all that could not be had.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found, missing, strangers = there(pins, folder, target)
    for path in [*strangers, *folder.glob(".incoming-*")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if not missing:
        return 0
    command = pip()
    done, total, problems = len(found), sum(path.stat().st_size for path in found.values()), []
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        running = {pool.submit(_fetch_one, command, pin, folder, target, options): pin for pin in missing}
        try:
            for future in concurrent.futures.as_completed(running):
                try:
                    path = future.result()
                except RingmasterError as error:
                    problems.append(str(error))
                    continue
                done, total = done + 1, total + path.stat().st_size
                say(f"wheels {done}/{len(pins)}, {bundle_files.size(total)}: {path.name}, {bundle_files.size(path.stat().st_size)}")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    if problems:
        raise RingmasterError(" ".join(sorted(problems)), "What has come is kept; run again once that is mended.")
    return len(missing)


def pip() -> list[str]:
    """The command that is pip, of this interpreter or another: what it fetches goes by the target, not by what it runs on."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    for name in ("pip3", "pip"):
        if path := shutil.which(name):
            return [path]
    raise RingmasterError(
        "The controller has no pip, which fetches wheels.", "Install it: python3 -m ensurepip, or apt install python3-pip."
    )


def _fetch_one(command: list[str], pin: Pin, folder: Path, target: Target, options: list[str]) -> Path:
    platforms = [word for name in target.platforms for word in ("--platform", name)]
    with tempfile.TemporaryDirectory(prefix=".incoming-", dir=folder) as place:
        wanted = Path(place, "requirements.txt")
        wanted.write_text("\n".join([pin.line(), ""]), encoding="utf-8")
        words = [
            "download", "--quiet", "--no-input", "--disable-pip-version-check", "--progress-bar=off", "--no-deps", "--require-hashes",
            "--only-binary=:all:", "--implementation=cp", f"--python-version={target.python}", *platforms, *options,
            f"--dest={place}/wheel", f"--requirement={wanted}",
        ]  # fmt: skip
        Path(place, "wheel").mkdir()
        environment = {**os.environ, "PIP_RESUME_RETRIES": "5", "TMPDIR": place, "LC_ALL": "C.UTF-8"}  # pip before 25.1 ignores the first
        for anew in ([], ["--no-cache-dir"]):  # a file that is not the lock's may be pip's own copy
            call = [*command, *words, *anew]
            done = subprocess.run(call, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, check=False)
            if not _GOT.search(done.stderr):
                break
        wheels = list(Path(place, "wheel").glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            raise _refused(pin, target, done.stderr)
        if bundle_files.sha256(str(wheels[0])) not in pin.sha256:  # pip has looked, too
            raise RingmasterError(f"{wheels[0].name} does not have a sha256 of the lock.")
        return wheels[0].rename(folder / wheels[0].name)


def _refused(pin: Pin, target: Target, text: str) -> RingmasterError:
    lines = [line.removeprefix("ERROR: ").strip() for line in text.splitlines() if line.startswith("ERROR: ")] or text.splitlines()[-2:]
    what = f"{pin.name} {pin.version or pin.url}"
    if "No space left" in text:
        return RingmasterError(f"{what}: the disk of bundle_dir is full.", "Free some space.")
    if got := _GOT.search(text):
        where, pinned = _FROM.search(text), sorted(pin.sha256)
        more = f" or one of {len(pinned) - 1} more" if len(pinned) > 1 else ""
        return RingmasterError(
            f"{what}: {where[1] if where else 'the file'} has the sha256 {got[1]}, and the lock says {pinned[0]}{more}.",
            "The index has another file than the one that was locked: see sglang_index_url and sglang_lock.",
        )
    if _ABSENT.search(text):
        where = f"Python {target.python} on {target.machine}, {target.distribution or 'any distribution'}"
        return RingmasterError(f"{what}: no index of this machine's pip has a wheel for {where}.", "See bundle_python, bundle_machine.")
    return RingmasterError(f"{what}: pip cannot fetch it: {' '.join(lines)[:600].rstrip('.')}.")
