# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How often the outputs gate is right: `python tests/bench/bench_outputs.py [MODELS] [LAYERS]` prints the figures.

Without arguments 8 models of 6 layers, some minutes of one core; set OPENBLAS_NUM_THREADS=1.

A small transformer over eight simulated ranks (tests/unit/sharded_model.py), with new weights for every model. Reorderings have to
pass. Corruptions have to fail, when all starts of the candidate have them and when one of four has.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "collections"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))

import numpy as np
from ansible_collections.ringmaster.gpu.plugins.plugin_utils.outputs_gate import judge
from sharded_model import DAMAGES, Model, any_order, damaged, exact, ring, tree

STARTS = 4
REORDERINGS = {
    "ring the other way": lambda rng: ring(0, -1),
    "ring of other ranks": lambda rng: ring(3, 3),
    "tree": lambda rng: tree,
    "summed in float32": lambda rng: exact,
    "another order each time": any_order,
}
CASES = {"": {}, ", decode only": {"largest": 128}, ", 1 in 100 all-reduces": {"often": 0.01}}


def trials(model: Model, reduces: list) -> list[dict]:
    return [{"outputs": model.start(reduce)} for reduce in reduces]


def line(name: str, judged: list[dict]) -> None:
    """One row: how many of the runs had each state, and the distances."""
    counts = {state: sum(found["state"] == state for found in judged) for state in ("pass", "fail", "not usable")}
    shown = [found for found in judged if found["distance"] is not None]
    figures = ["        -"] * 4
    if shown:
        columns = [[found[key] for found in shown] for key in ("distance", "largest")]
        figures = [f"{one:9.4f}" for column in columns for one in (statistics.median(column), max(column))]
    print(f"{name:52} {counts['pass']:5} {counts['fail']:5} {counts['not usable']:11} {' '.join(figures)}", flush=True)


def main(models: int, layers: int) -> None:
    began = time.monotonic()
    results: dict[str, list[dict]] = {}
    for seed in range(models):
        model = Model(seed=seed, layers=layers)
        once = trials(model, [ring()])
        good = once[0]
        for name, make in REORDERINGS.items():
            rng = np.random.default_rng(seed)
            results.setdefault(name, []).append(judge(once * STARTS, trials(model, [make(rng)])))
        rng = np.random.default_rng(seed)
        noisy = trials(model, [any_order(rng) for _unused in range(3)])
        results.setdefault("noisy baselines: the same noise", []).append(judge(noisy, trials(model, [any_order(rng)])))
        for damage in DAMAGES:
            for case, when in CASES.items():
                bad = trials(model, [damaged(damage, rng, **when)])
                results.setdefault(damage + case, []).append(judge(once * STARTS, bad + [good] * (STARTS - 1)))
            bad = trials(model, [damaged(damage, rng)])
            results.setdefault(f"noisy baselines: {damage}", []).append(judge(noisy, bad))
    print(f"{models} models of {layers} layers; distances in nats as judged (nearest to the band, or furthest beyond)\n")
    print(f"{'candidate':52}  pass  fail  not usable   mean: median   max   largest: median   max")
    for name, judged in results.items():
        line(name, judged)
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main(*[int(word) for word in (sys.argv[1:] + ["8", "6"][len(sys.argv) - 1 :])])
