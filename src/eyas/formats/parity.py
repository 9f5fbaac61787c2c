"""Checks that an exported directory, read by the rules of another engine, gives the logits of the exported head.

Two implementations run the head and their logits are compared: `model.head`, and `formats.reference_reader`, which
follows the rules of the engine. Both get the same text, the same hidden states of the target and the same embedding.

    round 1   both run the head over the first rows of the text, then draft NUM_DRAFT_STEPS tokens
    round 2   both drop the drafted tokens, run the head over the next rows of the text, and draft again

A block head drafts one block at the same two places of the text.

T rows, D hidden size, L captured features, V draft vocabulary, W target vocabulary, g slots, r rank of the correction.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eyas.formats.head_dir import StoredHead
from eyas.formats.reference_reader import ReferenceBlockHead, ReferenceHead
from eyas.model.attention import DenseAttention
from eyas.model.attention_probe import trace_layers
from eyas.model.block_head import BlockHead
from eyas.model.head import Head
from eyas.model.target import Target

NUM_DRAFT_STEPS = 5
TOLERANCE = 1e-4  # share of the largest logit; float32 sums in another order differ by about 1e-6 of it
MAX_TOKENS = 48
ROUND_2_ROWS = 6  # rows from the target's states in the second round


@dataclass(frozen=True)
class ParityResult:
    """The comparison for one engine.

    Attributes:
        layers: The hidden_states ids that the engine reads.
        largest_logit: The largest absolute logit of eyas. The tolerance is a share of it.
        steps: For each step of a round, the largest difference between two logits. The first step is the text's rows.
            For a block head: for each slot, the confidence included if it has one.
        same_tokens: True if both implementations drafted the same tokens.
    """

    layers: list[int]
    largest_logit: float
    steps: list[float]
    same_tokens: bool

    @property
    def ok(self) -> bool:
        """True if the tokens are the same and the logits differ by no more than the tolerance."""
        return self.same_tokens and max(self.steps) <= TOLERANCE * self.largest_logit

    def to_json(self) -> dict[str, Any]:
        """Returns the engine's entry in parity.json."""
        return {**asdict(self), "ok": self.ok}


@dataclass(frozen=True)
class TargetStates:
    """The target's hidden states for a text, taken by hooks on the layers.

    Attributes:
        ids_T: The tokens.
        embeds_TD: Their rows of the embedding.
        states_TD: The input of each layer, and last the output of the last layer before the final norm.
        aux_TL: The captured layers that `Target.forward` returns.
    """

    ids_T: Tensor
    embeds_TD: Tensor
    states_TD: Sequence[Tensor]
    aux_TL: Tensor

    @staticmethod
    @torch.no_grad()
    def capture(target: Target, ids: Sequence[int]) -> "TargetStates":
        """Runs the target over the tokens and returns its states on the CPU, in float32."""
        device = target.embedding.weight.device
        ids_1T = torch.tensor([list(ids)], device=device)
        with trace_layers(target.model) as trace:
            out = target.forward(ids_1T, torch.arange(len(ids), device=device)[None], DenseAttention(), want_aux=True)
        assert out.aux_BTL is not None, "want_aux is set"
        states = [state_1TD[0].to("cpu", torch.float32) for state_1TD in (*trace.inputs, trace.outputs[-1])]
        embeds_TD = target.embed(ids_1T)[0].to("cpu", torch.float32)
        return TargetStates(ids_1T[0].cpu(), embeds_TD, states, out.aux_BTL[0].to("cpu", torch.float32))


@torch.no_grad()
def compare_with_reference(
    directory: Path, engine: str, stored: StoredHead, target: Target, states: TargetStates
) -> ParityResult:
    """Compares the logits of an exported directory, read by the rules of an engine, with the logits of the head.

    Args:
        directory: The export for this engine.
        engine: "sglang", "vllm", "vllm-speculators" or "deepspec".
        stored: The exported head, in float32.
        target: The head's target.
        states: The target's states for the text.
    """
    head = stored.head
    if isinstance(head, BlockHead):
        return _compare_block(directory, engine, head, target, states)
    assert isinstance(head, Head), "engines read EAGLE-3 heads"
    reference, eyas_head = ReferenceHead(directory, engine, target.info.num_layers), _EyasHead(head)
    layer_states = [states.states_TD[i] for i in reference.layers]
    steps, largest, same, length = [0.0] * (NUM_DRAFT_STEPS + 1), 0.0, True, 0
    num_rows = len(states.ids_T) - 1
    for end in (num_rows - ROUND_2_ROWS, num_rows):
        rows, next_rows = slice(length, end), slice(length + 1, end + 1)
        eyas_hidden_TD = head.fuse_aux(states.aux_TL[None, rows])[0]
        hidden = (eyas_hidden_TD, reference.fuse([state_TD[rows] for state_TD in layer_states]))
        embeds = (states.embeds_TD[next_rows], states.embeds_TD[next_rows])
        start = length
        for step in range(NUM_DRAFT_STEPS + 1):
            eyas_TV, eyas_TD = eyas_head.forward(embeds[0], hidden[0], start)
            reference_TV, reference_TD = reference.forward(embeds[1], hidden[1], start)
            steps[step] = max(steps[step], (eyas_TV - reference_TV).abs().max().item())
            largest = max(largest, eyas_TV.abs().max().item())
            eyas_token = int(stored.vocab.to_target(eyas_TV[-1].argmax()))
            reference_token = int(reference.target_ids_V[reference_TV[-1].argmax()])
            same = same and eyas_token == reference_token
            start += eyas_TV.shape[0]
            hidden = (eyas_TD[-1:], reference_TD[-1:])
            embeds = (_embed(target, eyas_token), _embed(target, reference_token))
        eyas_head.truncate(end)
        reference.truncate(end)
        length = end
    return ParityResult(list(reference.layers), largest, steps, same)


def read_matrices(target: Target) -> tuple[Tensor, Tensor]:
    """Returns the target's embedding and output matrix [W, D] on the CPU, in float32."""
    output_WD = target.lm_head.weight
    assert isinstance(output_WD, Tensor), "find_matrix_problem finds no problem"
    return target.embedding.weight.detach().to("cpu", torch.float32), output_WD.detach().to("cpu", torch.float32)


def _compare_block(directory: Path, engine: str, head: BlockHead, target: Target, states: TargetStates) -> ParityResult:
    matrices = read_matrices(target)
    reference = ReferenceBlockHead(directory, engine, matrices)
    steps, largest, same = [0.0] * head.config.block_size, 0.0, True
    num_rows = len(states.ids_T) - 1
    for end in (num_rows - ROUND_2_ROWS, num_rows):
        anchor = int(states.ids_T[end])
        eyas_gX, eyas_tokens = draft_block(head, matrices, states.aux_TL[:end], anchor)
        reference_gX, tokens = reference.draft([states.states_TD[i][:end] for i in reference.layers], anchor)
        steps = list(map(max, steps, (eyas_gX - reference_gX).abs().amax(1).tolist()))
        largest, same = max(largest, eyas_gX.abs().max().item()), same and eyas_tokens == tokens
    return ParityResult(list(reference.layers), largest, steps, same)


@torch.no_grad()
def draft_block(
    head: BlockHead, matrices: tuple[Tensor, Tensor], aux_TL: Tensor, anchor: int
) -> tuple[Tensor, list[int]]:
    """Drafts a block greedily with dense attention. The arguments are on the CPU, in float32.

    Args:
        head: The head.
        matrices: The target's embedding and output matrix [W, D].
        aux_TL: The captured layers of all tokens before the anchor.
        anchor: The token after them.

    Returns:
        For each slot its logits and, as the last column, its confidence if it has one; and the drafted tokens.
    """
    attend, start, rows_g = DenseAttention(), len(aux_TL), torch.arange(head.config.num_rows)
    for layer, (k_BTGH, v_BTGH) in enumerate(head.context_keys_values(aux_TL[None], torch.arange(start)[None])):
        attend.kv_by_layer[layer] = (k_BTGH.transpose(1, 2), v_BTGH.transpose(1, 2))
    attend.set_visible(torch.ones(1, len(rows_g), start + len(rows_g), dtype=torch.bool))
    embeds_1gD = matrices[0][head.block_ids(torch.tensor([anchor]))]
    normed_gD = head.step(embeds_1gD, (start + rows_g)[None], attend)[0]
    rows, tokens = [], [anchor]
    for normed_D in normed_gD[-head.config.block_size :]:
        before = torch.tensor(tokens[-1])
        rows.append(matrices[1] @ normed_D + head.correction(before))
        tokens.append(int(rows[-1].argmax()))
        if head.config.markov_rank:
            confidence = head.confidence(normed_D, head.markov_head.markov_w1(before))
            rows[-1] = torch.cat((rows[-1], confidence[None]))
    return torch.stack(rows), tokens[1:]


class _EyasHead:
    """A wrapper that gives a head of `model.head` the methods of `ReferenceHead`."""

    def __init__(self, head: Head) -> None:
        self.head, self.attend = head, DenseAttention()

    def forward(self, embeds_TD: Tensor, hidden_TD: Tensor, start: int) -> tuple[Tensor, Tensor]:
        positions_1T = torch.arange(start, start + embeds_TD.shape[0])[None]
        hidden_1TD, logits_1TV = self.head.step_with_logits(embeds_TD[None], hidden_TD[None], positions_1T, self.attend)
        return logits_1TV[0], hidden_1TD[0]

    def truncate(self, length: int) -> None:
        k_BGTH, v_BGTH = self.attend.kv_by_layer[0]
        self.attend.kv_by_layer[0] = (k_BGTH[:, :, :length], v_BGTH[:, :, :length])


def _embed(target: Target, token: int) -> Tensor:
    return target.embed(torch.tensor([token], device=target.embedding.weight.device)).to("cpu", torch.float32)
