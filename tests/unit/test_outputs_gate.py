# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The outputs gate: every rule by a small case, and a transformer over eight simulated ranks, reordered and corrupted.

tests/bench/bench_outputs.py has the rates over many models; here is a part of it that is the same every time.
"""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
from ansible_collections.ringmaster.gpu.plugins.plugin_utils.outputs_gate import ALIKE_NATS, DECODE, FLOOR_NATS, judge
from sharded_model import DAMAGES, Model, any_order, bf16, damaged, exact, ring, tree

TEXTS = {"prose": [-1.0, -3.0, -0.2, -6.0], "code": [-0.1, -0.5, -2.0, -1.0], "facts": [-2.0, -1.5, -4.0, -0.3]}


def start(**changes: list) -> dict:
    """Outputs of a start; `prose=[...]` adds to the log-probabilities of that text, one number a token."""
    prompts = [
        {
            "name": name, "tokens": 5, "ids_digest": name,
            "logprobs": [base + more for base, more in zip(logprobs, changes.get(name, [0.0] * 4), strict=True)],
            "generated_ids": [10, 11, 12, 13], "generated_logprobs": [-0.2, -0.1, -0.4, -0.3], "generated_leads": [2.0, 3.0, 1.0, 2.0],
            "empty": False, "repetitive": False,
        }
        for name, logprobs in TEXTS.items()
    ]  # fmt: skip
    return {"prompts": prompts, "digest": repr(sorted(changes.items())), "seconds": 1.0, "error": None}


def changed(name: str, **fields) -> dict:
    """A start in which one text's fields are these."""
    found = start()
    next(entry for entry in found["prompts"] if entry["name"] == name).update(fields)
    return found | {"digest": repr(fields)}


def refused(error: str) -> dict:
    return {"prompts": [], "digest": None, "seconds": 0.1, "error": error}


def gate(baseline: list, candidate: list) -> dict:
    found = judge(*([{"arm": "x", "outputs": one} for one in starts] for starts in (baseline, candidate)))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    return found


BASE = [start(), start(), start()]


def test_equal_outputs_pass():
    found = gate(BASE, [start(), start()])
    assert (found["state"], found["identical"], found["reason"], found["starts"]) == ("pass", True, "equal in all starts", [3, 2])
    assert (found["distance"], found["band"], found["largest"], found["largest_band"]) == (0, FLOOR_NATS["mean"], 0, FLOOR_NATS["largest"])


@pytest.mark.parametrize(
    ("code", "state", "distance", "largest"),
    [
        ([0.01, -0.02, 0.01, 0.0], "pass", 0.008, 0.02),  # the continuation's first token comes from the prefill, too: five tokens
        ([0.12, 0.12, -0.12, 0.12], "pass", 0.096, 0.12),
        ([0.13, 0.13, -0.13, 0.13], "fail", 0.104, 0.13),
        ([0.0, 0.45, 0.0, 0.0], "pass", 0.09, 0.45),
        ([3.0, 0.0, 0.0, 0.0], "fail", 0.6, 3.0),
    ],
)
def test_distances_of_one_text_in_one_start(code, state, distance, largest):
    found = gate(BASE, [start(), start(code=code)])
    assert found["state"] == state
    assert (found["distance"], found["largest"]) == (pytest.approx(distance), pytest.approx(largest))
    assert (found["where"], found["identical"]) == ("code", False)


def test_one_token_far_off_in_a_long_text_fails():
    texts = [changed("prose", logprobs=[-2.0 - 0.01 * at for at in range(200)]) for _unused in range(3)]
    off = copy.deepcopy(texts[0])
    off["prompts"][0]["logprobs"][77] -= 1.2
    found = gate(texts, [off])
    assert found["distance"] < 0.01
    assert (found["state"], found["reason"]) == ("fail", "1.2 nats at one token away from the baseline in the text 'prose', the band is 1")


def test_the_band_grows_with_the_baselines_own_spread():
    noisy = [start(), start(prose=[0.1, -0.1, 0.1, -0.1]), start(prose=[-0.05, 0.05, 0.0, 0.0])]
    moved = start(prose=[0.25, -0.25, 0.25, -0.25])
    assert gate(BASE, [moved])["state"] == "fail"
    found = gate(noisy, [moved])
    assert found["state"] == "pass"
    assert found["band"] == pytest.approx(3 * (0.15 + 0.15 + 0.1 + 0.1) / 5)
    assert gate(noisy, [start(code=[0.25] * 4)])["state"] == "fail", "each text has its own band"


def test_one_odd_start_of_the_baseline_does_not_move_the_candidate():
    odd = start(prose=[0.2, 0.0, 0.0, 0.0])
    assert gate([start(), start(), odd], [start()])["distance"] == 0


def test_continuations_count_up_to_the_token_in_which_they_part():
    other = {"generated_ids": [10, 11, 99, 98], "generated_logprobs": [-0.2, -0.1, -0.5, -9.0], "generated_leads": [2.0, 3.0, 0.1, 5.0]}
    for entry in (baseline := [copy.deepcopy(one) for one in BASE]):
        entry["prompts"][0]["generated_leads"][2] = 0.1
    found = gate(baseline, [changed("prose", **other)])
    assert (found["state"], found["largest"]) == ("pass", pytest.approx(0.1)), "a near tie, decided otherwise; what follows is another text"


def test_a_token_that_was_far_ahead_cannot_lose_by_rounding():
    other = changed("prose", generated_ids=[10, 99, 98, 97], generated_leads=[2.0, 3.0, 1.0, 2.0])
    found = gate(BASE, [other])
    assert (found["state"], found["where"]) == ("fail", DECODE)
    assert found["largest"] == pytest.approx(3.0)


def test_continuations_that_part_at_once_belong_to_the_text():
    other = changed("prose", generated_ids=[99, 98, 97, 96], generated_leads=[8.0, 1.0, 1.0, 1.0])
    assert gate(BASE, [other])["where"] == "prose"


@pytest.mark.parametrize("generated", [[], [10], [10, 11, 12, 13]])
def test_continuations_of_any_length(generated):
    size = len(generated)
    short = changed("prose", generated_ids=generated, generated_logprobs=[-0.2, -0.1, -0.4, -0.3][:size], generated_leads=[2.0] * size)
    assert gate(BASE, [short])["state"] == "pass"


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (changed("code", logprobs=[-1.0, "nan", -1.0, -2.0]), "numbers that are not finite, in the text 'code'"),
        (changed("code", generated_logprobs=["-inf"]), "numbers that are not finite, in the text 'code'"),
        (changed("facts", empty=True), "nothing was written after the text 'facts'"),
        (changed("facts", ids_digest="other"), "other token ids of the text 'facts': the tokenizer has changed"),
    ],
)
def test_what_fails_whatever_the_distance(bad, reason):
    found = gate(BASE, [start(), bad])
    assert (found["state"], found["reason"]) == ("fail", reason)


def repeating(*names: str) -> dict:
    found = start()
    for entry in found["prompts"]:
        entry["repetitive"] = entry["name"] in names
    return found


def test_repetition_fails_where_the_baseline_has_none():
    assert gate(BASE, [repeating("prose", "code")])["reason"] == "endless repetition in 2 of 3 texts"
    assert gate(BASE, [repeating("prose")])["state"] == "pass", "one text in which a tie went another way"
    assert gate([start(), repeating("prose", "facts")], [repeating("prose", "code")])["state"] == "pass"
    assert gate([refused("no"), refused("no")], [repeating("prose", "code", "facts")])["state"] == "not usable"
    slow = repeating("prose")  # its other texts were not continued
    for entry in slow["prompts"][1:]:
        entry.update(generated_ids=[10], generated_logprobs=[-0.2], generated_leads=[2.0])
    assert gate([slow, slow], [repeating("prose", "code", "facts")])["state"] == "pass"


def test_empty_texts_do_not_fail_where_the_baseline_has_them():
    assert gate([start(), changed("prose", empty=True)], [changed("code", empty=True)])["state"] == "pass"


@pytest.mark.parametrize(
    ("baseline", "candidate", "reason"),
    [
        ([start()], [start()], "1 of at least 2 starts of the baseline have outputs"),
        ([], [start()], "0 of at least 2 starts of the baseline have outputs"),
        (BASE, [], "0 of at least 1 starts of the candidate have outputs"),
        ([refused("prose: HTTP 400")] * 2, [start()], "the baseline gave no outputs: prose: HTTP 400"),
        (BASE, [refused("prose: HTTP 400")], "the candidate gave no outputs: prose: HTTP 400"),
        (BASE, [start(), refused("x")], "the candidate gave no outputs: x"),
        ([start(), changed("code", logprobs=["nan"] * 4)], [start()], "the baseline's own numbers are not finite"),
        ([start(), changed("code", ids_digest="2")], [start()], "starts of the baseline saw different token ids"),
        (
            [start(), start(code=[1.0, 0.0, 0.1, 0.0])],
            [start()],
            "starts of the baseline are 0.22 nats a token apart in the text 'code', more than 0.2",
        ),
    ],
)
def test_not_usable(baseline, candidate, reason):
    found = gate(baseline, candidate)
    assert (found["state"], found["reason"]) == ("not usable", reason)


def test_random_weights_are_not_usable():
    alike = [start() for _unused in range(3)]
    for one in alike:
        for entry in one["prompts"]:
            entry["logprobs"] = [-10.397212, -10.397216, -10.397215, -10.397217]
    found = gate(alike, alike)
    assert found["state"] == "not usable"
    assert "random weights" in found["reason"]
    assert np.std(sum(TEXTS.values(), [])) > ALIKE_NATS


@pytest.mark.parametrize("baseline", [[], [start()], [refused("x")] * 2, [start(), start(code=[5.0] * 4)]])
def test_broken_numbers_fail_without_a_usable_baseline_too(baseline):
    assert gate(baseline, [changed("code", logprobs=["nan"] * 4)])["state"] == "fail"
    assert gate(baseline, [changed("code", empty=True)])["state"] == "fail"


def test_a_jump_in_one_start_fails_though_another_gave_nothing():
    assert gate(BASE, [refused("x"), start(code=[5.0] * 4)])["state"] == "fail"


def test_numbers_read_before_a_refusal_count():
    cut = refused("code: HTTP 500") | {"prompts": changed("prose", logprobs=["nan"] * 4)["prompts"][:1]}
    assert gate(BASE, [cut])["state"] == "fail"


def test_not_asked():
    found = judge([{"arm": "baseline", "outputs": None}, {"arm": "baseline"}], [])
    assert (found["state"], found["reason"], found["starts"]) == ("not asked", "", [0, 0])


# ---- eight simulated ranks


@pytest.fixture(scope="module")
def model():
    """The model and its baseline: starts that repeat bit by bit."""
    made = Model(layers=4)
    return made, made.start(ring())


def test_the_models_tokens_are_as_likely_as_real_ones(model):
    logprobs = [number for entry in model[1]["prompts"] for number in entry["logprobs"]]
    assert -4 < np.mean(logprobs) < -0.5
    assert np.std(logprobs) > 1


def test_bf16_keeps_eight_bits_and_rounds_ties_to_even():
    given = np.array([1.0, 1.00390625, 1.01171875, -1.00390624, 3.1415927, 0.0], np.float32)
    assert bf16(given).tolist() == [1.0, 1.0, 1.015625, -1.0, 3.140625, 0.0]


@pytest.mark.parametrize("reduce", [ring, tree, exact], ids=["ring", "tree", "float32"])
def test_an_all_reduce_adds_up(reduce):
    partials = bf16(np.random.default_rng(1).standard_normal((8, 64)))
    summed = (ring() if reduce is ring else reduce)(partials)
    np.testing.assert_allclose(summed, partials.sum(axis=0), atol=0.1)
    assert not np.array_equal(summed, ring(0, -1)(partials))


@pytest.mark.parametrize(
    "reorder", [ring(0, -1), ring(3, 3), tree, exact, any_order(np.random.default_rng(3))], ids=["back", "ranks", "tree", "float32", "any"]
)
def test_another_order_of_summation_passes(model, reorder):
    made, base = model
    found = gate([base] * 2, [base, made.start(reorder)])
    assert (found["state"], found["identical"]) == ("pass", False)
    assert 0.002 < found["distance"] < FLOOR_NATS["mean"] / 2


def test_a_baseline_that_sums_in_any_order_is_usable_and_passes_itself(model):
    rng = np.random.default_rng(4)
    starts = [model[0].start(any_order(rng)) for _unused in range(4)]
    assert gate(starts[:3], starts[3:])["state"] == "pass"


FOUND = (
    "a rank's part missing",
    "a chunk of the sum before",
    "a chunk shifted by 8 bytes",
    "a flipped exponent bit",
    "1 % of 8-byte words torn",
)


@pytest.mark.parametrize("damage", FOUND)
def test_corruption_in_one_start_fails(model, damage):
    made, base = model
    bad = made.start(damaged(damage, np.random.default_rng(5)))
    assert gate([base] * 3, [base, base, bad])["state"] == "fail"


def test_corruption_of_small_messages_only_fails(model):
    made, base = model
    bad = made.start(damaged("a rank's part missing", np.random.default_rng(6), largest=made.hidden))
    found = gate([base] * 3, [bad])
    assert (found["state"], found["where"]) == ("fail", DECODE)


def test_what_the_gate_does_not_see_is_known(model):
    """A loss of precision that many take on purpose lies below the band."""
    assert set(DAMAGES) - set(FOUND) == {"0.1 % of 8-byte words torn", "parts rounded to fp8"}
    made, base = model
    found = gate([base] * 3, [made.start(damaged("parts rounded to fp8", np.random.default_rng(7)))])
    assert found["state"] == "pass"
    assert found["distance"] > 0.03
