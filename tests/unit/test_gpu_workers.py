# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each process is and which may be signalled, from tables of processes; wedged GPUs and memory not given back, from samples."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible_collections.ringmaster.gpu.plugins.module_utils import containers, gpu_memory, gpu_reap, gpu_worker_look, gpu_workers, procfs

DATA = yaml.safe_load((Path(__file__).parent / "data" / "gpu_workers.yml").read_text(encoding="utf-8"))
KEYS = {"pid", "is", "of", "comm", "runs", "session", "state", "in", "holds", "init", "python", "listens", "threads", "moves"}


def rows(case):
    found = {1: {"comm": "systemd", "runs": "/sbin/init", "in": "/init.scope", "of": 0, "init": True}}
    for row in case["processes"]:
        assert row.keys() <= KEYS, row
        found[row["pid"]] = {**DATA["known"].get(row.get("is"), {}), **row}
    return found


def process(pid, row):
    return procfs.Process(pid, row["comm"], row.get("state", "S"), row.get("of", 1), row.get("session", 1), 0, 0.0, 7 * pid, 1 << 20)


def view(case):
    found = rows(case)
    words = {pid: row["runs"].split(" ", 2 if " -c " in row["runs"] else -1) for pid, row in found.items() if row.get("state") != "Z"}
    return gpu_workers.View(
        table={pid: process(pid, row) for pid, row in found.items()},
        words=words,
        nodes={pid: [f"/dev/{name}" for name in row["holds"]] for pid, row in found.items() if row.get("holds")},
        place=lambda pid: containers.place(f"0::{found[pid].get('in', '/lxc/101/ns')}\n"),
        is_init=lambda pid: found[pid].get("init", False),
        is_stuck=lambda pid: not found[pid].get("moves", False),
        runs_python=lambda pid: found[pid].get("python", words.get(pid, [""])[0].rpartition("/")[2].startswith("python")),
        listens=lambda pid: found[pid].get("listens", False),
        threads=lambda pid: found[pid].get("threads", []),
    )


def look(case):
    seen = view(case)
    workers = gpu_workers.judge(seen, lambda place: (place.name or "") == case["target"])
    return gpu_worker_look.Look(workers, seen, [], False)


@pytest.mark.parametrize("case", DATA["cases"], ids=lambda case: case["name"])
def test_classes(case):
    found = look(case)
    assert {worker.process.pid: worker.group for worker in found.workers} == case["expect"], [worker.reason for worker in found.workers]
    assert all(worker.reason and worker.group in gpu_workers.CLASSES for worker in found.workers)


@pytest.mark.parametrize("case", DATA["cases"], ids=lambda case: case["name"])
def test_only_orphans_of_the_target_are_signalled_and_its_servers_with_force_alone(case):
    found = look(case)
    assert sorted(pid for pid, _start in gpu_reap.targets(found)) == case["reap"]
    forced = gpu_reap.targets(found, gpu_reap.live_servers(found))
    assert sorted(pid for pid, _start in forced) == sorted(case.get("force", case["reap"] + servers(found)))
    for target in forced.values():  # workers of a server end by their launcher first
        is_launcher = found.view.words[target.process.pid] == DATA["known"]["launcher"]["runs"].split() and target.server == target.key
        assert target.gets_term is (target.server is None or is_launcher)


def servers(found):
    return [worker.process.pid for worker in found.workers if worker.server]


@pytest.mark.parametrize("case", [case for case in DATA["cases"] if "reasons" in case], ids=lambda case: case["name"])
def test_reasons(case):
    told = {worker.process.pid: worker.reason for worker in look(case).workers}
    assert not {pid: told[pid] for pid, words in case["reasons"].items() if words not in told[pid]}


def test_a_port_that_cannot_be_seen_is_told_as_such():
    case = next(case for case in DATA["cases"] if case["name"] == "the server of 101 is healthy")
    worker = gpu_workers.judge(view(case)._replace(listens=lambda _pid: None))[0]
    assert (worker.group, worker.reason) == ("loading", "its launcher, pid 3990, runs; whether it has a port open cannot be seen")


def test_no_secret_of_a_command_is_told():
    words = ["/usr/bin/python3", "job.py", "--api-key", "hidden"]
    assert gpu_workers.program(process(5, {"comm": "python3"}), words) == "python3 job.py"
    assert gpu_workers.program(process(5, {"comm": "python3"}), ["python3", "-c", "key = 'hidden'"]) == "python3"
    assert gpu_workers.program(process(5, {"comm": "tool"}), ["/opt/tool key=hidden"]) == "tool"


# --- between TERM and KILL


def still(case, changed, pid, force=False):
    """Whether PID, a target of CASE, gets KILL when the look in between sees CHANGED."""
    before, after = look(case), look(changed)
    servers = gpu_reap.live_servers(before) if force else ()
    target = next(target for target in gpu_reap.targets(before, servers).values() if target.process.pid == pid)
    return gpu_reap._is_still(target, after, servers, {target.key: {"ended_by": None}})


ORPHAN = {"target": "101", "processes": [{"pid": 4001, "is": "scheduler", "session": 9, "holds": ["nvidia0"]}]}
SERVER = {
    "target": "101",
    "processes": [
        {"pid": 3990, "is": "launcher", "session": 9},
        {"pid": 4001, "of": 3990, "is": "scheduler", "session": 9, "holds": ["nvidia0"]},
        {"pid": 4002, "of": 3990, "comm": "python3", "runs": "python3 -c tracker", "session": 9},
    ],
}


def with_change(case, pid, **change):
    return {**case, "processes": [{**row, **change} if row["pid"] == pid else row for row in case["processes"]]}


@pytest.mark.parametrize(
    ("changed", "kill"),
    [
        (ORPHAN, True),
        (with_change(ORPHAN, 4001, state="D"), False),
        (with_change(ORPHAN, 4001, state="Z"), False),
        (with_change(ORPHAN, 4001, **{"in": "/lxc/102/ns"}), False),
        ({"target": "101", "processes": []}, False),
        ({**ORPHAN, "processes": [{**ORPHAN["processes"][0], "of": 3990}, {"pid": 3990, "is": "launcher"}]}, False),
        (
            {**ORPHAN, "processes": [{**ORPHAN["processes"][0], "of": 3990, "session": 1}, {"pid": 3990, "comm": "x", "runs": "python x"}]},
            False,
        ),
    ],
)
def test_an_orphan_gets_kill_only_while_it_is_one(changed, kill):
    assert still(ORPHAN, changed, 4001) is kill


def test_what_is_left_of_a_server_that_is_ended_by_force_gets_kill():
    gone = {"target": "101", "processes": [{**row, "of": 1} for row in SERVER["processes"][1:]]}
    assert all(still(SERVER, gone, pid, force=True) for pid in (4001, 4002))
    taken = {"target": "101", "processes": [{"pid": 3995, "is": "launcher"}, {**SERVER["processes"][1], "of": 3995}]}
    assert not still(SERVER, taken, 4001, force=True)


# --- memory


def memory(text, users=(), problem=None):
    rows = [{"pid": pid, "uuid": uuid, "name": "p", "memory_mib": mib} for pid, uuid, mib in users]
    return gpu_memory.Memory(gpu_memory.parse(text), rows, problem)


IDLE, WEDGED = "0, 4, 97887, 0, GPU-a\n", "0, 624, 97887, 100, GPU-a\n"


@pytest.mark.parametrize(
    ("text", "users", "busy", "found"),
    [
        (WEDGED, [], set(), [0]),
        ("0, 624, 97887, 100", [], set(), [0]),
        (WEDGED, [(9, "GPU-a", 600.0)], set(), []),
        (WEDGED, [(9, "GPU-a", None)], set(), []),
        (WEDGED, [(9, "GPU-b", 600.0)], set(), [0]),
        (WEDGED, [], {0}, []),
        (WEDGED, [], {1}, [0]),
        (IDLE, [], set(), []),
        ("0, [N/A], [N/A], [N/A], GPU-a", [], set(), []),
        (IDLE + "1, 90000, 97887, 0, GPU-b", [], set(), [1]),
        ("", [], set(), []),
        ("No devices were found", [], set(), []),
    ],
)
def test_suspects(text, users, busy, found):
    assert [gpu["index"] for gpu in gpu_memory.suspects(gpu_memory.Sample(memory(text, users), busy))] == found


def test_nobody_is_a_suspect_while_users_are_not_known():
    assert gpu_memory.suspects(gpu_memory.Sample(memory(WEDGED, problem="no answer"), set())) == []


NOBODY = gpu_worker_look.Look([], view({"processes": []}), [], False)


@pytest.mark.parametrize(
    ("later", "found"),
    [
        ([WEDGED, WEDGED], [[624.0, 624.0, 624.0]]),
        ([WEDGED.replace("624", "650"), WEDGED], [[624.0, 650.0, 624.0]]),
        ([WEDGED, IDLE], []),
        ([IDLE], []),  # no third sample for one that is over
    ],
)
def test_wedged_is_what_keeps_memory_in_three_samples(later, found):
    texts = iter(later)
    wedged, note = gpu_memory.wedged(memory(WEDGED), 0.0, look=lambda: NOBODY, read_memory=lambda: memory(next(texts)))
    assert note is None
    assert [gpu["samples_mib"] for gpu in wedged] == found
    assert all("nvidia-smi --gpu-reset -i 0" in gpu["advice"] and "reboot" in gpu["advice"] for gpu in wedged)
    assert next(texts, None) is None


def test_a_healthy_gpu_is_not_sampled():
    def never():
        raise AssertionError("a second sample of a healthy GPU")

    assert gpu_memory.wedged(memory(IDLE), 10.0, look=never, read_memory=never) == ([], None)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (NOBODY._replace(outside=True), "a container does not see the processes of others"),
        (NOBODY._replace(hidden=[7]), "the open files of some processes (1) cannot be seen"),
    ],
)
def test_without_sight_nothing_is_called_wedged(found, why):
    wedged, note = gpu_memory.wedged(memory(WEDGED), 0.0, look=lambda: found, read_memory=lambda: memory(WEDGED))
    assert wedged == []
    assert why in note


@pytest.mark.parametrize(
    ("comm", "runs", "is_busy"), [("nvidia-persiste", "nvidia-persistenced", False), ("nvtop", "nvtop", False), ("Xorg", "Xorg", True)]
)
def test_monitors_of_a_gpu_have_no_memory_of_it(comm, runs, is_busy):
    seen = view({"processes": [{"pid": 9, "comm": comm, "runs": runs, "holds": ["nvidia0", "nvidiactl"]}]})
    assert gpu_memory.sample(NOBODY._replace(view=seen), memory(WEDGED)).busy == ({0} if is_busy else set())


TWO = "0, {}, 97887, 0, GPU-a\n1, 500, 97887, 0, GPU-b\n"


@pytest.mark.parametrize(
    ("users", "after", "users_after", "held"),
    [
        ([(9, "GPU-a", 60000.0)], TWO.format(5), [], {}),
        ([(9, "GPU-a", 60000.0)], TWO.format(60000), [], {0: 59500}),
        ([(9, "GPU-a", 60000.0)], TWO.format(60000), [(9, "GPU-a", 60000.0)], {0: 60000}),
        # another process of another container takes what has become free
        ([(9, "GPU-a", 60000.0)], TWO.format(50500), [(8, "GPU-a", 50000.0)], {}),
        ([(9, "GPU-a", 60000.0), (8, "GPU-a", 400.0)], TWO.format(20900), [(8, "GPU-a", 20400.0)], {}),
        # how much it had is not told: it must at least be off the list
        ([(9, "GPU-a", None)], TWO.format(60500), [(9, "GPU-a", None)], {0: 0}),
        ([(9, "GPU-a", None)], TWO.format(60500), [], {}),
        ([], TWO.format(60500), [], {}),
    ],
)
def test_memory_that_is_not_given_back(users, after, users_after, held):
    assert gpu_memory.held(memory(TWO.format(60500), users), memory(after, users_after), {9}) == held
