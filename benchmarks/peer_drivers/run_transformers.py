"""transformers `generate`, not compiled: batches with a static cache, or prompt lookup, one prompt at a time.

A batch runs to its longest answer, and only the tokens that were asked for count. Prompts of similar length are batched
together, whatever their order, and none with one much shorter: reading padding would cost more than a batch saves.
"""

import time
from typing import Any

from lines import Done, Options, Talk, Work

talk, options = Talk(), Options.read()

import torch  # noqa: E402
import transformers  # noqa: E402

LOOKUP_TOKENS = 10
LONGEST_OVER_SHORTEST = 4


def batches(work: Work) -> list[list[int]]:
    """Indices of the prompts, by length, at most as many together as there are streams."""
    lengths = [len(prompt) for prompt in work.prompts]
    found: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        fits = found and len(found[-1]) < work.streams
        if fits and lengths[index] <= LONGEST_OVER_SHORTEST * lengths[found[-1][0]]:
            found[-1].append(index)
        else:
            found.append([index])
    return found


@torch.inference_mode()
def generate(model: Any, prompts: list[list[int]], length: int) -> list[list[int]]:
    """Greedy answers of this length to all of them, padded on the left."""
    longest = max(len(prompt) for prompt in prompts)
    rows = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    faster = {"cache_implementation": "static"}
    if options.prompt_lookup:
        faster = {"prompt_lookup_num_tokens": LOOKUP_TOKENS}
    ids_BT = torch.tensor(rows)
    made_BT = model.generate(ids_BT, attention_mask=torch.tensor(mask), max_new_tokens=length, **faster)
    return made_BT[:, longest:].tolist()


def main() -> None:
    torch.set_num_threads(options.threads)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        options.target, dtype=torch.bfloat16, local_files_only=True
    )
    model.generation_config = transformers.GenerationConfig(do_sample=False, use_cache=True)

    def run(work: Work) -> Done:
        began_s = time.perf_counter()
        answers: list[list[int]] = [[] for _ in work.prompts]
        for batch in batches(work):
            made = generate(model, [work.prompts[i] for i in batch], max(work.lengths[i] for i in batch))
            for index, answer in zip(batch, made, strict=True):
                answers[index] = answer[: work.lengths[index]]
        return Done(answers, time.perf_counter() - began_s)

    talk.serve(f"transformers {transformers.__version__}", run)


if __name__ == "__main__":
    main()
