# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What can go wrong between here and a container: told with cause and remedy, nothing half made left behind, and the next run completes."""

from __future__ import annotations

import asyncio

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import pve_client
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from fakepve import PveError, TaskError, settle
from pve_lab import SECRETS, WHOLE, login, reroute, run, writes

TOKEN, OTHER = SECRETS


def fails(options, *words, check_mode=False):
    """The message of a run that fails; it names all of WORDS, and nothing secret."""
    with pytest.raises(RingmasterError) as caught:
        run(options, check_mode)
    message = str(caught.value)
    for word in words:
        assert word in message, message
    for secret in ('secret"', *SECRETS.values(), "geheim"):
        assert secret not in message
    return message


# Who asks (401, 403)

LOGINS = {
    "a wrong secret of a token": ({"api_token_secret": "wrong"}, TOKEN, ["401", "api_token_secret", "expired"]),
    "an unknown token": ({"api_token_id": "root@pam!other"}, TOKEN, ["401", "root@pam!other", "pveum user token list root@pam"]),
    "a wrong password": ({"api_password": "geheim"}, "", ["401", "api_password", "root@pam is not root@pve"]),
    "an unknown user": ({"api_user": "nobody@pve"}, "", ["401", "nobody@pve"]),
    "a user without realm": ({"api_user": "root"}, "", ["api_user is 'root'", "root@pam"]),
    "no credentials": ({"api_password": ""}, "", ["neither api_password nor api_token_id", "leave api_host out"]),
    "both": ({"api_password": "geheim"}, TOKEN, ["Both api_password and api_token_id", "Give one of the two"]),
    "a token of another user": ({"api_user": "root@pve"}, TOKEN, ["api_token_id names root@pam, api_user is root@pve"]),
}


@pytest.mark.parametrize("case", LOGINS)
def test_logins(lab, pve, case):
    changes, token, words = LOGINS[case]
    fails({**login(pve, lab.ca, token), "vmid": 101, **changes}, *words)
    assert writes(pve) == []


@pytest.mark.parametrize(("user", "token"), [("root@pam", "ansible"), (None, "root@pam!ansible"), ("root@pam", "root@pam!ansible")])
def test_a_token_may_be_named_in_two_ways(lab, pve, made, user, token):
    options = {**login(pve, lab.ca, TOKEN), "api_user": user, "api_token_id": token, "vmid": 101}
    assert run(options)["changed"] is False


def test_a_second_factor(pve, root):
    pve.tfa = True
    fails(root, "has a second factor", "API token")


def test_a_ticket_that_ends_in_the_middle(pve, root, made):
    """The task that was started goes on; it is said how to see it."""
    pve.time_scale, made.start_secs = 1, 2
    started = pve._lxc_start

    async def then_forget(user, values):
        pve.revoke_tickets()
        return await started(user, values)

    reroute(pve, "POST", "/lxc/{vmid}/status/start", then_forget)
    fails({**root, "state": "started"}, "How task vzstart of container 101 ended is not known", "pvenode task status 'UPID:", "401")


PRIVILEGES = [
    ("/vms/101", ["VM.Audit", "VM.Config.CPU"], {"memory": 1024}, "lacks the privilege VM.Config.Memory on /vms/101"),
    ("/vms/101", ["VM.Audit", "VM.Config.CPU"], {"state": "started"}, "lacks the privilege VM.PowerMgmt on /vms/101"),
    ("/vms/101", ["VM.Audit"], {"state": "absent"}, "lacks the privilege VM.Allocate on /vms/101"),
]


@pytest.mark.parametrize(("path", "privileges", "options", "words"), PRIVILEGES)
def test_privileges(lab, pve, made, path, privileges, options, words):
    pve.acl.clear()
    pve.grant(OTHER, path, *privileges)
    fails({**login(pve, lab.ca, OTHER), "vmid": 101, **options}, words, f"pveum acl modify {path} --tokens '{OTHER}'")


def test_a_storage_that_the_identity_may_not_use(lab, pve):
    pve.acl.clear()
    pve.grant(OTHER, "/vms", "VM.Allocate", "VM.Audit", "VM.Config.Disk", "VM.Config.Options")
    pve.grant(OTHER, "/storage/local", "Datastore.Audit")
    options = {"vmid": 101, "ostemplate": WHOLE["ostemplate"], "rootfs": WHOLE["rootfs"]}
    fails({**login(pve, lab.ca, OTHER), **options}, "Datastore.AllocateSpace on /storage/local-lvm", "pveum acl modify")
    assert pve.ct(101) is None


# The way there


def test_nobody_listens(pve, root, lab):
    lab.call(pve.stop())
    fails(root, f"https://127.0.0.1:{pve.port} refuses connections", "pveproxy")


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
def test_a_certificate_that_is_not_trusted(pve, root):
    fails({**root, "ca_path": None}, "is not trusted", "ca_path (/etc/pve/pve-root-ca.pem")
    assert pve.requests == []
    pve.add_ct(101)
    assert run({**root, "ca_path": None, "validate_certs": False})["changed"] is False


def test_a_certificate_file_that_is_not_there(root):
    fails({**root, "ca_path": "/nowhere/ca.pem"}, "ca_path: /nowhere/ca.pem cannot be read")


@pytest.mark.parametrize("host", ["pve.invalid", "https://pve.invalid"])
def test_a_name_that_nobody_knows(root, host):
    fails({**root, "api_host": host}, f"https://pve.invalid:{root['api_port']}", "Check api_host")


def test_slow(pve, root, made):
    pve.time_scale = 1
    pve.slow_network(3, node="pve1")
    fails({**root, "api_timeout": 1}, "has not answered GET /nodes/pve1/lxc/101/config in time", "api_timeout")


@pytest.mark.parametrize("status", [595, 596])
def test_a_node_that_cannot_be_reached(pve, root, made, status):
    pve.fail("GET", "/nodes/pve1/lxc/101/config", status, "Connection timed out")
    fails({**root, "node": "pve1"}, "cannot reach node pve1", "maintenance", "run again when it answers")
    assert writes(pve) == []


def test_a_node_that_is_down(pve, root, made):
    pve.set_node_offline("pve1")
    fails({**root, "state": "started"}, "cannot reach node pve1", "maintenance")


def test_quorum_lost(pve, root, made):
    pve.lose_quorum()
    fails({**root, "memory": 1024}, "lost its quorum", "pvecm status")
    fails({**root, **WHOLE, "vmid": 102}, "lost its quorum")
    assert run(root)["changed"] is False
    pve.regain_quorum()
    assert run({**root, **WHOLE, "vmid": 102})["changed"] is True


# Cut


def test_the_connection_is_cut_while_a_task_runs(lab, pve, root):
    """The task goes on in the meantime and is asked after again."""
    pve.time_scale = 1
    pve.ct_secs["create"] = 2
    lab.later(0.8, pve.network.update, {"drop_rate": 1.0})
    lab.later(2.5, pve.network.update, {"drop_rate": 0.0})
    done = run({**root, **WHOLE, "state": "started"})
    assert (done["status"], [task["exitstatus"] for task in done["tasks"]]) == ("running", ["OK", "OK"])
    assert pve.ct(101).config["dev0"] == "/dev/nvidia0,mode=0666"
    assert [method for method, _path, _arguments in writes(pve)] == ["POST", "POST"]


def test_the_connection_is_cut_and_stays_so(lab, pve, root):
    pve.time_scale = 1
    pve.ct_secs["create"] = 3
    lab.later(0.8, pve.network.update, {"drop_rate": 1.0})
    fails({**root, **WHOLE, "timeout_s": 2}, "How task vzcreate of container 101 ended is not known", "UPID:", "run again")
    pve.network["drop_rate"] = 0.0
    done = run({**root, **WHOLE, "state": "started"})  # the next run finds it locked by its creation, waits, and completes
    assert (done["status"], done["config"]["hostname"]) == ("running", "infer1")
    assert [method for method, _path, _arguments in writes(pve)] == ["POST", "POST"]


def lose_answers(pve, monkeypatch, method, suffix, times=1):
    """Calls of METHOD on a path with SUFFIX are carried out, and their answers lost."""
    answer, left = pve._answer, [times]

    async def lost(request, *arguments):
        found = await answer(request, *arguments)
        if request.method == method and request.path.endswith(suffix) and left[0]:
            left[0] -= 1
            request.transport.close()
        return found

    monkeypatch.setattr(pve, "_answer", lost)


@pytest.mark.parametrize(
    ("options", "method", "suffix", "tasks"),
    [
        ({**WHOLE, "vmid": 102}, "POST", "/lxc", ["vzcreate"]),
        ({"state": "started"}, "POST", "/status/start", ["vzstart"]),
        ({"state": "absent"}, "DELETE", "/lxc/101", ["vzdestroy"]),
        ({"memory": 1024}, "PUT", "/config", []),
        ({"rootfs": {"storage": "local-lvm", "size_gib": 9}}, "PUT", "/resize", ["resize"]),
    ],
)
def test_an_answer_that_is_lost(pve, root, made, monkeypatch, options, method, suffix, tasks):
    """What was carried out all the same is found and not done twice."""
    lose_answers(pve, monkeypatch, method, suffix)
    done = run({**root, **options})
    assert (done["changed"], [task["type"] for task in done["tasks"]]) == (True, tasks)
    assert len(writes(pve)) == 1


def test_an_answer_that_comes_too_late(pve, root, made):
    """The node works before it names its task, and longer than a call may take."""
    pve.time_scale = 1
    start = pve._lxc_start

    async def slow(user, values):
        await pve.pause(2)
        return await start(user, values)

    reroute(pve, "POST", "/lxc/{vmid}/status/start", slow)
    done = run({**root, "state": "started", "api_timeout": 1})
    assert (done["status"], [task["type"] for task in done["tasks"]]) == ("running", ["vzstart"])
    assert len(writes(pve)) == 1


def test_a_call_that_never_arrived(pve, root, made, monkeypatch):
    """An older task of the same kind is not taken for it."""
    run({**root, "state": "started"})
    run({**root, "state": "stopped"})
    answer = pve._answer

    async def swallowed(request, *arguments):
        if request.path.endswith("/status/start"):
            request.transport.close()
            raise PveError(500, "swallowed")
        return await answer(request, *arguments)

    monkeypatch.setattr(pve, "_answer", swallowed)
    fails({**root, "state": "started"}, "closed the connection before it answered POST", "Run again when the API answers")


def test_a_kept_connection_that_was_closed_is_no_fault(pve, root, made, monkeypatch):
    lose_answers(pve, monkeypatch, "GET", "/pending")
    assert run(root)["changed"] is False


# Locks


def test_a_backup_holds_it(lab, pve, root, made):
    pve.time_scale = 1
    lab.call(pve.backup(101, secs=30, user="backup@pve"))
    lab.call(settle())
    message = fails(
        {**root, "memory": 1024}, "is locked: backup", "Task vzdump of backup@pve works on it (UPID:", "Run again when that has ended"
    )
    assert "pct unlock" not in message
    for options in ({"state": "started"}, {"state": "absent"}, {"memory": 1024, "state": "present"}):
        with pytest.raises(RingmasterError, match="locked: backup"):
            run({**root, **options}, check_mode=True)
    assert run(root)["changed"] is False  # nothing to do, so nobody is in the way
    assert writes(pve) == []
    made.lock = None


def test_a_lock_that_nobody_holds(pve, root, made):
    made.lock = "snapshot"
    fails({**root, "memory": 1024}, "is locked: snapshot", "No task that root@pam can see", "pct unlock 101")
    assert writes(pve) == []


def test_a_lock_that_comes_between(pve, root, made):
    pve.fail("PUT", "/config", 500, "CT is locked (migrate)")
    fails({**root, "memory": 1024}, "Container 101 is locked: migrate", "pct unlock 101")


def test_the_configuration_is_held(pve, root, made):
    pve.fail("PUT", "/config", error="config_lock_timeout")
    fails({**root, "memory": 1024}, "Another task holds the configuration of container 101", "--source active --vmid 101")


# Creating that fails


def broken(text):
    """A step of the fake's worker that fails with TEXT."""

    def fail(*_arguments):
        raise TaskError(text)

    return fail


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("unable to create CT 101 - write failed: No space left on device", "The storage is full"),
        ("volume 'local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst' does not exist", "There is no template local:vztmpl/debian-12"),
        ("command 'tar' failed: exit code 2", "command 'tar' failed"),
    ],
)
def test_a_creation_that_fails_fails_at_once_and_leaves_nothing(pve, root, monkeypatch, text, words):
    monkeypatch.setattr(pve, "volume_exists", broken(text))
    fails({**root, **WHOLE, "timeout_s": 3600}, "Task vzcreate of container 101 failed on node pve1", words, "Nothing is left of it")
    assert pve.ct(101) is None
    assert [method for method, _path, _arguments in writes(pve)] == ["POST"]
    monkeypatch.undo()
    assert run({**root, **WHOLE})["changed"] is True


REFUSED = {
    "an unknown storage": ({"rootfs": {"storage": "nvme", "size_gib": 8}}, "Storage nvme cannot be used on node pve1"),
    "a storage for other things": ({"rootfs": {"storage": "local", "size_gib": 8}}, "Storage local does not hold containers"),
    "a template on an unknown storage": ({"ostemplate": "nas:vztmpl/x.tar.zst"}, "Storage nas cannot be used"),
    "no template at all": ({"ostemplate": "local:iso/x.iso"}, "There is no template local:iso/x.iso"),
    "an unknown pool": ({"pool": "prod"}, "pool 'prod' does not exist"),
    "a setting that nobody knows": ({"extra": {"colour": "red"}}, "does not know a setting that was asked for"),
    "a host name that is none": ({"hostname": "in fer"}, "hostname:"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_creation_that_is_refused_leaves_nothing(pve, root, case):
    options, words = REFUSED[case]
    fails({**root, **WHOLE, **options}, words)
    assert pve.ct(101) is None


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("nas:vztmpl/x.tar.zst", "Storage nas cannot be used"),
        ("local:vztmpl/debian-1.tar.zst", f"there is no template local:vztmpl/debian-1.tar.zst on node pve1, but {WHOLE['ostemplate']}"),
    ],
)
def test_check_mode_looks_for_the_template(pve, root, template, words):
    with pytest.raises(RingmasterError, match=words):
        run({**root, **WHOLE, "ostemplate": template}, check_mode=True)
    assert run({**root, **WHOLE}, check_mode=True)["changed"] is True
    assert writes(pve) == []


def test_a_number_taken_in_between_is_not_touched(pve, root, monkeypatch):
    """Somebody else's container has the number when ours is to be made: it stays."""

    def taken(*_arguments):
        pve.add_ct(101, name="theirs")
        raise TaskError("Could not reserve ID 101, already taken")

    monkeypatch.setattr(pve, "volume_exists", taken)
    drop = pve._drop
    monkeypatch.setattr(pve, "_check_vmid_unused", lambda vmid: None)
    monkeypatch.setattr(pve, "_drop", lambda ct: drop(ct) if ct.lock == "create" else None)
    fails({**root, **WHOLE}, "VMID 101 is taken", "was not made by this run, and is not touched")
    assert pve.ct(101).name == "theirs"
    assert [method for method, _path, _arguments in writes(pve)] == ["POST"]


def test_what_is_half_made_is_removed(pve, root, monkeypatch):
    """The creation leaves the devices out, and they cannot be put in afterwards: the new container goes again, and the cause is told."""
    create = pve._lxc_create

    async def forgetful(user, values):
        return await create(user, {key: value for key, value in values.items() if not key.startswith("dev")})

    reroute(pve, "POST", "/lxc", forgetful)
    pve.fail("PUT", "/config", 500, "Device /dev/nvidia0 does not exist")
    fails({**root, **WHOLE, "state": "started"}, "Node pve1 has no device /dev/nvidia0", "nvidia-modprobe", "Nothing is left of it")
    assert pve.ct(101) is None
    assert [method for method, _path, _arguments in writes(pve)] == ["POST", "PUT", "DELETE"]
    pve.failures.clear()
    assert run({**root, **WHOLE, "state": "started"})["status"] == "running"


def test_what_is_half_made_and_cannot_be_removed_is_named(pve, root):
    create = pve._lxc_create

    async def forgetful(user, values):
        return await create(user, {key: value for key, value in values.items() if not key.startswith("dev")})

    reroute(pve, "POST", "/lxc", forgetful)
    pve.fail("PUT", "/config", 500, "Device /dev/nvidia0 does not exist")
    pve.fail("DELETE", "/lxc/101", 500, "something holds the volume")
    fails({**root, **WHOLE}, "no device /dev/nvidia0", "container 101", "something holds the volume", "left")


def test_a_creation_that_was_killed_is_named(pve, root):
    """A node that lost its power while it created: nothing but its shell can take the rest away."""
    pve.add_ct(101, defaults=False, lock="create")
    fails({**root, **WHOLE}, "is locked: create", "pct unlock 101 && pct destroy 101", "Then run again")
    assert writes(pve) == []


def test_a_container_that_does_not_start_stays_and_the_next_run_starts_it(pve, root, monkeypatch):
    start = pve._start_steps

    async def fail(ct, *_arguments):
        raise TaskError("Could not get mode or device ID of /dev/nvidia-uvm")

    monkeypatch.setattr(pve, "_start_steps", fail)
    options = {**root, **WHOLE, "state": "started"}
    fails(options, "Task vzstart of container 101 failed", "no device /dev/nvidia-uvm", "nvidia-modprobe", "is there now, as configured")
    assert pve.ct(101).config["dev2"] == "/dev/nvidia-uvm,mode=0666"
    monkeypatch.setattr(pve, "_start_steps", start)
    pve.requests.clear()
    assert run(options)["status"] == "running"
    assert [path for _method, path, _arguments in writes(pve)] == ["/nodes/pve1/lxc/101/status/start"]


def test_a_task_that_takes_too_long(pve, root):
    pve.time_scale = 1
    pve.ct_secs["create"] = 3
    fails({**root, **WHOLE, "timeout_s": 1}, "Task vzcreate of container 101 has not ended in 1 s", "It goes on by itself")
    done = run({**root, **WHOLE})
    assert (done["changed"], done["config"]["hostname"]) == (False, "infer1")


def test_a_start_that_takes_too_long(pve, root, monkeypatch):
    pve.time_scale = 1
    start = pve._start_steps

    async def slow(ct, *arguments):
        await asyncio.sleep(2)
        return await start(ct, *arguments)

    monkeypatch.setattr(pve, "_start_steps", slow)
    told = fails({**root, **WHOLE, "state": "started", "timeout_s": 1}, "vzstart of container 101 has not ended in 1 s", "not known")
    assert "has not come up" not in told
    assert told.lower().count("run again") == 1


def test_a_shutdown_that_does_not_end(pve, root, made):
    made.status, made.shutdown_secs = "running", 10_000
    fails({**root, "state": "stopped"}, "did not shut down in time", "force: true")
    assert run({**root, "state": "stopped", "force": True})["status"] == "stopped"


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({"mounts": []}, "mp0, mp1"),
        ({"mounts": [*WHOLE["mounts"], {"source": "/a", "target": "/a"}]}, "mp2"),
        ({"mounts": [], "extra": {"protection": False}}, "mp0, mp1"),
        ({"extra": {"unused3": None}}, "unused3"),
    ],
)
def test_protection_keeps_volumes(pve, root, made, options, keys):
    """Also where one call would take it away: Proxmox VE looks at what was before."""
    made.config.update({"protection": 1, "unused3": "local-lvm:vm-101-disk-9"})
    for check_mode in (True, False):
        fails({**root, **options}, f"of it: {keys}. Nothing was sent", "in a task before: extra: {protection", check_mode=check_mode)
    assert writes(pve) == []
    assert run({**root, "memory": 1024, "extra": {"protection": False}})["changed"] is True
    assert run({**root, **options})["changed"] is True


def test_an_error_without_json(pve, root, made):
    pve.fail("PUT", "/config", 502, "<html>Bad Gateway</html>", html=True)
    pve.fail("GET", "/status/current", 502, "<html>Bad Gateway</html>", html=True)
    fails(root, "Something before https://127.0.0.1", "answers GET /nodes/pve1/lxc/101/status/current")


@pytest.mark.parametrize(("needed", "host"), [("proxmoxer", ""), ("proxmoxer", "pve1"), ("requests", "pve1")])
def test_a_library_that_is_missing(monkeypatch, needed, host):
    monkeypatch.setattr(pve_client, "IMPORT_ERRORS", {needed: "the traceback"})
    assert pve_client.missing({"api_host": host}) == (needed, "the traceback")


def test_without_host_only_one_library_is_needed(monkeypatch):
    monkeypatch.setattr(pve_client, "IMPORT_ERRORS", {"requests": "the traceback"})
    assert pve_client.missing({"api_host": None}) == (None, None)
