# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state directory: one holder of the lock among processes, versions of known-good, what is pruned."""

from __future__ import annotations

import multiprocessing
import os
import stat
import time

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.module_utils.state import State

HOLDER = {"who": "ada@desk (pid 7)", "plan": "P1", "since": "2026-01-02T03:04:05Z"}
SPAWN = multiprocessing.get_context("fork")

RECORD = {"label": "x", "by": "me", "configuration": {}, "files": []}


@pytest.fixture
def state(tmp_path):
    made = State(str(tmp_path / "state"))
    made.prepare()
    return made


def _hold(directory, pipe):
    lock = State(directory).take_lock(HOLDER)
    pipe.send("held")
    pipe.recv()
    lock.close()
    pipe.send("free")


@pytest.fixture
def holder(state):
    """Another process that holds the lock."""
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=_hold, args=(state.directory, theirs))
    process.start()
    assert ours.recv() == "held"
    yield process, ours
    process.kill()
    process.join()


def test_the_lock_names_its_holder_and_since_when(state, holder):
    assert state.lock_holder() == HOLDER
    with pytest.raises(RingmasterError) as caught:
        state.take_lock({"who": "bob", "plan": "P2", "since": "now"})
    for part in ("ada@desk (pid 7)", "P1", "2026-01-02T03:04:05Z", "ringmaster.gpu.status", "ringmaster.gpu.abort", state.directory):
        assert part in str(caught.value)
    assert state.lock_holder() == HOLDER  # the attempt changed nothing


def test_the_lock_is_free_once_its_holder_lets_go_or_is_killed(state, holder):
    process, pipe = holder
    pipe.send("let go")
    assert pipe.recv() == "free"
    assert state.lock_holder() is None
    state.take_lock(HOLDER).close()


def test_a_killed_holder_holds_nothing(state, holder):
    holder[0].kill()
    holder[0].join()
    assert state.lock_holder() is None
    with state.take_lock({**HOLDER, "plan": "P2"}):
        assert state.lock_holder()["plan"] == "P2"


def _look(directory, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        State(directory).lock_holder()


def test_who_only_looks_keeps_nobody_from_the_lock(state):
    state.take_lock(HOLDER).close()
    lookers = [SPAWN.Process(target=_look, args=(state.directory, 1.0)) for _ in range(3)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(30):
            state.take_lock(HOLDER).close()
            time.sleep(0.01)
    finally:
        for looker in lookers:
            looker.join()


def test_no_directory_no_holder_no_versions(tmp_path):
    state = State(str(tmp_path / "none"))
    assert (state.lock_holder(), state.journal(), state.versions(), state.known_good()) == (None, None, [], None)
    assert os.listdir(tmp_path) == []


def test_versions_count_up_and_only_set_current_puts_one_in_force(state):
    assert state.write_version(RECORD | {"label": "as found"}) == 1
    assert state.known_good() is None
    state.set_current(1)
    for number in range(2, 12):
        assert state.write_version(RECORD | {"label": f"v{number}"}) == number
    assert state.versions() == list(range(1, 12))
    assert state.known_good()["version"] == 1
    state.set_current(11)
    assert (state.known_good()["label"], state.known_good(2)["label"]) == ("v11", "v2")
    assert os.readlink(state.path("known-good", "current")) == "0011.json"
    with pytest.raises(RingmasterError, match="no known-good version 12"):
        state.known_good(12)


def test_a_link_to_a_version_that_is_lost_is_an_error(state):
    state.set_current(state.write_version(RECORD))
    os.unlink(state.path("known-good", "0001.json"))
    with pytest.raises(RingmasterError, match="known-good"):
        state.known_good()


def test_only_the_way_to_the_witness_is_open_to_others(state):
    state.make_trial("t1")
    state.write_version(RECORD)
    modes = {name: stat.S_IMODE(os.stat(state.path(*name.split("/"))).st_mode) for name in (
        ".", "bin", "known-good", "plans", "trials", "trials/t1", "known-good/0001.json")}
    assert modes == {
        ".": 0o755, "bin": 0o700, "known-good": 0o700, "plans": 0o700, "trials": 0o711, "trials/t1": 0o711, "known-good/0001.json": 0o600,
    }  # fmt: skip


def test_prune_keeps_the_newest(state):
    for number in range(6):
        for kind in ("trials", "plans"):
            directory = state.path(kind, f"n{number}")
            os.makedirs(directory)
            os.utime(directory, (1000 + number, 1000 + number))
    state.prune(2)
    assert sorted(os.listdir(state.path("trials"))) == sorted(os.listdir(state.path("plans"))) == ["n4", "n5"]


def test_the_lease_is_a_moment_of_this_machine(state):
    os.makedirs(state.plan_path("p"))
    assert state.lease_left_s("p", 30) == 0
    state.touch_lease("p")
    assert 29 < state.lease_left_s("p", 30) < 30.001  # written in milliseconds, rounded
    time.sleep(0.05)
    assert state.lease_left_s("p", 0.01) <= 0


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "\0"])
def test_damage_is_told_with_what_to_do_and_never_taken_for_nothing(state, content):
    for path, look in ((state.path("journal.json"), state.journal), (state.path("known-good", "0001.json"), state.known_good)):
        state.write_version(RECORD)
        state.set_current(1)
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)
        with pytest.raises(RingmasterError, match="ove .*(it|known-good) away") as raised:
            look()
        assert path in raised.value.what
        os.unlink(path)
