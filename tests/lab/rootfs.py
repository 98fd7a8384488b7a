# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Root file systems of Debian releases, built once by debootstrap and kept: for privileged containers, and shifted for others."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import subprocess
from pathlib import Path

from host import CACHE, ID_BASE, LabError, locked, remove_tree, run, say

SUITES = ("bookworm", "trixie")
PACKAGES = "python3,python3-venv,iproute2,openssh-server,systemd,systemd-sysv,dbus,procps"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# No work for these in a container that lives for minutes without a way out; each costs start time or fails there.
MASKED = (
    "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_reap.service", "sys-kernel-debug.mount",
    "systemd-modules-load.service",
)
RECIPE = hashlib.sha256(f"1 {PACKAGES} {MASKED}".encode()).hexdigest()[:8]  # the number: raise it when prepare() changes


def mirror_in(sources: list[tuple[str, str]]) -> str | None:
    """The first Debian mirror named in apt sources, [(file name, text)], one-line or deb822; None when there is none.

    A mirror of Debian itself: http(s), a path that ends in /debian, component main (Docker's own path ends so too, without main).
    """
    for name, text in sources:
        if name.endswith(".sources"):
            text = re.sub(r"^#.*\n?", "", text, flags=re.MULTILINE)
            for stanza in re.split(r"\n\s*\n", text):
                fields = {k.lower(): v.split() for k, v in re.findall(r"^([\w-]+):((?:.*)(?:\n[ \t].*)*)", stanza, flags=re.MULTILINE)}
                if "deb" in fields.get("types", []) and [v.lower() for v in fields.get("enabled", [])] != ["no"]:
                    found = [uri for uri in fields.get("uris", []) if _is_debian(uri, fields.get("components", []))]
                    if found:
                        return found[0].rstrip("/")
        else:
            for line in text.splitlines():
                match = re.match(r"deb\s+(?:\[[^]]*\]\s+)?(\S+)\s+\S+\s+(.*)", line)
                if match and _is_debian(match[1], match[2].split()):
                    return match[1].rstrip("/")
    return None


def _is_debian(uri: str, components: list[str]) -> bool:
    return bool(re.match(r"https?://.*/debian/?$", uri)) and "main" in components


def _mirror() -> str | None:
    apt = Path("/etc/apt")
    files = [apt / "sources.list", *sorted(apt.glob("sources.list.d/*.sources")), *sorted(apt.glob("sources.list.d/*.list"))]
    return mirror_in([(f.name, f.read_text(encoding="utf-8")) for f in files if f.exists()])


def _environment() -> dict[str, str]:
    """The environment for debootstrap: it knows http_proxy, not apt's own setting of one."""
    env = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    for scheme in ("http", "https"):
        found = run("apt-config", "dump", "--format", "%v", f"Acquire::{scheme}::Proxy").stdout.strip()
        if found and found != "DIRECT":
            env.setdefault(f"{scheme}_proxy", found)
    return env


def image(suite: str, shifted: bool) -> Path:
    """The folder with that release, built when it is not there yet; `shifted`: every owner and group raised by ID_BASE.

    Built beside its place and renamed, so what has the name is whole. Two callers at once: the second waits for the first.
    """
    if suite not in SUITES:
        raise LabError(f"suite {suite!r} is unknown; known: {', '.join(SUITES)}")
    plain = CACHE / f"{suite}-{RECIPE}"
    wanted = CACHE / f"{plain.name}-shifted" if shifted else plain
    CACHE.mkdir(parents=True, exist_ok=True)
    for folder in (CACHE, *CACHE.parents):
        if not folder.stat().st_mode & stat.S_IXOTH:
            raise LabError(f"{folder} is closed to others, and so to an unprivileged container: set RINGMASTER_TEST_CACHE to an open place")
    with locked(f"image-{suite}"):
        for folder, build in ((plain, _bootstrap), (wanted, _shift)):
            if not folder.exists():
                building = CACHE / f"{folder.name}.building"
                remove_tree(building)  # what a crash left
                build(suite, plain, building)
                building.rename(folder)
    return wanted


def _bootstrap(suite: str, _plain: Path, target: Path) -> None:
    mirror = _mirror()
    say(f"debootstrap {suite} from {mirror or 'its own default mirror'} (once, about a minute)")
    script = Path("/usr/share/debootstrap/scripts", suite)
    script = script if script.exists() else script.with_name("sid")  # an older debootstrap than the release
    options = ["--variant=minbase", f"--include={PACKAGES}", f"--keyring={KEYRING}"]
    done = run("debootstrap", *options, suite, target, mirror or "", script, env=_environment(), check=False, timeout_s=1200)
    if done.returncode:
        log = target / "debootstrap" / "debootstrap.log"
        tail = log.read_text(encoding="utf-8", errors="replace")[-1500:] if log.exists() else ""
        raise LabError(f"debootstrap {suite} from {mirror} failed:\n{done.stdout[-1500:]}\n{tail}")
    prepare(target)


def prepare(root: Path) -> None:
    """Take out what is the building host's, what is downloaded, and units without a use."""
    for folder in ("var/cache/apt/archives", "var/lib/apt/lists"):
        for path in (root / folder).glob("*.deb" if folder.endswith("archives") else "*_*"):
            path.unlink()
    for name in ("etc/resolv.conf", "etc/hostname"):
        (root / name).unlink(missing_ok=True)
    (root / "etc/machine-id").write_text("", encoding="ascii")  # empty: each container makes its own
    for unit in MASKED:
        link = root / "etc/systemd/system" / unit
        link.unlink(missing_ok=True)
        link.symlink_to("/dev/null")


def _shift(_suite: str, plain: Path, target: Path) -> None:
    say(f"copy {plain.name} with ids from {ID_BASE}")
    subprocess.run(["cp", "-a", "--reflink=auto", str(plain), str(target)], check=True)
    shift_owners(target, ID_BASE)


def shift_owners(root: Path, by: int) -> None:
    """Raise owner and group of everything below (and of) `root`; modes stay, setuid bits too, which a chown clears."""
    done = set()  # hard links: each inode once
    paths = [str(root)]
    for folder, folders, files in os.walk(root):
        paths += [os.path.join(folder, name) for name in folders + files]
    for path in paths:
        info = os.lstat(path)
        if info.st_ino not in done:
            done.add(info.st_ino)
            os.lchown(path, info.st_uid + by, info.st_gid + by)
            if not stat.S_ISLNK(info.st_mode):
                os.chmod(path, stat.S_IMODE(info.st_mode))


def purge() -> None:
    """Remove all images, and only those. The caller has seen to it that no container uses one."""
    for suite in SUITES:
        for folder in CACHE.glob(f"{suite}-*"):
            remove_tree(folder)
