# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A bundle on a host: what is missing in each state that a run can have left, what is refused, and when it counts as whole."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import bundle_files, bundle_host
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.plugin_utils import bundle_parts, bundle_slim

HERE = {"machine": "x86_64", "distribution": "debian12", "pythons": ["3.11", "3.12"]}
FILES = {"wheels/a-1-py3-none-any.whl": b"a" * 3000, "locks/lock.txt": b"a==1\n", "debs/Packages": b"P" * 100}


class Bundle:
    """A bundle and a host's directory."""

    def __init__(self, place, size, **more):
        self.source, self.folder = str(place / "source"), str(place / "host" / "n")
        for path, data in FILES.items():
            os.makedirs(os.path.dirname(os.path.join(self.source, path)), exist_ok=True)
            with open(os.path.join(self.source, path), "wb") as file:
                file.write(data)
        rows = [bundle_files.row(self.source, path) for path in FILES]
        parts = bundle_parts.split(place / "source", rows, size, True, lambda text: None) if size else []
        manifest = {"format": 1, "name": "n", "profile": "full", "machine": "x86_64", "python": "3.12", "distribution": "debian12"}
        self.text = json.dumps({**manifest, "sglang": None, "cuda": None, "files": rows, "parts": parts, **more})
        with open(os.path.join(self.source, "manifest.json"), "w", encoding="utf-8") as file:
            file.write(self.text)

    def look(self, **more):
        return bundle_host.look(self.text, "m", self.folder, **more)

    def bring(self, **more):
        """What the role does."""
        state = self.look(**more)
        if not state["complete"]:
            bundle_host.prepare(self.folder, state)
            for path in state["missing"]:
                shutil.copyfile(os.path.join(self.source, path), os.path.join(self.folder, path))
        return state["missing"], bundle_host.complete(self.text, "m", self.folder, **more)

    def there(self):
        return {path: open(os.path.join(self.folder, path), "rb").read() for path in FILES}

    def at(self, path):
        return os.path.join(self.folder, path)


@pytest.fixture(autouse=True)
def here(monkeypatch):
    monkeypatch.setattr(bundle_host, "this_host", lambda wanted, python: HERE)


@pytest.fixture(params=[0, 1000], ids=["files", "parts"])
def bundle(tmp_path, request):
    return Bundle(tmp_path, request.param)


def test_a_first_and_a_second_run(bundle):
    missing, done = bundle.bring()
    assert (len(missing), done["complete"], done["changed"], done["path"]) == (len(missing), True, True, bundle.folder)
    assert bundle.there() == FILES
    assert not os.path.exists(bundle.at("parts"))
    missing, done = bundle.bring()
    assert (missing, done["changed"]) == ([], False)


def spoil_bytes(bundle):
    """Contents only: size and time as they were."""
    path = bundle.at("wheels/a-1-py3-none-any.whl")
    seen = os.stat(path)
    with open(path, "r+b") as file:
        file.write(b"X")
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))


def test_what_cannot_be_seen_from_outside_is_found_when_asked(bundle):
    bundle.bring()
    spoil_bytes(bundle)
    assert bundle.look()["complete"]
    assert not bundle.look(verify=True)["complete"]
    bundle.bring(verify=True)
    assert bundle.there() == FILES
    assert bundle.look(verify=True)["complete"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda bundle: os.truncate(bundle.at("wheels/a-1-py3-none-any.whl"), 10),
        lambda bundle: os.unlink(bundle.at("debs/Packages")),
        lambda bundle: shutil.rmtree(bundle.at("locks")),
        lambda bundle: os.unlink(bundle.at("complete.json")),
        lambda bundle: os.utime(bundle.at("locks/lock.txt")),
        lambda bundle: bundle_files_written(bundle.at("complete.json"), b"{}"),
    ],
    ids=["cut", "gone", "folder gone", "no stamp", "touched", "another stamp"],
)
def test_it_is_mended(bundle, spoil):
    bundle.bring()
    spoil(bundle)
    assert not bundle.look()["complete"]
    bundle.bring()
    assert bundle.there() == FILES
    assert bundle.look()["complete"]


def bundle_files_written(path, data):
    with open(path, "wb") as file:
        file.write(data)


def test_files_that_are_whole_are_not_copied_again(tmp_path):
    bundle = Bundle(tmp_path, 0)
    bundle.bring()
    os.truncate(bundle.at("wheels/a-1-py3-none-any.whl"), 10)
    assert bundle.look()["missing"] == ["wheels/a-1-py3-none-any.whl"]
    os.unlink(bundle.at("complete.json"))
    assert bundle.look()["missing"] == ["wheels/a-1-py3-none-any.whl"]


def test_parts_that_have_arrived_are_not_copied_again(tmp_path):
    bundle = Bundle(tmp_path, 1000)
    state = bundle.look()
    bundle_host.prepare(bundle.folder, state)
    for path in state["missing"][:3]:
        shutil.copyfile(os.path.join(bundle.source, path), bundle.at(path))
    os.truncate(bundle.at(state["missing"][1]), 999)
    assert bundle.look()["missing"] == [state["missing"][1], *state["missing"][3:]]
    with pytest.raises(RingmasterError, match=r"bundle.tar.001 \(999 bytes instead of 1000\), .* and \d+ more is not what the manifest"):
        bundle_host.complete(bundle.text, "m", bundle.folder)
    assert not os.path.exists(bundle.at("complete.json"))
    bundle.bring()
    assert bundle.there() == FILES


def test_a_damaged_part_is_no_bundle(tmp_path):
    bundle = Bundle(tmp_path, 1000)
    with open(os.path.join(bundle.source, "parts/bundle.tar.002"), "r+b") as file:
        file.write(b"XXXX")
    with pytest.raises(RingmasterError, match=r"bundle.tar.002 \(damaged\) is not what the manifest says"):
        bundle.bring()
    assert not os.path.exists(bundle.at("complete.json"))


def test_another_bundle_of_that_name(tmp_path):
    Bundle(tmp_path / "old", 0)
    old = Bundle(tmp_path, 0)
    old.bring()
    bundle_files_written(old.at("wheels/old-1-py3-none-any.whl"), b"old")
    new = Bundle(tmp_path, 1000, request="other")
    assert not new.look()["complete"]
    new.bring()
    assert os.listdir(new.at("wheels")) == ["a-1-py3-none-any.whl"]
    assert json.loads(open(new.at("manifest.json"), encoding="utf-8").read())["request"] == "other"  # noqa: SIM115


def test_parts_are_kept_when_asked(tmp_path):
    bundle = Bundle(tmp_path, 1000)
    bundle.bring()
    assert not os.path.exists(bundle.at("parts"))
    os.truncate(bundle.at("debs/Packages"), 0)
    state = bundle.look()
    bundle_host.prepare(bundle.folder, state)
    for path in state["missing"]:
        shutil.copyfile(os.path.join(bundle.source, path), bundle.at(path))
    bundle_host.complete(bundle.text, "m", bundle.folder, keep_parts=True)
    assert os.path.exists(bundle.at("parts/bundle.tar.000"))


def test_a_bundle_that_is_on_the_host_is_used_where_it_is(bundle):
    state = bundle.look(source=bundle.source)
    assert (state["complete"], state["missing"]) == (False, [])
    bundle_host.prepare(bundle.folder, state)
    before = sorted(os.listdir(bundle.source))
    done = bundle_host.complete(bundle.text, "m", bundle.folder, bundle.source)
    split = "parts" in before
    assert done["path"] == (bundle.folder if split else bundle.source)
    assert bundle.look(source=bundle.source)["complete"]
    assert sorted(os.listdir(bundle.source)) == before
    assert os.path.exists(bundle.at("wheels")) is split


def test_a_bundle_on_the_host_that_is_damaged(bundle):
    row = bundle_files.carried(json.loads(bundle.text))[0]
    os.truncate(os.path.join(bundle.source, row["path"]), 1)
    with pytest.raises(RingmasterError, match="source: .* is not what the manifest says. .*bundle_remote_path"):
        bundle.look(source=bundle.source)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"machine": "aarch64"}, "for machine aarch64, this host is x86_64"),
        ({"distribution": "ubuntu2404"}, "for distribution ubuntu2404, this host is debian12"),
        ({"python": "3.10"}, "for Python 3.10, this host has 3.11, 3.12"),
        ({"machine": "aarch64", "python": "3.9"}, "machine aarch64, .*; Python 3.9"),
    ],
)
def test_a_bundle_for_another_host(tmp_path, more, said):
    with pytest.raises(RingmasterError, match=said):
        Bundle(tmp_path, 0, **more).look()


@pytest.mark.parametrize("more", [{"python": None}, {"distribution": None}, {"python": "3.11"}])
def test_a_bundle_that_does_not_care(tmp_path, more):
    assert not Bundle(tmp_path, 0, **more).look()["complete"]


def test_there_is_no_room(bundle, monkeypatch):
    monkeypatch.setattr(bundle_files, "free_bytes", lambda path: bundle_host.SLACK_BYTES + 3000)
    with pytest.raises(RingmasterError, match=f"{bundle.folder} has 64.0 MiB free, and 64.0 MiB are needed. .*bundle_remote_dir"):
        bundle.look()
    assert not os.path.exists(bundle.folder)


def test_the_tree_of_a_slim_bundle(tmp_path):
    site = tmp_path / "tree"
    (site / "pkg").mkdir(parents=True)
    (site / "pkg/__init__.py").write_text("x = 1\n")
    (tmp_path / "source").mkdir()
    total = bundle_slim.pack(site, tmp_path / "source/site.tar.xz")
    FILES["site.tar.xz"] = (tmp_path / "source/site.tar.xz").read_bytes()
    try:
        bundle = Bundle(tmp_path, 500, sglang={"version": "1", "cuda": "13.0", "lock": "l", "site": "site", "site_bytes": total})
        bundle.bring()
        assert (tmp_path / "host/n/site/pkg/__init__.py").read_text() == "x = 1\n"
        assert bundle.look()["complete"]
        (tmp_path / "host/n/site/pkg/__init__.py").unlink()
        assert not bundle.look()["complete"]
        missing, _done = bundle.bring()
        assert missing == []  # its archive is here
        assert (tmp_path / "host/n/site/pkg/__init__.py").exists()
    finally:
        del FILES["site.tar.xz"]
