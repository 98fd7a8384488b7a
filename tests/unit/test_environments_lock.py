# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What lock files say, and that the shipped ones are of what they claim to be, with nothing that would have to be compiled."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import environments_lock as locks
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "roles/sglang/files/locks"
SHIPPED = sorted(LOCKS.glob("*-cu*.txt"))
PYPI = "https://pypi.org/simple"
HASH = "0" * 64
# SGLang: what its own wheel pins, and the library that comes with that torch
PINS = {
    "0.5.16-cu130": {"torch": "2.11.0", "nvidia-nccl-cu13": "2.28.9", "flashinfer-python": "0.6.14", "nvidia-cuda-runtime": "13.0.96"},
    "0.5.23-cu130": {"torch": "2.14.1", "nvidia-nccl-cu13": "2.30.7", "flashinfer-python": "0.7.2", "nvidia-cuda-runtime": "13.0.96"},
}


def pin(line, checksum=HASH):
    return f"{line} \\\n    --hash=sha256:{checksum}\n"


def test_a_lock_is_read():
    text = f"# python: >=3.10, <3.13\n# disk: 9000 MiB\n{pin('Foo_Bar==1.0')}{pin('numpy==2.3 ; python_version < 3')}{pin('numpy==2.4')}"
    assert locks.parse(text) == {
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "versions": {"foo-bar": ["1.0"], "numpy": ["2.3", "2.4"]},
        "python": ">=3.10, <3.13",
        "disk_mib": 9000,
        "no_deps": False,
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no package"),
        ("# only a comment\n", "names no package"),
        ("sglang>=0.5\n", "'sglang>=0.5'"),
        (pin("torch==2.11.0") + "sglang\n", "'sglang'"),
        ("sglang==0.5.16\n" + pin("torch==2.11.0"), "no checksum for sglang 0.5.16"),
        (pin("torch==2.11.0") + "sglang==0.5.16\n", "no checksum for sglang 0.5.16"),
        (pin("torch==2.11.0") + "-e ./sglang\n", "has the line '-e ./sglang'. Each package is a line NAME==VERSION with its checksums"),
        (pin("torch==2.11.0") + "-r more.txt\n", "'-r more.txt'"),
        (pin("torch==2.11.0") + "-c more.txt\n", "'-c more.txt'"),
        (pin("torch==2.11.0") + pin("./a-1-py3-none-any.whl"), "'./a-1-py3-none-any.whl"),
        (pin("torch==2.11.0") + pin("  sglang==0.5.16"), "'  sglang==0.5.16"),
        (pin("torch==2.11.0") + pin("sglang == 0.5.16"), "'sglang == 0.5.16"),
        (pin("sglang==0.5.*"), "'sglang==0.5.*"),
        (pin("sglang===0.5"), "'sglang===0.5"),
        (pin("sglang==0.5,<1"), "'sglang==0.5,<1"),
        ("# python: ~=3.12\n" + pin("torch==2.11.0"), "`# python: ~=3.12` is not understood"),
        ("# python: >3.12, 3.14\n" + pin("torch==2.11.0"), "`# python: >3.12, 3.14` is not understood"),
    ],
)
def test_what_is_no_lock_is_refused(text, words):
    with pytest.raises(RingmasterError, match=re.escape(words)):
        locks.parse(text)


def test_a_lock_may_say_where_packages_are():
    options = "--index-url https://x/simple\n--extra-index-url=https://y\n-f wheels\n--no-index\n--trusted-host x\n--only-binary :all:\n"
    assert locks.parse(options + pin("torch[a,b]==1!2.11.0+cu130;os_name=='posix'"))["versions"] == {"torch": ["1!2.11.0+cu130"]}


@pytest.mark.parametrize(
    ("allowed", "version", "verdict"),
    [
        ("", "3.9.1", True),
        (">=3.10, <3.13", "3.10.0", True),
        (">=3.10, <3.13", "3.12.99", True),
        (">=3.10, <3.13", "3.13.0", False),
        (">=3.10, <3.13", "3.9.18", False),
        (">=3.10,<=3.12", "3.12.4", True),
        (">3.10", "3.10.4", False),
        ("!=3.11, >=3.10", "3.11.4", False),
        ("==3.12", "3.12.3", True),
        (">=3.11.5", "3.11.4", False),
    ],
)
def test_ranges_of_interpreters(allowed, version, verdict):
    assert locks.allows(allowed, version) is verdict


def test_a_range_that_is_none_is_refused():
    with pytest.raises(RingmasterError, match="not understood"):
        locks.allows("3.10 or newer", "3.11.2")


@pytest.mark.parametrize(
    ("installed", "found"),
    [
        ({"SGLang": "0.5.16", "torch": "2.11.0"}, []),
        ({"sglang": "0.5.16", "torch": "2.10.0"}, ["torch is 2.10.0, not 2.11.0 or 2.12.0"]),
        ({"torch": "2.12.0"}, ["sglang is missing"]),
        ({"sglang": "0.5.16", "left-pad": "1"}, ["left-pad 1 is not in the lock"]),
    ],
)
def test_what_is_installed_is_compared(installed, found):
    lock = locks.parse(pin("sglang==0.5.16") + pin("torch==2.11.0") + pin("torch==2.12.0"))
    assert locks.differences(lock, installed) == found


def test_uv_is_chosen_by_machine_and_checked():
    text = (LOCKS / "uv.txt").read_text(encoding="utf-8")
    version = locks.parse(text)["versions"]["uv"][0]
    x86, arm = (f"uv-{version}-py3-none-manylinux_2_17_{machine}.manylinux2014_{machine}.whl" for machine in ("x86_64", "aarch64"))
    names = [arm, f"uv-{version}-py3-none-musllinux_1_1_x86_64.whl", "uv-0.0.1-py3-none-manylinux_2_17_x86_64.whl", x86]
    assert locks.choose_uv(names, text, "x86_64") == (x86, version)
    assert locks.choose_uv(names, text, "aarch64") == (arm, version)
    assert locks.choose_uv(names, text, "riscv64") == (None, version)
    with pytest.raises(RingmasterError, match="its lock does not have"):
        locks.check_uv(b"something else", text, x86)


def test_the_uv_of_hosts_is_the_one_of_development():
    pinned = re.search(r"^uv==(\S+)", (ROOT / "requirements-dev.txt").read_text(encoding="utf-8"), re.M)[1]
    assert locks.parse((LOCKS / "uv.txt").read_text(encoding="utf-8"))["versions"] == {"uv": [pinned]}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_lock_is_what_its_name_says(path):
    lock = locks.parse(path.read_text(encoding="utf-8"))
    assert lock["versions"]["sglang"] == [path.stem.partition("-")[0]]
    assert {name: lock["versions"][name][0] for name in PINS[path.stem]} == PINS[path.stem]
    assert locks.allows(lock["python"], "3.12.3")
    assert lock["disk_mib"] > 4000


# --- the real wheels, as far as they can be checked without gigabytes: uv reads the metadata of every file from PyPI

CASES = [
    ("0.5.16-cu130", "3.10", "x86_64-manylinux_2_34"),
    ("0.5.23-cu130", "3.12", "x86_64-manylinux_2_34"),
    ("0.5.23-cu130", "3.12", "aarch64-manylinux_2_34"),
]


@pytest.fixture(scope="module")
def uv(tmp_path_factory):
    program = ROOT / ".venv/bin/uv"
    if not program.exists() and not shutil.which("uv"):
        pytest.skip("no uv: make setup-dev")
    empty = tmp_path_factory.mktemp("uv")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_"))}
    clean.update(UV_NO_CONFIG="1", UV_DEFAULT_INDEX=PYPI, UV_PYTHON_DOWNLOADS="never", UV_CACHE_DIR=str(empty / "cache"))

    def run(*arguments):
        words = [str(program if program.exists() else "uv"), *map(str, arguments)]
        return subprocess.run(words, env=clean, cwd=empty, capture_output=True, text=True, timeout=300, check=False)

    return run


def would_install(uv, lock, target, python, platform):
    """uv's answer to: install all of LOCK there, from wheels alone, each by its checksum; nothing is installed."""
    return uv("pip", "install", "--dry-run", "--require-hashes", "--no-build", f"--target={target}", f"--python-version={python}",
              f"--python-platform={platform}", f"--requirements={lock}")  # fmt: skip


@pytest.mark.parametrize(("name", "python", "platform"), CASES)
def test_a_shipped_lock_can_be_installed_from_wheels_alone(uv, tmp_path, name, python, platform):
    done = would_install(uv, LOCKS / f"{name}.txt", tmp_path / "site", python, platform)
    assert done.returncode == 0, done.stderr
    assert f"sglang=={name.partition('-')[0]}" in done.stderr
    assert not list((tmp_path / "site").glob("*.dist-info"))


def test_that_test_can_fail(uv, tmp_path):
    text = (LOCKS / "0.5.16-cu130.txt").read_text(encoding="utf-8")
    done = would_install(uv, LOCKS / "0.5.16-cu130.txt", tmp_path / "site", "3.13", "x86_64-manylinux_2_34")
    assert done.returncode == 0  # its markers leave Python 3.13 without a single package, and the role refuses to try
    assert "sglang" not in done.stderr
    broken = tmp_path / "broken.txt"
    broken.write_text(text.replace("torch==2.11.0", "torch==2.11.1"), encoding="utf-8")
    assert would_install(uv, broken, tmp_path / "site", "3.12", "x86_64-manylinux_2_34").returncode != 0
