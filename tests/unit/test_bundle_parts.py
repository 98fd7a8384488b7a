# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files cut into parts and put together again, and a manifest that is none."""

from __future__ import annotations

import json

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import bundle_files, bundle_unpack
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.plugin_utils import bundle_parts

CONTENT = {
    "wheels/a.whl": b"a" * 1000,
    "wheels/big.whl": bytes(range(256)) * 300,
    "debs/Packages": b"",
    "locks/" + "long" * 40 + ".txt": b"l",
}


@pytest.fixture
def made(tmp_path):
    """(folder, rows) of a bundle's files."""
    for path, data in CONTENT.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(data)
    return tmp_path, [bundle_files.row(str(tmp_path), path) for path in CONTENT]


def paths(folder, parts):
    return [str(folder / row["path"]) for row in parts]


@pytest.mark.parametrize("size", [511, 1000, 10240, 1 << 20])
def test_there_and_back(made, tmp_path, size):
    folder, rows = made
    parts = bundle_parts.split(folder, rows, size, False, lambda text: None)
    assert [row["bytes"] for row in parts[:-1]] == [size] * (len(parts) - 1)
    assert 0 < parts[-1]["bytes"] <= size
    assert bundle_files.faults(str(folder), parts) == {}
    bundle_unpack.unpack(paths(folder, parts), rows, str(tmp_path / "out"))
    assert {path: (tmp_path / "out" / path).read_bytes() for path in CONTENT} == CONTENT


def test_the_same_files_give_the_same_parts_whatever_their_order_and_time(made):
    folder, rows = made
    first = bundle_parts.split(folder, rows, 1000, False, lambda text: None)
    (folder / "wheels/a.whl").touch()
    (folder / "wheels/a.whl").chmod(0o600)
    assert bundle_parts.split(folder, rows[::-1], 1000, False, lambda text: None) == first


def test_files_go_as_they_are_in(made):
    folder, rows = made
    bundle_parts.split(folder, rows, 1000, True, lambda text: None)
    assert not [path for path in CONTENT if (folder / path).exists()]


def test_what_is_there_and_whole_is_left(made, tmp_path):
    folder, rows = made
    parts = bundle_parts.split(folder, rows, 1000, False, lambda text: None)
    out = tmp_path / "out/wheels"
    out.mkdir(parents=True)
    (out / "a.whl").write_bytes(CONTENT["wheels/a.whl"])
    (out / "big.whl").write_bytes(b"?" * len(CONTENT["wheels/big.whl"]))
    before = (out / "a.whl").stat().st_ino, (out / "big.whl").stat().st_ino
    bundle_unpack.unpack(paths(folder, parts), rows, str(tmp_path / "out"))
    assert (out / "a.whl").stat().st_ino == before[0]
    assert (out / "big.whl").read_bytes() == CONTENT["wheels/big.whl"]
    assert sorted(path.name for path in out.iterdir()) == ["a.whl", "big.whl"]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda parts, rows: (parts[:-20], rows), "are no archive"),
        (lambda parts, rows: (parts[5:], rows), "are no archive"),
        (lambda parts, rows: (parts, rows[1:]), "hold wheels/a.whl, which the manifest does not name"),
        (lambda parts, rows: (parts, [*rows, {"path": "wheels/more.whl", "bytes": 1, "sha256": "0" * 64}]), "lack wheels/more.whl"),
        (lambda parts, rows: (parts, [{**row, "sha256": "0" * 64} for row in rows]), "has another checksum"),
    ],
)
def test_parts_that_are_not_the_manifests(made, tmp_path, spoil, said):
    folder, rows = made
    parts = bundle_parts.split(folder, rows, 1000, False, lambda text: None)
    pieces, wanted = spoil(paths(folder, parts), rows)
    with pytest.raises(RingmasterError, match=said):
        bundle_unpack.unpack(pieces, wanted, str(tmp_path / "out"))
    assert not list(tmp_path.glob("out/**/*.building"))


GOOD = {"format": 1, "name": "n", "profile": "full", "machine": "x86_64", "python": None, "distribution": None,
        "sglang": None, "cuda": None, "files": [{"path": "wheels/a.whl", "bytes": 1, "sha256": "0" * 64}], "parts": []}  # fmt: skip


def test_a_manifest():
    assert bundle_files.parse(json.dumps(GOOD), "m") == GOOD


@pytest.mark.parametrize(
    "wrong",
    [
        {"format": 2},
        {"format": None},
        {"name": "../n"},
        {"name": ""},
        {"files": []},
        {"files": {}},
        {"parts": None},
        {"sglang": "0.5.16"},
        {"sglang": {"version": "0.5.16"}},
        {"sglang": {"version": "0.5.16", "cuda": "13.0", "lock": "../lock"}},
        {"sglang": {"version": "0.5.16", "cuda": "13.0", "lock": "lock", "site": "/etc"}},
        *({"files": [{**GOOD["files"][0], **row}]} for row in (
            {"path": "/etc/passwd"}, {"path": "a\0b"}, {"path": "../a"}, {"path": "wheels/../../a"}, {"path": ""}, {"path": None},
            {"bytes": "1"}, {"sha256": "0"}, {"sha256": None})),
    ],
)  # fmt: skip
def test_no_manifest(wrong):
    with pytest.raises(RingmasterError, match=r"m (is damaged|has format)"):
        bundle_files.parse(json.dumps({**GOOD, **wrong}), "m")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"text"', "{}"])
def test_text_that_is_none(text):
    with pytest.raises(RingmasterError, match="m is no manifest"):
        bundle_files.parse(text, "m")


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (58 << 20, "58.0 MiB"), (5 << 30, "5.0 GiB")])
def test_sizes_for_people(count, text):
    assert bundle_files.size(count) == text
