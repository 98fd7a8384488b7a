# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How often the verdict is right, on simulated server starts: `python tests/bench/bench_verdict.py [RUNS]` prints the figures.

A start's figure is 100 tok/s times the true effect times log-normal noise (CV as given), times a host that drifts by the given
percent a start where stated. Every run is measured in the order and by the pairs that a real run would have.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "collections"))

from ansible_collections.ringmaster.gpu.plugins.plugin_utils.blocks import order
from ansible_collections.ringmaster.gpu.plugins.plugin_utils.verdict import compare, starts_needed

WORDS = ("better", "worse", "equivalent", "inconclusive")


def simulated(rng: random.Random, starts: int, cv: float, effect: float, drift: float, blocked: bool) -> str:
    """The verdict of one run."""
    figures: dict[str, dict[int, float]] = {"baseline": {}, "candidate": {}}
    for place, step in enumerate(order(starts, seed=rng.randrange(2**32), discard=False)):
        truth = 1 + effect if step["arm"] == "candidate" else 1.0
        figures[step["arm"]][step["block"]] = 100 * truth * math.exp(rng.gauss(0, cv)) * (1 + drift) ** place
    arms = [[arm[block] for block in sorted(arm)] for arm in figures.values()]
    return compare(*arms, blocks=range(starts) if blocked else None).verdict


def main(runs: int) -> None:
    started = time.monotonic()
    rng = random.Random(1)
    print(f"{runs} runs a line, margin 2 %, 95 % interval; per cent of the runs with each verdict\n")
    print("starts   CV  effect  drift  test   " + " ".join(f"{word:>12}" for word in WORDS))
    cases = [(n, cv, effect, 0.0, True) for cv in (0.003, 0.01) for n in (3, 5) for effect in (0.0, 0.03, 0.06)]
    cases += [(n, 0.003, effect, 0.01, blocked) for n in (3, 5) for effect in (0.0, 0.06) for blocked in (True, False)]
    for starts, cv, effect, drift, blocked in cases:
        seen = Counter(simulated(rng, starts, cv, effect, drift, blocked) for _ in range(runs))
        shares = " ".join(f"{100 * seen[word] / runs:12.1f}" for word in WORDS)
        print(f"{starts:6} {cv:4.1%} {effect:+7.0%} {drift:6.0%}  {'blocks' if blocked else 'Welch ':6} {shares}")
    print(
        "\nstarts an arm for 80 % power:",
        ", ".join(f"{e:.0%} at CV {cv:.1%}: {starts_needed(cv, e)}" for cv in (0.003, 0.01) for e in (0.02, 0.03, 0.06)),
    )
    print(f"{time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
