# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A small transformer in bfloat16, cut over eight ranks as by tensor parallelism: what a changed all-reduce does to log-probabilities.

Two all-reduces a layer, every partial sum rounded to bfloat16 as NCCL's rings and trees do. Its layers are random; its last one is
fitted to most of the texts that it is asked (softmax regression), so that tokens are as likely or unlikely as they are to a real
model. Tokens are the bytes of the text.
"""

from __future__ import annotations

import numpy as np
from ansible_collections.ringmaster.gpu.plugins.module_utils.outputs import PROMPTS, _digest, _loops, _plain

RANKS = 8
SHAPES = (("qkv", 1, 3), ("out", 1, 1), ("up", 1, 4), ("down", 4, 1))  # of a layer's weights, in hidden sizes
VOCABULARY = 256
TEXT_BYTES = 64  # of each text; more bring nothing here and cost time
UNKNOWN = "german"  # not fitted: a text whose tokens are unlikely


def bf16(values: np.ndarray) -> np.ndarray:
    """Rounded to the nearest bfloat16, as float32."""
    return _rounded(values, 16)


def _rounded(values: np.ndarray, bits_lost: int) -> np.ndarray:
    """float32 without its last mantissa bits, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    half, keep = np.uint32((1 << bits_lost - 1) - 1), np.uint32(0xFFFFFFFF << bits_lost & 0xFFFFFFFF)
    return ((bits + half + (bits >> bits_lost & 1)) & keep).view(np.float32)


def ring(start: int = 0, step: int = 1):
    """Sums chunk after chunk of the buffer along a ring; `step` -1: the other way round, 3 or 5: ranks in another order."""

    def order(size: int) -> np.ndarray:
        chunk = np.arange(size) * RANKS // size
        return (start + chunk[None, :] + step * np.arange(RANKS)[:, None]) % RANKS

    return lambda partials: _in_order(partials, order(partials.shape[1]))


def tree(partials: np.ndarray) -> np.ndarray:
    """Sums pairs of ranks, then pairs of pairs."""
    while len(partials) > 1:
        partials = bf16(partials[::2] + partials[1::2])
    return partials[0]


def exact(partials: np.ndarray) -> np.ndarray:
    """Sums in float32 and rounds once, as an in-switch reduction does."""
    return bf16(partials.sum(axis=0, dtype=np.float32))


def _in_order(partials: np.ndarray, order: np.ndarray) -> np.ndarray:
    ordered = np.take_along_axis(partials, order, axis=0)
    total = ordered[0]
    for partial in ordered[1:]:
        total = bf16(total + partial)
    return total


def any_order(rng: np.random.Generator):
    """Another ring for every all-reduce: what a start does that is not reproducible."""
    return lambda partials: ring(int(rng.integers(RANKS)), int(rng.choice([-3, -1, 1, 3])))(partials)


# What goes wrong: (partials [RANKS, size], their good sum, the sum before it of this size, random numbers) -> sum.
DAMAGES = {
    "a rank's part missing": lambda partials, good, before, rng: bf16(good - partials[3]),
    "a chunk of the sum before": lambda partials, good, before, rng: np.where(_chunk(good, 5), before, good),
    "a chunk shifted by 8 bytes": lambda partials, good, before, rng: np.where(_chunk(good, 2), np.roll(good, 4), good),
    "a flipped exponent bit": lambda partials, good, before, rng: _flipped(good, rng),
    "1 % of 8-byte words torn": lambda partials, good, before, rng: _torn(good, before, 0.01, rng),
    "0.1 % of 8-byte words torn": lambda partials, good, before, rng: _torn(good, before, 0.001, rng),
    "parts rounded to fp8": lambda partials, good, before, rng: bf16(_rounded(partials, 20).sum(axis=0)),
}


def damaged(damage: str, rng: np.random.Generator, *, often: float = 1.0, largest: int | None = None):
    """A ring whose sums are damaged: `often` of them, and only those of at most `largest` values (None: all)."""
    before: dict[int, np.ndarray] = {}
    reduce = ring()

    def faulty(partials: np.ndarray) -> np.ndarray:
        good, size = reduce(partials), partials.shape[1]
        hit = rng.random() < often and (largest is None or size <= largest)
        total = DAMAGES[damage](partials, good, before.get(size, np.zeros_like(good)), rng) if hit else good
        before[size] = good
        return total

    return faulty


def _chunk(values: np.ndarray, number: int) -> np.ndarray:
    return np.arange(len(values)) * RANKS // len(values) == number


def _flipped(good: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    bits = good.copy().view(np.uint32)
    bits[rng.integers(len(bits))] ^= np.uint32(1 << int(rng.integers(23, 31)))
    return bits.view(np.float32)


def _torn(good: np.ndarray, before: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """8 bytes are four values: some of them still hold what was there before."""
    return np.where(np.repeat(rng.random(len(good) // 4) < share, 4), before, good)


class Model:
    """`layers` blocks of attention and MLP over `hidden` values; `logprobs` and `start` take the all-reduce to use."""

    def __init__(self, *, seed: int = 1, layers: int = 6, hidden: int = 128, heads: int = 8) -> None:
        rng = np.random.default_rng(seed)
        self.layers, self.hidden, self.heads = layers, hidden, heads

        def weights(rows: int, columns: int) -> np.ndarray:
            return bf16(rng.standard_normal((rows, columns)) / np.sqrt(rows))

        self.embedding = bf16(rng.standard_normal((VOCABULARY, hidden)))
        self.places = bf16(0.3 * rng.standard_normal((512, hidden)))
        sizes = [(name, rows * hidden, columns * hidden) for name, rows, columns in SHAPES]
        self.blocks = [{name: weights(rows, columns) for name, rows, columns in sizes} for _unused in range(layers)]
        self.head = np.zeros((hidden, VOCABULARY), np.float32)
        self.texts = {name: list(text.encode()[:TEXT_BYTES]) for name, text in PROMPTS}
        self._fit()

    def _fit(self) -> None:
        """Softmax regression of the next byte on the last hidden state, by Adam; the same every time."""
        pairs = [(self.states(ids, exact)[:-1], ids[1:]) for name, ids in self.texts.items() if name != UNKNOWN]
        inputs, wanted = np.concatenate([states for states, _unused in pairs]), np.concatenate([ids for _unused, ids in pairs])
        first, second = np.zeros_like(self.head), np.zeros_like(self.head)
        for step in range(1, 26):
            scores = inputs @ self.head
            share = np.exp(scores - scores.max(axis=1, keepdims=True))
            share /= share.sum(axis=1, keepdims=True)
            share[np.arange(len(wanted)), wanted] -= 1
            slope = inputs.T @ share / len(wanted)
            first, second = 0.9 * first + 0.1 * slope, 0.99 * second + 0.01 * slope**2
            self.head -= 0.02 * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.99**step)) + 1e-8)
        self.head = bf16(self.head)

    def states(self, ids: list[int], allreduce, cache: list | None = None) -> np.ndarray:
        """Last hidden states of `ids`, [len(ids), hidden]; `cache` holds keys and values of what came before, and grows."""
        cache = [None] * self.layers if cache is None else cache
        past = 0 if cache[0] is None else cache[0].shape[1]
        stream = bf16(self.embedding[ids] + self.places[past : past + len(ids)])
        for number, block in enumerate(self.blocks):
            stream = bf16(stream + self._reduced(self._attention(_norm(stream), block, cache, number), block["out"], allreduce))
            inner = bf16(_norm(stream) @ block["up"])
            stream = bf16(stream + self._reduced(bf16(inner / (1 + np.exp(-inner))), block["down"], allreduce))
        return _norm(stream)

    def _attention(self, stream: np.ndarray, block: dict, cache: list, number: int) -> np.ndarray:
        size, width = len(stream), self.hidden // self.heads
        new = bf16(stream @ block["qkv"]).reshape(size, 3, self.heads, width).transpose(1, 2, 0, 3)
        query, known = new[0], new[1:].transpose(0, 2, 1, 3)
        cache[number] = known if cache[number] is None else np.concatenate([cache[number], known], axis=1)
        keys, values = cache[number].transpose(0, 2, 1, 3)
        scores = query @ keys.transpose(0, 2, 1) / np.sqrt(width)
        past = keys.shape[1] - size
        scores = np.where(np.arange(keys.shape[1])[None, :] > past + np.arange(size)[:, None], -np.inf, scores)
        share = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = (share / share.sum(axis=-1, keepdims=True)) @ values
        return bf16(mixed.transpose(1, 0, 2).reshape(size, self.hidden))

    def _reduced(self, inputs: np.ndarray, weights: np.ndarray, allreduce) -> np.ndarray:
        """inputs @ weights, the inner dimension divided between the ranks, their partial results summed by `allreduce([RANKS, size])`."""
        parts = np.stack(np.split(inputs, RANKS, axis=1)) @ np.stack(np.split(weights, RANKS, axis=0))
        return allreduce(bf16(parts).reshape(RANKS, -1)).reshape(len(inputs), -1)

    def logits(self, states: np.ndarray) -> np.ndarray:
        return bf16(states @ self.head)

    @np.errstate(over="ignore", invalid="ignore")  # damage may end in infinities
    def start(self, allreduce, *, new_tokens: int = 16) -> dict:
        """The outputs of one server start, as `outputs.read` gives them."""
        prompts = []
        for name, ids in self.texts.items():
            cache = [None] * self.layers
            scores = _log_softmax(self.logits(self.states(ids, allreduce, cache)))
            forced = scores[np.arange(len(ids) - 1), ids[1:]]
            generated, logprobs, leads = [], [], []
            for _unused in range(new_tokens):
                generated.append(int(scores[-1].argmax()))
                second, first = np.sort(scores[-1])[-2:].tolist()
                logprobs.append(first)
                leads.append(first - second)
                scores = _log_softmax(self.logits(self.states(generated[-1:], allreduce, cache)))
            prompts.append(
                {
                    "name": name, "tokens": len(ids), "ids_digest": _digest(ids), "logprobs": [_plain(one) for one in forced],
                    "generated_ids": generated, "generated_logprobs": [_plain(one) for one in logprobs],
                    "generated_leads": [round(one, 6) if one == one else 0.0 for one in leads],
                    "empty": False, "repetitive": _loops(generated),
                }
            )  # fmt: skip
        return {"prompts": prompts, "digest": _digest(prompts), "seconds": 0.0, "error": None}


def _norm(stream: np.ndarray) -> np.ndarray:
    return bf16(stream / np.sqrt((stream**2).mean(axis=-1, keepdims=True) + 1e-6))


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    top = logits.max(axis=-1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(axis=-1, keepdims=True))
