# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The repositories that tests make: apt itself verifies, resolves, refuses and downloads from one, in a world of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LAB = Path(__file__).resolve().parents[1] / "lab"
sys.path.insert(0, str(LAB))

import aptrepo  # noqa: E402

pytestmark = pytest.mark.skipif(not all(map(shutil.which, ["apt-get", *aptrepo.NEEDS])), reason="needs apt, dpkg and gnupg")

TABLE = [
    {"package": "rm-driver", "version": "580.1-1", "depends": "rm-kernel (= 580.1-1) | rm-kernel-open (= 580.1-1), rm-lib (= 580.1-1)"},
    {"package": "rm-driver", "version": "590.1-1", "depends": "rm-kernel (= 590.1-1) | rm-kernel-open (= 590.1-1), rm-lib (= 590.1-1)"},
    *({"package": name, "version": version} for name in ("rm-kernel", "rm-lib") for version in ("580.1-1", "590.1-1")),
    {"package": "rm-kernel-open", "version": "580.1-1", "conflicts": "rm-kernel", "provides": "rm-module"},
    {"package": "rm-tool", "version": "1:2.0-1", "files": {"/usr/bin/rm-tool": {"content": "#!/bin/sh\necho here\n", "mode": "755"},
                                                          "/usr/bin/rm-link": {"link": "rm-tool"}, "/etc/rm-tool.conf": "a = 1\n"},
     "scripts": {"postinst": "#!/bin/sh\nexit 0\n", "conffiles": "/etc/rm-tool.conf\n"}},
]  # fmt: skip


class World:
    """apt with sources, lists, status and cache below a folder; the machine's own are not touched."""

    def __init__(self, folder, repository, key):
        for part in ("lists/partial", "archives/partial"):
            (folder / part).mkdir(parents=True)
        (folder / "status").touch()
        (folder / "sources.list").write_text(f"deb [signed-by={key}] file:{repository} /\n")
        self.options = [
            f"Dir::State::lists={folder}/lists", f"Dir::State::status={folder}/status", f"Dir::Cache={folder}",
            f"Dir::Cache::archives={folder}/archives", f"Dir::Etc::sourcelist={folder}/sources.list", "Dir::Etc::sourceparts=/dev/null",
            "Dir::Etc::preferencesparts=/dev/null", "APT::Sandbox::User=root", "APT::Get::List-Cleanup=false", "Debug::NoLocking=1",
            f"Dir::State::extended_states={folder}/extended",
        ]  # fmt: skip
        self.folder = folder

    def __call__(self, *words, ok=True):
        command = ["apt-get", *(word for option in self.options for word in ("-o", option)), *words]
        done = subprocess.run(command, env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True, check=False)
        output = done.stdout + done.stderr
        assert (done.returncode == 0) == ok, output
        return output


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    aptrepo.make(folder, [aptrepo.Package(**row) for row in TABLE], origin="NVIDIA")
    return folder


@pytest.fixture
def apt(tmp_path, repository):
    return World(tmp_path / "apt", repository, repository / aptrepo.KEY)


def installs(output):
    return sorted(" ".join(line.split()[1:3]) for line in output.splitlines() if line.startswith("Inst "))


def test_apt_verifies_and_resolves(apt):
    apt("update", "-qq")
    assert installs(apt("-s", "install", "rm-driver")) == ["rm-driver (590.1-1", "rm-kernel (590.1-1", "rm-lib (590.1-1"]
    (apt.folder / "pin").write_text("Package: rm-*\nPin: version 580.1-1\nPin-Priority: 1001\n")
    pinned = apt("-o", f"Dir::Etc::preferences={apt.folder}/pin", "-s", "install", "rm-driver")
    assert installs(pinned) == ["rm-driver (580.1-1", "rm-kernel (580.1-1", "rm-lib (580.1-1"]


def test_a_conflict_is_a_real_one(apt):
    apt("update", "-qq")
    output = apt("-s", "install", "rm-driver=580.1-1", "rm-kernel=590.1-1", "rm-lib=590.1-1", ok=False)
    assert "Depends: rm-lib (= 580.1-1) but 590.1-1 is to be installed" in output
    assert "Conflicts: rm-kernel" in apt("-s", "install", "rm-kernel", "rm-kernel-open", ok=False)


def test_a_changed_package_and_a_changed_index_are_refused(apt, repository):
    apt("update", "-qq")
    with (repository / "rm-tool_2.0-1_all.deb").open("ab") as file:
        file.write(b"x")
    assert "Hash Sum mismatch" in apt("install", "-y", "-d", "rm-tool", ok=False)
    (repository / "InRelease").write_text((repository / "InRelease").read_text().replace("NVIDIA", "MIVIDA"))
    assert "The repository is not updated" in apt("update", "-qq")  # apt goes on with what it knew


def test_another_key_is_not_trusted(apt, tmp_path, repository):
    other = aptrepo.make(tmp_path / "other", [])
    (apt.folder / "sources.list").write_text(f"deb [signed-by={other}] file:{repository} /\n")
    assert "NO_PUBKEY" in (output := apt("update", "-qq", ok=False)) or "signature" in output.lower()


def test_more_packages_come_under_the_same_key(apt, repository):
    apt("update", "-qq")
    key = (repository / aptrepo.KEY).read_bytes()
    aptrepo.make(repository, [aptrepo.Package("rm-new", "1")], origin="NVIDIA")
    apt("update", "-qq")
    assert installs(apt("-s", "install", "rm-new")) == ["rm-new (1"]
    imported = (repository / aptrepo.KEY).read_bytes()
    assert len(imported) == len(key)


def test_what_is_in_a_package(tmp_path, repository):
    deb = repository / "rm-tool_2.0-1_all.deb"
    subprocess.run(["dpkg-deb", "--raw-extract", str(deb), str(tmp_path / "out")], check=True)
    tool, link = tmp_path / "out/usr/bin/rm-tool", tmp_path / "out/usr/bin/rm-link"
    assert subprocess.run([tool], capture_output=True, text=True, check=True).stdout == "here\n"
    assert os.readlink(link) == "rm-tool"
    assert (tmp_path / "out/etc/rm-tool.conf").stat().st_mode & 0o777 == 0o644
    listing = subprocess.run(["dpkg-deb", "--contents", str(deb)], capture_output=True, text=True, check=True).stdout
    assert {line.split()[1] for line in listing.splitlines()} == {"root/root"}
    assert (tmp_path / "out/DEBIAN/postinst").stat().st_mode & 0o111


def test_the_same_package_gives_the_same_bytes(tmp_path):
    package = aptrepo.Package(**TABLE[-1])
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    assert aptrepo.build(package, tmp_path / "a").read_bytes() == aptrepo.build(package, tmp_path / "b").read_bytes()


def command(*words, table):
    return subprocess.run([sys.executable, str(LAB / "aptrepo.py"), *words], input=table, capture_output=True, text=True, check=False)


def test_the_command(tmp_path):
    table = json.dumps({"origin": "NVIDIA", "packages": TABLE})
    done = command("build", "--to", str(tmp_path / "r"), "--tar", str(tmp_path / "r.tar"), table=table)
    assert done.stdout == f"8 packages in {tmp_path}/r\n", done.stderr
    assert "Origin: NVIDIA\n" in (tmp_path / "r/Release").read_text()
    listing = subprocess.run(["tar", "-tf", str(tmp_path / "r.tar")], capture_output=True, text=True, check=True).stdout.splitlines()
    assert {"./InRelease", "./key.asc", "./rm-driver_580.1-1_all.deb"} <= set(listing)
    assert not [name for name in listing if "secret" in name]
    done = command("build", "--to", str(tmp_path / "r"), table=json.dumps({"packages": TABLE[:1]}))
    assert done.stdout == f"1 packages in {tmp_path}/r\n"  # made anew
    for wrong, words in [("{}", "packages"), ('{"packages": [{"package": "x", "version": "1", "dependz": ""}]}', "(x)"), ("[", "JSON"),
                         ('{"packages": [{"package": "x", "version": "-"}]}', "dpkg-deb")]:  # fmt: skip
        done = command("build", "--to", str(tmp_path / "w"), table=wrong)
        assert done.returncode == 1
        assert words in done.stderr
        assert "Traceback" not in done.stderr
