# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a module ends: with what its work returns, or with what a person can mend."""

from __future__ import annotations

from . import files
from .errors import RingmasterError


def give(module, work, path, action="read"):
    """Calls WORK() and ends the AnsibleModule MODULE with the dict it returns, unchanged unless it says so; with its
    `failure`, if it has one, as a failure.

    A RingmasterError becomes the message of a failure, and so does an OSError, in a user's words: it happened when this module was to
    ACTION the file that it names, or PATH when it names none.
    """
    try:
        result = work()
    except RingmasterError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=str(files.explain(error.filename or path, action, error)))
    failure = result.pop("failure", None)
    if failure:
        module.fail_json(**{**result, "msg": str(failure)})
    module.exit_json(**{"changed": False, **result})
