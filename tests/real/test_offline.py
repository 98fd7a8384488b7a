# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a bundle to a verdict with a real SGLang, in a container that has no route out: bundle.yml, provision.yml, tune.yml, provision.yml.

The bundle holds the wheels of requirements-cpu.txt with their checksums, and one more wheel for standins/: see README.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
REAL = Path(os.environ.get("RINGMASTER_REAL_DIR") or ROOT / ".cache" / "real").resolve()
CONTAINER = "rm-test-real-offline"
STANDINS = "ringmaster_cpu_standins-1.0"


def run(*words, **more):
    done = subprocess.run(list(map(str, words)), cwd=ROOT, capture_output=True, text=True, check=False, **more)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def standins(folder):
    """A wheel of standins/, all of whose files belong at the top of site-packages."""
    content = {path.name: path.read_text() for path in sorted((HERE / "standins").iterdir()) if path.is_file()}
    info = f"{STANDINS}.dist-info"
    content[f"{info}/METADATA"] = "Metadata-Version: 2.1\nName: ringmaster-cpu-standins\nVersion: 1.0\n"
    content[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    content[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*content, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{STANDINS}-py3-none-any.whl", "w") as wheel:
        for name, text in content.items():
            wheel.writestr(zipfile.ZipInfo(name), text)


def index(wheels, folder):
    """A PEP 503 index of the directory WHEELS, and its lock, below FOLDER."""
    lines = ["# no-deps: sglang asks for packages of CUDA\n"]
    for wheel in sorted(wheels.glob("*.whl")):
        name, version = wheel.name.split("-")[:2]
        name = re.sub(r"[-_.]+", "-", name).lower()
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        page = folder / "simple" / name / "index.html"
        page.parent.mkdir(parents=True)
        page.write_text(f'<!DOCTYPE html><html><body><a href="{wheel.as_uri()}#sha256={digest}">{wheel.name}</a></body></html>\n')
        lines.append(f"{name}=={version} --hash=sha256:{digest}\n")
    (folder / "lock.txt").write_text("".join(lines))


def inventory(container):
    """The host of inventory/, with its server under systemd, from a bundle."""
    host = yaml.safe_load((HERE / "inventory" / "hosts.yml").read_text())["inference"]["vars"]
    wanted = {
        "ansible_host": container["address"],
        "ansible_user": container["user"],
        "ansible_ssh_private_key_file": container["identity_file"],
        "ansible_ssh_common_args": f"-o UserKnownHostsFile={container['known_hosts']}",
        "ansible_python_interpreter": "/usr/bin/python3",
        "sglang_source": "bundle",
        "sglang_packages": [],  # what compiles kernels for GPUs
        "sglang_model_path": "/models/small",
    }
    kept = {name: host[name] for name in ("sglang_flags", "sglang_environment", "tune_workloads")}
    return {"inference": {"hosts": {CONTAINER: {**kept, **wanted}}}}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """(directory with a bundle to be made, its inventory, exec(words) in the container)."""
    if os.geteuid() and os.environ.get("CI") != "true":
        pytest.skip("containers need root")
    if not (REAL / "env" / ".stamp").exists():
        pytest.fail("tests/real/build has to run first")
    place = tmp_path_factory.mktemp("offline")
    wheels = place / "wheels"
    wheels.mkdir()
    run(REAL / "env/bin/python", "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", f"--dest={wheels}",
        f"--requirement={HERE / 'requirements-cpu.txt'}")  # fmt: skip
    standins(wheels)
    index(wheels, place)
    harness = ROOT / "tests" / "lab" / "lxc.py"
    run(harness, "install")
    run(harness, "down", "--name", CONTAINER)
    try:
        container = json.loads(run(harness, "up", "--name", CONTAINER, "--suite", "bookworm"))

        def inside(*words, **more):
            return run(harness, "exec", "--name", CONTAINER, "--", *words, **more)

        assert inside("ip", "route", "show", "default") == ""
        inside("mkdir", "-p", "/models/small")
        for path in (REAL / "model").glob("[!.]*"):
            inside("tee", f"/models/small/{path.name}", input=path.read_text())
        (place / "hosts.yml").write_text(yaml.safe_dump(inventory(container)))
        yield place, inside
    finally:
        run(harness, "down", "--name", CONTAINER)
        shutil.rmtree(place)


def play(place, name, **given):
    """What the playbook NAME says, its lines joined."""
    given = {"sglang_version": "0.5.16", "bundle_dir": str(place / "bundle"), **given}
    environment = {**os.environ, "PIP_EXTRA_INDEX_URL": (place / "simple").as_uri(), "ANSIBLE_NOCOLOR": "1"}
    command = Path(sys.executable).with_name("ansible-playbook")
    return " ".join(run(command, "-i", place / "hosts.yml", name, "-e", json.dumps(given), env=environment).split())


def changed(printed):
    return int(re.search(rf"{CONTAINER} : ok=\d+ changed=(\d+)", printed)[1])


def test_from_a_bundle_to_a_verdict(lab):
    place, inside = lab
    made = play(place, "bundle.yml", sglang_lock=str(place / "lock.txt"), bundle_python="3.11", bundle_part_mib=100)
    manifest = json.loads((place / "bundle" / "manifest.json").read_text())
    assert manifest["sglang"]["version"] == "0.5.16", made
    assert len(manifest["parts"]) > 1

    assert changed(play(place, "provision.yml")) > 5
    assert "/opt/sglang/environments/" in inside("readlink", "-f", "/opt/sglang/current")
    assert changed(play(place, "provision.yml")) == 0

    told = play(place, "tune.yml", tune_flags={"enable-fp32-lm-head": None}, tune_allow_downtime=True)
    assert "kept as known-good version 2" in told
    assert "SIMULATED" not in told
    assert inside("systemctl", "is-active", "sglang").strip() == "active"
    assert "enable-fp32-lm-head" not in inside("sh", "-c", "tr '\\0' ' ' </proc/$(systemctl show -P MainPID sglang)/cmdline")
    assert changed(play(place, "provision.yml")) == 0  # what was kept stays
