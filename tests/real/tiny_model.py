"""Writes a model small enough for one busy core: a two-layer Llama with random weights and a tokenizer of words.

    tiny_model.py FOLDER

Each token is a word and each word a token, so an answer sent back as text in the next turn is the same
tokens again: what an engine cached while it decoded can be found. Special tokens have no weight in the
output, so they are never generated.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

SPECIAL = ["<unk>", "<begin>", "<end>"]
ROLES = ["system", "user", "assistant"]
WORDS = 4096
HIDDEN = 64
LAYERS = 2
HEADS = 2
HEAD_SIZE = HIDDEN // HEADS
MAX_LENGTH = 8192
SEED = 20

TEMPLATE = (
    "{% for message in messages %}<begin> {{ message['role'] }} {{ message['content'] }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<begin> assistant {% endif %}"
)


def vocabulary() -> dict[str, int]:
    words = [*SPECIAL, *ROLES, *(f"w{number}" for number in range(WORDS))]
    return {word: number for number, word in enumerate(words)}


def write_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel(vocabulary(), unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "eos_token": "<end>",
        "model_max_length": MAX_LENGTH,
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


def write_weights(folder: Path, size: int) -> None:
    generator = torch.Generator().manual_seed(SEED)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) / columns**0.5

    head = matrix(size, HIDDEN)
    head[: len(SPECIAL) + len(ROLES)] = 0
    weights = {
        "model.embed_tokens.weight": matrix(size, HIDDEN),
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": head,
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            weights[f"{prefix}.self_attn.{name}.weight"] = matrix(HIDDEN, HIDDEN)
        for name in ("gate_proj", "up_proj"):
            weights[f"{prefix}.mlp.{name}.weight"] = matrix(2 * HIDDEN, HIDDEN)
        weights[f"{prefix}.mlp.down_proj.weight"] = matrix(HIDDEN, 2 * HIDDEN)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}.{name}.weight"] = torch.ones(HIDDEN)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def write_settings(folder: Path, size: int) -> None:
    end = vocabulary()["<end>"]
    settings = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": size,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HEAD_SIZE,
        "max_position_embeddings": MAX_LENGTH,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "eos_token_id": end,
    }
    (folder / "config.json").write_text(json.dumps(settings, indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    size = len(vocabulary())
    write_tokenizer(folder)
    write_weights(folder, size)
    write_settings(folder, size)
    print(f"{folder}: {size} tokens, {sum(file.stat().st_size for file in folder.iterdir()) >> 10} KiB")


if __name__ == "__main__":
    main()
