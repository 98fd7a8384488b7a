# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernel's word: an OOM kill that really happens here, a kill that is none, records and counters of every form."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import kernel_log

MEMORY = Path("/sys/fs/cgroup/memory")
LIMIT_BYTES = 32 << 20
EATER = "import sys\nsys.stdin.readline()\nkept = [bytearray(b'x' * (1 << 20)) for _ in range(1 << 12)]\n"
V2_MOUNTS = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"
HYBRID_MOUNTS = (
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "36 31 0:33 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
    "40 31 0:37 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
)
LXC_MOUNTS = HYBRID_MOUNTS.replace(" / /sys", " /lxc/101 /sys")


@pytest.fixture
def cgroup():
    """A memory cgroup of version 1 with a small limit."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if not (MEMORY / "memory.limit_in_bytes").exists():
        pytest.skip("no memory controller of cgroup version 1")
    directory = MEMORY / f"ringmaster-test-{uuid.uuid4().hex[:8]}"
    try:
        directory.mkdir()
        (directory / "memory.limit_in_bytes").write_text(str(LIMIT_BYTES))
    except OSError as problem:
        pytest.skip(f"no cgroup can be made here: {problem}")
    with contextlib.suppress(OSError):  # where swap is not counted the limit alone is reached
        (directory / "memory.memsw.limit_in_bytes").write_text(str(LIMIT_BYTES))
    yield directory
    for _ in range(50):
        with contextlib.suppress(OSError):
            directory.rmdir()
            break
        time.sleep(0.1)


def start(cgroup):
    process = subprocess.Popen([sys.executable, "-c", EATER], stdin=subprocess.PIPE)
    (cgroup / "cgroup.procs").write_text(str(process.pid))
    return process


def test_a_kill_by_the_oom_killer_is_proven(cgroup):
    process = start(cgroup)
    watch = kernel_log.OomWatch(process.pid)
    assert watch.lines({process.pid}) == []
    process.communicate(b"\n", timeout=60)
    assert process.returncode == -signal.SIGKILL
    lines = watch.lines({process.pid})
    watch.close()
    assert lines
    if kernel_log.readable():
        assert any(f"Killed process {process.pid} " in line for line in lines)
    else:
        assert lines == [f"{cgroup}/memory.oom_control: oom_kill grew from 0 to 1"]


def test_the_counter_proves_it_without_the_kernel_log(cgroup, monkeypatch):
    monkeypatch.setattr(kernel_log, "_open", lambda whence: None)  # as in a container, which has no /dev/kmsg
    process = start(cgroup)
    watch = kernel_log.OomWatch(process.pid)
    process.communicate(b"\n", timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert watch.lines(set()) == [f"{cgroup}/memory.oom_control: oom_kill grew from 0 to 1"]
    assert watch.lines(set()) == []  # told once


def test_a_kill_by_a_person_is_not_the_oom_killer(cgroup):
    process = start(cgroup)
    watch = kernel_log.OomWatch(process.pid)
    process.kill()
    process.wait(60)
    assert watch.lines({process.pid}) == []
    watch.close()


def test_another_victim_is_not_ours(cgroup):
    ours = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    watch = kernel_log.OomWatch(ours.pid)
    start(cgroup).communicate(b"\n", timeout=60)
    assert watch.lines({ours.pid}) == []
    watch.close()
    ours.communicate(b"\n", timeout=60)


def test_a_process_that_is_gone_proves_nothing():
    watch = kernel_log.OomWatch(2**22 + 1)
    assert watch.lines({2**22 + 1}) == []


@pytest.mark.parametrize(
    ("cgroups", "mounts", "path"),
    [
        ("0::/system.slice/sglang.service\n", V2_MOUNTS, "/sys/fs/cgroup/system.slice/sglang.service/memory.events"),
        ("4:memory:/a/b\n0::/\n", HYBRID_MOUNTS, "/sys/fs/cgroup/memory/a/b/memory.oom_control"),
        ("4:cpu,cpuacct:/a\n3:memory:/lxc/101/sshd\n", LXC_MOUNTS, "/sys/fs/cgroup/memory/sshd/memory.oom_control"),
        ("0::/../outside\n", V2_MOUNTS, "/sys/fs/outside/memory.events"),  # of another namespace: no such file, so nothing is proven
        ("0::/x\n", "", None),
        ("", V2_MOUNTS, None),
    ],
)  # fmt: skip
def test_whose_counter(cgroups, mounts, path):
    assert kernel_log.counter_path(cgroups, mounts) == path


def test_version_2_counts_by_its_own_words(tmp_path, monkeypatch):
    events = tmp_path / "memory.events"
    text = "low 0\nhigh 0\nmax 113\noom 2\noom_kill {}\noom_group_kill 0\n"  # a kernel 6.12, by hand: this machine has version 1
    events.write_text(text.format(0))
    monkeypatch.setattr(kernel_log, "counter_path", lambda cgroups, mounts: str(events))
    watch = kernel_log.OomWatch(os.getpid())
    assert watch.lines(set()) == []
    events.write_text(text.format(2))
    assert watch.lines(set()) == [f"{events}: oom_kill grew from 0 to 2"]


@pytest.mark.parametrize(
    ("text", "pid"),
    [
        ("Out of memory: Killed process 4242 (sglang::schedul) total-vm:21316936kB, anon-rss:20949928kB", 4242),
        ("Memory cgroup out of memory: Killed process 77 (python3) total-vm:1kB", 77),
        ("oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,task_memcg=/lxc/101,task=python3,pid=78,uid=0", 78),
        ("oom_reaper: reaped process 79 (python3), now anon-rss:0kB", None),
        ("systemd-logind invoked oom-killer: gfp_mask=0x140cca, order=0", None),
        ("Killed process", None),
    ],
)
def test_who_was_chosen(text, pid):
    assert kernel_log.oom_victim(text) == pid


@pytest.mark.parametrize(
    ("data", "record"),
    [
        (b"6,339,5140900,-;NET: Registered PF_INET6\n SUBSYSTEM=net\n DEVICE=+x\n", (5.1409, "NET: Registered PF_INET6")),
        (b"4,1,1000000,-,caller=T1;a\\x0ab\\x5c\n", (1.0, "a\nb\\")),
        (b"3,2,7,c;", (7e-06, "")),
        (b"no record", None),
        (b"", None),
        (b"6,x;y", None),
    ],
)
def test_records(data, record):
    assert kernel_log.parse_record(data) == record


def test_xids_of_all_forms():
    texts = [
        "NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:C1:00): 31, pid=1234, name=python3, Ch 00000008, intr 10000000. MMU Fault",
        "NVRM: Xid (0000:03:00): 13, Graphics Exception",
        "NVRM: Xid (PCI:0000:03:00 GPU-I:05): 94, pid=9, name=x, Contained: SM (0x1).",
        "NVRM: Xid (PCI:0000:41:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
        "NVRM: GPU at PCI:0000:41:00: GPU-1",
        "[drm] Xid 79",
    ]
    found = kernel_log.parse_xids([(60.0 + n, text) for n, text in enumerate(texts)], boot_s=1_800_000_000)
    assert [(row["pci"], row["xid"]) for row in found] == [
        ("0000:41:00", 79), ("0000:c1:00", 31), ("0000:03:00", 13), ("0000:03:00", 94), ("0000:41:00", 154),
    ]  # fmt: skip
    assert found[0] == {
        "at": "2027-01-15T08:01:00Z", "pci": "0000:41:00", "xid": 79,
        "text": "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    }  # fmt: skip


def test_the_whole_log_is_read_and_no_more():
    """Against util-linux: what xids() looks through is what dmesg shows."""
    if not kernel_log.readable():
        pytest.skip("the kernel log cannot be read here")
    shown = subprocess.run(["dmesg", "--notime"], capture_output=True, text=True, check=True).stdout
    records = list(kernel_log.records())
    assert records
    at_s, text = records[len(records) // 2]
    assert 0 <= at_s <= time.monotonic() + 60
    assert text.splitlines()[0] in shown
    assert [row["xid"] for row in kernel_log.xids()] == [row["xid"] for row in kernel_log.parse_xids(records, boot_s=0)]
