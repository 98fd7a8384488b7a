# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Does the candidate still compute what the baseline computes? Judged on the outputs of server starts (module_utils/outputs.py).

Texts are never compared: one rounding turns a greedy text into another. Log-probabilities of the same tokens are, start by start, in
nats: their mean difference, and the largest of a single token. A start is as far from the baseline as the median of its distances
to the baseline's starts. The band is three times the baseline's own largest distance between two starts, at least a floor.

The floor is what another order of summation may do in bfloat16, when the baseline itself repeats bit by bit. Known mean differences:
0.011 between two engines on a dense model of 4 billion parameters; 0.03 (root of mean square) on one of 0.5 billion. Simulated
for orders of eight ranks, the text that moves most: up to 0.03 over 4 layers, 0.04 over 6, 0.05 over 24 (tests/bench/bench_outputs.py).
Corruption of every all-reduce lies at 0.2 to 2; one torn word in a thousand (0.08 to 0.15) and a loss of precision as by fp8 (0.07 to
0.11) lie on the edge.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence

FLOOR_NATS = {"mean": 0.1, "largest": 1.0}
WIDER = 3.0  # the band over the baseline's own spread: a few starts show only a part of it
DISAGREE_NATS = 0.2  # baselines further apart (mean) than this would make the band so wide that corruption passes
ALIKE_NATS = 0.3  # log-probabilities that spread less: random weights, whose outputs hardly depend on the computation
MEASURES: dict[str, Callable[[Sequence[float]], float]] = {"mean": statistics.fmean, "largest": max}
_FIGURES = {"distance": ("mean", 1), "band": ("mean", 2), "largest": ("largest", 1), "largest_band": ("largest", 2)}
DECODE = "greedy continuations"


def judge(baseline_trials: Sequence[dict], candidate_trials: Sequence[dict]) -> dict:
    """Compare the outputs of all starts, discarded ones included; trials without `outputs` say nothing.

        {"state": "pass" | "fail" | "not usable" | "not asked", "reason": str, "starts": [baseline, candidate],
         "identical": bool, "distance": nats or None, "band": nats or None, "largest": nats or None, "largest_band": ..., "where": str,
         "missing": "candidate" where only the candidate could not be compared}

    `distance` (mean over tokens) and `largest` (one token) are those of the candidate's start and text that come nearest to their band,
    or go beyond; `where` names the text. `fail`: a text with numbers that are not finite, empty texts or endless repetition that the
    baseline does not have, other token ids, or a distance beyond the band, in any start of the candidate. The first two are seen without a
    usable baseline, too.
    """
    baseline, candidate = ([t["outputs"] for t in trials if t.get("outputs")] for trials in (baseline_trials, candidate_trials))
    found = {
        "starts": [len(baseline), len(candidate)], "identical": False, "where": "", "missing": "",
        **dict.fromkeys(("distance", "band", "largest", "largest_band")),
    }  # fmt: skip
    if not baseline and not candidate:
        return {"state": "not asked", "reason": "", **found}
    broken = next((reason for start in candidate for reason in _broken(start, baseline)), None)
    if broken:
        return {"state": "fail", "reason": broken, **found}
    unusable = _unusable(baseline, "baseline", least=2) or _alike(baseline) or _disagree(baseline)
    whole = [start for start in candidate if not start["error"]]
    if not unusable and whole:
        found.update(_compared(baseline, whole))
        beyond = found.pop("beyond")
        if beyond:
            return {"state": "fail", "reason": beyond, **found}
    if not unusable:
        unusable = _unusable(candidate, "candidate", least=1)
        found["missing"] = "candidate" if unusable else ""
    return {"state": "not usable" if unusable else "pass", "reason": unusable or _passed(found), **found}


def _broken(start: dict, baseline: list[dict]) -> list[str]:
    """What is wrong with a start of the candidate whatever the distances are."""
    reasons = []
    if all(_finite(entry) for other in baseline for entry in other["prompts"]):
        reasons += [f"numbers that are not finite, in the text '{entry['name']}'" for entry in start["prompts"] if not _finite(entry)]
    if not any(entry["empty"] for other in baseline for entry in other["prompts"]):
        reasons += [f"nothing was written after the text '{entry['name']}'" for entry in start["prompts"] if entry["empty"]]
    looping, continued = _looping(start)
    usual = max((loops / of for loops, of in map(_looping, baseline) if of), default=1.0)
    if looping >= 2 and looping >= continued / 2 and usual <= 0.25:
        reasons.append(f"endless repetition in {looping} of {continued} texts")
    known = {entry["name"]: entry["ids_digest"] for other in baseline for entry in other["prompts"]}
    if not _differing(baseline):
        changed = [entry["name"] for entry in start["prompts"] if known.get(entry["name"], entry["ids_digest"]) != entry["ids_digest"]]
        reasons += [f"other token ids of the text '{name}': the tokenizer has changed" for name in changed]
    return reasons


def _looping(start: dict) -> tuple[int, int]:
    """(texts that end in endless repetition, texts that were continued at all)."""
    return sum(entry["repetitive"] for entry in start["prompts"]), sum(len(entry["generated_ids"]) > 1 for entry in start["prompts"])


def _finite(entry: dict) -> bool:
    return not any(isinstance(number, str) for number in entry["logprobs"] + entry["generated_logprobs"])


def _differing(starts: list[dict]) -> bool:
    """Whether two starts saw other tokens in the same text."""
    seen = {(entry["name"], entry["ids_digest"]) for start in starts for entry in start["prompts"]}
    return len(seen) > len({name for name, _unused in seen})


def _unusable(starts: list[dict], arm: str, *, least: int) -> str:
    """Why these starts cannot be compared, or ""."""
    errors = list(dict.fromkeys(start["error"] for start in starts if start["error"]))
    if errors:
        return f"the {arm} gave no outputs: {'; '.join(errors)}"
    if len(starts) < least:
        return f"{len(starts)} of at least {least} starts of the {arm} have outputs"
    if not all(_finite(entry) for start in starts for entry in start["prompts"]):
        return f"the {arm}'s own numbers are not finite"
    return f"starts of the {arm} saw different token ids" if _differing(starts) else ""


def _alike(starts: list[dict]) -> str:
    spread = statistics.pstdev([number for entry in starts[0]["prompts"] for number in entry["logprobs"]])
    words = f"all tokens are about equally likely (spread {spread:.2g} nats), as with random weights"
    return words if spread < ALIKE_NATS else ""


def _disagree(starts: list[dict]) -> str:
    where, distance = max(_spread(starts, "mean").items(), key=lambda pair: pair[1])
    words = f"starts of the baseline are {distance:.2g} nats a token apart in the text '{where}', more than {DISAGREE_NATS:g}"
    return words if distance > DISAGREE_NATS else ""


def _compared(baseline: list[dict], candidate: list[dict]) -> dict:
    """The distances nearest to (or furthest beyond) their bands, as `judge` returns them, and `beyond`: what is outside, or ""."""
    worst, identical = {}, True
    for measure in MEASURES:
        spread = _spread(baseline, measure)
        bands = {part: max(FLOOR_NATS[measure], WIDER * widest) for part, widest in spread.items()}
        for start in candidate:
            others = [_apart(start, other, measure) for other in baseline]
            for part, band in bands.items():
                distance = statistics.median(apart[part] for apart in others)
                worst[measure] = max(worst.get(measure, (-1.0,)), (distance / band, distance, band, part))
                identical = identical and not distance and not spread[part]
    measure, (share, distance, band, where) = max(worst.items(), key=lambda pair: pair[1][0])
    kind = {"mean": "nats a token", "largest": "nats at one token"}[measure]
    return {
        "identical": identical,
        "where": where,
        **{name: round(worst[measure][place], 6) for name, (measure, place) in _FIGURES.items()},
        "beyond": f"{distance:.2g} {kind} away from the baseline in the text '{where}', the band is {band:.2g}" if share > 1 else "",
    }


def _spread(starts: list[dict], measure: str) -> dict[str, float]:
    """Per part, the largest distance between two of the starts."""
    pairs = [_apart(one, other, measure) for one, other in itertools.combinations(starts, 2)]
    return {part: max(pair[part] for pair in pairs) for part in pairs[0]}


def _apart(one: dict, other: dict, measure: str) -> dict[str, float]:
    """{part: distance in nats}; parts are the texts by name, and what is comparable of all their continuations."""
    reduced, parts, decoded = MEASURES[measure], {}, []
    for a, b in zip(one["prompts"], other["prompts"], strict=True):
        continued = _continuation(a, b)
        parts[a["name"]] = reduced(_differences(a["logprobs"], b["logprobs"]) + continued[:1])  # the first comes from the prefill
        decoded += continued[1:]
    return {**parts, DECODE: reduced(decoded or [0.0])}


def _continuation(a: dict, b: dict) -> list[float]:
    """Differences of two continuations of a text, as long as what came before is equal: up to the token in which they part.

    There one of the two log-probabilities has moved by at least half of what either choice was ahead of the next best.
    """
    pairs = zip(a["generated_ids"], b["generated_ids"], strict=False)
    same = sum(1 for _unused in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    found = _differences(a["generated_logprobs"][: same + 1], b["generated_logprobs"][: same + 1])
    leads = [entry["generated_leads"][same] for entry in (a, b) if same < len(entry["generated_leads"])]
    if len(found) > same and leads:
        found[same] = max(found[same], sum(leads) / 2)
    return found


def _differences(one: list[float], other: list[float]) -> list[float]:
    return [abs(a - b) for a, b in zip(one, other, strict=False)]


def _passed(found: dict) -> str:
    if found["identical"]:
        return "equal in all starts"
    return f"at most {found['distance']:.2g} nats a token from the baseline, the band is {found['band']:.2g}"
