# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """How modules reach the API of Proxmox VE."""

    DOCUMENTATION = r"""
options:
  api_host:
    description:
      - Host name or address of a node whose API is asked; any node of the cluster will do.
      - The address of its web interface will do, too, such as V(https://pve1.example.net:8006/).
      - When it is left out (or empty) the module runs C(pvesh) on the machine where it runs, which has to be a node, as root.
        The identity is then C(root@pam), so that nothing is refused.
        To reach a node by SSH, delegate the task to it and leave this out.
      - If it is not given, the environment variable E(PROXMOX_HOST) is used.
    type: str
  api_port:
    description:
      - Port of the API, where O(api_host) has none.
      - If it is not given, the environment variable E(PROXMOX_PORT) is used.
    type: int
    default: 8006
  api_user:
    description:
      - User with realm, such as V(root@pam).
      - If it is not given, the environment variable E(PROXMOX_USER) is used.
    type: str
  api_password:
    description:
      - Password of O(api_user), to get a ticket with.
        A user with a second factor cannot be used.
      - Together with O(api_token_id) it is refused.
      - If it is not given, the environment variable E(PROXMOX_PASSWORD) is used.
    type: str
  api_token_id:
    description:
      - Name of an API token of O(api_user), or the whole of it, such as V(root@pam!ansible).
      - A token of V(root@pam) is not V(root@pam).
        Proxmox VE refuses it devices, bind mounts, hook scripts and most features, whatever its privileges.
      - If it is not given, the environment variable E(PROXMOX_TOKEN_ID) is used.
    type: str
  api_token_secret:
    description:
      - Secret of the token.
      - If it is not given, the environment variable E(PROXMOX_TOKEN_SECRET) is used.
    type: str
  validate_certs:
    description:
      - Whether the certificate of the API is checked.
      - If it is not given, the environment variable E(PROXMOX_VALIDATE_CERTS) is used.
    type: bool
    default: true
  ca_path:
    description:
      - File with the certificates that may sign the certificate of the API.
        That of a cluster is C(/etc/pve/pve-root-ca.pem) on each of its nodes.
      - If it is not given, the environment variable E(PROXMOX_CA_PATH) is used.
    type: path
  api_timeout:
    description:
      - Seconds that one call of the API may take.
      - If it is not given, the environment variable E(PROXMOX_API_TIMEOUT) is used.
    type: int
    default: 30
requirements:
  - proxmoxer >= 2.0
  - requests, unless O(api_host) is left out
attributes:
  action_group:
    description: Use C(group/ringmaster.gpu.proxmox) in C(module_defaults) to give the options of the API once.
    support: full
    membership:
      - ringmaster.gpu.proxmox
"""
