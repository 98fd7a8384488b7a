# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Verdicts: known answers of the statistics, and every rule above them."""

from __future__ import annotations

import json
import math
import random

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.plugin_utils.verdict import compare, decide, starts_needed
from scipy import stats

BETTER = ([100.0, 101.0, 99.5], [106.0, 107.2, 105.3])
WORSE = ([100.0, 101.0, 99.5], [95.0, 95.8, 94.6])
SAME = ([100.0, 101.0, 99.5], [100.1, 100.9, 99.7])
WIDE = ([100.0, 101.0, 99.5], [103.0, 97.0, 108.0])


def test_paired_by_hand():
    # Differences of logarithms 0.01, 0.02, 0.03: mean 0.02, spread 0.01; the 97.5 % point of t with 2 degrees is 4.302653.
    found = compare([100.0] * 3, [100 * math.exp(x) for x in (0.01, 0.02, 0.03)], blocks=[1, 2, 3])
    half = 4.302653 * 0.01 / math.sqrt(3)
    assert found.ratio == pytest.approx(math.exp(0.02))
    assert (found.low, found.high) == pytest.approx((math.exp(0.02 - half), math.exp(0.02 + half)), rel=1e-7)
    assert found.p_value == pytest.approx(1 - math.sqrt(12 / 14))  # closed form for 2 degrees, t² = 12
    assert found.noise == pytest.approx(0.01 / math.sqrt(2))
    assert (found.starts, found.verdict) == ((3, 3), "inconclusive")
    assert (found.baseline_mean, found.candidate_mean) == pytest.approx((100, 100 * math.exp(0.02)))


def test_welch_by_hand_and_by_scipy():
    logs = ([0.0, 0.01, 0.02], [0.04, 0.06, 0.08])
    found = compare(*([math.exp(x) for x in arm] for arm in logs))
    reference = stats.ttest_ind(logs[1], logs[0], equal_var=False)
    interval = reference.confidence_interval(0.95)
    assert reference.df == pytest.approx(25 / 8.5)  # variances 1 and 4, three each
    assert found.ratio == pytest.approx(math.exp(0.05))
    assert found.p_value == pytest.approx(reference.pvalue)
    assert (found.low, found.high) == pytest.approx((math.exp(interval.low), math.exp(interval.high)))
    assert found.noise == pytest.approx(math.sqrt(2.5e-4))


def test_pairing_takes_a_drift_of_the_host_out():
    drift = [100.0, 110.0, 121.0, 133.1]
    faster = [1.050 * drift[0], 1.051 * drift[1], 1.049 * drift[2], 1.050 * drift[3]]
    assert compare(drift, faster, blocks=[1, 2, 3, 4]).verdict == "better"
    assert compare(drift, faster).verdict == "inconclusive"


@pytest.mark.parametrize(
    ("arms", "word"),
    [(BETTER, "better"), (WORSE, "worse"), (SAME, "equivalent"), (WIDE, "inconclusive"), (([100.0], [120.0]), "inconclusive")],
)
def test_words(arms, word):
    assert compare(*arms, blocks=range(len(arms[0]))).verdict == word


def test_a_real_but_useless_gain_is_equivalent():
    found = compare([100.0, 100.0, 100.0], [101.0, 101.1, 101.2], blocks=[1, 2, 3])
    assert 1 < found.low < found.high < 1.02
    assert found.p_value < 0.01
    assert found.verdict == "equivalent"
    assert compare([100.0, 100.0, 100.0], [101.0, 101.1, 101.2], blocks=[1, 2, 3], margin=0.005).verdict == "better"


def test_confidence_widens_the_interval():
    narrow, wide = (compare(*BETTER, blocks=[1, 2, 3], confidence=c) for c in (0.8, 0.99))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_spread_is_the_coefficient_of_variation_in_percent():
    assert compare([99.0, 100.0, 101.0], [5.0]).spread_percent == (pytest.approx(1.0), None)


def test_figures_without_any_spread():
    same, more = compare([100.0] * 3, [100.0] * 3), compare([100.0] * 3, [110.0] * 3)
    assert (same.low, same.high, same.p_value, same.verdict) == (1, 1, 1, "equivalent")
    assert (more.low, more.p_value, more.verdict) == (pytest.approx(1.1), 0, "better")


@pytest.mark.parametrize("arms", [([], [1.0]), ([1.0], [0.0]), ([math.nan], [1.0]), ([math.inf], [1.0]), ([-1.0], [1.0])])
def test_values_that_are_no_speeds(arms):
    with pytest.raises(ValueError, match="positive"):
        compare(*arms)


@pytest.mark.parametrize("blocks", [[1, 2], [1, 1, 2]])
def test_blocks_that_do_not_pair(blocks):
    with pytest.raises(ValueError, match="pair"):
        compare(*BETTER, blocks=blocks)


@pytest.mark.parametrize("cv", [0.003, 0.01, 0.03])
@pytest.mark.parametrize("blocked", [True, False])
def test_noise_alone_is_not_better(cv, blocked):
    rng = random.Random(20)
    arms = [[[100 * math.exp(rng.gauss(0, cv)) for _ in range(3)] for _ in "bc"] for _ in range(1000)]
    better = sum(compare(*pair, blocks=[1, 2, 3] if blocked else None).verdict == "better" for pair in arms)
    assert better <= 30
    assert cv < 0.03 or better > 0, "at a wide spread some of 1000 must be wrong, or the test sees nothing"


@pytest.mark.parametrize(("standardised", "starts"), [(0.5, 34), (0.8, 15), (1.0, 10)])
def test_starts_needed_of_the_textbooks(standardised, starts):
    """The usual tables of the paired t test, two-sided 5 %, power 80 %."""
    assert starts_needed(math.log(1.02) / math.sqrt(2) / standardised, 0.02) == starts


def test_starts_needed_at_the_ends():
    assert starts_needed(0.0, 0.02) == starts_needed(1e-5, 0.02) == 2
    assert starts_needed(0.1, 0.001) == pytest.approx(2 * (1.959964 + 0.841621) ** 2 * 0.01 / math.log(1.001) ** 2, rel=1e-3)
    with pytest.raises(ValueError, match="above 0"):
        starts_needed(0.01, 0)


def trial(arm: str, block: int | None, figures: dict | None, **more) -> dict:
    """A trial result with `{workload: decode_tok_s}`; None: it crashed."""
    workloads = [{"name": name, "decode_tok_s": figure, "errors": 0} for name, figure in (figures or {}).items()]
    return {
        "arm": arm,
        "block": block,
        "discard": block is None,
        "outcome": "crashed" if figures is None else "ready",
        "reached": "weights" if figures is None else "measured",
        "workloads": workloads,
        "effective_ok": True,
        "effective_problems": [],
        "engine": {"simulated": False},
    } | more


def run(c1, c4=None) -> list[dict]:
    """All trials of a run: (baseline, candidate) figures by workload, and one discarded launch an arm that must not count."""
    trials = [trial(arm, None, {"c1": 1.0, "c4": 1.0} if c4 else {"c1": 1.0}) for arm in ("baseline", "candidate")]
    for arm, place in (("baseline", 0), ("candidate", 1)):
        for block, figure in enumerate(c1[place], start=1):
            trials.append(trial(arm, block, {"c1": figure} | ({"c4": c4[place][block - 1]} if c4 else {})))
    return trials


def of(trials: list[dict], arm: str) -> list[dict]:
    return [t for t in trials if t["arm"] == arm and not t["discard"]]


@pytest.mark.parametrize(
    ("c1", "c4", "verdict", "reason"),
    [
        (BETTER, None, "better", "c1: +6.0 %"),
        (WORSE, None, "worse", "c1: -5.0 %"),
        (SAME, None, "equivalent", "c1: +0.1 %"),
        (WIDE, None, "inconclusive", "To resolve 2 % at this spread takes about"),
        (BETTER, BETTER, "better", "c1"),
        (BETTER, SAME, "better", "c1"),
        (BETTER, WIDE, "better", "c1"),
        (BETTER, WORSE, "inconclusive", "worse at c4 (-5.0 %"),
        (SAME, WORSE, "worse", "Worse at c4 (-5.0 %"),
        (SAME, BETTER, "equivalent", "Better at c4 (+6.0 %"),
        (WORSE, BETTER, "worse", "Better at c4"),
        (WORSE, WORSE, "worse", "c1"),
        (([100.0], [106.0]), None, "inconclusive", "1 + 1 starts"),
    ],
)
def test_verdict_of_the_figures(c1, c4, verdict, reason):
    found = decide(run(c1, c4))
    assert (found["verdict"], found["keep"]) == (verdict, verdict == "better")
    assert reason in found["reason"]
    assert [row["name"] for row in found["workloads"]] == (["c1", "c4"] if c4 else ["c1"])
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_figures_are_those_of_compare_by_block_whatever_the_order_of_the_trials():
    trials = run(BETTER)
    random.Random(1).shuffle(trials)
    assert decide(trials)["workloads"] == [{"name": "c1", **compare(*BETTER, blocks=[1, 2, 3]).as_dict()}]


def test_a_lost_baseline_start_leaves_welch():
    trials = run(BETTER)
    of(trials, "baseline")[1].update(outcome="crashed", workloads=[])
    found = decide(trials)
    assert found["verdict"] == "better"
    assert found["workloads"][0]["starts"] == [2, 3]
    assert "Welch" in found["workloads"][0]["method"]


def test_starts_of_different_blocks_are_no_pairs():
    trials = run(BETTER)
    for lost in (of(trials, "baseline")[0], of(trials, "candidate")[2]):
        lost["workloads"][0].update(contaminated=True)
    row = decide(trials)["workloads"][0]
    assert row["starts"] == [2, 2]
    assert "Welch" in row["method"]


@pytest.mark.parametrize("spoilt", [{"errors": 2}, {"contaminated": True}, {"decode_tok_s": None}, {"decode_tok_s": 0}])
def test_a_faulty_figure_does_not_count(spoilt):
    trials = run(BETTER)
    of(trials, "baseline")[0]["workloads"][0].update(spoilt)
    assert decide(trials)["workloads"][0]["starts"] == [2, 3]


def test_failed_when_no_candidate_start_was_ready_and_the_cause_is_said():
    trials = [t for t in run(BETTER) if t["arm"] == "baseline"]
    trials += [
        trial("candidate", None, None, cause={"summary": "FlashInfer knows no SM 12.0"}),
        trial("candidate", 1, None, outcome="hung"),
    ]
    found = decide(trials)
    assert (found["verdict"], found["keep"]) == ("failed", False)
    assert "2 of 2 starts" in found["reason"]
    assert "FlashInfer knows no SM 12.0; hung in phase weights" in found["reason"]


def test_failed_before_the_baseline_was_ever_started():
    found = decide([trial("candidate", None, None)])
    assert found["verdict"] == "failed"
    assert "baseline was not started" in found["reason"]


def test_failed_when_all_its_requests_do():
    trials = run(BETTER)
    for t in of(trials, "candidate"):
        t["workloads"][0].update(errors=["HTTP 500"])
    assert decide(trials)["verdict"] == "failed"


def test_failed_when_only_its_discarded_launch_was_ready():
    trials = run(BETTER)
    for t in of(trials, "candidate"):
        t.update(outcome="crashed", workloads=[])
    assert decide(trials)["verdict"] == "failed"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"outcome": "crashed", "workloads": []}, "did not become ready in 1 of 4 starts"),
        ({"workloads": [{"name": "c1", "decode_tok_s": 107.0, "errors": 1}]}, "ended in errors"),
    ],
)
def test_a_candidate_that_fails_now_and_then_is_not_kept(change, reason):
    trials = run(BETTER)
    of(trials, "candidate")[2].update(change)
    found = decide(trials)
    assert found["verdict"] == "inconclusive"
    assert reason in found["reason"]


def test_a_crash_of_the_candidates_discarded_launch_counts_against_it():
    trials = run(BETTER)
    next(t for t in trials if t["arm"] == "candidate" and t["discard"]).update(outcome="crashed", workloads=[])
    assert decide(trials)["verdict"] == "inconclusive"


def test_a_slower_candidate_that_crashes_too_is_worse():
    trials = run(([100.0, 101.0, 99.5, 100.2], [95.0, 95.8, 94.6, 95.1]))
    of(trials, "candidate")[0].update(outcome="crashed", workloads=[])
    assert decide(trials)["verdict"] == "worse"


def test_a_workload_without_a_candidate_figure_is_a_veto():
    trials = run(BETTER, BETTER)
    for t in of(trials, "candidate"):
        t["workloads"].pop()
    found = decide(trials)
    assert found["verdict"] == "inconclusive"
    assert "c4 has no figure" in found["reason"]


def test_unproven_in_one_start_is_unproven():
    trials = run(BETTER)
    of(trials, "candidate")[1].update(effective_ok=False, effective_problems=["rank 3: NCCL_MAX_NCHANNELS was 32, not 2"])
    found = decide(trials)
    assert (found["verdict"], found["keep"], found["reason"]) == ("unproven", False, "rank 3: NCCL_MAX_NCHANNELS was 32, not 2")
    assert found["workloads"][0]["verdict"] == "better", "the figures are reported all the same"


def test_no_proof_at_all_is_unproven():
    trials = run(BETTER)
    del of(trials, "candidate")[0]["effective_ok"]
    assert decide(trials)["verdict"] == "unproven"


def test_the_baselines_proof_is_not_asked_for():
    trials = run(BETTER)
    of(trials, "baseline")[0].update(effective_ok=False, effective_problems=["x"])
    assert decide(trials)["verdict"] == "better"


def test_a_factor_that_cannot_matter_is_unproven():
    found = decide(run(BETTER), cannot_matter="one rank: NCCL sends nothing")
    assert (found["verdict"], found["reason"]) == ("unproven", "one rank: NCCL sends nothing")


def answered(*logprobs: float | str) -> dict:
    """Outputs of a start that found the tokens of one text this likely."""
    entry = {
        "name": "prose", "tokens": len(logprobs) + 1, "ids_digest": "1", "logprobs": list(logprobs), "generated_ids": [5],
        "generated_logprobs": [-0.1], "generated_leads": [2.0], "empty": False, "repetitive": False,
    }  # fmt: skip
    return {"prompts": [entry], "digest": repr(logprobs), "seconds": 1.0, "error": None}


GOOD, MOVED, FAR = answered(-1.0, -4.0, -0.5), answered(-1.01, -3.98, -0.5), answered(-3.0, -0.2, -9.0)


def with_outputs(baseline: dict, candidate: dict, last: dict | None = None) -> list[dict]:
    trials = run(BETTER)
    for t in trials:
        t["outputs"] = baseline if t["arm"] == "baseline" else candidate
    trials[-1]["outputs"] = last or candidate
    return trials


def test_outputs_inside_the_band_are_kept_and_said():
    found = decide(with_outputs(GOOD, MOVED))
    assert (found["verdict"], found["keep"], found["outputs"]["state"]) == ("better", True, "pass")
    assert found["outputs"]["starts"] == [4, 4]
    assert "utputs" not in found["reason"]


@pytest.mark.parametrize("bad", [FAR, answered(-1.0, "nan", -0.5)])
def test_outputs_that_jump_in_one_start_are_never_kept(bad):
    found = decide(with_outputs(GOOD, GOOD, last=bad))
    assert (found["verdict"], found["keep"], found["outputs"]["state"]) == ("failed", False, "fail")
    assert found["reason"].startswith("Outputs differ: ")
    assert found["workloads"][0]["verdict"] == "better", "the figures are reported all the same"
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_outputs_of_a_discarded_start_and_of_one_that_crashed_later_count():
    trials = with_outputs(GOOD, GOOD)
    next(t for t in trials if t["arm"] == "candidate" and t["discard"]).update(outputs=FAR, outcome="crashed", workloads=[])
    assert decide(trials)["verdict"] == "failed"


def test_outputs_that_differ_come_before_unproven():
    assert decide(with_outputs(GOOD, FAR), cannot_matter="one rank")["reason"].startswith("Outputs differ")


def test_outputs_that_cannot_be_used_do_not_block_and_are_said():
    refused = {"prompts": [], "digest": None, "seconds": 0.1, "error": "prose: HTTP 400: no"}
    found = decide(with_outputs(refused, GOOD))
    assert (found["verdict"], found["keep"], found["outputs"]["state"]) == ("better", True, "not usable")
    assert found["reason"].endswith(" Outputs were not compared: the baseline gave no outputs: prose: HTTP 400: no.")


def test_without_outputs_nothing_is_said_of_them():
    found = decide(run(BETTER))
    assert (found["outputs"]["state"], found["keep"]) == ("not asked", True)
    assert "utputs" not in found["reason"]


def test_failed_comes_before_unproven():
    trials = [t for t in run(BETTER) if t["arm"] == "baseline"] + [trial("candidate", 1, None)]
    assert decide(trials, cannot_matter="one rank")["verdict"] == "failed"


def test_a_baseline_that_does_not_start_is_an_error():
    trials = [t for t in run(BETTER) if t["arm"] == "candidate"]
    trials.append(trial("baseline", 1, None, cause={"summary": "CUDA out of memory"}))
    with pytest.raises(RingmasterError, match="CUDA out of memory"):
        decide(trials)


@pytest.mark.parametrize("figures", [{}, {"c1": None}])
def test_a_baseline_without_a_figure_is_an_error(figures):
    trials = [t for t in run(BETTER) if t["arm"] == "candidate"] + [trial("baseline", 1, figures)]
    with pytest.raises(RingmasterError, match="No start of the baseline"):
        decide(trials)


def test_simulated_is_handed_on():
    trials = run(BETTER)
    assert decide(trials)["simulated"] is False
    trials[0]["engine"]["simulated"] = True
    assert decide(trials)["simulated"] is True


def test_the_margin_reaches_the_comparison():
    assert decide(run(BETTER), margin=0.10)["verdict"] == "equivalent"


def test_a_candidate_whose_outputs_could_not_be_asked_is_never_kept():
    def outputs(error=None):
        row = {"name": "prose", "ids_digest": "d", "logprobs": [-1.0, -3.0, -2.0], "generated_ids": [], "generated_logprobs": [],
               "generated_leads": [], "empty": False, "repetitive": False}  # fmt: skip
        return {"prompts": [row], "digest": "x", "seconds": 1.0, "error": error}

    trials = run(BETTER, None)
    for trial in trials:
        trial["outputs"] = outputs(None if trial["arm"] == "baseline" else "HTTP 400")
    found = decide(trials)
    assert (found["verdict"], found["keep"], found["outputs"]["missing"]) == ("unproven", False, "candidate")
    for trial in trials:
        trial["outputs"] = outputs("HTTP 400")
    found = decide(trials)  # a server that answers nobody's: that is said, and no fault of the candidate
    assert (found["verdict"], found["keep"], found["outputs"]["missing"]) == ("better", True, "")
