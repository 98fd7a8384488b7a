# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The order of server starts."""

from __future__ import annotations

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.plugin_utils.blocks import order


def in_short(steps: list[dict]) -> str:
    """As in "bc BC CB": small letters for discarded launches, a group a block."""
    blocks: dict = {}
    for step in steps:
        letter = step["arm"][0]
        blocks.setdefault(step["block"], []).append(letter if step["discard"] else letter.upper())
    return " ".join("".join(letters) for letters in blocks.values())


@pytest.mark.parametrize(
    ("starts", "seed", "expected"),
    [(4, 1, "bc BC CB CB BC"), (3, 2, "bc CB BC CB"), (1, 3, "bc BC")],
)
def test_an_order_is_given_by_its_seed(starts, seed, expected):
    assert in_short(order(starts, seed=seed)) == expected


@pytest.mark.parametrize("seed", range(50))
def test_each_block_has_both_arms_and_pairs_of_blocks_are_mirrored(seed):
    steps = order(5, seed=seed)
    assert [step["discard"] for step in steps] == [True, True] + [False] * 10
    groups = in_short(steps).split()
    assert {"".join(sorted(group.upper())) for group in groups} == {"BC"}
    assert groups[1] == groups[2][::-1]
    assert groups[3] == groups[4][::-1]
    assert [step["block"] for step in steps] == [None, None, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_either_arm_leads_about_as_often_in_every_drawn_place():
    orders = [in_short(order(5, seed=seed)).split() for seed in range(1000)]
    assert {groups[0] for groups in orders} == {"bc"}, "the baseline's caches are filled first"
    for place in (1, 3, 5):
        assert 440 <= sum(groups[place].upper() == "BC" for groups in orders) <= 560
    assert 440 <= sum(groups[1] == groups[3] for groups in orders) <= 560, "one draw does not tell the next"


def test_without_discarded_launches():
    steps = order(2, seed=7, discard=False)
    assert len(steps) == 4
    assert not any(step["discard"] for step in steps)


def test_a_run_needs_starts():
    with pytest.raises(RingmasterError, match="0 starts"):
        order(0, seed=1)
