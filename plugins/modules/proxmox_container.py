#!/usr/bin/python
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: proxmox_container
short_description: LXC containers of Proxmox VE, with their GPU devices
version_added: 0.1.0
author:
  - Ringmaster contributors (@ringmaster)
description:
  - Creates, changes, starts, stops and removes a container through the API of Proxmox VE.
  - Only the difference is sent, with the digest of the configuration that it was computed from, and the configuration is read back
    afterwards. A second run writes nothing.
  - An option that is left out is no opinion, and what it stands for stays as it is. Lists are whole, so what is not in O(devices),
    O(mounts) or O(networks) is taken away, and an empty list means none.
  - What an identity will be refused is told before anything is sent. Devices, bind mounts, hook scripts and all features but C(nesting)
    need exactly V(root@pam). A token of it is another identity.
  - A change that a running container takes only at its next start is reported, with RV(restart_required).
options:
  vmid:
    description: Number of the container, unique in the cluster.
    type: int
    required: true
  node:
    description:
      - Node that the container is on.
      - When it is left out, the cluster is asked. To create a container it is needed where there is more than one node, unless the
        module runs on a node without O(api_host), which is then the node.
    type: str
  state:
    description:
      - V(present), V(started), V(stopped) and V(restarted) create the container when it is missing, and bring it to its configuration.
      - V(restarted) starts a container that is stopped.
      - V(absent) removes the container with its volumes.
    type: str
    choices: [present, started, stopped, restarted, absent]
    default: present
  ostemplate:
    description:
      - Template to create the container from, such as V(local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst).
      - Only used to create.
    type: str
  rootfs:
    description: The root file system. Needed to create. Other properties of it stay as they are.
    type: dict
    suboptions:
      storage:
        description: Storage that holds it. It cannot be changed afterwards.
        type: str
        required: true
      size_gib:
        description: Size in GiB. A container that has less is grown; it cannot shrink.
        type: float
        required: true
  unprivileged:
    description: Whether root in the container is a user without rights on the node. V(true) when left out. Only used to create.
    type: bool
  hostname:
    description: Host name.
    type: str
  description:
    description: Text about the container. An empty one takes it away.
    type: str
  tags:
    description: Tags; lower case, in any order.
    type: list
    elements: str
  cores:
    description: CPU cores; V(0) is no limit.
    type: int
  memory:
    description: Memory in MiB.
    type: int
  swap:
    description: Swap in MiB.
    type: int
  onboot:
    description: Whether the node starts the container when it boots.
    type: bool
  nameserver:
    description: Addresses of name servers. None means those of the node.
    type: list
    elements: str
  searchdomain:
    description: Search domains. None means those of the node.
    type: list
    elements: str
  features:
    description: What the container may do. The whole set, so what is left out is off.
    type: dict
    suboptions:
      nesting:
        description: Whether containers may run inside; systemd wants it.
        type: bool
        default: false
      keyctl:
        description: Whether the C(keyctl) system call is allowed.
        type: bool
        default: false
      fuse:
        description: Whether FUSE file systems may be mounted.
        type: bool
        default: false
      mknod:
        description: Whether device nodes may be made.
        type: bool
        default: false
      force_rw_sys:
        description: Whether C(/sys) is writable in an unprivileged container.
        type: bool
        default: false
      mount:
        description: Types of file systems that may be mounted, such as V(nfs).
        type: list
        elements: str
        default: []
  devices:
    description:
      - Device nodes of the node that the container gets (C(dev0) and so on).
      - One that is missing on the node keeps the container from starting.
    type: list
    elements: dict
    suboptions:
      path:
        description: The device node, such as V(/dev/nvidia0).
        type: str
        required: true
      mode:
        description: Permissions of the node in the container, in quotes, such as V("0666"). V("0660") when left out.
        type: raw
      uid:
        description: Its owner, as a user number in the container. V(0) when left out.
        type: int
      gid:
        description: Its group, as a group number in the container. V(0) when left out.
        type: int
      deny_write:
        description: Whether writing is forbidden.
        type: bool
        default: false
  mounts:
    description: What is mounted into the container besides its root (C(mp0) and so on).
    type: list
    elements: dict
    suboptions:
      source:
        description:
          - A directory of the node (a bind mount), a block device of it, a volume such as V(local-lvm:vm-100-disk-1), or a storage.
          - A storage with O(mounts[].size_gib), or V(storage:size) in short, makes a new volume.
            The volume that is mounted there already is as good when it is on that storage.
        type: str
        required: true
      target:
        description: Absolute path in the container.
        type: str
        required: true
      size_gib:
        description: Size of a volume in GiB. A volume that has less is grown; it cannot shrink.
        type: float
      read_only:
        description: Whether the container cannot write to it.
        type: bool
        default: false
      backup:
        description: Whether a volume is part of backups.
        type: bool
        default: false
      shared:
        description: Whether a directory or device is the same on all nodes.
        type: bool
        default: false
      replicate:
        description: Whether a volume is part of replication.
        type: bool
        default: true
      quota:
        description: Whether quotas work in it.
        type: bool
        default: false
      acl:
        description: Whether access control lists work in it; left out, the file system decides.
        type: bool
      mount_options:
        description: Any of V(discard), V(lazytime), V(noatime), V(nodev), V(noexec), V(nosuid).
        type: list
        elements: str
        default: []
  networks:
    description: Network interfaces (C(net0) and so on).
    type: list
    elements: dict
    suboptions:
      name:
        description: Name in the container, such as V(eth0).
        type: str
        required: true
      bridge:
        description: Bridge of the node.
        type: str
      ip:
        description: IPv4 address with prefix length, V(dhcp) or V(manual).
        type: str
      gateway:
        description: IPv4 gateway.
        type: str
      ip6:
        description: IPv6 address with prefix length, V(auto), V(dhcp) or V(manual).
        type: str
      gateway6:
        description: IPv6 gateway.
        type: str
      hwaddr:
        description: MAC address; left out, the one that it has stays.
        type: str
      tag:
        description: VLAN number.
        type: int
      trunks:
        description: VLAN numbers that pass through.
        type: list
        elements: int
        default: []
      mtu:
        description: Largest packet in bytes.
        type: int
      rate:
        description: Limit in MB/s.
        type: float
      firewall:
        description: Whether the firewall of Proxmox VE filters it.
        type: bool
        default: false
      link_down:
        description: Whether it is unplugged.
        type: bool
        default: false
  pool:
    description: Resource pool. It cannot be changed afterwards by this module.
    type: str
  password:
    description:
      - Password of root in the container. Only used to create, at least five characters.
      - Not with O(api_host) left out, because it would stand on a command line.
    type: str
  ssh_public_keys:
    description: SSH keys that root in the container accepts. Only used to create.
    type: list
    elements: str
  extra:
    description:
      - Any other key of the configuration as Proxmox VE names it, such as C(startup), C(timezone), C(cpulimit), C(protection) or
        C(hookscript). A value of null takes the key away.
      - C(lxc.*) is no such key, because the API does not accept it.
    type: dict
    default: {}
  force:
    description: Stop a running container at once instead of shutting it down; with O(state=absent), remove it though it runs.
    type: bool
    default: false
  purge:
    description: With O(state=absent), take it out of backup jobs, replication and high availability, too.
    type: bool
    default: false
  timeout_s:
    description: Seconds that one task (create, start, shut down, remove) may take.
    type: int
    default: 300
attributes:
  check_mode:
    description: Says what would change, with the same difference; only reads.
    support: full
  diff_mode:
    description: Shows the configuration and the state before and after, as it is sent.
    support: full
extends_documentation_fragment:
  - ringmaster.gpu.proxmox
seealso:
  - module: ringmaster.gpu.proxmox_container_info
"""

EXAMPLES = r"""
- name: A container with two GPUs, created and started, from the node itself
  ringmaster.gpu.proxmox_container:
    vmid: 101
    state: started
    hostname: infer1
    ostemplate: local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst
    rootfs: {storage: local-lvm, size_gib: 64}
    cores: 32
    memory: 131072
    swap: 0
    features: {nesting: true}
    devices:
      - {path: /dev/nvidia0, mode: "0666"}
      - {path: /dev/nvidia1, mode: "0666"}
      - {path: /dev/nvidiactl, mode: "0666"}
      - {path: /dev/nvidia-uvm, mode: "0666"}
    mounts:
      - {source: /tank/models, target: /models, read_only: true}
    networks:
      - {name: eth0, bridge: vmbr0, ip: 192.0.2.21/24, gateway: 192.0.2.1}
    ssh_public_keys: ["{{ lookup('file', '~/.ssh/id_ed25519.pub') }}"]
  delegate_to: pve1.example.net

- name: What a token may do, from anywhere
  module_defaults:
    group/ringmaster.gpu.proxmox:
      api_host: pve1.example.net
      api_user: ansible@pve
      api_token_id: fleet
      api_token_secret: "{{ proxmox_secret }}"
      ca_path: /etc/ssl/pve-root-ca.pem
  block:
    - name: More memory
      ringmaster.gpu.proxmox_container:
        vmid: 101
        memory: 262144
        tags: [gpu, sglang]
      delegate_to: localhost
      register: container

    - name: Take what waits for a restart
      ringmaster.gpu.proxmox_container:
        vmid: 101
        state: restarted
      delegate_to: localhost
      when: container.restart_required

- name: No container
  ringmaster.gpu.proxmox_container:
    vmid: 101
    state: absent
    force: true
  delegate_to: pve1.example.net
"""

RETURN = r"""
vmid:
  description: Number of the container.
  returned: success
  type: int
node:
  description: Node that it is on, or would be on.
  returned: success
  type: str
status:
  description: State of the container at the end; V(absent) when there is none.
  returned: success
  type: str
  sample: running
config:
  description:
    - The configuration at the end, in the words of the options, with what waits for a restart; as
      RV(ringmaster.gpu.proxmox_container_info#module:containers[].config).
  returned: when there is a container, or would be
  type: dict
pending:
  description: What the running container takes at its next start.
  returned: success
  type: list
  elements: dict
  contains:
    key:
      description: Key as Proxmox VE names it.
      type: str
    value:
      description: Value in force; none for a new key.
      type: str
    pending:
      description: Value from the next start on; none for a key that goes away.
      type: str
restart_required:
  description: Whether the container runs and something waits for its next start.
  returned: success
  type: bool
tasks:
  description: Tasks that were run. Empty in check mode.
  returned: success
  type: list
  elements: dict
  contains:
    upid:
      description: Unique name of the task.
      type: str
    type:
      description: Kind of the task, such as V(vzcreate).
      type: str
    exitstatus:
      description: How it ended.
      type: str
"""

from ansible.module_utils.basic import AnsibleModule, missing_required_lib

from ..module_utils import pve_apply, pve_client
from ..module_utils.errors import RingmasterError


def argument_spec():
    rootfs = {"storage": {"type": "str", "required": True}, "size_gib": {"type": "float", "required": True}}
    features = {name: {"type": "bool", "default": False} for name in ("nesting", "keyctl", "fuse", "mknod", "force_rw_sys")}
    devices = {
        "path": {"type": "str", "required": True},
        "mode": {"type": "raw"},
        "uid": {"type": "int"},
        "gid": {"type": "int"},
        "deny_write": {"type": "bool", "default": False},
    }
    mounts = {
        "source": {"type": "str", "required": True},
        "target": {"type": "str", "required": True},
        "size_gib": {"type": "float"},
        "read_only": {"type": "bool", "default": False},
        "backup": {"type": "bool", "default": False},
        "shared": {"type": "bool", "default": False},
        "replicate": {"type": "bool", "default": True},
        "quota": {"type": "bool", "default": False},
        "acl": {"type": "bool"},
        "mount_options": {"type": "list", "elements": "str", "default": []},
    }
    networks = {
        "name": {"type": "str", "required": True},
        **{name: {"type": "str"} for name in ("bridge", "ip", "gateway", "ip6", "gateway6", "hwaddr")},
        "tag": {"type": "int"},
        "trunks": {"type": "list", "elements": "int", "default": []},
        "mtu": {"type": "int"},
        "rate": {"type": "float"},
        "firewall": {"type": "bool", "default": False},
        "link_down": {"type": "bool", "default": False},
    }
    return {
        **pve_client.argument_spec(),
        "vmid": {"type": "int", "required": True},
        "node": {"type": "str"},
        "state": {"type": "str", "choices": ["present", "started", "stopped", "restarted", "absent"], "default": "present"},
        "ostemplate": {"type": "str"},
        "rootfs": {"type": "dict", "options": rootfs},
        "unprivileged": {"type": "bool"},
        "hostname": {"type": "str"},
        "description": {"type": "str"},
        "tags": {"type": "list", "elements": "str"},
        "cores": {"type": "int"},
        "memory": {"type": "int"},
        "swap": {"type": "int"},
        "onboot": {"type": "bool"},
        "nameserver": {"type": "list", "elements": "str"},
        "searchdomain": {"type": "list", "elements": "str"},
        "features": {"type": "dict", "options": {**features, "mount": {"type": "list", "elements": "str", "default": []}}},
        "devices": {"type": "list", "elements": "dict", "options": devices},
        "mounts": {"type": "list", "elements": "dict", "options": mounts},
        "networks": {"type": "list", "elements": "dict", "options": networks},
        "pool": {"type": "str"},
        "password": {"type": "str", "no_log": True},
        "ssh_public_keys": {"type": "list", "elements": "str", "no_log": False},
        "extra": {"type": "dict", "default": {}},
        "force": {"type": "bool", "default": False},
        "purge": {"type": "bool", "default": False},
        "timeout_s": {"type": "int", "default": 300},
    }


def main():
    module = AnsibleModule(argument_spec(), supports_check_mode=True, required_together=pve_client.TOGETHER)
    library, trace = pve_client.missing(module.params)
    if library:
        module.fail_json(msg=missing_required_lib(library), exception=trace)
    try:
        result, warnings = pve_apply.run(pve_client.connect(module.params, module.params["timeout_s"]), module.params, module.check_mode)
    except RingmasterError as error:
        module.fail_json(msg=str(error))
    for sentence in warnings:
        module.warn(sentence)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
