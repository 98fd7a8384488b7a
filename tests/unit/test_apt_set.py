# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What dpkg was cut off amid, room on the disk, locks of others, and which toolkit is in force. Scenario cuda cuts a real one off."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import apt_room, apt_run, apt_set, cuda_link
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError

MIB = 1 << 20


def test_what_was_cut_off():
    text = (
        "bash\tinstalled\tok\nlibcublas-12-8\tunpacked\tok\nlibcuda1:amd64\thalf-installed\treinstreq\n"
        "gone\tconfig-files\tok\nx\tinstalled\treinstreq\ny\ttriggers-pending\tok\nz\thalf-configured\tok\n"
    )
    assert apt_set.parse_cut_off(text) == {
        "libcublas-12-8": "unpacked",
        "libcuda1:amd64": "half-installed",
        "x": "installed",
        "y": "triggers-pending",
        "z": "half-configured",
    }


def test_bytes_that_are_needed():
    uris = (
        "Reading package lists...\n'https://r.example/a_1_amd64.deb' a_1_amd64.deb 1000 SHA256:00\n"
        "'file:/opt/r/b_1_all.deb' b_1_all.deb 500 SHA256:00\n'mirror+http://m/c.deb' c.deb 30 \n"
    )
    assert apt_room.parse_uris(uris) == 1030
    shown = "Package: a\nVersion: 1-1\nInstalled-Size: 2048\nDescription: Version: 7\n\nPackage: b\nVersion: 2\n"
    assert apt_room.parse_sizes(shown) == {("a", "1-1"): 2 * MIB, ("b", "2"): 0}


@pytest.mark.parametrize(
    ("free", "download", "install", "words"),
    [
        (1000, 100, 500, None),
        (600, 100, 500, "664 MiB|600 MiB and 64 to spare are needed, 600 are free"),  # both on one file system
        (100, 0, 0, None),  # nothing comes
        (0, 0, 0, None),
        (63, 0, 1, "has no room: 1 MiB and 64 to spare"),
    ],
)
def test_room_on_the_disk(monkeypatch, free, download, install, words):
    monkeypatch.setattr(os, "statvfs", lambda _path: type("found", (), {"f_bavail": free, "f_frsize": MIB}))
    reasons = apt_room.missing({"download": download * MIB, "install": install * MIB}, ["/usr", "/usr/local/not-there-yet"])
    assert len(reasons) == (1 if words else 0)
    assert words is None or any(word in reasons[0] for word in words.split("|"))


def test_lists_are_fresh_for_a_while(monkeypatch, tmp_path):
    monkeypatch.setattr(apt_set, "FETCHED", str(tmp_path))
    assert not apt_set.are_fresh("/etc/apt/sources.list.d/a.sources", 60)
    (tmp_path / "a.sources-stamp").touch()
    assert apt_set.are_fresh("/etc/apt/sources.list.d/a.sources", 60)
    assert not apt_set.are_fresh("/etc/apt/sources.list.d/a.sources", 0)
    assert not apt_set.are_fresh(None, 60)  # those of all
    for then in (time.time() - 61, time.time() + 600):  # long ago, and by a clock that was set back since
        os.utime(tmp_path / "a.sources-stamp", (then, then))
        assert not apt_set.are_fresh("/etc/apt/sources.list.d/a.sources", 60)


def test_a_lock_of_another_is_waited_for_and_told(tmp_path):
    lock = tmp_path / "lock"
    lock.touch()
    apt_run.wait_until_free(0, [str(lock), str(tmp_path / "none")])
    code = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        assert apt_run.holder(str(lock)) == other.pid
        with pytest.raises(RingmasterError, match=rf"has {lock} since more than 0.1 s: pid {other.pid} \(.*python"):
            apt_run.wait_until_free(0.1, [str(lock)])
        other.stdin.close()
    apt_run.wait_until_free(5, [str(lock)])
    with lock.open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        assert apt_run.holder(str(lock)) is None  # its own


def test_who_comes_in_between_is_waited_for(tmp_path):
    between = 'echo >> "$0"; [ $(wc -l < "$0") -gt 1 ] && exit 0; echo "E: Could not get lock /var/lib/apt/lists/lock." >&2; exit 100'
    assert apt_run.alone(30, "sh", "-c", between, str(tmp_path / "tries"))[0] == 0
    assert apt_run.alone(0, "sh", "-c", between, str(tmp_path / "one"))[0] == 100
    assert apt_run.alone(30, "sh", "-c", 'echo >> "$0"; exit 7', str(tmp_path / "failure"))[0] == 7
    assert (tmp_path / "failure").read_text() == "\n"


QUERY = """\
Name: cuda
Link: /usr/local/cuda
Status: manual
Best: /usr/local/cuda-13.0
Value: /usr/local/cuda-12.8

Alternative: /usr/local/cuda-12.8
Priority: 128

Alternative: /usr/local/cuda-13.0
Priority: 130
"""


class Alternatives:
    """update-alternatives: what is asked of it, and a link as it makes it."""

    def __init__(self, monkeypatch, link, known=None, status="auto"):
        self.link, self.known, self.status, self.calls = link, list(known or []), status, []
        monkeypatch.setattr(apt_run, "attempt", self.attempt)

    def attempt(self, program, *words, **_options):
        if program != "update-alternatives":
            done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
            return done.returncode, done.stdout + done.stderr
        self.calls.append(words[0].lstrip("-"))
        if words[0] == "--query":
            rows = [f"Alternative: {one}\nPriority: 1" for one in self.known]
            return (0, "\n\n".join([f"Name: cuda\nLink: {self.link}\nStatus: {self.status}", *rows])) if self.known else (2, "")
        if words[0] == "--install":
            self.known.append(words[3])
        if words[0] == "--set":
            self.status = "manual"
            self.link.unlink(missing_ok=True)
            self.link.symlink_to(words[2])
        return 0, ""


def toolkit(root, release, compiler):
    program = root / f"cuda-{release}/bin/nvcc"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{compiler}'\n")
    program.chmod(0o755)
    return str(root / f"cuda-{release}")


def test_the_alternative_as_it_is_told():
    assert cuda_link.parse_query(QUERY) == {
        "link": "/usr/local/cuda",
        "status": "manual",
        "value": "/usr/local/cuda-12.8",
        "others": ["/usr/local/cuda-12.8", "/usr/local/cuda-13.0"],
    }


def test_what_is_in_force_stays_until_the_new_one_answers(monkeypatch, tmp_path):
    old, new = toolkit(tmp_path, "12.8", "12.8.93"), toolkit(tmp_path, "13.0", "13.0.88")
    link = tmp_path / "cuda"
    fake = Alternatives(monkeypatch, link)
    assert cuda_link.fix(str(link)) == {"changed": False, "target": None}  # none yet
    link.symlink_to(old)  # by hand
    assert cuda_link.fix(str(link), check=True) == {"changed": True, "target": old}
    assert fake.known == []
    assert cuda_link.fix(str(link)) == {"changed": True, "target": old}
    assert (fake.known, fake.status) == ([old], "manual")
    assert cuda_link.fix(str(link))["changed"] is False
    for compiler, folder, words in (("13.0.48", new, "V13.0.88, and should be of 13.0, V13.0.48"), ("1", f"{new}-x", "is not there")):
        with pytest.raises(RingmasterError, match=words):
            cuda_link.switch(str(link), folder, "13.0", compiler)
        assert os.readlink(link) == old
    assert cuda_link.switch(str(link), new, "13.0", "13.0.88", check=True)["changed"]
    assert os.readlink(link) == old
    assert cuda_link.switch(str(link), new, "13.0", "13.0.88")["before"] == old
    assert (os.readlink(link), fake.known) == (new, [old, new])
    assert cuda_link.switch(str(link), new, "13.0", "13.0.88")["changed"] is False
    assert cuda_link.switch(str(link), old, "12.8", "")["changed"]  # a set without a compiler


def test_a_directory_is_no_link(monkeypatch, tmp_path):
    (tmp_path / "cuda").mkdir()
    Alternatives(monkeypatch, tmp_path / "cuda")
    with pytest.raises(RingmasterError, match=r"is a directory and no link.*mv "):
        cuda_link.fix(str(tmp_path / "cuda"))
