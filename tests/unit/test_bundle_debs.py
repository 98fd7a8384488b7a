# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packages of a bundle: real apt resolves them from real, signed repositories, and reads the repository that is made of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.plugin_utils import bundle_apt, bundle_debs, bundle_names

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lab"))

import aptrepo

needs_apt = pytest.mark.skipif(not all(map(shutil.which, ["apt-get", *aptrepo.NEEDS])), reason="needs apt, dpkg and gnupg")

GIVEN = {"distribution": "debian12", "cuda_version": "", "cuda_driver_version": "", "kernel_module": "auto", "kernel": "",
         "toolkit_packages": [], "driver_packages": {}, "build_packages": ["dkms"]}  # fmt: skip
DRIVER = "580.105.08"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, []),
        ({"cuda_version": "13.0"}, ["cuda-toolkit-13-0=13.0.*"]),
        ({"cuda_version": "12.8.1"}, ["cuda-toolkit-12-8=12.8.1-*"]),
        ({"cuda_version": "13.0", "toolkit_packages": ["cuda-nvcc-13-0", "cuda-cccl-13-0=13.0.85-1"]},
         ["cuda-nvcc-13-0=13.0.*", "cuda-cccl-13-0=13.0.85-1"]),
        (
            {"cuda_driver_version": DRIVER},
            [*(f"{name}={DRIVER}-*" for name in ("nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-modprobe",
                                                 "nvidia-persistenced")), "dkms"],
        ),
        (
            {"cuda_driver_version": f"{DRIVER}-1", "distribution": "ubuntu2404", "kernel_module": "proprietary"},
            [*(f"{name}={DRIVER}-1" for name in ("libnvidia-compute-580", "nvidia-utils-580", "nvidia-dkms-580", "nvidia-modprobe",
                                                 "nvidia-persistenced")), "dkms"],
        ),
        ({"cuda_driver_version": DRIVER, "driver_packages": {"open": ["mine"]}, "build_packages": []}, [f"mine={DRIVER}-*"]),
        ({"kernel": "6.1.0-40-amd64"}, ["linux-headers-6.1.0-40-amd64"]),
        ({"kernel": "6.8.12-1-pve"}, ["proxmox-headers-6.8.12-1-pve | pve-headers-6.8.12-1-pve"]),
    ],
)  # fmt: skip
def test_names_are_those_of_role_cuda(given, wanted):
    assert [*bundle_names.toolkit({**GIVEN, **given}), *bundle_names.packages({**GIVEN, **given})] == wanted


@pytest.mark.parametrize(
    ("given", "said"),
    [({"cuda_version": "13"}, "cuda_version is '13'"), ({"cuda_version": "latest"}, "cuda_version"),
     ({"cuda_driver_version": "580"}, "cuda_driver_version is '580'"), ({"cuda_driver_version": "580.105.08; rm"}, "cuda_driver_version")],
)  # fmt: skip
def test_versions_that_are_none(given, said):
    with pytest.raises(RingmasterError, match=re.escape(said)):
        [names({**GIVEN, **given}) for names in (bundle_names.toolkit, bundle_names.packages)]


def test_nvidias_own_repository():
    assert bundle_names.repository("nvidia", "ubuntu2404", "aarch64").endswith("/ubuntu2404/sbsa/")
    assert bundle_names.repository("file:/x", "debian12", "x86_64") == "file:/x"


def test_uris():
    text = f"'http://h/a_1%3a2_all.deb' a_1%3a2_all.deb 10 SHA256:{'0' * 64}\n'copy:/b.deb' b.deb 5 MD5Sum:00\nReading...\n"
    assert bundle_apt.parse_uris(text) == [("a_1%3a2_all.deb", 10, "0" * 64), ("b.deb", 5, "")]


PACKAGES = [
    aptrepo.Package("rm-base", "1"),
    aptrepo.Package("rm-tool", "2:1.5-1", depends="rm-base, rm-lib (>= 580.1)", recommends="rm-more"),
    aptrepo.Package("rm-lib", "580.1-1"),
    aptrepo.Package("rm-lib", "590.1-1"),
    aptrepo.Package("rm-broken", "1", depends="rm-absent"),
    aptrepo.Package("rm-more", "1"),
]


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository") / "repo"
    aptrepo.make(folder, PACKAGES)
    return folder


def architecture():
    return subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout.strip()


def world(place, repository, preferences="", key=None):
    made = bundle_apt.World(place, architecture(), [{"url": f"file:{repository}", "key": str(key or repository / "key.asc")}], preferences)
    made.update()
    return made


def names(folder):
    return sorted(path.name for path in folder.glob("*.deb"))


@needs_apt
def test_apt_fetches_all_that_is_needed_and_nothing_twice(tmp_path, repository):
    apt, debs, said = world(tmp_path / "apt", repository), tmp_path / "debs", []
    assert bundle_debs.fetch(apt, ["rm-absent | rm-tool"], debs, said.append) == 3
    assert names(debs) == ["rm-base_1_all.deb", "rm-lib_590.1-1_all.deb", "rm-tool_1.5-1_all.deb"]
    first = {path.name: path.read_bytes() for path in debs.iterdir()}
    assert bundle_debs.fetch(apt, ["rm-tool"], debs, said.append) == 0
    assert {path.name: path.read_bytes() for path in debs.iterdir()} == first
    (debs / "rm-lib_590.1-1_all.deb").write_bytes(b"damaged")
    assert bundle_debs.fetch(apt, ["rm-tool"], debs, said.append) == 1
    assert {path.name: path.read_bytes() for path in debs.iterdir()} == first
    assert said[-1].endswith("1 to fetch")


@needs_apt
def test_the_driver_is_kept_at_its_version(tmp_path, repository):
    apt, debs = world(tmp_path / "apt", repository, bundle_names.preferences("580.1", ["rm-l*"])), tmp_path / "debs"
    bundle_debs.fetch(apt, ["rm-tool"], debs, lambda text: None)
    assert names(debs) == ["rm-base_1_all.deb", "rm-lib_580.1-1_all.deb", "rm-tool_1.5-1_all.deb"]


@needs_apt
def test_a_toolkit_s_parts_are_those_it_names(tmp_path, repository):
    apt = world(tmp_path / "apt", repository)
    assert apt.exact(["rm-tool=2:1.5-*"], ["rm-tool", "rm-lib"], []) == ["rm-lib=580.1-1", "rm-tool=2:1.5-1"]
    with pytest.raises(RingmasterError, match=r"No repository has rm-tool=1.6-\* \(there: .*1.5-1"):
        apt.exact(["rm-tool=1.6-*"], ["rm-tool", "rm-lib"], [])
    assert "APT_CONFIG" not in os.environ


@needs_apt
def test_a_hosts_own_status_says_what_it_has(tmp_path, repository):
    apt, debs = world(tmp_path / "apt", repository), tmp_path / "debs"
    rows = [f"Package: {name}\nStatus: install ok installed\nArchitecture: all\nVersion: {version}\nMaintainer: n\nDescription: d\n"
            for name, version in (("rm-base", "1"), ("rm-lib", "585.1-1"))]  # fmt: skip
    apt.install_status("\n".join(rows))
    bundle_debs.fetch(apt, ["rm-tool"], debs, lambda text: None)
    assert names(debs) == ["rm-tool_1.5-1_all.deb"]


@needs_apt
@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (["rm-nothing"], r"No repository has rm-nothing \(versions there: rm-nothing: none\)"),
        (["rm-lib=570.*"], r"No repository has rm-lib=570.\* \(versions there: rm-lib: 590.1-1, 580.1-1\)"),
        (["rm-broken"], "rm-broken cannot be installed: .*rm-absent"),
    ],
)
def test_what_cannot_be_is_named(tmp_path, repository, wanted, said):
    with pytest.raises(RingmasterError, match=said):
        bundle_debs.fetch(world(tmp_path / "apt", repository), wanted, tmp_path / "debs", lambda text: None)


@needs_apt
def test_another_key_is_not_trusted(tmp_path, repository):
    other = tmp_path / "other"
    key = aptrepo.make(other, PACKAGES[:1])
    with pytest.raises(RingmasterError, match="lists of packages cannot be fetched: .*(NO_PUBKEY|not signed|couldn't be verified)"):
        world(tmp_path / "apt", repository, key=key)
    with pytest.raises(RingmasterError, match="key of .* is not on the controller: /nowhere.asc"):
        world(tmp_path / "apt", repository, key="/nowhere.asc")


@needs_apt
def test_a_repository_that_is_away_is_not_passed_over(tmp_path, repository):
    apt = bundle_apt.World(tmp_path / "apt", architecture(), [{"url": "http://127.0.0.1:9/x", "key": str(repository / "key.asc")}])
    with pytest.raises(RingmasterError, match="lists of packages cannot be fetched: .*127.0.0.1"):
        apt.update()


@needs_apt
def test_a_package_that_was_changed_is_not_taken(tmp_path, repository):
    spoilt = tmp_path / "spoilt"
    shutil.copytree(repository, spoilt)
    deb = next(spoilt.glob("rm-more*.deb"))
    deb.write_bytes(deb.read_bytes()[:-1] + b"?")
    with pytest.raises(RingmasterError, match=r"Packages cannot be fetched: .*Hash Sum mismatch"):
        bundle_debs.fetch(world(tmp_path / "apt", spoilt), ["rm-more"], tmp_path / "debs", lambda text: None)
    assert not names(tmp_path / "debs")


@needs_apt
def test_apt_reads_the_repository_that_is_made(tmp_path, repository):
    debs = tmp_path / "debs"
    bundle_debs.fetch(world(tmp_path / "apt", repository), ["rm-tool"], debs, lambda text: None)
    source = tmp_path / "host/sources/bundle.sources"
    for folder in ("lists/partial", "archives/partial", "sources"):
        (tmp_path / "host" / folder).mkdir(parents=True)
    source.write_text(f"Types: deb\nURIs: file:{debs}\nSuites: /\nTrusted: yes\n")
    (tmp_path / "host/status").touch()
    place = tmp_path / "host"
    options = {"Dir::State::lists": place / "lists", "Dir::State::status": place / "status", "Dir::Cache": place,
               "Dir::Etc::sourcelist": "/dev/null", "Dir::Etc::sourceparts": place / "sources",
               "Dir::Etc::preferencesparts": "/dev/null", "APT::Sandbox::User": "root", "Debug::NoLocking": "1"}  # fmt: skip
    apt = ["apt-get", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]
    environment = {**os.environ, "LC_ALL": "C"}
    updated = subprocess.run([*apt, "update"], capture_output=True, text=True, check=True, env=environment)
    assert not re.search(r"(?m)^[WE]:", updated.stdout + updated.stderr)
    done = subprocess.run([*apt, "-s", "install", "rm-tool"], capture_output=True, text=True, check=True, env=environment)
    assert re.findall(r"(?m)^Inst (\S+)", done.stdout) == ["rm-base", "rm-lib", "rm-tool"]


def test_a_controller_without_apt_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(bundle_apt.shutil, "which", lambda name: None)
    with pytest.raises(RingmasterError, match="The controller has no apt-get: .*on one of these only"):
        bundle_apt.World(tmp_path, "amd64", [])
