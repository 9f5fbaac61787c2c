"""The trees of `eyas tune` in the words of other engines."""

from eyas.formats.sglang_vllm import sglang_flags, vllm_flags


def test_flags_are_those_of_the_other_engines() -> None:
    tree = {"depth": 5, "top_k": 4, "nodes": 16}
    flags = sglang_flags(tree, "H")
    assert flags is not None
    words = flags.split()
    assert dict(zip(words[::2], words[1::2], strict=True)) == {
        "--speculative-algorithm": "EAGLE3",
        "--speculative-draft-model-path": "H",
        "--speculative-num-steps": "5",
        "--speculative-eagle-topk": "4",
        "--speculative-num-draft-tokens": "16",
    }
    flags = vllm_flags({"depth": 3, "top_k": 1, "nodes": 4}, "H")
    assert flags == """--speculative-config '{"method": "eagle3", "model": "H", "num_speculative_tokens": 3}'"""
    assert sglang_flags(None, "H") is None
