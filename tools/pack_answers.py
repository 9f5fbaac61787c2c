"""Packs the answers of the embedded target that the shipped head was trained on.

    python tools/pack_answers.py RUN [--out FILE]        # RUN made by recipes/embedded.toml

benchmarks/prove_spine.py builds its 4-gram table from them. Each answer is stored with the last tokens of its prompt.
"""

import argparse
import zlib
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save

from eyas.base.storage import write_atomic
from eyas.evaluation.reference_drafters import CONTEXT
from eyas.features.reader import Features

OUT = Path(__file__).parents[1] / "src" / "eyas" / "embedded" / "training_answers.safetensors"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    features = Features(arguments.run / "features")
    assert features.manifest.vocab_size <= 2**16, "ids are stored in 16 bits"
    kept_ids, kept_masks = [], []
    for ids_T, loss_mask_T in features.texts(features.indices("train")):
        # Keeps the last CONTEXT tokens of the first prompt, and all text between turns.
        start = max(int(loss_mask_T.int().argmax()) - CONTEXT, 0)
        kept_ids.append(ids_T[start:])
        kept_masks.append(loss_mask_T[start:])
    ids = torch.cat(kept_ids).numpy().astype("<u2")
    tensors = {
        # Compression saves two thirds, because the grammar repeats its phrases.
        "ids_zlib": torch.frombuffer(bytearray(zlib.compress(ids.tobytes(), 9)), dtype=torch.uint8),
        "loss_mask_bits": torch.from_numpy(np.packbits(torch.cat(kept_masks).numpy())),
        "lengths": torch.tensor([len(ids_T) for ids_T in kept_ids], dtype=torch.int32),
    }
    write_atomic(arguments.out, save(tensors))
    print(f"{len(kept_ids)} texts, {arguments.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
