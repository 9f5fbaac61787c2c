"""Driver of transformers `generate` without compilation: static-cache batches, or prompt lookup with single prompts.

A batch runs to its longest answer, and only requested tokens count. Prompts are sorted by length before batching. A
batch ends early if padding would cost more than batching saves (MAX_PADDING).
"""

import time
from typing import Any

from protocol import LoadResult, LoadTask, Options, ProtocolServer

server, options = ProtocolServer(), Options.read()

import torch  # noqa: E402
import transformers  # noqa: E402

LOOKUP_TOKENS = 10
MAX_PADDING = 512  # padding tokens in a batch


def batches(work: LoadTask) -> list[list[int]]:
    """Groups the indices of the prompts by length into batches of at most `streams` prompts."""
    lengths = [len(prompt) for prompt in work.prompts]
    found: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        last = found[-1] if found else []
        padding = sum(lengths[index] - lengths[other] for other in last)
        if last and len(last) < work.streams and padding <= MAX_PADDING:
            last.append(index)
        else:
            found.append([index])
    return found


@torch.inference_mode()
def generate(model: Any, prompts: list[list[int]], length: int) -> list[list[int]]:
    """Generates greedy answers of this length. The prompts are padded on the left."""
    longest = max(len(prompt) for prompt in prompts)
    rows = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    # The cache named "static" keeps the longest size so far and attends over all of it, so a cache is made each time.
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

    def run(work: LoadTask) -> LoadResult:
        began_s = time.perf_counter()
        answers: list[list[int]] = [[] for _ in work.prompts]
        for batch in batches(work):
            made = generate(model, [work.prompts[i] for i in batch], max(work.lengths[i] for i in batch))
            for index, answer in zip(batch, made, strict=True):
                answers[index] = answer[: work.lengths[index]]
        return LoadResult(answers, time.perf_counter() - began_s)

    server.serve(f"transformers {transformers.__version__}", run)


if __name__ == "__main__":
    main()
