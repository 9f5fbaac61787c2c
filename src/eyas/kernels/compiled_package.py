"""Loads a compiled forward from its package file, and compares it with the uncompiled one. `aot_compile` uses it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eyas.kernels.attention_op import CompileError, attention_scope, load_operator
from eyas.model.attention import AttentionParams, PackedAttentionFn, causal_attention
from eyas.model.head import Head
from eyas.model.target import Target

TEXT_ROWS = 48  # of the text whose last rows are compared
CHECK_ROWS = (1, 2, 7, 40)
# Relative error: bfloat16 rounds at other places when operators are fused.
TOLERANCE = {torch.bfloat16: 0.05, torch.float32: 1e-4}


class CompiledPackage:
    """A compiled forward, loaded from its package file. Requirement: one thread calls it at a time.

    The package has no weights, and uses those of the graph.
    """

    def __init__(self, path: Path, graph: torch.nn.Module) -> None:
        """Loads the package.

        Args:
            path: the .pt2 file.
            graph: the same forward, uncompiled.

        Raises:
            CompileError: the package cannot be loaded on this machine.
        """
        load_operator()
        try:
            # The inner loader: both graphs have flat inputs and outputs, and flattening takes as long as a layer.
            loader = torch._inductor.aoti_load_package(str(path), run_single_threaded=True).loader
            tensors = dict(graph.named_parameters(remove_duplicate=False))
            tensors |= dict(graph.named_buffers(remove_duplicate=False))
            self._weights = {name: tensors[name].detach() for name in loader.get_constant_fqns()}
            loader.load_constants(self._weights, False, True, True)
            self._run = loader.boxed_run
        except Exception as error:  # packages of another processor or torch fail in many ways
            raise CompileError("The compiled forward cannot be loaded") from error
        os.utime(path)  # the cache keeps the newest

    def __call__(self, attention: PackedAttentionFn, *inputs: Tensor) -> Any:
        """Runs the forward. Returns the outputs of the graph."""
        with attention_scope(attention):
            return self._run([part.contiguous() for part in inputs])  # compiled code does not check strides


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """Returns the norm of the difference divided by the norm of `wanted`."""
    found, wanted = found.double(), wanted.double()
    return float((found - wanted).norm() / wanted.norm().clamp_min(1e-30))


def attend_to_text(layer: int, q_TNH: Tensor, k_TGH: Tensor, v_TGH: Tensor, params: AttentionParams) -> Tensor:
    """Computes causal attention over the rows of one text, without KV memory."""
    q_1NTH, k_1GTH, v_1GTH = (part.transpose(0, 1)[None] for part in (q_TNH, k_TGH, v_TGH))
    return causal_attention(q_1NTH, k_1GTH, v_1GTH, params)[0].transpose(0, 1)


class _TextAttention:
    """Causal attention over one text, without KV memory. Its first call for each layer gets all rows of the text.

    A later call gets the last rows only. The rows before them are those of the first call.
    """

    def __init__(self) -> None:
        self._rows: dict[int, tuple[Tensor, ...]] = {}

    def __call__(self, layer: int, q_TNH: Tensor, k_TGH: Tensor, v_TGH: Tensor, params: AttentionParams) -> Tensor:
        """Computes the attention of the given rows."""
        given, count = (q_TNH, k_TGH, v_TGH), len(q_TNH)
        kept = self._rows.setdefault(layer, tuple(part.clone() for part in given))
        q, k, v = (torch.cat((old[: len(old) - count], new)) for old, new in zip(kept, given, strict=True))
        return attend_to_text(layer, q, k, v, params)[-count:]


def target_inputs(target: Target, rows: int) -> tuple[Tensor, Tensor]:
    """Returns example inputs of a target's forward for `rows` tokens: arbitrary ids, and positions 0 to rows - 1."""
    positions_1T = torch.arange(rows, device=target.model.device)[None]
    return positions_1T * 7 % target.info.vocab_size, positions_1T


def head_inputs(head: Head, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns example inputs of the head's step: embeddings, hidden states, positions; random with a fixed seed."""
    generator, weight = torch.Generator().manual_seed(rows), head.norm.weight
    shape = (1, rows, head.config.hidden_size)
    embeds_1TD, hidden_1TD = (torch.randn(shape, generator=generator).to(weight) for _ in range(2))
    return embeds_1TD, hidden_1TD, torch.arange(rows, device=weight.device)[None]


def compare_with_graph(
    package: CompiledPackage, graph: torch.nn.Module, inputs_of: Callable[[int], tuple[Tensor, ...]]
) -> None:
    """Raises CompileError if the outputs of the package differ from the graph's by more than TOLERANCE.

    The compared rows are the last ones of a text. Its first tokens are left out: all text attends to them, and their
    hidden states are so large in many targets that bfloat16 rounds them by more than TOLERANCE.

    Args:
        package: the compiled forward.
        graph: the same forward, uncompiled.
        inputs_of: returns example inputs for a number of rows.
    """
    attention, inputs = _TextAttention(), inputs_of(TEXT_ROWS)
    with torch.inference_mode(), attention_scope(attention):
        wanted = graph(*inputs)
    for rows in CHECK_ROWS:
        with torch.inference_mode():
            found = package(attention, *[part[:, -rows:] for part in inputs])
        worst = max(relative_error(one, other[:, -rows:]) for one, other in zip(found, wanted, strict=True))
        bound = TOLERANCE[wanted[0].dtype]
        if not worst <= bound:
            figures = f"{worst:.2g} at {rows} tokens, and {bound:g} is the limit"
            raise CompileError(f"The compiled forward is wrong: it differs from the uncompiled one by {figures}")
