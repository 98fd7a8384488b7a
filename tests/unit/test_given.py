# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What users give, by way of Ansible itself: where a relative path is sought, and a version without quotes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def said(tmp_path, variables, expression):
    """What debug says of EXPRESSION in a playbook below tmp_path/book, started in tmp_path/here."""
    for name in ("book/files", "here"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    text = f"- hosts: localhost\n  gather_facts: false\n  vars: {{{variables}}}\n  tasks:\n"
    (tmp_path / "book/play.yml").write_text(text + f'    - ansible.builtin.debug: {{msg: "<{{{{ {expression} }}}}>"}}\n')
    program = Path(sys.executable).with_name("ansible-playbook")
    environment = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": f"{ROOT}/collections",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_LOCALHOST_WARNING": "0",
    }
    done = subprocess.run(
        [program, "../book/play.yml"], cwd=tmp_path / "here", env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return re.search("<(.*)>", done.stdout)[1].replace('\\"', '"')


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        (["book/files/k.asc", "book/k.asc", "here/k.asc"], "{}/book/files/k.asc"),
        (["book/k.asc", "here/k.asc"], "{}/book/k.asc"),
        (["here/files/k.asc", "here/k.asc"], "{}/here/files/k.asc"),
        (["here/k.asc"], "{}/here/k.asc"),
        ([], "k.asc"),
    ],
)
def test_a_relative_path_is_sought_beside_the_playbook_first(tmp_path, there, expected):
    for name in there:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert said(tmp_path, "", "'k.asc' | ringmaster.gpu.found_file(playbook_dir)") == expected.format(tmp_path)


def test_an_absolute_path_stays(tmp_path):
    assert said(tmp_path, "", "['', '/etc/passwd'] | map('ringmaster.gpu.found_file', playbook_dir) | join(';')") == ";/etc/passwd"


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("3.10", 'v is the number 3.1, which is what YAML reads 3.10 as, too. Put it in quotes: "3.1" or "3.10".'),
        ("12.1", 'v is the number 12.1, which is what YAML reads 12.10 as, too. Put it in quotes: "12.1" or "12.10".'),
        ("'3.10'", ""),
        ("13.0", ""),
        ("12.8", ""),
        ("12.8.1", ""),
        ("13", ""),
        ("", ""),
    ],
)
def test_a_version_without_quotes(tmp_path, written, words):
    assert said(tmp_path, f"v: {written}", "v | ringmaster.gpu.ambiguous_number('v')") == words
