# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the starts of a run prove and warn of, in a sentence each for the table. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

PROOFS = {  # best first
    "nccl log": "NCCL's own log",
    "witness": "a witness of the worker",
    "environ": "the worker's environment",
}


def proven(trials: Sequence[dict], names: Iterable[str]) -> str:
    """How NCCL variables NAMES were shown to be in force in TRIALS (ready starts of the candidate); "" without names or starts.

    As in "NCCL's own log (1 of 4 starts), a witness of the worker (4), each of 2 ranks".
    """
    wanted = sorted(names)
    starts = [trial["effective"] for trial in trials if trial.get("effective_ok")]
    if not wanted or not starts:
        return ""
    counts = dict.fromkeys(PROOFS, 0)
    for ranks in starts:
        seen = {values.get(name, {}).get("proof") for values in ranks.values() for name in wanted}
        for proof in seen & set(PROOFS):
            counts[proof] += 1
    words = [f"{words} ({counts[proof]} of {len(starts)} starts)" for proof, words in PROOFS.items() if counts[proof]]
    ranks = max(map(len, starts))
    return f"{', '.join(words)}; {'each of ' if ranks > 1 else ''}{ranks} {'ranks' if ranks > 1 else 'rank'}" if words else ""


def warnings(trials: Sequence[dict]) -> list[str]:
    """Why the figures of TRIALS that count are to be taken with care, each reason once."""
    counted = [trial for trial in trials if not trial.get("discard")]
    rows = [(trial, row) for trial in counted for row in trial.get("workloads") or []]
    gpus = [gpu for trial in counted for gpu in (trial.get("gpus") or {}).get("health") or []]
    found = [f"start {_number(trial)}, {row['name']}: {text}" for trial, row in rows for text in row.get("warnings") or []]
    return list(dict.fromkeys(found + [f"GPU {gpu['index']}: {text}" for gpu in gpus for text in gpu["problems"]]))


def _number(trial: dict) -> int:
    """Which start of its plan a trial was: its name ends with it."""
    return int(trial["id"].rpartition("-")[2])
