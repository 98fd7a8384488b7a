# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bundles made for real from small wheels: pip fetches them, what is wrong is fetched again, what was cut off goes on."""

from __future__ import annotations

import fcntl
import hashlib
import http.server
import json
import os
import shutil
import threading
import zipfile
from pathlib import Path

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import bundle_files
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.plugin_utils import bundle_make, bundle_request, bundle_wheels

TAGS = {"sglang": "py3-none-any", "b": "cp312-cp312-manylinux_2_28_x86_64"}
OTHERS = ("b-1-cp311-cp311-manylinux_2_28_x86_64.whl", "b-1-cp312-cp312-manylinux_2_28_aarch64.whl")


def wheel(path):
    name, version = path.name.split("-")[:2]
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in {
            f"{name}/__init__.py": f"{path.name!r}\n",
            f"{name}-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            f"{name}-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n",
            f"{name}-{version}.dist-info/RECORD": "",
        }.items():
            archive.writestr(zipfile.ZipInfo(file), text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Place:
    """Wheels, a lock of them, and where a bundle is made."""

    def __init__(self, folder):
        self.wheels, self.lock, self.out = folder / "index", folder / "1-cu130.txt", folder / "out"
        self.wheels.mkdir()
        sums = {"sglang": [], "b": []}
        for name in [*(f"{name}-1-{tag}.whl" for name, tag in TAGS.items()), *OTHERS]:
            sums[name.split('-')[0]].append(wheel(self.wheels / name))
        self.lock.write_text("".join(f"{name}==1 {' '.join(f'--hash=sha256:{one}' for one in found)}\n" for name, found in sums.items()))
        self.said = []

    def given(self, **more):
        texts = dict.fromkeys(
            ("name", "uv_lock", "index_url", "cuda_version", "cuda_driver_version", "kernel", "dpkg_status", "distribution",
             "repository_url", "repository_key", "host_packages"), "",
        )  # fmt: skip
        lists = {name: [] for name in ("locks", "packages", "system_packages", "toolkit_packages", "build_packages", "driver_members",
                                       "repositories", "carry_anyway")}  # fmt: skip
        own = {
            "directory": str(self.out), "profile": "full", "machine": "x86_64", "python": "3.12", "sglang_version": "1",
            "lock": str(self.lock), "sglang_cuda": "13.0", "kernel_module": "auto", "driver_packages": {}, "part_mib": 0,
        }  # fmt: skip
        return {**texts, **lists, **own, **more}

    def make(self, refresh=False, check_mode=False, **more):
        self.said.clear()
        return bundle_make.make(bundle_request.read(self.given(**more)), self.said.append, refresh, check_mode)

    def fetched(self):
        return sorted(line.split(": ")[1].split(",")[0] for line in self.said if line.startswith("wheels ") and "/" in line)


@pytest.fixture
def place(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    made = Place(tmp_path)
    monkeypatch.setenv("PIP_FIND_LINKS", str(made.wheels))
    return made


SGLANG, NATIVE = (f"{name}-1-{tag}.whl" for name, tag in TAGS.items())
WANTED = [NATIVE, SGLANG]


def test_made_once_and_left_then(place):
    made = place.make()
    assert made["changed"]
    assert place.fetched() == WANTED
    assert sorted(path.name for path in place.out.iterdir()) == ["SHA256SUMS", "locks", "manifest.json", "wheels"]
    manifest = json.loads((place.out / "manifest.json").read_text())
    assert manifest["name"] == "sglang-1-cu130-python3.12-x86_64"
    assert manifest["sglang"] == {"version": "1", "cuda": "13.0", "lock": "locks/1-cu130.txt", "wheels": "wheels"}
    assert [row["path"] for row in manifest["files"]] == ["locks/1-cu130.txt", *(f"wheels/{name}" for name in WANTED)]
    assert bundle_files.faults(str(place.out), manifest["files"]) == {}
    assert (place.make()["changed"], place.said) == (False, [])


def test_for_another_machine_and_python(place):
    place.make(machine="aarch64")
    assert place.fetched() == [OTHERS[1], SGLANG]
    place.make(python="3.11")
    assert place.fetched() == [OTHERS[0]]  # the other was here, and what was for the machine before is gone
    assert sorted(path.name for path in (place.out / "wheels").iterdir()) == [OTHERS[0], SGLANG]


@pytest.mark.parametrize("spoil", [lambda path: path.write_bytes(b"damaged"), lambda path: path.unlink(),
                                   lambda path: path.rename(path.with_name("c-1-py3-none-any.whl"))])  # fmt: skip
def test_a_file_that_is_wrong_is_fetched_again(place, spoil):
    before = place.make()["manifest"]
    spoil(place.out / "wheels" / NATIVE)
    assert place.make()["changed"]
    assert place.fetched() == [NATIVE]
    assert place.make()["manifest"] == before


def test_what_had_come_when_it_was_cut_off_is_kept(place):
    shutil.move(place.wheels / NATIVE, place.wheels / "away")
    with pytest.raises(RingmasterError, match="b 1: no index of this machine's pip has a wheel for Python 3.12 on x86_64.* is kept"):
        place.make()
    assert [path.name for path in place.out.iterdir()] == [".work"]
    (place.out / ".work/new/wheels/.incoming-x").mkdir()  # what a killed pip leaves
    shutil.move(place.wheels / "away", place.wheels / NATIVE)
    place.make()
    assert place.fetched() == [NATIVE]
    assert sorted(path.name for path in (place.out / "wheels").iterdir()) == WANTED


def test_what_is_there_stays_until_the_new_one_is_whole(place):
    """Also its files that the new one has, too, and would have in other words."""
    made = place.make()["manifest"]
    before = {path: path.read_bytes() for path in place.out.rglob("*") if path.is_file()}
    place.lock.write_text(place.lock.read_text() + f"c==1 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(RingmasterError, match="c 1: no index"):
        place.make(part_mib=0.001)
    assert place.said[-1] == f"the bundle that is here, {made['name']} (1.5 KiB), is as it was"
    work = place.out / ".work"
    assert {path: path.read_bytes() for path in place.out.rglob("*") if path.is_file() and work not in path.parents} == before
    place.lock.write_text("\n".join(place.lock.read_text().splitlines()[:-1]) + "\n")
    assert not place.make()["changed"]
    assert not work.exists()


def test_a_file_system_without_links(place, monkeypatch):
    def link(path, target):
        raise PermissionError(1, "Operation not permitted", path)

    place.make()
    monkeypatch.setattr(os, "link", link)
    place.make(part_mib=0.001)
    assert place.fetched() == []


def test_a_wheel_that_is_not_the_locks_is_not_taken(place):
    with (place.wheels / SGLANG).open("ab") as file:
        file.write(b"more")
    sums = r"has the sha256 [0-9a-f]{64}, and the lock says [0-9a-f]{64}\. The index has another file"
    with pytest.raises(RingmasterError, match=rf"sglang 1: file://.*/{SGLANG} {sums}"):
        place.make()
    assert not (place.out / "manifest.json").exists()


def test_a_bad_copy_in_pips_cache_is_fetched_again(tmp_path, monkeypatch):
    """The index says how long pip may keep a file: so it never asks again for one that was bad."""
    served = {}

    class Index(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            data = served[self.path]
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "application/octet-stream")
            self.send_header("Cache-Control", "max-age=0" if self.path.endswith("/") else "max-age=365000000, immutable")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *words):
            pass

    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_TRUSTED_HOST", "127.0.0.1")  # pip keeps nothing of others that have no TLS
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = Place(tmp_path)
        good = (place.wheels / SGLANG).read_bytes()
        served["/sglang/"] = f'<a href="/f/{SGLANG}">{SGLANG}</a>'.encode()
        served[f"/f/{SGLANG}"] = good + b"bad"
        place.lock.write_text(place.lock.read_text().splitlines()[0])
        given = {"index_url": f"http://127.0.0.1:{server.server_port}/"}
        with pytest.raises(RingmasterError, match=f"http://127.0.0.1:.*/f/{SGLANG} has the sha256"):
            place.make(**given)
        served[f"/f/{SGLANG}"] = good
        place.make(**given)
        server.shutdown()
    assert place.fetched() == [SGLANG]


def test_parts_and_back_without_fetching(place):
    made = place.make(part_mib=0.001)["manifest"]
    assert sorted(path.name for path in place.out.iterdir()) == ["SHA256SUMS", "manifest.json", "parts"]
    assert bundle_files.faults(str(place.out), made["parts"]) == {}
    assert not place.make(part_mib=0.001)["changed"]
    assert place.make(part_mib=0)["changed"]
    assert place.fetched() == []
    assert place.make(part_mib=0.001)["manifest"] == made


def test_parts_where_there_is_no_room_for_both(place, monkeypatch):
    made = place.make(part_mib=0.001)["manifest"]
    shutil.rmtree(place.out)
    monkeypatch.setattr(bundle_files, "free_bytes", lambda path: 1 << 20)
    assert place.make(part_mib=0.001)["manifest"] == made
    assert any("no room for files and parts" in line for line in place.said)


def test_check_mode_makes_nothing(place):
    assert place.make(check_mode=True)["changed"]
    assert place.said == [f"sglang-1-cu130-python3.12-x86_64 would be made in {place.out}"]
    assert not place.out.exists()
    place.make()
    assert not place.make(check_mode=True)["changed"]


def test_a_directory_with_something_else_is_left_alone(place):
    place.out.mkdir()
    (place.out / "thesis.txt").write_text("x")
    with pytest.raises(RingmasterError, match=r"bundle_dir: .*/out holds thesis.txt, which is none of a bundle's"):
        place.make()


def test_two_makers(place):
    work = place.out / ".work"
    work.mkdir(parents=True)
    with (work / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RingmasterError, match="Somebody else makes a bundle in"):
            place.make()


def test_slim(place, tmp_path):
    host = tmp_path / "host.txt"
    host.write_text("torch==2.11\nb==1\n")
    made = place.make(profile="slim", part_mib=1, host_packages=str(host))["manifest"]
    assert made["sglang"]["flags"]["attention-backend"] == "triton"
    assert made["sglang"]["left_out"] == {"b": "the host has 1"}
    assert made["sglang"]["below"] == ["b"]
    assert [row["path"] for row in made["files"]] == ["locks/1-cu130.txt", "site.tar.xz"]
    assert place.fetched() == [SGLANG]
    assert sorted(path.name for path in place.out.iterdir()) == ["SHA256SUMS", "manifest.json", "parts"]
    host.write_text("numpy==2\n")
    with pytest.raises(RingmasterError, match="the host has no torch"):
        place.make(profile="slim", part_mib=1, host_packages=str(host))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"directory": ""}, "bundle_dir is not set"),
        ({"profile": "small"}, "bundle_profile is 'small'"),
        ({"sglang_version": "", "lock": ""}, "Nothing is asked for"),
        ({"lock": "", "locks": ["x.txt"]}, "no lock for sglang_version '1' and sglang_cuda '13.0'. There are: x.txt"),
        ({"lock": "/nowhere.txt"}, "sglang_lock: cannot read /nowhere.txt: No such file"),
        ({"cuda_version": "13.0"}, "bundle_distribution is not set"),
        ({"distribution": "debian12", "cuda_version": "13.0", "repository_url": "file:/x"}, "lacks its url or key"),
        ({"distribution": "debian12", "cuda_version": "13"}, "cuda_version is '13'"),
        ({"distribution": "beos", "cuda_version": "13.0"}, "bundle_distribution is 'beos'"),
        ({"sglang_cuda": "cu130"}, "sglang_cuda is 'cu130'. Give it in quotes, such as \"13.0\""),
        ({"sglang_version": "2"}, "sglang_version is 2, and 1-cu130.txt has 1. Set sglang_version or sglang_lock"),
        ({"machine": "vax"}, "bundle_machine is 'vax'"),
        ({"part_mib": "many"}, "bundle_part_mib is 'many'"),
        ({"part_mib": -1}, "bundle_part_mib is '-1'"),
        ({"name": "a/b"}, "bundle_name is 'a/b'"),
        ({"profile": "slim", "part_mib": 58}, "bundle_host_packages is not set"),
        ({"profile": "slim", "part_mib": 0, "host_packages": os.devnull}, "A slim bundle comes in parts"),
    ],
)
def test_what_is_refused_before_anything_is_done(place, given, said):
    with pytest.raises(RingmasterError, match=said):
        place.make(**given)
    assert not place.out.exists()


def test_a_lock_without_sglang(place):
    place.lock.write_text(place.lock.read_text().replace("sglang==", "other=="))
    with pytest.raises(RingmasterError, match="1-cu130.txt has no sglang. Name a lock of SGLang in sglang_lock"):
        place.make()


def test_the_version_is_the_locks_when_none_is_given(place):
    assert place.make(sglang_version="")["manifest"]["sglang"]["version"] == "1"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("a @ https://example.net/a-1-py3-none-any.whl --hash=sha256:", "has the line 'a @ https"),
        ("a == 1 --hash=sha256:", "has the line 'a == 1"),
        ("a==1 --hash sha256:", "has no checksum for a 1"),
    ],
)
def test_what_the_role_would_refuse_on_the_host_is_refused_before_anything_is_fetched(place, line, said):
    place.lock.write_text(f"{place.lock.read_text()}{line}{'0' * 64}\n")
    with pytest.raises(RingmasterError, match=f"sglang_lock: 1-cu130.txt: The lock file {said}"):
        place.make(check_mode=True)


@pytest.mark.parametrize(("python", "allowed"), [("3.9", False), ("3.10", True), ("3.12", True), ("3.13", False)])
def test_the_python_is_one_that_the_lock_is_for(place, python, allowed):
    place.lock.write_text(f"# python: >=3.10.2, <3.13\n{place.lock.read_text()}")
    if allowed:
        assert place.make(check_mode=True, python=python)["changed"]
    else:
        with pytest.raises(RingmasterError, match=f"bundle_python is {python}, and locks/1-cu130.txt is for >=3.10.2, <3.13. Set"):
            place.make(check_mode=True, python=python)


@pytest.mark.parametrize(("distribution", "python"), [("", "3.12"), ("debian12", "3.11"), ("ubuntu2404", "3.12")])
def test_the_python_is_the_distributions_own(place, distribution, python):
    assert bundle_request.read(place.given(python="", distribution=distribution)).target.python == python


def test_a_controller_without_pip(monkeypatch):
    monkeypatch.setattr(bundle_wheels.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(bundle_wheels.shutil, "which", lambda name: None)
    with pytest.raises(RingmasterError, match="The controller has no pip"):
        bundle_wheels.pip()


def test_a_request_is_known_by_all_that_decides(place):
    one = bundle_request.read(place.given()).digest()
    assert bundle_request.read(place.given(directory=str(Path("/elsewhere")))).digest() == one
    for more in ({"part_mib": 5}, {"python": "3.11"}, {"name": "x"}, {"machine": "aarch64"}, {"distribution": "debian12"}):
        assert bundle_request.read(place.given(**more)).digest() != one
    place.lock.write_text(place.lock.read_text() + "# more\n")
    assert bundle_request.read(place.given()).digest() != one
