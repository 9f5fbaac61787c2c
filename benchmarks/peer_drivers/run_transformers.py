"""transformers `generate`, not compiled: batches with a static cache, or prompt lookup, one prompt at a time.

A batch runs to its longest answer, and only the tokens that were asked for count. Prompts of similar length are batched
together, whatever their order, unless they are so unlike that reading the padding costs more than a batch saves.
"""

import time
from typing import Any

from lines import Done, Options, Talk, Work

talk, options = Talk(), Options.read()

import torch  # noqa: E402
import transformers  # noqa: E402

LOOKUP_TOKENS = 10
MOST_PADDING = 512  # tokens of a batch


def batches(work: Work) -> list[list[int]]:
    """Indices of the prompts, by length, at most as many together as there are streams."""
    lengths = [len(prompt) for prompt in work.prompts]
    found: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        last = found[-1] if found else []
        padding = sum(lengths[index] - lengths[other] for other in last)
        if last and len(last) < work.streams and padding <= MOST_PADDING:
            last.append(index)
        else:
            found.append([index])
    return found


@torch.inference_mode()
def generate(model: Any, prompts: list[list[int]], length: int) -> list[list[int]]:
    """Greedy answers of this length to all of them, padded on the left."""
    longest = max(len(prompt) for prompt in prompts)
    rows = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    # By name ("static") it would keep one as long as the longest so far, and attend over all of it from then on.
    faster: dict[str, Any] = {"past_key_values": transformers.StaticCache(model.config, longest + length)}
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
