# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a lock says, what of it a target needs, and which wheels run there."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.plugin_utils import bundle_lock
from ansible_collections.ringmaster.gpu.plugins.plugin_utils.bundle_target import Target

ROOT = Path(__file__).resolve().parents[2]
A, B = "a" * 64, "b" * 64
WITH = f"--hash=sha256:{A}"


@pytest.mark.parametrize(
    ("text", "name", "version", "marker"),
    [
        (f"einops==0.8.2 {WITH}", "einops", "0.8.2", ""),
        (f"Nvidia_NCCL.cu13==2.28.9 \\\n    {WITH}\n    # via torch\n", "nvidia-nccl-cu13", "2.28.9", ""),
        (f"torch==2.11.0+cu130 ; sys_platform == 'linux' \\\n  {WITH}", "torch", "2.11.0+cu130", 'sys_platform == "linux"'),
        (f"a @ https://example.net/a-1-py3-none-any.whl {WITH}", "a", "", ""),
        (f"a[x,y]==1.0  {WITH}  # why", "a", "1.0", ""),
    ],
)
def test_a_line(text, name, version, marker):
    (pin,), options = bundle_lock.parse(text, "lock")
    assert (pin.name, pin.version, pin.marker, pin.sha256, options) == (name, version, marker, {A}, [])


def test_several_hashes_and_where_packages_are():
    text = f"--extra-index-url https://example.net/simple\n# a comment\na==1 {WITH} \\\n  --hash=sha256:{B} --hash=md5:00\n"
    (pin,), options = bundle_lock.parse(text, "lock")
    assert pin.sha256 == {A, B}
    assert options == ["--extra-index-url", "https://example.net/simple"]
    assert pin.line() == f"a==1 --hash=sha256:{A} --hash=sha256:{B}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a==1.0", "a has no sha256"),
        (f"a>=1.0 {WITH}", "a>=1.0 is no single version"),
        (f"a==1.* {WITH}", "is no single version"),
        (f"a {WITH}", "is no single version"),
        (f"-e ./a {WITH}", "has no place in a lock"),
        (f"a b c {WITH}", "is no requirement"),
        ("# nothing\n", "names no package"),
    ],
)
def test_what_is_no_lock_is_refused(text, said):
    with pytest.raises(RingmasterError, match=said):
        bundle_lock.parse(text, "lock")


@pytest.mark.parametrize(
    ("marker", "machine", "python", "needed"),
    [
        ("sys_platform == 'win32'", "x86_64", "3.12", False),
        ("sys_platform == 'linux' and platform_machine == 'aarch64'", "x86_64", "3.12", False),
        ("sys_platform == 'linux' and platform_machine == 'aarch64'", "aarch64", "3.12", True),
        ("python_version < '3.11'", "x86_64", "3.12", False),
        ("python_full_version >= '3.12'", "x86_64", "3.12", True),
        ("python_version >= '3.9'", "x86_64", "3.10", True),  # as versions, not as text
        ("platform_python_implementation != 'CPython' or os_name == 'nt'", "x86_64", "3.12", False),
    ],
)
def test_markers_are_asked_for_the_target_not_for_this_python(marker, machine, python, needed):
    pins, _options = bundle_lock.parse(f"a==1 ; {marker} {WITH}", "lock")
    assert bool(bundle_lock.of_target(pins, Target(machine, python).marker_environment, "lock")) is needed


def test_one_package_by_target():
    pins, _options = bundle_lock.parse(f"a==1 ; python_version < '3.11' {WITH}\na==2 ; python_version >= '3.11' {WITH}", "lock")
    assert [pin.version for pin in bundle_lock.of_target(pins, Target("x86_64", "3.12").marker_environment, "lock")] == ["2"]
    both, _options = bundle_lock.parse(f"a==1 {WITH}\na==2 {WITH}", "lock")
    with pytest.raises(RingmasterError, match="a is there as 1 and 2"):
        bundle_lock.of_target(both, Target("x86_64", "3.12").marker_environment, "lock")
    twice, _options = bundle_lock.parse(f"a==1 ; python_version > '3.9' {WITH}\na==1 ; sys_platform == 'linux' {WITH}", "lock")
    assert [pin.version for pin in bundle_lock.of_target(twice, Target("x86_64", "3.12").marker_environment, "lock")] == ["1"]


@pytest.mark.parametrize("tags", ["py3-none-any", "py2.py3-none-any", "cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64",
                                  "cp310-abi3-manylinux2014_x86_64", "cp39-abi3-manylinux_2_28_x86_64", "cp312-cp312-linux_x86_64",
                                  "py3-none-manylinux1_x86_64", "py3-none-manylinux_2_35_x86_64", "cp312-none-any"])  # fmt: skip
def test_wheels_that_run(tags):
    assert Target("x86_64", "3.12").takes(f"a-1-{tags}.whl")


@pytest.mark.parametrize("tags", ["cp311-cp311-manylinux2014_x86_64", "cp313-abi3-manylinux2014_x86_64", "cp312-cp312-musllinux_1_2_x86_64",
                                  "cp312-cp312-manylinux2014_aarch64", "cp312-cp312-win_amd64", "cp312-cp312-macosx_11_0_arm64",
                                  "py3-none-manylinux_2_39_x86_64", "cp312-cp312t-manylinux2014_x86_64", "nonsense"])  # fmt: skip
def test_wheels_that_do_not(tags):
    assert not Target("x86_64", "3.12").takes(f"a-1-{tags}.whl")


def test_the_c_library_is_the_distributions():
    assert Target("x86_64", "3.12", "ubuntu2404").takes("a-1-py3-none-manylinux_2_39_x86_64.whl")
    assert not Target("aarch64", "3.12").takes("a-1-py3-none-manylinux_2_12_aarch64.whl")  # there was no Linux on ARM that old
    assert Target("aarch64", "3.12").takes("a-1-py3-none-manylinux2014_aarch64.whl")


@pytest.mark.parametrize(
    ("given", "said"), [(("riscv", "3.12", ""), "bundle_machine is 'riscv'"), (("x86_64", "3.1.2", ""), "bundle_python is '3.1.2'"),
                        (("x86_64", "2.7", ""), "bundle_python"), (("x86_64", "", "debian9"), "bundle_distribution is 'debian9'")]
)  # fmt: skip
def test_targets_that_there_are_not(given, said):
    with pytest.raises(RingmasterError, match=said):
        Target(*given)


@pytest.mark.parametrize("lock", sorted((ROOT / "roles/sglang/files/locks").glob("*-cu*.txt")), ids=lambda path: path.stem)
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_shipped_locks_are_for_both_machines(lock, machine):
    pins, _options = bundle_lock.parse(lock.read_text(encoding="utf-8"), lock.name)
    chosen = {pin.name: pin for pin in bundle_lock.of_target(pins, Target(machine, "3.12").marker_environment, lock.name)}
    assert chosen["sglang"].version in lock.name
    assert {"torch", "transformers"} <= set(chosen)
