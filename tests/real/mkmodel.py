# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a llama-shaped model directory without weights, for `--load-format dummy`.

Its vocabulary has exactly as many entries as the model has logits and every entry is printable ASCII: whatever token the random
weights choose, it decodes to text, so that a streaming client gets something for each.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import string

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCABULARY_SIZE = 32768
END = "<|endoftext|>"
SPACE = "\u0120"  # how a byte-level tokenizer spells a space
CONSONANTS, VOWELS, FINALS = "bcdfghjklmnprstvwz", "aeiou", "nrstlm"


def byte_pairs() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary (token -> id) and merges of a byte-pair tokenizer: characters, syllables of two and three letters, pairs of those."""
    characters = [SPACE] + [c for c in string.printable if c.isprintable() and c != " "]
    open_syllables = [(c, v) for c in CONSONANTS for v in VOWELS]
    closed_syllables = [(c + v, f) for f in FINALS for c, v in open_syllables]
    words = [(a + b, c + v) for a, b in open_syllables + closed_syllables for c, v in open_syllables]
    room = VOCABULARY_SIZE - 1 - len(characters)
    merges = (open_syllables + closed_syllables + words)[:room]
    tokens = [END, *characters, *(a + b for a, b in merges)]
    assert len(tokens) == len(set(tokens)) == VOCABULARY_SIZE
    return {token: number for number, token in enumerate(tokens)}, merges


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=pathlib.Path)
    for name in ("hidden", "layers", "heads", "kv-heads", "intermediate"):
        parser.add_argument(f"--{name}", type=int, required=True)
    shape = parser.parse_args()

    vocabulary, merges = byte_pairs()
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])

    shape.directory.mkdir(parents=True)
    tokenizer.save(str(shape.directory / "tokenizer.json"))
    files = {
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "model_max_length": 4096},
        "generation_config.json": {"eos_token_id": vocabulary[END]},
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": shape.hidden,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.hidden // shape.heads,
            "intermediate_size": shape.intermediate,
            "vocab_size": VOCABULARY_SIZE,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "bos_token_id": vocabulary[END],
            "eos_token_id": vocabulary[END],
        },
    }
    for name, content in files.items():
        (shape.directory / name).write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
