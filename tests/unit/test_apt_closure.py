# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Exact versions of CUDA's parts: the real apt, in a world of its own, with an index as NVIDIA's."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import apt_closure, apt_plan
from ansible_collections.ringmaster.gpu.plugins.module_utils.apt_closure import Need

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/lab"), str(ROOT / "extensions/molecule/cuda/files")]

import aptrepo  # noqa: E402
import toolkits  # noqa: E402
import yaml  # noqa: E402

MEMBERS = yaml.safe_load((ROOT / "roles/cuda/defaults/main.yml").read_text())["cuda_toolkit_members"]
SHARED = yaml.safe_load((ROOT / "roles/cuda/vars/main.yml").read_text())["_cuda_toolkit_shared"]
needs_apt = pytest.mark.skipif(not all(map(shutil.which, ["apt-get", "apt-cache", "dpkg"])), reason="needs apt")


def test_relations():
    text = "libc6 (>= 2.34), a:any (= 1-1) | b, cuda-nvcc-12-8 (>=12.8.93),c (<< 3)"
    assert apt_closure.parse_relations(text) == [
        [("libc6", ">=", "2.34")],
        [("a", "=", "1-1"), ("b", None, None)],
        [("cuda-nvcc-12-8", ">=", "12.8.93")],
        [("c", "<<", "3")],
    ]
    assert apt_closure.parse_relations("") == []


@pytest.mark.parametrize(
    ("need", "there", "installed", "shared", "version"),
    [
        (Need("x", "12.8.90"), ["12.9.1-1", "12.8.90-2", "12.8.90-1"], None, False, "12.8.90-2"),  # the one that is named
        (Need("x", "12.8.90-1"), ["12.8.90-2", "12.8.90-1"], None, False, "12.8.90-1"),
        (Need("x", "12.8.90"), ["12.8.93-1", "12.8.91-1", "12.8.57-1"], None, False, "12.8.91-1"),  # the oldest that will do
        (Need("x", "12.8.90"), ["12.8.57-1"], None, False, None),
        (Need("x", "12.8.90"), ["12.8.93-1", "12.8.90-1"], "12.8.93-1", False, "12.8.90-1"),  # back, too
        (Need("x", "12.8.90"), ["13.0.48-1", "12.8.90-1"], "13.0.48-1", True, "13.0.48-1"),  # what others need stays
        (Need("x", "13.0.48"), ["13.0.48-1", "12.8.90-1"], "12.8.90-1", True, "13.0.48-1"),  # unless it is too old
        (Need("x", None, "12.8.57-1"), ["12.8.90-1", "12.8.57-1"], None, False, "12.8.57-1"),  # with what needs it
        (Need("x", None, "7-1"), ["2-1", "1-1"], None, False, "2-1"),
        (Need("x", None, "7-1"), ["2-1", "1-1"], "1-1", False, "1-1"),
        (Need("x", None), [], None, False, None),
    ],
)
def test_the_choice_of_a_version(need, there, installed, shared, version):
    def at_least(one, other):
        return [int(n) for n in one.partition("-")[0].split(".")] >= [int(n) for n in other.partition("-")[0].split(".")]

    assert apt_closure.pick(need, there, installed, shared, at_least) == version


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A file for APT_CONFIG: an apt that knows the toolkits and has nothing installed."""
    place = tmp_path_factory.mktemp("apt")
    repository = place / "repository"
    for folder in (repository, place / "lists/partial", place / "archives/partial"):
        folder.mkdir(parents=True)
    rows = [aptrepo.Package(**row) for row in toolkits.packages()]
    stanzas = [f"{row.control()}Filename: ./{row.file_name}\nSize: 1000\nSHA256: {'0' * 64}\n" for row in rows]
    (repository / "Packages").write_text("\n".join(stanzas))
    (place / "status").touch()
    (place / "sources.list").write_text(f"deb [trusted=yes] file:{repository} /\n")
    options = {
        "Dir::State::lists": f"{place}/lists", "Dir::State::status": f"{place}/status", "Dir::Cache": place, "Dir::Cache::archives":
        f"{place}/archives", "Dir::Etc::sourcelist": f"{place}/sources.list", "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null", "APT::Sandbox::User": "root", "Debug::NoLocking": "1", "APT::Architecture": "amd64",
        "Dir::State::extended_states": f"{place}/extended",
    }  # fmt: skip
    config = place / "apt.conf"
    config.write_text("".join(f'{name} "{value}";\n' for name, value in options.items()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("APT_CONFIG", str(config))
        apt_closure.run("apt-get", "update")
    return str(config)


def ask(monkeypatch, world, wanted, installed=()):
    monkeypatch.setenv("APT_CONFIG", world)
    rows = [{"name": name, "version": version, "held": True} for name, version in installed]
    monkeypatch.setattr(apt_closure, "installed_packages", lambda: rows)
    return apt_closure.closure([wanted], MEMBERS, SHARED)


@needs_apt
@pytest.mark.parametrize("release", list(toolkits.RELEASES))
def test_all_of_a_release_and_nothing_of_another(monkeypatch, world, release):
    suffix = "-".join(release.split(".")[:2])
    found = ask(monkeypatch, world, f"cuda-toolkit-{suffix}={release}-*")
    rows = [f"{row['name']} {row['version']}" for row in found["rows"] if not apt_plan.matches(row["name"], SHARED)]
    assert rows == toolkits.expected(release)
    assert found["unknown"] == []
    newest = release in ("12.8.1", "13.0.2")
    assert (ask(monkeypatch, world, f"cuda-toolkit-{suffix}={release.rpartition('.')[0]}.*")["rows"] == found["rows"]) == newest


@needs_apt
def test_what_toolkits_share_stays_when_one_goes_back(monkeypatch, world):
    shared = [("cuda-toolkit-config-common", "13.0.96-1"), ("cuda-toolkit-12-config-common", "12.8.90-1"), ("libcublas-13-0", "13.1.0.3-1")]
    found = ask(monkeypatch, world, "cuda-toolkit-12-8=12.8.0-*", shared)
    versions = {row["name"]: row["version"] for row in found["rows"]}
    assert (versions["cuda-toolkit-config-common"], versions["cuda-toolkit-12-config-common"]) == ("13.0.96-1", "12.8.90-1")
    assert versions["cuda-toolkit-12-8-config-common"] == "12.8.57-1"
    assert found["others"] == [{"name": "libcublas-13-0", "version": "13.1.0.3-1"}]


@needs_apt
@pytest.mark.parametrize(
    ("wanted", "there"),
    [
        ("cuda-toolkit-12-8=12.8.7-*", ["cuda-toolkit-12-8 12.8.1-1", "cuda-toolkit-12-8 12.8.0-1"]),
        ("cuda-toolkit-12-9=12.9.*", ["cuda-toolkit-12-8 12.8.1-1", "cuda-toolkit-12-8 12.8.0-1", "cuda-toolkit-13-0 13.0.2-1",
                                      "cuda-toolkit-13-0 13.0.0-1"]),
        ("cuda-tooolkit-12-8=12.8.1-*", []),
    ],
)  # fmt: skip
def test_what_is_not_there_is_told_with_what_is(monkeypatch, world, wanted, there):
    found = ask(monkeypatch, world, wanted)
    assert (found["rows"], found["unknown"], found["there"]) == ([], [wanted], there)
