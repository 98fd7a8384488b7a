# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a server answers to a few fixed texts: the log-probability of every token, so that two starts can be compared.

One request at a time. The texts themselves are teacher-forced (input_token_logprobs: the prefill's way through the network, large
all-reduces), and a short greedy continuation shows the decode's way (output_token_logprobs: small ones, replayed graphs).

Seen with SGLang 0.5.16: with logprob_start_len 0 the prefix cache is passed by; the first entry has no log-probability (null); a NaN
is a null too, because its JSON knows none; `text` is refused with 400 when the tokenizer was not loaded (--skip-tokenizer-init).
"""

from __future__ import annotations

import hashlib
import json
import math
import time

from .http_client import HttpError, request

NEW_TOKENS = 24
SLOW_S = 10.0  # after that long the rest of the texts are asked without a continuation
TIMEOUT_S = 60.0  # one request; the first of a fresh cache may compile
ERROR_CHARS = 200
LOOP_PERIOD, LOOP_TOKENS = 4, 20  # the same 1 to 4 tokens again and again, for that many tokens up to the end
PROMPTS = (
    (
        "prose",
        "The ferry leaves the northern quay at seven in the morning, long before the town is awake. Most of its passengers work on the"
        " island, and they know each other well enough to say nothing. On a clear day you can see",
    ),
    (
        "code",
        "def mean(values):\n    \"\"\"Arithmetic mean of a list of numbers; None for an empty list.\"\"\"\n    if not values:\n"
        "        return None\n    return sum(values) / len(values)\n\n\ndef median(values):\n    \"\"\"",
    ),
    (
        "numbers",
        "7 x 1 = 7\n7 x 2 = 14\n7 x 3 = 21\n7 x 4 = 28\n7 x 5 = 35\n7 x 6 = 42\n\n12 + 30 = 42\n100 - 58 = 42\n\n"
        "The first ten prime numbers are 2, 3, 5, 7, 11, 13,",
    ),
    (
        "german",
        "Im Herbst werden die Tage kürzer, und am Morgen liegt Nebel über den Feldern. Die Kinder gehen mit ihren Laternen durch das Dorf,"
        " während ihre Eltern",
    ),
    (
        "facts",
        "Q: What is the capital of France?\nA: Paris.\nQ: How many days does a leap year have?\nA: 366.\n"
        "Q: Which planet is closest to the sun?\nA: Mercury.\nQ: At what temperature does water boil at sea level?\nA:",
    ),
    (
        "long",
        "A computer that serves a large language model spends most of its time moving numbers. The weights of the model are divided between"
        " several processors, because no single one has enough memory for all of them. For every word that is produced, each processor"
        " multiplies its own part of the weights with the current state, and the partial results must then be added together before the"
        " next layer can begin. This addition happens twice in every layer, and there may be sixty layers or more. The amount of data is"
        " small, often only a few thousand bytes, so the speed of the connection hardly matters; what matters is how long it takes until"
        " the first byte arrives. Engineers call this latency, and they have spent years making it shorter. The order in which the parts"
        " are added is not fixed. Because computers round every sum to a limited number of digits, a different order gives a slightly"
        " different result, just as a long bill may come out a cent higher when it is added from the bottom. As a rule this does no harm."
        " It becomes a problem only when",
    ),
)  # fmt: skip


def read(base_url, *, api_key=None, stop=None):
    """Ask each of PROMPTS once, at batch 1:

        {"prompts": [{name, tokens, ids_digest, logprobs, generated_ids, generated_logprobs, generated_leads, empty, repetitive}],
         "digest": str or None, "seconds": float, "error": None or text}

    `tokens` of the text and a digest of their ids; `logprobs` of its tokens from the second on, in nats, to 6 decimals, and those of
    the greedy continuation with its ids, and by how much each was more likely than the next best. What is not finite is "nan",
    "inf" or "-inf" (JSON has no such numbers). `digest` is equal for outputs that are equal to 6 decimals. A server that refuses
    gives `error` and what was read before. Raises what stop() raises, and Stopped.
    """
    begun = time.monotonic()
    prompts, error = [], None
    for name, text in PROMPTS:
        new_tokens = NEW_TOKENS if time.monotonic() - begun < SLOW_S else 1
        try:
            prompts.append({"name": name, **_ask(base_url.rstrip("/"), text, new_tokens, api_key, stop)})
        except OSError as problem:
            error = f"{name}: {problem}"
            break
    digest = None if error else _digest(prompts)
    return {"prompts": prompts, "digest": digest, "seconds": round(time.monotonic() - begun, 2), "error": error}


def _ask(base_url, text, new_tokens, api_key, stop):
    body = {
        "text": text,
        "sampling_params": {"max_new_tokens": new_tokens, "temperature": 0},
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 2,
    }
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    status, answer = request("POST", f"{base_url}/generate", body=body, headers=headers, timeout_s=TIMEOUT_S, stop=stop)
    if status != 200:
        raise HttpError(f"HTTP {status}: {answer[:ERROR_CHARS].decode('utf-8', 'replace').strip()}")
    try:
        event = json.loads(answer)
        meta = event["meta_info"]
        entry = _entry(meta["input_token_logprobs"], meta["output_token_logprobs"], meta.get("output_top_logprobs") or [])
        return {**entry, "empty": new_tokens > 1 and not event["text"].strip()}
    except (ArithmeticError, ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        short = answer[:ERROR_CHARS].decode("utf-8", "replace")
        raise HttpError(f"no log-probabilities in the answer ({type(error).__name__}: {error}): {short}") from None


def _entry(forced, generated, best):
    """One prompt's part of the result, from [[log-probability, token id, ...]] of the text, of its continuation, and of the two best
    tokens at each step of that."""
    ids = [int(item[1]) for item in forced]
    logprobs = [_plain(item[0]) for item in forced]
    if forced and forced[0][0] is None:
        logprobs = logprobs[1:]  # nothing comes before the first token
    if not logprobs:
        raise ValueError("fewer than two tokens")
    new_ids = [int(item[1]) for item in generated]
    return {
        "tokens": len(ids),
        "ids_digest": _digest(ids),
        "logprobs": logprobs,
        "generated_ids": new_ids,
        "generated_logprobs": [_plain(item[0]) for item in generated],
        "generated_leads": [_lead(two) for two in best],
        "repetitive": _loops(new_ids),
    }


def _digest(content):
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _lead(best):
    """Nats between the best two tokens; 0 where they are not given or not finite (the token itself says that)."""
    numbers = [item[0] for item in (best or [])[:2]]
    lead = numbers[0] - numbers[1] if len(numbers) == 2 and None not in numbers else 0.0
    return round(lead, 6) if math.isfinite(lead) else 0.0


def _plain(logprob):
    """A number that JSON can carry, or its name."""
    number = math.nan if logprob is None else float(logprob)
    return round(number, 6) if math.isfinite(number) else str(number)


def _loops(ids):
    """Whether IDS end with the same one to LOOP_PERIOD tokens, over and over."""
    tail = ids[-LOOP_TOKENS:]
    periods = range(1, LOOP_PERIOD + 1)
    return len(tail) == LOOP_TOKENS and any(all(a == b for a, b in zip(tail, tail[period:])) for period in periods)
