# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The journal: written before every change, and enough to go back from a crash at any single step."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import files, transaction
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.module_utils.state import State

IS_ROOT = os.geteuid() == 0
# Calls after each of which the process may be gone.
POINTS = (("rename", os), ("unlink", os), ("mkdir", os), ("utime", os), ("symlink", os))


class Host:
    """A state directory, a file that is replaced, one that is new, one that is removed and one that is a link."""

    def __init__(self, directory):
        self.state = State(str(directory / "state"))
        self.state.prepare()
        self.etc = directory / "etc"
        self.etc.mkdir()
        for name, mode in (("replaced", 0o640), ("removed", 0o604), ("real", 0o644)):
            path = self.etc / name
            path.write_bytes(b"former " + name.encode())
            path.chmod(mode)
            if IS_ROOT:
                os.chown(path, 4242, 4343)
        (self.etc / "link").symlink_to("real")
        for version in (1, 2):
            self.state.write_version({"label": f"v{version}", "by": "me", "configuration": {}, "files": [], "before": []})
        self.state.set_current(1)
        self.former = self.look()

    def look(self):
        """{name: (bytes, mode, owner) or link target} of all that is there."""
        found = {}
        for path in sorted(self.etc.rglob("*")):
            status = path.lstat()
            key = str(path.relative_to(self.etc))
            if stat.S_ISLNK(status.st_mode):
                found[key] = os.readlink(path)
            elif stat.S_ISREG(status.st_mode):
                found[key] = (path.read_bytes(), stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
        return found

    def change_all(self):
        changes = transaction.Transaction.begin(self.state, plan="p")
        changes.change(str(self.etc / "replaced"), b"candidate")
        changes.change(str(self.etc / "sub" / "new"), b"candidate", mode=0o600)
        changes.change(str(self.etc / "removed"), None)
        changes.change(str(self.etc / "link"), b"candidate")
        changes.change(str(self.etc / "replaced"), b"second candidate")
        return changes


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


def crash_after(count, action):
    """Run ACTION in a child that ends without any clean-up after its COUNT-th call of POINTS. Returns whether it got that far."""
    child = os.fork()
    if child == 0:
        left = [count]

        def wrap(real):
            def call(*arguments, **named):
                answer = real(*arguments, **named)
                left[0] -= 1
                if left[0] == 0:
                    os._exit(77)
                return answer

            return call

        for name, module in POINTS:
            setattr(module, name, wrap(getattr(module, name)))
        try:
            action()
        except BaseException:
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 77)
    return code == 77


def each_crash(make_host, action):
    """A Host after a crash at each step of ACTION(host), one after the other."""
    for count in range(1, 200):
        host = make_host(count)
        crashed = crash_after(count, lambda host=host: action(host))
        yield host
        if not crashed:
            assert count > 5
            return


@pytest.fixture
def make_host(tmp_path):
    def make(number):
        directory = tmp_path / str(number)
        directory.mkdir()
        return Host(directory)

    return make


def test_the_journal_has_the_former_state_before_a_file_is_touched(host, monkeypatch):
    seen = []
    real = files.write_atomic

    def spy(path, data, **named):
        if Path(path).is_relative_to(host.etc):
            known = [os.path.basename(entry["path"]) for entry in host.state.journal()["before"]]
            seen.append((os.path.basename(os.path.realpath(path)), known))
        return real(path, data, **named)

    monkeypatch.setattr(files, "write_atomic", spy)
    host.change_all()
    assert [name for name, _known in seen] == ["replaced", "new", "real", "replaced"]
    assert all(name in known for name, known in seen)


def test_put_back_between_steps_keeps_the_journal(host):
    changes = host.change_all()
    assert host.look() != host.former
    changes.put_back_files()
    assert host.look() == host.former
    assert host.state.journal() is not None


def test_a_version_that_was_never_in_force_is_forgotten(host):
    changes = host.change_all()
    record = {"label": "cut off before it was kept", "by": "me", "configuration": {}, "files": []}
    host.state.write_version({**record, "before": changes.journal["before"]})
    transaction.recover(host.state)
    assert host.state.versions() == [1, 2]
    assert host.look() == host.former


def test_recover_restores_and_can_be_repeated(host):
    host.change_all()
    done = transaction.recover(host.state)
    assert len(done) == 4
    assert host.look() == host.former
    assert (host.state.journal(), transaction.recover(host.state)) == (None, [])


def test_a_crash_anywhere_in_the_changes_is_mended(make_host):
    for host in each_crash(make_host, Host.change_all):
        transaction.recover(host.state)
        assert (host.look(), host.state.journal()) == (host.former, None)


def test_a_crash_anywhere_in_recovery_is_mended(make_host):
    def changed(number):
        host = make_host(number)
        host.change_all()
        return host

    for host in each_crash(changed, lambda host: transaction.recover(host.state)):
        transaction.recover(host.state)
        assert (host.look(), host.state.journal()) == (host.former, None)


def test_keep_is_all_or_nothing_at_every_step(make_host):
    def keep(host):
        host.change_all().keep(2)

    outcomes = set()
    for host in each_crash(make_host, keep):
        transaction.recover(host.state)
        version = host.state.known_good()["version"]
        outcomes.add(version)
        assert host.state.journal() is None
        if version == 1:
            assert host.look() == host.former
        else:
            assert host.look()["replaced"][0] == b"second candidate"
    assert outcomes == {1, 2}


def test_kept_files_have_the_modes_and_owners_of_the_former_ones(host):
    host.change_all().keep(2)
    now, owner = host.look(), host.former["replaced"][2:]
    assert now["replaced"] == (b"second candidate", 0o640, *owner)
    assert now["link"] == "real"
    assert now["real"][0] == b"candidate"
    assert now["sub/new"][:2] == (b"candidate", 0o600)
    assert "removed" not in now


def test_change_to_a_snapshot_is_remembered_too(host):
    wanted = {**files.snapshot(str(host.etc / "replaced")), "content": "dmVyc2lvbiAx", "mode": 0o600}
    changes = transaction.Transaction.begin(host.state, plan="p")
    changes.change_to(wanted)
    assert host.look()["replaced"][:2] == (b"version 1", 0o600)
    transaction.recover(host.state)
    assert host.look() == host.former


def test_mend_waits_for_nobody_and_touches_nothing_while_a_plan_runs(host):
    host.change_all()
    changed = host.look()
    with host.state.take_lock({"who": "ada", "plan": "p", "since": "now"}), pytest.raises(RingmasterError, match="ada runs plan p"):
        transaction.mend(host.state, "bob")
    assert host.look() == changed
    assert len(transaction.mend(host.state, "bob")) == 4
    assert host.look() == host.former
    assert host.state.lock_holder() is None


def test_nothing_to_mend_on_a_host_that_knows_nothing(tmp_path):
    assert transaction.mend(State(str(tmp_path / "none")), "x") == []
    assert not (tmp_path / "none").exists()
