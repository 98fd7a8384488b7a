# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a bundle: fetch what is missing, and write the manifest last, so that a directory with one is whole."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ansible_collections.ringmaster.gpu.plugins.module_utils import bundle_files, bundle_host, bundle_unpack, files
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError

from . import bundle_debs, bundle_names, bundle_parts, bundle_request, bundle_slim, bundle_wheels
from .bundle_apt import World
from .bundle_request import NEW, WORK, Request

Say = Callable[[str], None]
OURS = {bundle_files.MANIFEST, bundle_files.SUMS, bundle_host.SITE_ARCHIVE, "wheels", "locks", "debs", "parts", WORK}


def make(request: Request, say: Say, refresh: bool = False, check_mode: bool = False) -> dict[str, Any]:
    """{changed, manifest} of the bundle that REQUEST asks for. One that is there and whole is left, unless REFRESH.

    What is there stays as it is until the new one is whole; files that both have are not fetched again, and take their room once.
    """
    former = _former(request.folder)
    pins, options = bundle_request.pins(request)  # what is wrong with the lock is said before anything is fetched
    carried, left = _carried(request, pins)
    if former and former.get("request") == request.digest() and not refresh and not _wrong(request.folder, former):
        if (request.folder / WORK).exists() and not check_mode:  # of another request, that failed
            with _alone(request.folder):
                shutil.rmtree(request.folder / WORK)
        return {"changed": False, "manifest": former}
    if check_mode:
        say(f"{request.name} would be made in {request.folder}")
        return {"changed": True, "manifest": None}
    with _alone(request.folder), _untouched(former, say):
        _take_over(request, former, say)
        debs = _debs(request, say)  # before gigabytes of wheels, for there may be no such packages
        sglang = _sglang(request, carried, left, options, say)
        manifest = _write(request, sglang, debs, say)
        _switch(request.folder)
    return {"changed": True, "manifest": manifest}


def _former(folder: Path) -> dict[str, Any] | None:
    """The manifest of what is in FOLDER. Raises RingmasterError when there is something that no bundle has."""
    strangers = sorted({path.name for path in folder.iterdir()} - OURS) if folder.is_dir() else []
    if strangers:
        raise RingmasterError(
            f"bundle_dir: {folder} holds {', '.join(strangers[:3])}, which is none of a bundle's.", "Name a directory of its own."
        )
    text = files.content(str(folder / bundle_files.MANIFEST))
    try:
        return bundle_files.parse(text, str(folder)) if text else None
    except RingmasterError:
        return None  # of another format or damaged: it is made anew


def _wrong(folder: Path, manifest: dict[str, Any]) -> dict[str, str]:
    return bundle_files.faults(str(folder), bundle_files.carried(manifest))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One maker a directory."""
    files.make_directory(str(folder))
    files.make_directory(str(folder / WORK))
    with (folder / WORK / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RingmasterError(f"Somebody else makes a bundle in {folder} now.", "Wait for that, or name another bundle_dir.") from None
        yield


@contextmanager
def _untouched(former: dict[str, Any] | None, say: Say) -> Iterator[None]:
    try:
        yield
    except BaseException:
        if former:
            taken = bundle_files.size(sum(row["bytes"] for row in bundle_files.carried(former)))
            say(f"the bundle that is here, {former['name']} ({taken}), is as it was")
        raise


def _take_over(request: Request, former: dict[str, Any] | None, say: Say) -> None:
    """What is here already and may be wanted again: files, and those out of the parts where there is room for them and for parts."""
    folder, new = request.folder, request.building
    files.make_directory(str(new))
    room = bundle_files.free_bytes(str(folder)) > 2 * sum(row["bytes"] for row in former["files"]) if former else False
    if room and former["parts"] and not _wrong(folder, former):
        say("the files of the bundle that is here are taken out of its parts")
        bundle_unpack.unpack([str(folder / row["path"]) for row in former["parts"]], former["files"], str(new))
    wanted = {"wheels": request.wheels and not request.slim, "debs": request.debs}
    for path in new.iterdir():  # of a run that was cut off, too
        if not wanted.get(path.name):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name in [name for name, asked in wanted.items() if asked]:
        (new / name).mkdir(exist_ok=True)
        for path in [*(folder / name).glob("*.whl"), *(folder / name).glob("*.deb")]:
            if not (new / name / path.name).exists():
                _link(path, new / name / path.name)


def _link(path: Path, target: Path) -> None:
    try:
        os.link(path, target)
    except OSError:  # a file system without links, such as a stick's
        shutil.copyfile(path, target)


def _switch(folder: Path) -> None:
    """The new bundle takes the place of the former one, its manifest last."""
    building, former = folder / WORK / NEW, folder / WORK / "former"
    os.sync()
    shutil.rmtree(former, ignore_errors=True)
    former.mkdir()
    files.remove(str(folder / bundle_files.MANIFEST))
    for name in OURS - {WORK}:
        if (folder / name).exists():
            (folder / name).rename(former / name)
    for path in sorted(building.iterdir(), key=lambda path: path.name == bundle_files.MANIFEST):
        path.rename(folder / path.name)
    os.sync()
    shutil.rmtree(folder / WORK)


def _carried(request: Request, pins: list[Any]) -> tuple[list[Any], dict[str, str]]:
    if not request.slim:
        return pins, {}
    host = bundle_slim.host_packages(request.slim["host"], "bundle_host_packages")
    if "torch" not in host:
        raise RingmasterError("bundle_host_packages: the host has no torch.", "A slim bundle is for one that has; use bundle_profile=full.")
    return bundle_slim.select(pins, host, request.slim["carry_anyway"], bundle_slim.rules()["packages"])


def _sglang(request: Request, pins: list[Any], left: dict[str, str], options: list[str], say: Say) -> dict[str, Any] | None:
    new = request.building
    if not request.wheels:
        return None
    say(f"wheels: {len(pins)}" + (f"; {len(left)} are left out" if request.slim else ""))
    wheels = new.parent / "wheels" if request.slim else new / "wheels"
    bundle_wheels.fetch(pins, wheels, request.target, options, say)
    (new / "locks").mkdir()
    files.write_atomic(str(new / request.wheels["lock"]), request.wheels["text"].encode(), mode=0o644)
    manifest = {"version": request.wheels["version"], "cuda": request.wheels["cuda"], "lock": request.wheels["lock"]}
    if not request.slim:
        return {**manifest, "wheels": "wheels"}
    below = sorted(left.keys() & bundle_slim.host_packages(request.slim["host"], "bundle_host_packages").keys())
    return {**manifest, **_site(new, wheels, say), "flags": bundle_slim.rules()["flags"], "left_out": left, "below": below}


def _site(new: Path, wheels: Path, say: Say) -> dict[str, Any]:
    site = new.parent / "site"
    shutil.rmtree(site, ignore_errors=True)
    site.mkdir(parents=True)
    for wheel in sorted(wheels.glob("*.whl")):
        bundle_slim.add_wheel(wheel, site, [row["path"] for row in bundle_slim.rules()["files"]])
    stripped = bundle_slim.strip(site, say)
    say("slim: the tree is packed")
    total = bundle_slim.pack(site, new / bundle_host.SITE_ARCHIVE)
    shutil.rmtree(site)
    return {"site": "site", "site_bytes": total, "stripped": stripped}


def _debs(request: Request, say: Say) -> dict[str, Any]:
    """The manifest's words on packages: those of CUDA, and where they are."""
    asked = request.debs
    if not asked:
        return {"cuda": None, "debs": None}
    world = World(request.building.parent / "apt", request.target.architecture, asked["repositories"], asked["preferences"])
    say("packages: lists of the repositories")
    world.update()
    world.install_status(asked["status"])
    toolkit = world.exact(asked["toolkit"], *bundle_names.toolkit_members()) if asked["toolkit"] else []
    bundle_debs.fetch(world, [*toolkit, *asked["wanted"]], request.building / "debs", say)
    cuda = {"version": asked["version"] or None, "driver_version": asked["driver_version"] or None} if asked["of_cuda"] else None
    return {"cuda": cuda, "debs": "debs"}


def _write(request: Request, sglang: Any, debs: dict[str, Any], say: Say) -> dict[str, Any]:
    folder = request.building
    paths = sorted(
        str(path.relative_to(folder))
        for name in ("wheels", "locks", "debs", bundle_host.SITE_ARCHIVE)
        for path in ([folder / name] if (folder / name).is_file() else (folder / name).glob("*"))
    )
    rows, parts = [bundle_files.row(str(folder), path) for path in paths], []
    total = sum(row["bytes"] for row in rows)
    if request.part_bytes:
        both = bundle_files.free_bytes(str(folder)) > total * 1.05 + bundle_host.SLACK_BYTES
        if not both:
            say("there is no room for files and parts: each file goes as soon as it is in")
            bundle_files.want_room(str(folder), 2 * max(row["bytes"] for row in rows), "bundle_dir")
        parts = bundle_parts.split(folder, rows, request.part_bytes, not both, say)
        for name in ("wheels", "locks", "debs"):
            shutil.rmtree(folder / name, ignore_errors=True)
        (folder / bundle_host.SITE_ARCHIVE).unlink(missing_ok=True)
    manifest = {
        "format": bundle_files.FORMAT, "name": request.name, "profile": request.profile, "machine": request.target.machine,
        "python": request.target.python or None, "distribution": request.target.distribution or None,
        "sglang": sglang, **debs, "request": request.digest(), "files": rows, "parts": parts,
    }  # fmt: skip
    files.write_atomic(str(folder / bundle_files.SUMS), bundle_host.sums(parts or rows).encode(), mode=0o644)
    text = json.dumps(manifest, indent=1, sort_keys=False) + "\n"
    files.write_atomic(str(folder / bundle_files.MANIFEST), text.encode(), mode=0o644)
    say(f"{request.name}: {len(rows)} files, {bundle_files.size(total)}{f', parts: {len(parts)}' if parts else ''}, in {request.folder}")
    return manifest
