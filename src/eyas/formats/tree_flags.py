"""A tree in the words of other engines' command lines."""

import json


def sglang_flags(tree: dict[str, int] | None, head: str) -> str | None:
    """As `python -m sglang.launch_server` takes them; its draft tokens count the root, as our nodes do."""
    if tree is None:
        return None
    return (
        f"--speculative-algorithm EAGLE3 --speculative-draft-model-path {head} "
        f"--speculative-num-steps {tree['depth']} --speculative-eagle-topk {tree['top_k']} "
        f"--speculative-num-draft-tokens {tree['nodes']}"
    )


def vllm_flags(tree: dict[str, int] | None, head: str) -> str | None:
    """As `vllm serve` takes them; it drafts chains alone."""
    if tree is None:
        return None
    assert tree["top_k"] == 1, "vLLM has no trees"
    config = {"method": "eagle3", "model": head, "num_speculative_tokens": tree["depth"]}
    return f"--speculative-config '{json.dumps(config)}'"
