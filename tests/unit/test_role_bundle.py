# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Role bundle by way of Ansible: what is said before anything is fetched or brought."""

from __future__ import annotations

import json

import pytest
import role_lab
from ansible_collections.ringmaster.gpu.plugins.plugin_utils import bundle_advice

NOWHERE = {"ansible_connection": "ssh", "ansible_host": "nowhere.invalid"}  # whoever asks it fails
MANIFEST = {
    "format": 1, "name": "one", "profile": "full", "machine": "x86_64", "python": "3.12", "distribution": None, "sglang": None,
    "cuda": None, "files": [{"path": "locks/a.txt", "bytes": 1, "sha256": "0" * 64}], "parts": [],
}  # fmt: skip


def read_manifest(tmp_path, rc=0, **variables):
    tasks = [
        {"ansible.builtin.include_role": {"name": "ringmaster.gpu.bundle", "tasks_from": "manifest"}},
        {"ansible.builtin.debug": {"msg": "It is {{ _bundle_manifest.name }}."}},
    ]
    return " ".join(role_lab.play(role_lab.write_play(tmp_path, tasks, vars=NOWHERE), tmp_path, variables, rc).split())


@pytest.mark.parametrize("name", ["{}/files/bundle", "bundle"])
def test_what_a_bundle_is_is_known_before_the_host_is_asked(tmp_path, name):
    (tmp_path / "files/bundle").mkdir(parents=True)
    (tmp_path / "files/bundle/manifest.json").write_text(json.dumps(MANIFEST))
    assert "It is one." in read_manifest(tmp_path, bundle_dir=name.format(tmp_path))


def test_a_bundle_that_is_not_there(tmp_path):
    said = read_manifest(tmp_path, rc=2, bundle_dir=str(tmp_path / "none"))
    assert f"bundle_dir: cannot read {tmp_path}/none/manifest.json: No such file or directory. Make the bundle first" in said
    assert "Neither bundle_dir (a bundle on the controller" in read_manifest(tmp_path, rc=2)


def make(tmp_path, rc=2, **variables):
    tasks = [{"ansible.builtin.include_role": {"name": "ringmaster.gpu.bundle", "tasks_from": "make"}}]
    given = {"bundle_dir": str(tmp_path / "out"), "sglang_version": "0.5.16", **variables}
    said = " ".join(role_lab.play(role_lab.write_play(tmp_path, tasks), tmp_path, given, rc).split())
    assert not (tmp_path / "out").exists()
    return said


def test_versions_that_yaml_has_shortened(tmp_path):
    said = make(tmp_path, bundle_python=3.10, sglang_cuda=13.1, cuda_version=12.8)
    assert 'bundle_python is the number 3.1, which is what YAML reads 3.10 as, too. Put it in quotes: "3.1" or "3.10".' in said
    assert "sglang_cuda is the number 13.1" in said
    assert "cuda_version is" not in said


def test_paths_of_a_playbook(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files/my.txt").write_text(f"torch==2 --hash=sha256:{'0' * 64}\n")
    assert "my.txt has no sglang" in make(tmp_path, sglang_lock="my.txt")
    assert "my.txt has no sglang" in make(tmp_path, sglang_lock="files/my.txt")
    assert "sglang_lock: cannot read your.txt: No such file or directory. A relative path is sought beside the playbook" in make(
        tmp_path, sglang_lock="your.txt"
    )


SGLANG = {"version": "0.5.16", "cuda": "13.0", "lock": "locks/a.txt", "wheels": "wheels"}
SLIM = {**SGLANG, "site": "site", "flags": {"attention-backend": "triton", "grammar-backend": "none"}}
FIRST = "to use it: ansible-playbook -i YOUR-INVENTORY provision.yml -e"


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (None, []),
        ({"sglang": SGLANG, "cuda": None, "debs": "debs"},
         [f"{FIRST} 'bundle_dir=/a b' -e sglang_source=bundle -e sglang_version=0.5.16 -e sglang_cuda=13.0"]),
        ({"sglang": None, "cuda": {"version": "13.0", "driver_version": None}, "debs": "debs"},
         [f"{FIRST} 'bundle_dir=/a b' -e cuda_source=bundle -e cuda_version=13.0"]),
        ({"sglang": SLIM, "cuda": None, "debs": None},
         [f"{FIRST} 'bundle_dir=/a b' -e sglang_source=bundle -e sglang_version=0.5.16 -e sglang_cuda=13.0",
          "it is slim and serves with these flags alone: sglang_flags: {attention-backend: triton, grammar-backend: none}",
          "it has no packages of the system (bundle_distribution is not set): the host is to have gcc, g++ (sglang_packages)"]),
    ],
)  # fmt: skip
def test_only_what_works_is_advised(manifest, said):
    assert bundle_advice.lines(manifest, "/a b", ["gcc", "g++"]) == said
