# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which processes are a server, whose it is, and where its output goes: from tables of processes, cgroups and units."""

from __future__ import annotations

import os
import time

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import procfs, server_output, server_trees


@pytest.mark.parametrize(
    ("command", "is_one"),
    [
        ("/opt/sglang/bin/python -m sglang.launch_server --model-path /m", True),
        ("python3.12 -u -X dev -m sglang.launch_server", True),
        ("/opt/v/bin/python /opt/v/bin/sglang serve --model-path /m", True),
        ("python3 /src/python/sglang/launch_server.py --port 1", True),
        ("/opt/v/bin/python /opt/v/bin/sglang generate", False),
        ("python3 -um sglang.launch_server", True),
        ("python3 -msglang.launch_server --port 1", True),
        ("python3 -Xdev -W ignore -Bm sglang.launch_server", True),
        ("python3 -uc print(1) -m sglang.launch_server", False),
        ("python3 -msglang.bench_serving", False),
        ("bash -c 'python -m sglang.launch_server'", False),
        ("docker run image python3 -m sglang.launch_server", False),
        ("sudo python3 -m sglang.launch_server", False),
        ("python3 -m sglang_router.launch_server", False),
        ("python3 -c print(1) -m sglang.launch_server", False),
        ("vi sglang/launch_server.py", False),
        ("grep sglang.launch_server", False),
        ("", False),
    ],
)
def test_launchers(command, is_one):
    assert server_trees.is_launcher(command.split()) is is_one


def process(pid, ppid, session=1, comm="python3", state="S"):
    return procfs.Process(pid, comm, state, ppid, session, 0, 0.0, pid, 0)


LAUNCH = ["python", "-m", "sglang.launch_server", "--tp-size", "2"]
TABLES = [
    # one server with a forked copy of itself and of a worker, and a dead one
    (
        [(10, 1, LAUNCH), (11, 10, LAUNCH), (12, 10, ["sglang::scheduler_TP0"]), (13, 12, ["sglang::scheduler_TP0"]), (14, 10, None)],
        [("server", 10, {"sglang::scheduler_TP0": 12}, [("scheduler", 14)])],
    ),
    # a fork of a worker that has just ended is no dead worker
    (
        [(10, 1, LAUNCH), (12, 10, ["sglang::scheduler_TP0"]), (14, 12, None)],
        [("server", 10, {"sglang::scheduler_TP0": 12}, [])],
    ),
    (
        [(10, 1, LAUNCH), (12, 10, ["sglang::data_parallel_controller"]), (14, 12, None)],
        [("server", 10, {"sglang::data_parallel_controller": 12}, [("scheduler", 14)])],
    ),
    # two servers below one shell
    ([(5, 1, ["bash"]), (10, 5, LAUNCH), (20, 5, LAUNCH)], [("server", 10, {}, []), ("server", 20, {}, [])]),
    # workers of a program that embeds the engine
    (
        [(10, 1, ["python", "mine.py"]), (11, 10, ["sglang::scheduler_TP0"]), (12, 10, ["sglang::detokenizer"])],
        [("embedded", 10, {"sglang::scheduler_TP0": 11, "sglang::detokenizer": 12}, [])],
    ),
    # orphans of one launcher, taken over by process 1
    (
        [(11, 1, ["sglang::scheduler_TP0"]), (12, 1, ["sglang::scheduler_TP1"]), (13, 12, ["helper"])],
        [("orphans", 11, {"sglang::scheduler_TP0": 11, "sglang::scheduler_TP1": 12}, [])],
    ),
    ([(10, 1, ["python", "other.py"]), (11, 10, ["sglangs"])], []),
]


@pytest.mark.parametrize(("processes", "expected"), TABLES)
def test_trees(processes, expected):
    words = {pid: command for pid, _ppid, command in processes}
    table = {
        pid: process(pid, ppid, comm="python3" if command else "sglang::schedul", state="S" if command else "Z")
        for pid, ppid, command in processes
    }
    found = server_trees.find(table, lambda pid: words[pid])
    assert [
        (tree.kind, tree.root.pid, {title: member.pid for title, member in tree.members.items()}, tree.dead) for tree in found
    ] == expected


@pytest.mark.parametrize(
    ("text", "unit", "container"),
    [
        ("0::/system.slice/sglang.service\n", "sglang.service", None),
        ("12:cpu:/\n1:name=systemd:/system.slice/sglang.service\n0::/\n", "sglang.service", None),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/mine.service\n", "mine.service", None),
        ("0::/user.slice/user-0.slice/session-3.scope\n", None, None),
        ("0::/lxc.payload.ct-101/system.slice/sglang.service\n", None, "ct-101"),
        ("0::/lxc/101/ns/system.slice/sglang.service\n", None, "101"),
        ("0::/system.slice/docker-0123456789abcdef0123.scope\n", None, "0123456789ab"),
        ("0::/docker/0123456789abcdef0123\n", None, "0123456789ab"),
    ],
)
def test_units_and_containers(text, unit, container):
    assert server_trees.of_cgroups(text) == {"unit": unit, "container": container}


# --- long logs


def test_of_a_long_log_the_ends_are_read(tmp_path):
    path = tmp_path / "server.log"
    head = b"[2026-11-29 10:00:00] server_args=ServerArgs(model_path='/m', tp_size=8)\n"
    end = b"[2026-11-29 12:00:00 TP0] Load weight begin. avail mem=90 GB\n"
    path.write_bytes(head + b"[2026-11-29 11:00:00] Decode batch, #running-req: 1\n" * 60000 + end)
    os.utime(path, (time.time() - 100, time.time() - 100))
    log = server_output.read(server_output.Output("file", str(path), str(path)), timeout_s=1.0)
    assert log.bytes == path.stat().st_size > server_output.HEAD_BYTES + server_output.TAIL_BYTES
    assert log.reader.size <= server_output.HEAD_BYTES + server_output.TAIL_BYTES
    assert log.reader.facts["model_path"] == "/m"
    assert log.reader.phase == "weights"
    assert 100 <= log.age_s < 200


def test_a_log_that_is_gone(tmp_path):
    log = server_output.read(server_output.Output("file", str(tmp_path / "no"), str(tmp_path / "no")), timeout_s=1.0)
    assert (log.reader, log.output.kind) == (None, "unknown")
    assert "cannot be read" in log.output.note


@pytest.mark.parametrize(
    ("properties", "text", "kind", "path"),
    [
        ({"StandardOutput": "journal", "InvocationID": "a1"}, "", "journal", "journalctl _SYSTEMD_INVOCATION_ID=a1"),
        ({"StandardError": "append", "StandardOutput": "append"}, "StandardError=append:/a\nStandardError=append:/b\n", "file", "/b"),
        ({"StandardError": "inherit", "StandardOutput": "file"}, "[Service]\nStandardOutput=file:/c\n", "file", "/c"),
        ({"StandardError": "inherit", "StandardOutput": "append"}, "StandardOutput=append:/var/log/%n\n", "unknown", None),
        ({"StandardError": "inherit", "StandardOutput": "journal", "InvocationID": ""}, "", "unknown", None),
    ],
)
def test_where_a_unit_writes(properties, text, kind, path):
    output = server_output.of_unit(properties, text)
    assert (output.kind, output.path) == (kind, path)
