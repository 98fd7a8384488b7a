# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files on real file systems: full, read-only, owned by others; what is put back is what was there."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import files
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 KiB."""
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", tmp_path], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no mount here: {done.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def test_write_gives_bytes_and_mode_and_leaves_nothing_beside(tmp_path):
    path = tmp_path / "a"
    old = os.umask(0o077)
    try:
        files.write_atomic(str(path), b"one", mode=0o664)
    finally:
        os.umask(old)
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"one", 0o664)
    assert os.listdir(tmp_path) == ["a"]


def test_write_through_a_link_keeps_the_link(tmp_path):
    (tmp_path / "etc").mkdir()
    real, link = tmp_path / "etc" / "real", tmp_path / "link"
    real.write_bytes(b"old")
    link.symlink_to("etc/real")
    files.write_atomic(str(link), b"new", mode=0o644)
    assert (link.is_symlink(), real.read_bytes()) == (True, b"new")


@ROOT_ONLY
@pytest.mark.parametrize(("given", "owner"), [({}, (4242, 4343)), ({"uid": 1, "gid": 2}, (1, 2)), ({"uid": 7}, (7, 4343))])
def test_owner_stays_unless_given(tmp_path, given, owner):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    os.chown(path, 4242, 4343)
    files.write_atomic(str(path), b"new", mode=0o4755, **given)
    now = path.stat()
    assert (now.st_uid, now.st_gid, stat.S_IMODE(now.st_mode)) == (*owner, 0o4755)


@ROOT_ONLY
def test_full_disk_leaves_the_former_file(small_disk):
    path = small_disk / "a"
    path.write_bytes(b"former")
    with pytest.raises(RingmasterError, match=r"Cannot write .*/a: No space left on device\. The disk is full"):
        files.write_atomic(str(path), os.urandom(1 << 20), mode=0o644)
    assert (os.listdir(small_disk), path.read_bytes()) == (["a"], b"former")


@ROOT_ONLY
def test_a_full_disk_keeps_nothing_from_being_put_back(small_disk):
    path = small_disk / "a"
    path.write_bytes(b"former\n")
    os.chown(path, 4242, 4343)
    path.chmod(0o640)
    former = files.snapshot(str(path))
    files.write_atomic(str(path), b"former and more of it\n", mode=0o600, uid=0, gid=0)
    room = os.statvfs(small_disk)
    (small_disk / "filler").write_bytes(bytes(room.f_bavail * room.f_frsize))
    with pytest.raises(RingmasterError, match="The disk is full"):
        files.write_atomic(str(path), b"x", mode=0o640)
    assert files.restore(former)
    assert files.same(former)
    assert sorted(os.listdir(small_disk)) == ["a", "filler"]


@ROOT_ONLY
def test_read_only_file_system_is_named(small_disk):
    (small_disk / "a").write_bytes(b"former")
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    for attempt in (lambda: files.write_atomic(str(small_disk / "a"), b"x", mode=0o644), lambda: files.remove(str(small_disk / "a"))):
        with pytest.raises(RingmasterError, match="mounted read-only"):
            attempt()


def as_nobody(action):
    """The message of the RingmasterError that ACTION gives a user without rights, "no error" without one."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        try:
            action()
            message = "no error"
        except RingmasterError as error:
            message = str(error)
        except BaseException as error:
            message = f"raw {error!r}"
        os.write(write_end, message.encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        message = pipe.read()
    os.waitpid(child, 0)
    return message


@ROOT_ONLY
@pytest.mark.parametrize("action", ["write", "remove", "create", "read", "snapshot", "json"])
def test_without_rights_the_path_and_the_way_out_are_named(tmp_path, action):
    for directory in (tmp_path, *tmp_path.parents):
        if directory.stat().st_mode & 0o055 != 0o055:  # pytest's are its user's alone
            directory.chmod(0o755)
    path = tmp_path / "a"
    path.write_bytes(b"secret")
    path.chmod(0o600)
    actions = {
        "write": lambda: files.write_atomic(str(path), b"x", mode=0o644),
        "remove": lambda: files.remove(str(path)),
        "create": lambda: files.make_directory(str(tmp_path / "b" / "c")),
        "read": lambda: files.content(str(path)),
        "snapshot": lambda: files.snapshot(str(path)),
        "json": lambda: files.read_json(str(path)),
    }
    message = as_nobody(actions[action])
    assert str(tmp_path) in message
    assert "Permission denied" in message
    assert "become: true" in message
    assert path.read_bytes() == b"secret"


def test_json_round_trip_default_and_damage(tmp_path):
    path = str(tmp_path / "a.json")
    assert files.read_json(path, {"no": "file"}) == {"no": "file"}
    files.write_json(path, {"b": 1, "a": "ü"})
    assert files.read_json(path) == {"a": "ü", "b": 1}
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    (tmp_path / "a.json").write_text('{"a": ')
    with pytest.raises(RingmasterError, match="a.json is not the JSON"):
        files.read_json(path, {})


def test_restore_bytes_mode_owner_and_date(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"\x00former\xff")
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 4242, 4343)
    os.utime(path, ns=(5, 1_600_000_000_123_456_789))
    former, status = files.snapshot(str(path)), path.stat()
    assert files.restore(former) is False
    path.unlink()
    path.write_bytes(b"candidate")
    assert not files.same(former)
    assert files.restore(former) is True
    now = path.stat()
    assert path.read_bytes() == b"\x00former\xff"
    assert (now.st_mode, now.st_uid, now.st_gid, now.st_mtime_ns) == (status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns)


@pytest.mark.parametrize("change", [lambda path: path.chmod(0o600), lambda path: path.unlink(), lambda path: path.write_bytes(b"x")])
def test_every_difference_is_restored(tmp_path, change):
    path = tmp_path / "a"
    path.write_bytes(b"former")
    path.chmod(0o644)
    former = files.snapshot(str(path))
    change(path)
    assert (files.same(former), files.restore(former), files.same(former)) == (False, True, True)


def test_a_file_that_was_not_there_is_taken_away_again(tmp_path):
    path = tmp_path / "a"
    former = files.snapshot(str(path))
    path.write_bytes(b"candidate")
    assert (files.restore(former), path.exists(), files.restore(former)) == (True, False, False)


def test_restore_makes_a_directory_that_vanished(tmp_path):
    path = tmp_path / "d" / "a"
    path.parent.mkdir()
    path.write_bytes(b"former")
    former = files.snapshot(str(path))
    path.unlink()
    path.parent.rmdir()
    assert files.restore(former) is True
    assert path.read_bytes() == b"former"


def test_a_writer_killed_at_any_moment_leaves_the_old_or_the_new_file_whole(tmp_path):
    path = tmp_path / "a"
    old, new = b"o" * 300_000, b"n" * 300_000
    path.write_bytes(old)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from ansible_collections.ringmaster.gpu.plugins.module_utils import files\n"
        "print('go', flush=True)\n"
        "while True:\n    for byte in (b'n', b'o'):\n        files.write_atomic(sys.argv[2], byte * 300_000, mode=0o644)\n"
    )
    collections = next(entry for entry in sys.path if entry.endswith("collections"))
    for delay_s in (0.0, 0.003, 0.011, 0.017):
        writer = subprocess.Popen([sys.executable, "-c", code, collections, str(path)], stdout=subprocess.PIPE)
        writer.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(delay_s)
        writer.kill()
        writer.communicate()
        assert path.read_bytes() in (old, new)
