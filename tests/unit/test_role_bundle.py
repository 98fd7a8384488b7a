# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Role bundle by way of Ansible: what is said before anything is fetched or brought."""

from __future__ import annotations

import json

import pytest
import role_lab

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
