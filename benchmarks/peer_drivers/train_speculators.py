"""Driver that trains an EAGLE-3 head with speculators, for benchmarks/training_speed.py.

    python train_speculators.py '{"target": DIR, "packs": FILE, "threads": 1, "steps": 3, "attention": "sdpa"}'

It prints {"ready": NAME}. For each line {"packs": [0, 1]} on stdin it prints {"seconds": S, "losses": [...]}.

It runs in the environment of speculators and imports nothing of eyas. It makes the calls of the trainer of speculators
0.9.0 (train/trainer.py): shift_batch, Eagle3DraftModel under bfloat16 autocast with float32 weights, AdamW, gradient
clipping. It uses the eager losses, because the fused losses are CUDA kernels. The architecture is that of the EAGLE-3
paper, without the norms and the noise that speculators adds by default. As in its defaults, the output rows are frozen
and the teacher covers only the draft vocabulary, which is less work than eyas does.

P rows of a pack, D hidden, L = 3D, W target vocabulary.
"""
# pyright: reportMissingImports=false

import json
import sys
import time
from importlib.metadata import version
from typing import Any

import torch
from safetensors.torch import load_file
from speculators.losses import resolve_loss_config
from speculators.models.eagle3 import Eagle3DraftModel
from speculators.models.eagle3.data import shift_batch
from transformers import AutoConfig, LlamaConfig

DRAFT_VOCAB = 4096
DECAY, LEARNING_RATE, CLIP = 0.8, 1e-3, 1.0


def make_model(options: dict[str, Any]) -> Eagle3DraftModel:
    """Makes a head with the layer shape of the target and float32 weights."""
    config = AutoConfig.from_pretrained(options["target"])
    layer = LlamaConfig(**{**config.to_dict(), "num_hidden_layers": 1})
    t2d_W = torch.zeros(config.vocab_size, dtype=torch.bool)
    t2d_W[:DRAFT_VOCAB] = True
    model = Eagle3DraftModel.from_training_args(
        layer,
        t2d=t2d_W,
        d2t=torch.zeros(DRAFT_VOCAB, dtype=torch.int64),
        draft_vocab_size=DRAFT_VOCAB,
        norm_before_residual=False,
        ttt_steps=options["steps"],
        verifier_name_or_path=options["target"],
        target_layer_ids=[2, 5, 7],
        draft_attn_impl=options["attention"],
    )
    model.train()
    return model


def batches(file: str) -> list[dict[str, torch.Tensor]]:
    """Loads the packs in the form of its collate function: each document shifted, then all concatenated."""
    tensors = load_file(file)
    found = []
    for number in range(len({name.split(".")[0] for name in tensors})):
        one = {name: tensors[f"{number}.{name}"] for name in ("ids_P", "mask_P", "lengths", "aux_PL", "hidden_PD")}
        shifted: list[dict[str, torch.Tensor]] = []
        start = 0
        for length in one["lengths"].tolist():
            span = slice(start, start + length)
            start += length
            document = {
                "input_ids": one["ids_P"][span],
                "hidden_states": one["aux_PL"][span],
                "verifier_last_hidden_states": one["hidden_PD"][span],
                "loss_mask": one["mask_P"][span],
                "lengths": torch.tensor([length]),
                "position_ids": torch.arange(length),
            }
            shifted.append(shift_batch(document))
        joined = {name: torch.cat([document[name] for document in shifted])[None] for name in shifted[0]}
        lengths = joined.pop("lengths")[0]
        joined["document_ids"] = torch.repeat_interleave(torch.arange(len(lengths)), lengths)[None]
        found.append(joined)
    return found


def main() -> None:
    """Trains on the packs that each line of stdin names, and prints the seconds and losses."""
    options = json.loads(sys.argv[1])
    torch.set_num_threads(options["threads"])
    torch.manual_seed(0)
    model = make_model(options)
    packs = batches(options["packs"])
    optimizer = torch.optim.AdamW([w for w in model.parameters() if w.requires_grad], lr=LEARNING_RATE)
    keys = {"ttt_steps": options["steps"], "ttt_step_loss_decay": DECAY}
    keys["loss_config"] = resolve_loss_config("kl_div", "eager")

    def step(pack: dict[str, torch.Tensor]) -> float:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            _, loss, _ = model(**pack, **keys)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        return float(loss.detach())

    print(json.dumps({"ready": f"speculators {version('speculators')}"}), flush=True)
    for line in sys.stdin:
        began_s = time.perf_counter()
        losses = [step(packs[number]) for number in json.loads(line)["packs"]]
        print(json.dumps({"seconds": time.perf_counter() - began_s, "losses": losses}), flush=True)


if __name__ == "__main__":
    main()
