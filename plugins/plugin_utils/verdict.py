# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From the figures of single server starts to a verdict.

The unit of replication is the server start: one value each. Everything is done on logarithms, since effects of settings
multiply; a ratio is candidate / baseline, so above 1 is faster.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.plugin_utils import outputs_gate

try:
    from scipy import special
except ImportError:  # told when it is needed, with what installs it
    special = None

_METHODS = {"paired": "paired t on logarithms, by block", "welch": "Welch's t on logarithms", "none": "too few starts for an interval"}


@dataclass(frozen=True)
class Comparison:
    """Candidate against baseline. Pairs are (baseline, candidate); `low`, `high`, `p_value`, `noise` are None below 2 starts an arm.

    `ratio` of geometric means, with the interval `low` to `high`; `p_value` two-sided, for ratio 1; means in the unit of the
    input; `spread_percent` is each arm's coefficient of variation (None for one start); `noise` is the spread of one start
    that the interval rests on, as a fraction (of pairs: what blocks do not explain).
    """

    verdict: str
    ratio: float
    low: float | None
    high: float | None
    p_value: float | None
    starts: tuple[int, int]
    baseline_mean: float
    candidate_mean: float
    spread_percent: tuple[float | None, float | None]
    noise: float | None
    method: str

    def as_dict(self) -> dict:
        """The same as plain JSON types."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


def compare(
    baseline: Sequence[float],
    candidate: Sequence[float],
    *,
    margin: float = 0.02,
    confidence: float = 0.95,
    blocks: Sequence[int] | None = None,
) -> Comparison:
    """Compare two arms of decode_tok_s (or any positive figure where more is better), one value a server start.

    `blocks` given: `baseline[i]` and `candidate[i]` were measured in `blocks[i]`, and the test is paired; None: Welch's.
    `margin` is the band 1 ± margin of ratios that make no difference to a user. Raises ValueError for an empty arm, a value
    that is not positive and finite, or blocks that do not pair the values one to one.
    """
    for values in (baseline, candidate):
        if not values or not all(0 < value < math.inf for value in values):
            raise ValueError(f"values must be positive and finite, at least one an arm: {values!r}")
    if blocks is not None and not len(set(blocks)) == len(blocks) == len(baseline) == len(candidate):
        raise ValueError(f"blocks {blocks!r} do not pair {len(baseline)} baseline with {len(candidate)} candidate values")

    logs_b, logs_c = [math.log(value) for value in baseline], [math.log(value) for value in candidate]
    mean_b, mean_c = statistics.fmean(logs_b), statistics.fmean(logs_c)
    difference = mean_c - mean_b
    low = high = p_value = noise = None
    method = "none"
    if min(len(baseline), len(candidate)) >= 2:
        if blocks is not None:
            method, (error, freedom, noise) = "paired", _paired(logs_b, logs_c)
        else:
            method, (error, freedom, noise) = "welch", _welch(logs_b, logs_c)
        half = float(special.stdtrit(freedom, 0.5 + confidence / 2)) * error
        low, high = math.exp(difference - half), math.exp(difference + half)
        t = abs(difference) / error if error else math.inf if difference else 0.0
        p_value = 2 * float(special.stdtr(freedom, -t))
    return Comparison(
        verdict=_word(low, high, margin),
        ratio=math.exp(difference),
        low=low,
        high=high,
        p_value=p_value,
        starts=(len(baseline), len(candidate)),
        baseline_mean=math.exp(mean_b),
        candidate_mean=math.exp(mean_c),
        spread_percent=(_spread_percent(baseline), _spread_percent(candidate)),
        noise=noise,
        method=_METHODS[method],
    )


def starts_needed(cv: float, effect: float, power: float = 0.8, confidence: float = 0.95) -> int:
    """Starts an arm, in blocks, at which a true `effect` (0.02: +2 %) gives an interval above 1 with probability `power`.

    `cv` is the spread of one start as a fraction. Exact for the paired t (noncentral t). Raises ValueError unless effect > 0.
    """
    if effect <= 0:
        raise ValueError(f"effect must be above 0, not {effect!r}")
    if cv <= 0:
        return 2
    tail = 0.5 + confidence / 2
    shift = math.log1p(effect) / (math.sqrt(2) * cv)
    # The normal approximation never asks for more than the t distribution does, so the search may start there.
    starts = max(2, int(((special.ndtri(tail) + special.ndtri(power)) / shift) ** 2))
    while 1 - special.nctdtr(starts - 1, shift * math.sqrt(starts), special.stdtrit(starts - 1, tail)) < power:
        starts += 1
    return starts


def decide(trials: Sequence[dict], *, margin: float = 0.02, confidence: float = 0.95, cannot_matter: str = "") -> dict:
    """The verdict on the candidate from all trial results of one run on one host, discarded launches included.

    Reads of each trial `arm, block, discard, outcome, workloads, outputs, effective_ok, effective_problems, cause, engine`. The first
    workload of the first ready start is the primary one; the others can only veto. `cannot_matter`: why the factor has no
    effect here, if that is known. Returns plain JSON types:

        {"verdict": better|worse|equivalent|inconclusive|failed|unproven, "keep": bool, "reason": str, "simulated": bool,
         "workloads": [{"name": str, **Comparison}],     primary first; without those that have no value in one of the arms
         "outputs": what outputs_gate.judge found,       its "fail" makes the verdict failed
         "starts_needed": int or None}                   starts an arm that would resolve an inconclusive one

    `keep` is true exactly when the verdict is better. Raises RingmasterError when the baseline cannot be measured.
    """
    if special is None:
        raise RingmasterError("This environment has no SciPy, which the verdict needs.", "Install it: pip install -r requirements.txt.")
    ready = {arm: [t for t in trials if t["arm"] == arm and t["outcome"] == "ready"] for arm in ("baseline", "candidate")}
    broken = {arm: [t for t in trials if t["arm"] == arm and t["outcome"] != "ready"] for arm in ("baseline", "candidate")}
    if broken["baseline"] and not ready["baseline"]:
        raise RingmasterError(
            f"The baseline, which is known-good, could not be measured: {_why(broken['baseline'])}.",
            "Nothing was compared. Mend the known-good configuration or the host first; the log of that start says more.",
        )

    names = list(dict.fromkeys(row["name"] for t in ready["baseline"] + ready["candidate"] for row in t.get("workloads") or []))
    rows = [row for row in (_compare_workload(name, ready, margin, confidence) for name in names) if row]
    missing = [name for name in names if not _values(ready["candidate"], name)]
    outputs = outputs_gate.judge(*([t for t in trials if t["arm"] == arm] for arm in ("baseline", "candidate")))
    verdict, reason = (
        _failed(names, missing, ready, broken)
        or _differing(outputs)
        or _unproven(ready["candidate"], cannot_matter)
        or _measured(names, rows, missing, ready, broken, margin, confidence)
    )
    if outputs["state"] == "not usable" and verdict != "failed":
        reason += f" Outputs were not compared: {outputs['reason']}."
    if outputs["missing"] == "candidate" and verdict == "better":  # the baseline could be asked
        verdict = "unproven"
    return {
        "verdict": verdict,
        "keep": verdict == "better",
        "reason": reason,
        "simulated": any((t.get("engine") or {}).get("simulated") for t in trials),
        "workloads": rows,
        "outputs": outputs,
        "starts_needed": _more_starts(rows[0], margin, confidence) if verdict == "inconclusive" and rows else None,
    }


def _failed(names: list[str], missing: list[str], ready: dict, broken: dict) -> tuple[str, str] | None:
    unseen = "" if ready["baseline"] else " The baseline was not started in this run."
    if not ready["candidate"]:
        if not broken["candidate"]:
            return "inconclusive", "The candidate was not started."
        return "failed", f"The candidate did not become ready in {_of(broken, ready)}: {_why(broken['candidate'])}.{unseen}"
    primary = names[0] if names else None
    errors = any(row.get("errors") for t in ready["candidate"] for row in t.get("workloads") or [] if row["name"] == primary)
    if primary in missing and (errors or broken["candidate"]):
        why = "; ".join([_why(broken["candidate"])] * bool(broken["candidate"]) + ["requests ended in errors"] * errors)
        return "failed", f"No start of the candidate gave a figure at {primary}: {why}.{unseen}"
    return None


def _differing(outputs: dict) -> tuple[str, str] | None:
    return ("failed", f"Outputs differ: {outputs['reason']}.") if outputs["state"] == "fail" else None


def _unproven(candidates: list[dict], cannot_matter: str) -> tuple[str, str] | None:
    no_proof = ["the setting was not shown to be in force on every rank"]
    problems = [cannot_matter] if cannot_matter else []
    problems += [text for t in candidates if not t.get("effective_ok") for text in t.get("effective_problems") or no_proof]
    return ("unproven", "; ".join(_each_rank(dict.fromkeys(problems)))) if problems else None


def _each_rank(problems: Iterable[str]) -> list[str]:
    """What is said of several ranks in the same words ("RANK: words") is said once."""
    ranks: dict[str, list[str]] = {}
    for text in problems:
        rank, colon, words = text.partition(": ")
        ranks.setdefault(words if colon and rank.startswith("sglang::") else text, []).append(rank)
    return [
        words if not who[0].startswith("sglang::") else f"{who[0] if len(who) == 1 else f'each of {len(who)} ranks'}: {words}"
        for words, who in ranks.items()
    ]


def _measured(names, rows, missing, ready, broken, margin, confidence) -> tuple[str, str]:
    """The figures of the primary workload, unless another workload or a lost start speaks against them."""
    if not names or not _values(ready["baseline"], names[0]):
        raise RingmasterError(
            f"No start of the baseline gave a usable figure at {names[0] if names else 'any workload'}.",
            "Nothing was compared. Look for request errors or foreign traffic in the logs of those starts.",
        )
    if names[0] in missing:
        return "inconclusive", f"No start of the candidate gave a usable figure at {names[0]}."
    verdict, reason = _of_figures(rows[0], margin, confidence)
    worse = [f"{row['name']} ({_change(row)})" for row in rows[1:] if row["verdict"] == "worse"]
    if worse and verdict in ("equivalent", "inconclusive"):
        return "worse", f"Worse at {', '.join(worse)}, and nothing is gained for it: {reason}"
    vetoes = [f"worse at {text}" for text in worse]
    vetoes += [f"{name} has no figure of the candidate" for name in missing]
    if broken["candidate"]:
        vetoes.append(f"the candidate did not become ready in {_of(broken, ready)}: {_why(broken['candidate'])}")
    if any(row.get("errors") for t in ready["candidate"] for row in t.get("workloads") or []):
        vetoes.append("requests to the candidate ended in errors")
    if verdict != "worse" and vetoes:
        return "inconclusive", f"{names[0]} alone is {verdict}, but {'; '.join(vetoes)}."
    better = [f"{row['name']} ({_change(row)})" for row in rows[1:] if row["verdict"] == "better"]
    if better and verdict != "better":
        reason += f" Better at {', '.join(better)}; the verdict goes by the first workload."
    return verdict, reason


def _more_starts(row: dict, margin: float, confidence: float) -> int | None:
    """Starts an arm that would resolve the margin, when there were fewer."""
    if row["low"] is None:
        return None
    needed = starts_needed(row["noise"], margin, confidence=confidence)
    return needed if needed > min(row["starts"]) else None


def _of_figures(row: dict, margin: float, confidence: float) -> tuple[str, str]:
    if row["low"] is None:
        return "inconclusive", f"{row['starts'][0]} + {row['starts'][1]} starts gave a figure; 2 of each arm are the least."
    reason = f"{row['name']}: {_change(row)}, {confidence:.0%} interval by {row['method']}."
    if row["verdict"] == "inconclusive":
        needed = _more_starts(row, margin, confidence)
        if needed:
            reason += f" To resolve {margin * 100:g} % at this spread takes about {needed} starts an arm."
        else:
            reason += " The effect lies near the edge of what counts; more starts would tell."
    return row["verdict"], reason


def _compare_workload(name: str, ready: dict[str, list[dict]], margin: float, confidence: float) -> dict | None:
    arms = [_values(ready[arm], name) for arm in ("baseline", "candidate")]
    if not all(arms):
        return None
    keys = [[block for block, _unused in arm] for arm in arms]
    paired = None not in keys[0] and len(set(keys[0])) == len(keys[0]) and keys[0] == keys[1]
    figures = [[figure for _unused, figure in arm] for arm in arms]
    comparison = compare(*figures, margin=margin, confidence=confidence, blocks=keys[0] if paired else None)
    return {"name": name, **comparison.as_dict()}


def _values(trials: list[dict], name: str) -> list[tuple[int | None, float]]:
    """(block, decode_tok_s), by block, of the starts that count: not discarded, no errors, no foreign traffic."""
    found = [
        (t.get("block"), float(row["decode_tok_s"]))
        for t in trials
        if not t.get("discard")
        for row in t.get("workloads") or []
        if row["name"] == name and not row.get("errors") and not row.get("contaminated") and (row.get("decode_tok_s") or 0) > 0
    ]
    return sorted(found, key=lambda pair: -1 if pair[0] is None else pair[0])


def _word(low: float | None, high: float | None, margin: float) -> str:
    if low is None or high is None:
        return "inconclusive"
    if 1 - margin <= low and high <= 1 + margin:
        return "equivalent"
    return "better" if low > 1 else "worse" if high < 1 else "inconclusive"


def _paired(logs_b: list[float], logs_c: list[float]) -> tuple[float, float, float]:
    """(standard error of the mean difference, degrees of freedom, spread of one start)."""
    spread = statistics.stdev(c - b for b, c in zip(logs_b, logs_c, strict=True))
    return spread / math.sqrt(len(logs_b)), len(logs_b) - 1, spread / math.sqrt(2)


def _welch(logs_b: list[float], logs_c: list[float]) -> tuple[float, float, float]:
    """(standard error of the difference of means, Welch-Satterthwaite degrees of freedom, spread of one start)."""
    variances = [statistics.variance(logs) for logs in (logs_b, logs_c)]
    parts = [variance / len(logs) for variance, logs in zip(variances, (logs_b, logs_c), strict=True)]
    weights = sum(part**2 / (len(logs) - 1) for part, logs in zip(parts, (logs_b, logs_c), strict=True))
    freedom = sum(parts) ** 2 / weights if weights else len(logs_b) + len(logs_c) - 2
    return math.sqrt(sum(parts)), freedom, math.sqrt(statistics.fmean(variances))


def _spread_percent(values: Sequence[float]) -> float | None:
    return 100 * statistics.stdev(values) / statistics.fmean(values) if len(values) >= 2 else None


def _change(row: dict) -> str:
    if row["low"] is None:
        return f"{100 * (row['ratio'] - 1):+.1f} %"
    return "{:+.1f} % ({:+.1f} to {:+.1f})".format(*(100 * (row[key] - 1) for key in ("ratio", "low", "high")))


def _why(trials: list[dict]) -> str:
    """What stopped these starts, each cause once."""
    causes = [(t.get("cause") or {}).get("summary") or f"{t['outcome']} in phase {t.get('reached') or 'unknown'}" for t in trials]
    return "; ".join(dict.fromkeys(causes))


def _of(broken: dict, ready: dict) -> str:
    return f"{len(broken['candidate'])} of {len(broken['candidate']) + len(ready['candidate'])} starts"
