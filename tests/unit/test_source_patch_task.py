# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Source patches by Ansible: the task, the tasks of role sglang, and the worked example on the real SGLang."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from ansible_collections.ringmaster.gpu.plugins.module_utils import patched_environment
from source_patch_lab import FIVE, GATE, ROOT, Environment, X, Y, item, make_venv

EXAMPLE = ROOT / "roles/sglang/files/patches/flashinfer-fusion-sm120.patch"


@pytest.fixture
def environment(tmp_path):
    return Environment(make_venv(tmp_path / "venv"), tmp_path)


def play(tmp_path, tasks, *arguments):
    """{register: result} of TASKS on localhost, in one run that must not end early."""
    names = [task["register"] for task in tasks if "register" in task]
    content = "{{ dict(names | zip(query('ansible.builtin.vars', *names))) | to_json }}"
    keep = {"ansible.builtin.copy": {"dest": f"{tmp_path}/results.json", "content": content}, "vars": {"names": names}, "check_mode": False}
    (tmp_path / "play.yml").write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": [*tasks, keep]}]))
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    variables = json.dumps({"ansible_python_interpreter": sys.executable})
    done = subprocess.run(
        [program, "-i", "localhost,", "-c", "local", str(tmp_path / "play.yml"), *arguments, "-e", variables],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default", "ANSIBLE_LOCAL_TEMP": str(tmp_path / "tmp"),
             "ANSIBLE_REMOTE_TEMP": str(tmp_path / "tmp"), "ANSIBLE_NOCOLOR": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((tmp_path / "results.json").read_text()), done.stdout


def test_task(environment, tmp_path):
    """Check mode, on, on again, not listed, away without the file; what is wrong; and the bytes of a file as they are."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files/gate.patch").write_bytes(b"# a comment\r\n" + GATE.encode())
    (environment.site / "toy/data.txt").unlink()
    (environment.site / "toy/data.txt").write_bytes(b"a\r\n{{ b }}")
    end = "\n\\ No newline at end of file\n"
    crlf = f"--- a/toy/data.txt\n+++ b/toy/data.txt\n@@ -1,2 +1,2 @@\n a\r\n-{{{{ b }}}}{end}+{{{{ c }}}}{end}"
    (tmp_path / "files/crlf.patch").write_bytes(crlf.encode())
    gate = {"name": "gate", "patch": "gate.patch", "package": "toy", "versions": ">=1.2,<1.3"}

    def task(name, patches, **more):
        return {"ringmaster.gpu.source_patch": {"environment": str(environment.path), "patches": patches}, "register": name, **more}

    results, output = play(tmp_path, [
        task("foretold", [gate], check_mode=True, diff=True),
        task("on", [gate], diff=True),
        task("again", [gate]),
        task("unlisted", []),
        task("away", [{**gate, "patch": "gone.patch", "state": "absent"}]),
        task("crlf", [{"name": "crlf", "patch": "crlf.patch", "package": "toy"}]),
        task("no_file", [{**gate, "patch": "no.patch"}], ignore_errors=True),
        task("no_version", [{**gate, "versions": ["<1"]}], ignore_errors=True),
        task("both", [{**gate, "diff": GATE}], ignore_errors=True),
    ])  # fmt: skip
    assert {name for name, result in results.items() if result["changed"]} == {"foretold", "on", "away", "crlf"}
    assert results["foretold"]["diff"] == results["on"]["diff"]
    assert output.count("+    return major in (9, 10, 12)") == 2
    assert results["unlisted"]["warnings"][0].startswith("Patch gate is on")
    assert results["away"]["removed"] == ["gate"]
    assert environment.read("toy/sub/y.py") == Y
    assert (environment.site / "toy/data.txt").read_bytes() == b"a\r\n{{ c }}"
    assert "could not be read on the controller" in results["no_file"]["msg"]
    assert "Patch gate is for toy <1; installed is 1.2.3" in results["no_version"]["msg"]
    assert "mutually exclusive: patch|diff" in results["both"]["msg"]


def test_tasks_of_the_role(environment, tmp_path):
    five = {"name": "five", "diff": FIVE, "package": "toy"}

    def role(patches, path=environment.path, **more):
        variables = {"_sglang_environment_path": str(path), "sglang_patches": patches, "sglang_patches_exclusive": "false", **more}
        return {"ansible.builtin.include_role": {"name": "ringmaster.gpu.sglang", "tasks_from": "patches"}, "vars": variables}

    def kept(name):
        return {"ansible.builtin.debug": {"var": "__sglang_patches"}, "register": name}

    results, _output = play(tmp_path, [
        role([five]), kept("on"),
        role([five]), kept("again"),
        role([]), kept("unlisted"),
        role([], sglang_patches_exclusive="true"), kept("away"),
    ])  # fmt: skip
    found = {name: result["__sglang_patches"] for name, result in results.items()}
    assert {name: result["changed"] for name, result in found.items()} == {"on": True, "again": False, "unlisted": False, "away": True}
    assert found["on"]["patches"][0]["name"] == "five"
    assert found["unlisted"]["unlisted"] == ["five"]
    results, _output = play(tmp_path, [role([five], path="/not/built/yet"), kept("not_built")], "--check")
    assert results["not_built"]["__sglang_patches"]["skipped"]
    assert environment.read("toy/x.py") == X


# --- the worked example


@pytest.fixture(scope="module")
def wheel():
    """The wheel of SGLang 0.5.16 from the index that pip uses; it stays in .cache."""
    folder = ROOT / ".cache/wheels"
    words = ["--no-deps", "--only-binary=:all:", "--platform=manylinux_2_34_x86_64", "--python-version=3.11", "sglang==0.5.16"]
    if not list(folder.glob("sglang-0.5.16-*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--retries=1", "--timeout=20", "--dest", folder, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = f"SGLang's wheel cannot be downloaded: {(done.stderr.strip().splitlines() or ['?'])[-1]}"
            (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    return next(folder.glob("sglang-0.5.16-*.whl"))


def test_worked_example_on_the_real_sglang(environment, wheel):
    """The two places are there, take the patch at the stated lines, are Python afterwards, and are the wheel's own bytes in the end."""
    with zipfile.ZipFile(wheel) as archive:
        wanted = [name for name in archive.namelist() if re.search(r"srt/layers/[a-z_]+\.py$|\.dist-info/METADATA$", name)]
        archive.extractall(environment.site, wanted)
    text = EXAMPLE.read_text()
    comment = text[: text.index("--- a/")]
    (listed,) = yaml.safe_load(comment[comment.index("    sglang_patches:") : comment.index("The context lines")])["sglang_patches"]
    assert EXAMPLE.parents[1] / listed["patch"] == EXAMPLE
    before = {path: path.read_bytes() for path in environment.site.glob("sglang/srt/layers/*.py")}
    patch = item(listed["name"], text, package="sglang", versions=listed["versions"])
    result = patched_environment.change(str(environment.path), [patch], False, False)
    assert (result["applied"], result["offsets"]) == (["flashinfer-fusion-sm120"], {})
    changed = {path.name: path.read_text() for path, content in before.items() if path.read_bytes() != content}
    assert sorted(changed) == ["communicator.py", "flashinfer_comm_fusion.py"]
    lines = [line for shown in result["diff"] for line in shown["prepared"].splitlines() if re.match(r"\+[^+]", line)]
    assert len(lines) == 2
    assert all("12" in line and "torch.cuda.get_device_capability" in line for line in lines)
    assert all(re.search(r"^import torch$", source, re.M) for source in changed.values())
    gone = patched_environment.change(str(environment.path), [item(listed["name"], state="absent", package="sglang")], False, False)
    assert gone["removed"] == ["flashinfer-fusion-sm120"]
    assert {path: path.read_bytes() for path in before} == before
