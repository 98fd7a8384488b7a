#!/usr/bin/env python3
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A real, signed apt repository in a directory, from a table of small packages: what apt does with it, it would do with a big one.

    aptrepo.py install                              # what it needs, by apt, only what is missing (root)
    aptrepo.py build --to DIRECTORY [--table FILE] [--with-debian bookworm:python3-apt,unattended-upgrades] [--tar FILE]

The table (a file, or stdin) is JSON: {"origin": "NVIDIA", "packages": [{"package": "dkms", "version": "3.0-1", "depends": "make",
"files": {"/usr/sbin/dkms": {"content": "#!/bin/sh\\n", "mode": "755"}}}]}. The repository is flat, as NVIDIA's are: `deb URI /`. Beside its
index it holds key.asc, the key that signed it. Needs dpkg-deb and gpg (Debian's dpkg and gnupg); standard library only.
"""

from __future__ import annotations

import argparse
import dataclasses
import email.utils
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

NEEDS = {"dpkg-deb": "dpkg", "gpg": "gnupg"}
KEY = "key.asc"
SCRIPTS = ("preinst", "postinst", "prerm", "postrm", "triggers", "conffiles")


class RepositoryError(Exception):
    """The repository cannot be made; the text says why."""


@dataclasses.dataclass(frozen=True)
class Package:
    """One package. depends ...: as in a control file. files: {path: text, or {content, mode} or {link}}. scripts: {postinst: text}."""

    package: str
    version: str
    architecture: str = "all"
    depends: str = ""
    provides: str = ""
    conflicts: str = ""
    replaces: str = ""
    breaks: str = ""
    recommends: str = ""
    description: str = "Stand-in for tests"
    section: str = "misc"
    fields: Mapping[str, str] = dataclasses.field(default_factory=dict)
    files: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    scripts: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def control(self) -> str:
        relations = ("depends", "recommends", "provides", "conflicts", "replaces", "breaks")
        lines = {
            "Package": self.package,
            "Version": self.version,
            "Architecture": self.architecture,
            "Maintainer": "Nobody <nobody@example.net>",
            "Section": self.section,
            "Priority": "optional",
            **{name.capitalize(): getattr(self, name) for name in relations},
            **self.fields,
            "Description": self.description,
        }
        return "".join(f"{name}: {value}\n" for name, value in lines.items() if value)

    @property
    def file_name(self) -> str:
        return f"{self.package}_{self.version.rpartition(':')[2]}_{self.architecture}.deb"


def _run(*command: str | Path, **options: Any) -> str:
    argv = [str(part) for part in command]
    try:
        done = subprocess.run(
            argv, check=False, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options
        )
    except FileNotFoundError:
        raise RepositoryError(f"{argv[0]} is not installed: apt-get install {NEEDS.get(argv[0], argv[0])}") from None
    if done.returncode:
        raise RepositoryError(f"`{' '.join(argv)}` ended with {done.returncode}:\n{done.stdout[-2000:].rstrip()}")
    return done.stdout


def build(package: Package, folder: Path) -> Path:
    """Build a package into FOLDER with dpkg-deb; returns its path. The same package gives the same bytes."""
    target = folder / package.file_name
    with tempfile.TemporaryDirectory(prefix="aptrepo-") as place:
        root = Path(place, "root")
        control = root / "DEBIAN"
        control.mkdir(parents=True, mode=0o755)
        root.chmod(0o755)
        (control / "control").write_text(package.control(), encoding="utf-8")
        for name, text in package.scripts.items():
            if name not in SCRIPTS:
                raise RepositoryError(f"{package.package}: script {name!r} is unknown; known: {', '.join(SCRIPTS)}")
            (control / name).write_text(text, encoding="utf-8")
            (control / name).chmod(0o644 if name in SCRIPTS[-2:] else 0o755)
        for path, wanted in package.files.items():
            _put(root, path, {"content": wanted} if isinstance(wanted, str) else dict(wanted))
        environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", "LC_ALL": "C"}
        _run("dpkg-deb", "--build", "--root-owner-group", "-Zgzip", "-z1", root, target, env=environment)
    return target


def _put(root: Path, path: str, wanted: dict[str, str]) -> None:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    if "link" in wanted:
        place.symlink_to(wanted["link"])
        return
    place.write_text(wanted["content"], encoding="utf-8")
    place.chmod(int(wanted.get("mode", "644"), 8))


def publish(folder: Path, origin: str = "Tests", label: str = "") -> Path:
    """Write index and signature for all .deb files in FOLDER; a key is made when there is none. Returns the key's path.

    Again after more packages came: the same key signs, so that what trusts it goes on doing so.
    """
    stanzas: list[str] = []
    architectures: set[str] = set()
    for deb in sorted(folder.glob("*.deb")):
        control = _run("dpkg-deb", "--field", deb).rstrip("\n")
        data = deb.read_bytes()
        architectures |= {line.partition(":")[2].strip() for line in control.splitlines() if line.startswith("Architecture:")}
        sums = {"MD5sum": hashlib.md5(data), "SHA256": hashlib.sha256(data)}
        extra = "".join(f"\n{name}: {value.hexdigest()}" for name, value in sums.items())
        stanzas.append(f"{control}\nFilename: ./{deb.name}\nSize: {len(data)}{extra}\n")
    index = "\n".join(stanzas).encode()
    (folder / "Packages").write_bytes(index)
    (folder / "Packages.gz").write_bytes(gzip.compress(index, mtime=0))
    lines = [f"Origin: {origin}", f"Label: {label or origin}", f"Architectures: {' '.join(sorted(architectures - {'all'}))}".rstrip()]
    lines += [f"Date: {email.utils.formatdate(usegmt=True)}", "SHA256:"]
    for name in ("Packages", "Packages.gz"):
        data = (folder / name).read_bytes()
        lines.append(f" {hashlib.sha256(data).hexdigest()} {len(data)} {name}")
    (folder / "Release").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _sign(folder)
    return folder / KEY


def _sign(folder: Path) -> None:
    """InRelease and Release.gpg. The secret key lies beside the repository, in DIRECTORY.secret."""
    secret = folder.with_name(folder.name + ".secret")
    with tempfile.TemporaryDirectory(prefix="aptrepo-") as home:  # gpg's sockets need a short path
        gpg = ["gpg", "--homedir", home, "--batch", "--yes", "--quiet", "--pinentry-mode", "loopback", "--passphrase", ""]
        try:
            if secret.exists():
                _run(*gpg, "--import", secret)
            else:
                _run(*gpg, "--quick-generate-key", "Throw-away key of a test <nobody@example.net>", "rsa3072", "sign", "never")
                secret.touch(mode=0o600)
                _run(*gpg, "--armor", "--output", secret, "--export-secret-keys")
            _run(*gpg, "--armor", "--output", folder / KEY, "--export")
            for option, name in (("--clearsign", "InRelease"), ("--detach-sign", "Release.gpg")):
                _run(*gpg, "--armor", "--digest-algo", "SHA512", "--output", folder / name, option, folder / "Release")
        finally:
            subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=False, capture_output=True)


def make(folder: Path, packages: Iterable[Package], origin: str = "Tests", more: Iterable[Path] = ()) -> Path:
    """A repository in FOLDER with PACKAGES, and copies of the .deb files MORE. Returns the path of its key."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in packages:
        build(package, folder)
    for deb in more:
        shutil.copy2(deb, folder / deb.name)
    return publish(folder, origin)


def read_table(text: str) -> tuple[str, list[Package]]:
    """(origin, packages) of a table; raises RepositoryError naming the entry that is wrong."""
    try:
        table = json.loads(text)
        rows = table["packages"]
    except (ValueError, KeyError, TypeError) as error:
        raise RepositoryError(f"the table is no JSON object with packages: {error}") from None
    packages = []
    for number, row in enumerate(rows):
        try:
            packages.append(Package(**row))
        except TypeError as error:
            raise RepositoryError(f"package {number} of the table ({row.get('package')}): {error}") from None
    return table.get("origin", "Tests"), packages


def debian(suite: str, names: Iterable[str]) -> list[Path]:
    """Debian's own NAMES of SUITE with all that they need beyond the lab's root file system of that release; kept for the next time.

    Root, and the mirror that the machine's own apt uses; the second time nothing is asked of it.
    """
    import rootfs  # beside this file
    from host import CACHE, locked

    wanted = sorted(names)
    image = rootfs.image(suite, shifted=False)
    folder = CACHE / f"{image.name}-debs-{hashlib.sha256(' '.join(wanted).encode()).hexdigest()[:8]}"
    with locked(folder.name):
        if not folder.exists():
            building = folder.with_name(folder.name + ".building")
            shutil.rmtree(building, ignore_errors=True)
            _download(suite, wanted, image, rootfs._mirror() or "http://deb.debian.org/debian", rootfs.KEYRING, building)
            building.rename(folder)
    return sorted(folder.glob("*.deb"))


def _download(suite: str, names: list[str], image: Path, mirror: str, keyring: str, folder: Path) -> None:
    """Let apt resolve NAMES against what IMAGE has, in a world of its own, and put the files into FOLDER."""
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="aptrepo-") as place:
        for part in ("lists/partial", "archives/partial"):
            Path(place, part).mkdir(parents=True)
        sources = Path(place, "sources.list")
        sources.write_text(f"deb [signed-by={keyring}] {mirror} {suite} main\n", encoding="utf-8")
        options = {
            "Dir::State::lists": f"{place}/lists", "Dir::State::status": image / "var/lib/dpkg/status",
            "Dir::State::extended_states": f"{place}/extended", "Dir::Cache": place, "Dir::Cache::archives": f"{place}/archives",
            "Dir::Etc::sourcelist": sources, "Dir::Etc::sourceparts": "/dev/null", "Dir::Etc::preferencesparts": "/dev/null",
            "APT::Sandbox::User": "root", "Acquire::Languages": "none", "Debug::NoLocking": "1",
        }  # fmt: skip
        apt = ["apt-get", "-qq", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]
        _run(*apt, "update", timeout=300)
        _run(*apt, "install", "--yes", "--download-only", "--no-install-recommends", *names, timeout=600)
        for deb in Path(place, "archives").glob("*.deb"):
            shutil.move(deb, folder / deb.name.replace("%3a", ":"))


def install() -> list[str]:
    """Install what is missing of NEEDS with apt; returns the names of what was."""
    missing = [package for program, package in NEEDS.items() if not shutil.which(program)]
    if missing:
        from host import locked

        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        with locked("apt"):
            _run("apt-get", "update", "-qq", env=quiet, timeout=600)
            _run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing, env=quiet, timeout=900)
    return missing


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("install", help="install what this needs (apt)")
    command = commands.add_parser("build", help="make a repository")
    command.add_argument("--to", type=Path, required=True, metavar="DIRECTORY", help="made anew; its key is kept")
    command.add_argument("--table", type=Path, metavar="FILE", help="default: stdin")
    command.add_argument("--with-debian", action="append", default=[], metavar="SUITE:NAME,NAME", help="real packages, too")
    command.add_argument("--tar", type=Path, metavar="FILE", help="pack the repository into a .tar as well")
    options = parser.parse_args(arguments)
    try:
        if options.command == "install":
            print(f"installed: {', '.join(install()) or 'nothing, all is there'}")
            return 0
        origin, packages = read_table(options.table.read_text(encoding="utf-8") if options.table else sys.stdin.read())
        more = [deb for words in options.with_debian for deb in debian(words.partition(":")[0], words.partition(":")[2].split(","))]
        for old in options.to.glob("*.deb") if options.to.is_dir() else ():
            old.unlink()
        make(options.to, packages, origin, more)
        if options.tar:
            with tarfile.open(options.tar, "w") as archive:
                archive.add(options.to, arcname=".")
    except (RepositoryError, OSError) as error:
        print(f"aptrepo.py: {error}", file=sys.stderr)
        return 1
    print(f"{len(list(options.to.glob('*.deb')))} packages in {options.to}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
