"""Samples the held-out answers again at another temperature, as serving would, together with their features.

B texts, T tokens of the longest prompt, S = T + the tokens generated so far, D hidden, L captured features, W
vocabulary, X new tokens of a forward.

Prompts are padded on the right, and generated tokens (capitals) follow the padding:

    column       0  1  2  3  |  4  5  6         position of the token in each column
    text 0       a  b  .  .  |  C  D  E         0 1 . . 2 3 4
    text 1       a  b  c  d  |  C  D  E         0 1 2 3 4 5 6

A sampled token depends only on its logits, the temperature, and the random number of (seed, position) (tree.sampling).
So the engine gives the same answers with the same seeds, if its forward gives the same logits.

Stored greedy answers cannot give the acceptance at another temperature. An answer at a higher temperature reaches texts
where the target is less certain, and the stored features do not cover these texts. On the small target that ships with
eyas, an estimate from greedy answers said that temperature 0.7 costs a tenth of the acceptance length. New answers
showed that it costs more than a quarter.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from eyas.evaluation.replay import find_answers
from eyas.features.layout import Row
from eyas.kernels.dispatch import pack_target
from eyas.model.attention import DenseAttention
from eyas.model.target import Target
from eyas.tree.sampling import SamplingBatch, SamplingParams, choose_tokens, position_uniforms


@torch.inference_mode()
def resample_answers(
    rows: Sequence[Row], seeds: Sequence[int], target: Target, sampling: SamplingParams, max_tokens: int
) -> list[Row]:
    """Samples the last answer of each row again. Returns the new rows with float32 features on the CPU.

    An answer ends at its end-of-turn token, after `max_tokens` tokens, or at the target's last position.

    Args:
        rows: Texts whose last answer is replaced.
        seeds: The sampling seed of each row.
        target: The target, which generates the answers.
        sampling: The temperature. Requirement: no penalties and no biases.
        max_tokens: The most tokens of an answer.
    """
    assert not sampling.adjusts_logits, "penalties are not supported here"
    pack_target(target)
    device, head_device = target.embedding.weight.device, target.logits_weight.device
    answers = [find_answers(text, row.ids_T, row.loss_mask_T)[-1] for text, row in enumerate(rows)]
    prompts = [answer.ids_T[: answer.start].to(device) for answer in answers]
    lengths_B = torch.tensor([len(ids_T) for ids_T in prompts], device=device)
    ids_BT = pad_sequence(prompts, batch_first=True)
    decoder = _BatchDecoder(target, lengths_B, ids_BT.shape[1])
    hidden_BTD, aux_BTL = decoder.forward(ids_BT)
    aux = [[aux_BTL[b, :length].float().cpu()] for b, length in enumerate(lengths_B.tolist())]
    last_BD = hidden_BTD[torch.arange(len(rows)), lengths_B - 1]
    batch, end_ids = SamplingBatch.from_params([sampling], device), set(target.info.eos_ids)
    generated: list[list[int]] = [[] for _ in rows]
    hidden: list[list[Tensor]] = [[] for _ in rows]
    running, seeds_B = list(range(len(rows))), torch.tensor(seeds, device=device)
    limits = [min(max_tokens, target.info.max_positions - len(prompt)) for prompt in prompts]
    while True:
        uniforms_B = position_uniforms(seeds_B, decoder.lengths_B + decoder.num_generated)
        logits_BW = target.logits(last_BD.to(head_device)).to(device)
        tokens_B = choose_tokens(logits_BW, batch, torch.zeros_like(seeds_B), uniforms_B)
        for b, token, last_D in zip(running, tokens_B.tolist(), last_BD.float().cpu(), strict=True):
            generated[b].append(token)
            hidden[b].append(last_D)
        kept = [
            slot for slot, b in enumerate(running) if generated[b][-1] not in end_ids and len(generated[b]) < limits[b]
        ]
        if not kept:
            break
        running = [running[slot] for slot in kept]
        kept_B = torch.tensor(kept, device=device)
        decoder.keep_only(kept_B)
        seeds_B = seeds_B[kept_B]
        hidden_B1D, aux_B1L = decoder.forward(tokens_B[kept_B, None])
        last_BD = hidden_B1D[:, 0]
        for b, aux_1L in zip(running, aux_B1L.float().cpu(), strict=True):
            aux[b].append(aux_1L)
    return [_build_row(*parts) for parts in zip(rows, prompts, generated, aux, hidden, strict=True)]


class _BatchDecoder:
    """A batch of texts that grow by one token a forward, with their KV cache."""

    def __init__(self, target: Target, lengths_B: Tensor, width: int) -> None:
        """Creates an empty KV cache. lengths_B: the tokens of each prompt. width: the tokens of the longest prompt."""
        self.target = target
        self.lengths_B = lengths_B
        self.num_generated = 0
        self.columns_1T = torch.arange(width, device=lengths_B.device)[None]
        self.attention = DenseAttention()

    def forward(self, ids_BX: Tensor) -> tuple[Tensor, Tensor]:
        """Runs the target over the prompts in the first call, and over one new token of each text in later calls.

        Returns:
            The final hidden states [B, X, D] and the aux features [B, X, L] of these tokens.
        """
        num_texts = len(self.lengths_B)
        prompt_BT = self.columns_1T < self.lengths_B[:, None]
        if self.attention.num_cached == 0:
            positions_BS = self.columns_1T.expand(num_texts, -1)
            visible_BXS = prompt_BT[:, None] & (self.columns_1T <= self.columns_1T.T)
            positions_BX = positions_BS
        else:
            self.num_generated += 1
            generated_1Y = torch.arange(self.num_generated, device=prompt_BT.device)[None]
            positions_BS = torch.cat((self.columns_1T.expand(num_texts, -1), self.lengths_B[:, None] + generated_1Y), 1)
            all_BY = torch.ones_like(generated_1Y).bool().expand(num_texts, -1)
            visible_BXS = torch.cat((prompt_BT, all_BY), 1)[:, None]
            positions_BX = positions_BS[:, -1:]
        attention = self.attention.set_visible(visible_BXS, positions_BS)
        out = self.target.forward(ids_BX, positions_BX, attention, want_aux=True)
        assert out.aux_BTL is not None
        return out.hidden_BTD.to(prompt_BT.device), out.aux_BTL  # a target may span several devices

    def keep_only(self, kept_B: Tensor) -> None:
        """Removes all texts from the batch except the texts with the indices `kept_B`."""
        if len(kept_B) < len(self.lengths_B):
            self.lengths_B = self.lengths_B[kept_B]
            cache = self.attention.kv_by_layer.items()
            self.attention.kv_by_layer = {i: (k[kept_B.to(k.device)], v[kept_B.to(v.device)]) for i, (k, v) in cache}


def _build_row(row: Row, prompt_T: Tensor, generated: list[int], aux: list[Tensor], hidden: list[Tensor]) -> Row:
    """Returns `row` with the text of the prompt and the generated tokens, and with the features of this text.

    The target did not run on the last generated token, so its aux features are zeros. The replay does not read them.
    """
    ids_T = torch.cat((prompt_T.cpu(), torch.tensor(generated)))
    mask_T = torch.arange(len(ids_T)) >= len(prompt_T)
    aux_TL = torch.cat((*aux, torch.zeros_like(aux[0][:1])))
    return Row(row.id, row.task, ids_T, mask_T, aux_TL, torch.stack(hidden))
