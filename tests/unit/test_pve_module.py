# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Containers through the API of a fake Proxmox VE: created, changed, started, removed; each time check mode first, and each time twice."""

from __future__ import annotations

import copy

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from pve_lab import GPU, SECRETS, WHOLE, calls, info, login, reroute, run, writes

TOKEN, OTHER = SECRETS
MODELS, CACHE = WHOLE["mounts"]
(ETH0,) = WHOLE["networks"]


def refused(options, words):
    for check_mode in (True, False):
        with pytest.raises(RingmasterError, match=words):
            run(options, check_mode)


def knowable(config):
    """CONFIG without what nobody knows before it is there: MAC addresses, names of new volumes, what is unused."""
    config = copy.deepcopy(config)
    for row in config["networks"]:
        row.pop("hwaddr")
    for row in config["mounts"]:
        row["source"] = row["source"].partition(":")[0]
    config["rootfs"].pop("volume")
    config["extra"] = {key: text for key, text in config["extra"].items() if not key.startswith("unused")}
    return config


# Creating


@pytest.mark.parametrize(
    ("state", "status"), [("present", "stopped"), ("started", "running"), ("stopped", "stopped"), ("restarted", "running")]
)
def test_a_container_with_everything_in_one_call_and_nothing_in_the_second(pve, root, state, status):
    options = {**root, **WHOLE, "state": state}
    foretold = run(options, check_mode=True)
    assert writes(pve) == []
    done = run(options)
    assert (done["changed"], done["status"], done["node"], done["warnings"]) == (True, status, "pve1", [])
    assert [path for _method, path, _arguments in writes(pve)][:1] == ["/nodes/pve1/lxc"]
    assert not [path for _method, path, _arguments in writes(pve) if path.endswith("/config")]
    for name in ("diff", "changed", "status", "node", "pending", "restart_required"):
        assert foretold[name] == done[name], name
    pve.requests.clear()
    if state != "restarted":
        for check_mode in (False, True):
            again = run(options, check_mode)
            assert (again["changed"], again["config"]) == (False, done["config"])
            assert again["diff"]["before"] == again["diff"]["after"]
        assert writes(pve) == []
        assert len(calls(pve, "GET")) == 8  # where it is, its configuration now and then, its state


def test_what_the_creation_leaves_out_is_put_right_in_the_same_run(pve, root):
    create = pve._lxc_create

    async def forgetful(user, values):
        return await create(user, {key: value for key, value in values.items() if not key.startswith("dev")})

    reroute(pve, "POST", "/lxc", forgetful)
    done = run({**root, **WHOLE, "state": "started"})
    assert [row["path"] for row in done["config"]["devices"]] == [row["path"] for row in GPU]
    assert [method for method, _path, _arguments in writes(pve)] == ["POST", "PUT", "POST"]


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (None, "on which node to create it is not said. Give node, one of pve1, pve2"),
        ("pve3", "There is no node pve3 in the cluster"),
        ("pve2", "cannot reach node pve2.*maintenance"),
    ],
)
def test_where_to_create_it(pve, root, node, words):
    pve.add_node("pve2", online=False)
    refused({**root, **WHOLE, **({"node": node} if node else {})}, words)
    refused({**root, **WHOLE, "pool": "prod", "node": "pve2"}, "Node pve2 is offline")
    assert writes(pve) == []


def test_creating_without_a_template(pve, root):
    refused({**root, "state": "started"}, "There is no container 101, and ostemplate and rootfs")
    assert writes(pve) == []


def test_a_password_and_keys_go_to_the_creation_and_nowhere_else(pve, root):
    options = {**root, **WHOLE, "password": "geheim!", "ssh_public_keys": ["ssh-ed25519 A a"], "pool": "prod"}
    pve.pools["prod"] = set()
    done = run(options)
    assert "geheim" not in str(done)
    ((_method, _path, arguments),) = writes(pve)
    assert (arguments["password"], arguments["ssh-public-keys"]) == ("***", "ssh-ed25519 A a")
    pve.requests.clear()
    assert run(options)["changed"] is False
    refused({**options, "pool": "test"}, "is in pool prod, not in test")
    assert writes(pve) == []


# Changing

CHANGES = {
    "memory": ({"memory": 4096}, {"memory": "4096"}),
    "swap and cores": ({"swap": 512, "cores": 8}, {"swap": "512", "cores": "8"}),
    "no limit of cores": ({"cores": 0}, {"delete": "cores"}),
    "a description": ({"description": "other"}, {"description": "other"}),
    "no description": ({"description": ""}, {"delete": "description"}),
    "tags": ({"tags": ["b", "A"]}, {"tags": "a;b"}),
    "not at boot": ({"onboot": False}, {"onboot": "0"}),
    "keyctl": ({"features": {"nesting": True, "keyctl": True}}, {"features": "keyctl=1,nesting=1"}),
    "no features": ({"features": {}}, {"delete": "features"}),
    "one device more": ({"devices": [*GPU, {"path": "/dev/nvidia1"}]}, {"dev3": "/dev/nvidia1"}),
    "one device less": ({"devices": GPU[1:]}, {"delete": "dev0"}),
    "one device other": ({"devices": [{**GPU[0], "gid": 44}, *GPU[1:]]}, {"dev0": "/dev/nvidia0,gid=44,mode=0666"}),
    "no devices": ({"devices": []}, {"delete": "dev0,dev1,dev2"}),
    "a writable mount": ({"mounts": [{**MODELS, "read_only": False}, CACHE]}, {"mp0": "/tank/models,mp=/models"}),
    "one volume more": ({"mounts": [MODELS, CACHE, {**CACHE, "target": "/new"}]}, {"mp2": "local-lvm:2,mp=/new"}),
    "one mount less": ({"mounts": [CACHE]}, {"delete": "mp0"}),
    "one volume less": ({"mounts": [MODELS]}, {"delete": "mp1"}),
    "another name server": ({"nameserver": []}, {"delete": "nameserver"}),
    "start order": ({"extra": {"startup": "order=3,up=5"}}, {"startup": "order=3,up=5"}),
    "several at once": ({"memory": 1024, "devices": GPU[:1], "tags": []}, {"memory": "1024", "delete": "tags,dev1,dev2"}),
    "a second network": ({"networks": [ETH0, {"name": "ib0", "bridge": "vmbr1"}]}, {"net1": "name=ib0,bridge=vmbr1"}),
    "no networks": ({"networks": []}, {"delete": "net0"}),
}


@pytest.mark.parametrize("state", ["present", "started"])
@pytest.mark.parametrize("case", CHANGES)
def test_only_the_difference_is_sent_and_foretold(pve, root, made, case, state):
    """Check mode answers what the real run answers: the difference, what waits for a restart, all that can be known before."""
    changes, sent = CHANGES[case]
    options = {**root, **copy.deepcopy(WHOLE), "state": state, **changes}
    if "extra" in changes:
        options["extra"] = {**WHOLE["extra"], **changes["extra"]}
    run({**root, "state": state})
    pve.requests.clear()
    digest = made.digest()
    foretold = run(options, check_mode=True)
    assert writes(pve) == []
    done = run(options)
    assert writes(pve) == [("PUT", "/nodes/pve1/lxc/101/config", {**sent, "digest": digest})]
    for name in ("changed", "diff", "status", "restart_required", "warnings"):
        assert foretold[name] == done[name], name
    assert knowable(foretold["config"]) == knowable(done["config"])
    assert [row["key"] for row in foretold["pending"]] == [row["key"] for row in done["pending"]]
    assert done["changed"] is True
    pve.requests.clear()
    again = run(options)
    assert (again["changed"], again["restart_required"]) == (False, done["restart_required"])
    assert writes(pve) == []


def test_what_waits_for_a_restart_is_said_until_it_is_restarted(pve, root, made):
    run({**root, "state": "started"})
    options = {**root, "state": "started", "features": {"nesting": True, "fuse": True}}
    done = run(options)
    assert done["restart_required"] is True
    assert done["pending"] == [{"key": "features", "value": "nesting=1", "pending": "fuse=1,nesting=1"}]
    pve.requests.clear()
    assert run(options)["restart_required"] is True
    assert run({**root, "state": "stopped"}, check_mode=True)["restart_required"] is False
    assert writes(pve) == []
    foretold, done = run({**options, "state": "restarted"}, check_mode=True), run({**options, "state": "restarted"})
    assert (foretold["restart_required"], foretold["pending"]) == (done["restart_required"], done["pending"]) == (False, [])
    assert foretold["diff"] == done["diff"]
    assert done["changed"] is True
    assert made.config["features"] == "fuse=1,nesting=1"


def test_a_pending_change_that_contradicts_is_taken_back(pve, root, made):
    run({**root, "state": "started"})
    run({**root, "devices": GPU[1:], "features": {}})
    assert sorted(made.pending) == ["dev0", "features"]
    pve.requests.clear()
    done = run({**root, "devices": GPU, "features": {"nesting": True}})
    ((_method, _path, arguments),) = writes(pve)
    assert arguments.pop("digest")
    assert arguments == {"revert": "features,dev0"}
    assert (made.pending, done["restart_required"]) == ({}, False)


def test_volumes_grow_by_a_task_and_do_not_shrink(pve, root, made):
    options = {**root, "rootfs": {"storage": "local-lvm", "size_gib": 10}, "mounts": [MODELS, {**CACHE, "size_gib": 3.5}]}
    foretold, done = run(options, check_mode=True), run(options)
    assert foretold["diff"] == done["diff"]
    assert [task["type"] for task in done["tasks"]] == ["resize", "resize"]
    assert [arguments["size"] for _method, _path, arguments in writes(pve)] == ["3584M", "10G"]
    assert len({arguments["digest"] for _method, _path, arguments in writes(pve)}) == 2  # each write with the digest of its moment
    assert (done["config"]["rootfs"]["size_gib"], done["config"]["mounts"][1]["size_gib"]) == (10, 3.5)
    pve.requests.clear()
    assert run(options)["changed"] is False
    refused({**options, "rootfs": {"storage": "local-lvm", "size_gib": 9}}, "has 10 GiB and cannot shrink to 9 GiB")
    assert writes(pve) == []


def test_a_volume_taken_out_is_kept_and_named(pve, root, made):
    done = run({**root, "mounts": [MODELS]})
    assert "local-lvm:vm-101-disk-1 is taken out of container 101 (mp1) and kept" in done["warnings"][0]
    assert made.config["unused0"] == "local-lvm:vm-101-disk-1"


@pytest.mark.parametrize(("times", "changed"), [(1, True), (2, None)])
def test_a_configuration_that_somebody_else_changed_meanwhile(pve, root, made, times, changed):
    pve.fail("PUT", "/config", 500, "detected modified configuration - file changed by other user? Try again.", times=times)
    if changed:
        assert run({**root, "memory": 1024})["changed"] is True
        assert made.config["memory"] == 1024
    else:
        with pytest.raises(RingmasterError, match="Somebody else keeps changing the configuration of container 101"):
            run({**root, "memory": 1024})
    assert len(writes(pve)) == 2


def test_the_digest_that_is_sent_guards(pve, root, made):
    """Somebody writes between reading and writing; the fake itself refuses then, and the second try starts from what he wrote."""
    status = pve._lxc_status_current

    async def meddled(user, values):
        if made.config["memory"] == 2048:
            made.config["memory"] = 1234
            made.config["cores"] = 7
        return await status(user, values)

    reroute(pve, "GET", "/lxc/{vmid}/status/current", meddled)
    done = run({**root, "memory": 1024, "cores": 7})
    assert [sorted(arguments) for _method, _path, arguments in writes(pve)] == [["cores", "digest", "memory"], ["digest", "memory"]]
    assert (done["config"]["memory"], done["config"]["cores"]) == (1024, 7)


def test_a_change_that_was_taken_and_did_nothing_is_an_error(pve, root, made, monkeypatch):
    async def deaf(*_arguments):
        return None

    monkeypatch.setattr(pve, "_update_config", deaf)
    with pytest.raises(RingmasterError, match="without an error, and still it differs: memory: '2048' instead of '1024'.*pct pending 101"):
        run({**root, "memory": 1024})


def test_a_template_of_another_system_is_said_and_nothing_done(pve, root, made):
    done = run({**root, "ostemplate": "local:vztmpl/ubuntu-24.04-standard_amd64.tar.zst"})
    assert done["changed"] is False
    assert "is debian; ostemplate names ubuntu" in done["warnings"][0]


# States

STATES = [
    ("stopped", "present", {}, []),
    ("running", "present", {}, []),
    ("stopped", "started", {}, ["vzstart"]),
    ("running", "started", {}, []),
    ("stopped", "stopped", {}, []),
    ("running", "stopped", {}, ["vzshutdown"]),
    ("running", "stopped", {"force": True}, ["vzstop"]),
    ("running", "restarted", {}, ["vzshutdown", "vzstart"]),
    ("running", "restarted", {"force": True}, ["vzstop", "vzstart"]),
    ("stopped", "restarted", {}, ["vzstart"]),
    ("stopped", "absent", {}, ["vzdestroy"]),
    ("running", "absent", {"force": True}, ["vzdestroy"]),
]


@pytest.mark.parametrize(("status", "state", "more", "tasks"), STATES)
def test_states(pve, root, made, status, state, more, tasks):
    made.status = status
    options = {**root, "state": state, **more}
    foretold = run(options, check_mode=True)
    assert writes(pve) == []
    done = run(options)
    assert [task["type"] for task in done["tasks"]] == tasks
    assert [task["exitstatus"] for task in done["tasks"]] == ["OK"] * len(tasks)
    for name in ("changed", "status", "diff", "restart_required"):
        assert foretold[name] == done[name], name
    assert done["changed"] is bool(tasks)
    pve.requests.clear()
    if state != "restarted":
        assert run(options)["changed"] is False
        assert writes(pve) == []


def test_a_running_container_is_not_removed_without_force(pve, root, made):
    made.status = "running"
    refused({**root, "state": "absent"}, "is running, and is not removed.*force: true")
    assert writes(pve) == []


def test_a_protected_container_is_not_removed(pve, root, made):
    made.config["protection"] = 1
    refused({**root, "state": "absent"}, "is protected")
    assert writes(pve) == []


def test_high_availability(pve, root, made):
    """Its tasks end before it acts: the module waits for the state itself."""
    made.ha_state = "stopped"
    pve.time_scale, pve.ha_delay = 0.1, 10
    done = run({**root, "state": "started"})
    assert (done["status"], [task["type"] for task in done["tasks"]]) == ("running", ["hastart"])
    run({**root, "state": "stopped"})
    refused({**root, "state": "absent"}, "managed by high availability.*purge: true")
    assert run({**root, "state": "absent", "purge": True})["status"] == "absent"


def test_high_availability_that_does_nothing(pve, root, made):
    made.ha_state = "stopped"
    pve.time_scale, pve.ha_delay = 1, 60
    with pytest.raises(RingmasterError, match="is stopped and not running.*ha-manager status.*maintenance"):
        run({**root, "state": "started", "timeout_s": 1})


# Where it is


def test_the_node_is_found(pve, root):
    pve.add_ct(101, node="pve7")
    assert run(root)["node"] == "pve7"
    refused({**root, "node": "pve1"}, "Container 101 is on node pve7, not on pve1.*pct migrate 101 pve1")
    pve.requests.clear()
    assert run({**root, "node": "pve7"})["changed"] is False
    assert len(calls(pve, "GET")) == 3


@pytest.mark.parametrize("state", ["present", "started", "absent"])
def test_the_number_of_a_virtual_machine(pve, root, state):
    pve.add_vm(101, "db1", node="pve1", status="stopped")
    for more in ({}, {"node": "pve1"}):
        refused({**root, **WHOLE, "state": state, **more}, "VMID 101 is a virtual machine .db1. on node pve1.*nextid")
    assert writes(pve) == []


# Who may


def test_a_token_of_root_is_not_root_and_nothing_is_sent(lab, pve):
    options = {**login(pve, lab.ca, TOKEN), **WHOLE}
    refused(options, r"identity in use is root@pam!ansible: dev0 \(device\), dev1 \(device\), dev2 \(device\), mp0 .*Two ways out")
    assert writes(pve) == []


def test_the_fake_refuses_that_too(lab, pve, monkeypatch):
    """So the warning is about something: without it the call fails."""
    monkeypatch.setattr("ansible_collections.ringmaster.gpu.plugins.module_utils.pve_access.check", lambda *_arguments: None)
    with pytest.raises(RingmasterError, match="from root@pam alone, not from root@pam!ansible"):
        run({**login(pve, lab.ca, TOKEN), **WHOLE})


@pytest.mark.parametrize("token", SECRETS)
def test_a_token_may_do_the_rest(lab, pve, root, token):
    """Devices that are there already are no matter: they are not written."""
    run({**root, **WHOLE})
    pve.requests.clear()
    options = {**login(pve, lab.ca, token), **WHOLE}
    assert run(options)["changed"] is False
    assert writes(pve) == []
    assert run({**options, "memory": 1024, "state": "started"})["config"]["memory"] == 1024
    refused({**options, "devices": GPU[:1]}, "dev1 .device., dev2 .device.")
    allowed = {name: value for name, value in WHOLE.items() if name not in ("devices", "mounts")}
    done = run({**login(pve, lab.ca, token), **allowed, "vmid": 102, "mounts": [CACHE], "state": "started"})
    assert done["status"] == "running"
    assert run({**login(pve, lab.ca, token), "vmid": 102, "state": "absent", "force": True})["changed"] is True


def test_a_container_that_the_identity_cannot_see(lab, pve):
    pve.acl.clear()
    pve.grant(OTHER, "/storage", "Datastore.AllocateSpace")
    pve.grant(OTHER, "/vms/999", "VM.Allocate")
    pve.add_ct(101)
    with pytest.raises(RingmasterError, match="VMID 101 is taken.*VM.Audit on /vms/101|lacks"):
        run({**login(pve, lab.ca, OTHER), "vmid": 101, "ostemplate": WHOLE["ostemplate"], "rootfs": WHOLE["rootfs"]})


# Looking


def test_info(lab, pve, root):
    run({**root, **WHOLE, "state": "started"})
    pve.add_ct(102, name="web", node="pve2", config={"lxc": [["lxc.apparmor.profile", "unconfined"]]})
    pve.add_vm(103, "db1")
    pve.requests.clear()
    one, two = info(login(pve, lab.ca))
    assert (one["vmid"], one["status"], two["vmid"], two["node"]) == (101, "running", 102, "pve2")
    assert "addresses" not in one
    assert two["config"]["lxc"] == [["lxc.apparmor.profile", "unconfined"]]
    (found,) = info({**login(pve, lab.ca), "vmid": 101, "addresses": True})
    assert found["addresses"] == ["192.0.2.21/24"]
    assert found["config"] == run(root)["config"]
    assert [row["vmid"] for row in info({**login(pve, lab.ca), "node": "pve2"})] == [102]
    assert info({**login(pve, lab.ca), "vmid": 999}) == []
    assert writes(pve) == []


def test_info_with_a_node_that_is_down(lab, pve, root):
    run({**root, **WHOLE})
    pve.add_ct(102, node="pve2")
    pve.set_node_offline("pve2")
    one, two = info(login(pve, lab.ca))
    assert (one["problem"], two["status"]) == ("", "unknown")
    assert "cannot reach node pve2" in two["problem"]
