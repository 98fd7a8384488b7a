# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a slim bundle leaves out and why, and the tree that it makes of wheels."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import bundle_unpack
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.plugin_utils import bundle_slim
from ansible_collections.ringmaster.gpu.plugins.plugin_utils.bundle_lock import Pin

RULES = [{"name": "nvidia-*", "but": ["nvidia-ml-py"], "reason": "libraries"}, {"name": "outlines", "reason": "a grammar backend"}]
HOST = {"numpy": "2.2.0", "transformers": "4.0", "tokenizers": "0.22", "torch": ""}


def pin(name, version="1"):
    return Pin(name, version, frozenset({"0" * 64}))


@pytest.mark.parametrize(
    ("name", "version", "reason"),
    [
        ("sglang", "0.5.16", ""),
        ("nvidia-nccl-cu13", "2.28", "libraries"),
        ("nvidia-ml-py", "13", ""),
        ("outlines", "1", "a grammar backend"),
        ("numpy", "2.2.0", "the host has 2.2.0"),
        ("numpy", "2.3.0", "the host has 2.2.0, the lock says 2.3.0"),
        ("transformers", "5.0", ""),  # named in carry_anyway, and the host's will not do
        ("tokenizers", "0.22", "the host has 0.22"),  # named, but the host's will do
        ("torch", "2.11", "the host has it, the lock says 2.11"),
    ],
)
def test_what_is_left_out(name, version, reason):
    carried, left = bundle_slim.select([pin(name, version)], HOST, ["Transformers", "tokenizers"], RULES)
    assert left.get(name, "") == reason
    assert [one.name for one in carried] == ([] if reason else [name])


def test_the_rules_have_reasons():
    rules = bundle_slim.rules()
    assert rules["flags"] == {"attention-backend": "triton", "sampling-backend": "pytorch", "grammar-backend": "none"}
    for row in [*rules["packages"], *rules["files"]]:
        assert row["reason"].strip()
    assert bundle_slim.select([pin("sglang")], {}, [], rules["packages"])[1] == {}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("numpy==2.2.0", {"numpy": "2.2.0"}),
        ("Jinja2    3.1.6", {"jinja2": "3.1.6"}),
        ("cuda_python 13.0.1  # with a comment", {"cuda-python": "13.0.1"}),
        ("torch @ file:///wheels/torch.whl", {"torch": ""}),
        ("Package    Version", {}),
        ("---------- -------", {}),
        ("-e /src/mine", {}),
        ("", {}),
        ("# nothing", {}),
    ],
)
def test_what_a_host_has(line, found):
    assert bundle_slim.host_packages(line + "\n", "file") == found


def test_a_line_that_is_no_package():
    with pytest.raises(RingmasterError, match="file: `numpy` is no package"):
        bundle_slim.host_packages("numpy\n", "file")


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("a/b.py", "a/b.py"),
        ("a-1.data/purelib/a/c.py", "a/c.py"),
        ("a-1.data/platlib/a.so", "a.so"),
        ("a-1.data/scripts/a", ""),
        ("a-1.data/headers/a.h", ""),
        ("a-1.data/data/share/a", ""),
    ],
)
def test_where_a_file_goes(name, place):
    assert bundle_slim.place(name) == place


@pytest.mark.parametrize("name", ["../a.py", "/etc/passwd", "a/../../b"])
def test_a_wheel_that_reaches_out(name):
    with pytest.raises(RingmasterError, match="A wheel holds"):
        bundle_slim.place(name)


@pytest.fixture
def site(tmp_path):
    wheel = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("a/__init__.py", "a/big/kernel.so", "a-1.data/purelib/a/more.py", "a-1.data/scripts/a", "a-1.dist-info/RECORD"):
            archive.writestr(name, f"# {name}\n")
        archive.writestr("a-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: a\nVersion: 1\n")
        tool = zipfile.ZipInfo("a/tool")
        tool.external_attr = 0o755 << 16
        archive.writestr(tool, "#!/bin/sh\n")
    bundle_slim.add_wheel(wheel, tmp_path / "site", ["*/big/*"])
    return tmp_path / "site"


def test_a_tree_of_a_wheel_is_importable_and_knows_its_files(site):
    code = "import a, a.more, importlib.metadata as m; print(m.version('a'), *sorted(str(f) for f in m.files('a')))"
    done = subprocess.run([sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(site)}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "a-1.dist-info/METADATA", "a-1.dist-info/RECORD", "a/__init__.py", "a/more.py", "a/tool"]
    assert (site / "a/tool").stat().st_mode & 0o777 == 0o755
    assert (site / "a/more.py").stat().st_mode & 0o777 == 0o644


@pytest.mark.skipif(not shutil.which("xz"), reason="needs xz")
def test_packed_and_unpacked_the_same_bytes_each_time(site, tmp_path):
    total = bundle_slim.pack(site, tmp_path / "one.tar.xz")
    for path in site.rglob("*.py"):
        path.touch()
    bundle_slim.pack(site, tmp_path / "two.tar.xz")
    assert (tmp_path / "one.tar.xz").read_bytes() == (tmp_path / "two.tar.xz").read_bytes()
    bundle_unpack.unpack_tree(str(tmp_path / "one.tar.xz"), str(tmp_path / "out"))
    files = {str(path.relative_to(site)): path.read_bytes() for path in site.rglob("*") if path.is_file()}
    out = tmp_path / "out"
    assert {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()} == files
    assert bundle_unpack.tree_seen(str(out)) == [len(files), total]
    assert (out / "a/tool").stat().st_mode & 0o111
    (out / "a/more.py").unlink()
    bundle_unpack.unpack_tree(str(tmp_path / "one.tar.xz"), str(out))
    assert bundle_unpack.tree_seen(str(out)) == [len(files), total]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["out", "site"]
