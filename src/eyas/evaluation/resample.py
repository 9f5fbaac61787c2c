"""Held-out prompts answered once more, as serving would answer them at another temperature, features and all.

B texts, T tokens of the longest prompt, S = T + the tokens drawn so far, D hidden, L captured features, W vocabulary.

    column       0  1  2  3  |  4  5  6         prompts are padded on the right; what is drawn stands behind the padding
    text 0       a  b  .  .  |  C  D  E         positions 0 1 . . 2 3 4
    text 1       a  b  c  d  |  C  D  E         positions 0 1 2 3 4 5 6

A token depends on its logits, the temperature and the coin of (seed, position) alone (tree.sampling), so these are the
answers that the engine gives with these seeds, wherever both forwards give the same logits.

Why not from the stored answers: what the target says at another temperature is known behind each stored token, but not
behind a token that it did not write, and texts that are drawn warmer lead to places where it is less sure. Read off
greedy answers of the embedded target, a temperature of 0.7 seems to cost a tenth of the acceptance length. It costs
more than a quarter.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from eyas.features.layout import Row
from eyas.model.attention import DenseAttention
from eyas.model.target import Target
from eyas.tree.sampling import SamplingBatch, SamplingParams, choose_tokens, position_uniforms


@torch.inference_mode()
def resample_answers(
    rows: Sequence[Row], seeds: Sequence[int], target: Target, sampling: SamplingParams, max_tokens: int
) -> list[Row]:
    """The rows with their last answer drawn anew, features in float32 on the CPU. seeds: of the requests.

    An answer ends with its end of turn, after max_tokens, or where the target's positions do. sampling: without
    penalties or bias.
    """
    assert not sampling.adjusts_logits, "no penalties here"
    place, head_place = target.embedding.weight.device, next(target.lm_head.parameters()).device
    prompts = [row.ids_T[: _last_answer_start(row)].to(place) for row in rows]
    lengths_B = torch.tensor([len(ids_T) for ids_T in prompts], device=place)
    ids_BT = torch.nn.utils.rnn.pad_sequence(prompts, batch_first=True)
    drawing = _BatchDecoder(target, lengths_B, ids_BT.shape[1])
    hidden_BTD, aux_BTL = drawing.forward(ids_BT)
    aux = [[aux_BTL[b, :length].float().cpu()] for b, length in enumerate(lengths_B.tolist())]
    last_BD = hidden_BTD[torch.arange(len(rows)), lengths_B - 1]
    settings, ends = SamplingBatch.from_params([sampling], place), set(target.info.eos_ids)
    said: list[list[int]] = [[] for _ in rows]
    hidden: list[list[Tensor]] = [[] for _ in rows]
    alive, seeds_B = list(range(len(rows))), torch.tensor(seeds, device=place)
    while True:
        coins_B = position_uniforms(seeds_B, drawing.lengths_B + drawing.num_drawn)
        tokens_B = choose_tokens(
            target.logits(last_BD.to(head_place)).to(place), settings, torch.zeros_like(seeds_B), coins_B
        )
        for b, token, last_D in zip(alive, tokens_B.tolist(), last_BD.float().cpu(), strict=True):
            said[b].append(token)
            hidden[b].append(last_D)
        limits = [min(max_tokens, target.info.max_positions - len(prompts[b])) for b in alive]
        goes_on = [said[b][-1] not in ends and len(said[b]) < most for b, most in zip(alive, limits, strict=True)]
        if not any(goes_on):
            break
        kept = torch.tensor(goes_on, device=place).nonzero()[:, 0]
        alive = [b for b, stays in zip(alive, goes_on, strict=True) if stays]
        drawing.keep_only(kept)
        seeds_B = seeds_B[kept]
        hidden_B1D, aux_B1L = drawing.forward(tokens_B[kept, None])
        last_BD = hidden_B1D[:, 0]
        for b, aux_1L in zip(alive, aux_B1L.float().cpu(), strict=True):
            aux[b].append(aux_1L)
    return [_build_row(*parts) for parts in zip(rows, prompts, said, aux, hidden, strict=True)]


class _BatchDecoder:
    """Texts that grow together, and the keys and values of their tokens."""

    def __init__(self, target: Target, lengths_B: Tensor, width: int) -> None:
        """lengths_B of the prompts, width of the longest."""
        self.target = target
        self.lengths_B = lengths_B
        self.num_drawn = 0
        self.columns_1T = torch.arange(width, device=lengths_B.device)[None]
        self.attend = DenseAttention()

    def forward(self, ids_BX: Tensor) -> tuple[Tensor, Tensor]:
        """Final states and features of the prompts, then of one token each."""
        num_texts = len(self.lengths_B)
        prompt_BT = self.columns_1T < self.lengths_B[:, None]
        if self.attend.num_cached == 0:
            positions_BS = self.columns_1T.expand(num_texts, -1)
            visible_BXS = prompt_BT[:, None] & (self.columns_1T <= self.columns_1T.T)
            positions_BX = positions_BS
        else:
            self.num_drawn += 1
            drawn_1Y = torch.arange(self.num_drawn, device=prompt_BT.device)[None]
            positions_BS = torch.cat((self.columns_1T.expand(num_texts, -1), self.lengths_B[:, None] + drawn_1Y), 1)
            visible_BXS = torch.cat((prompt_BT, torch.ones_like(drawn_1Y).bool().expand(num_texts, -1)), 1)[:, None]
            positions_BX = positions_BS[:, -1:]
        attend = self.attend.set_visible(visible_BXS, positions_BS)
        out = self.target.forward(ids_BX, positions_BX, attend, want_aux=True)
        assert out.aux_BTL is not None, "features were asked for"
        return out.hidden_BTD.to(prompt_BT.device), out.aux_BTL  # a target may lie on several devices

    def keep_only(self, kept: Tensor) -> None:
        """Go on with these texts alone."""
        if len(kept) < len(self.lengths_B):
            self.lengths_B = self.lengths_B[kept]
            held = self.attend.kv_by_layer
            self.attend.kv_by_layer = {i: (k[kept.to(k.device)], v[kept.to(v.device)]) for i, (k, v) in held.items()}


def _last_answer_start(row: Row) -> int:
    """Where the row's last answer begins."""
    mask_T = row.loss_mask_T.int()
    starts = (mask_T.diff() == 1).nonzero()[:, 0]
    assert len(starts), "an answer with a prompt before it"
    return int(starts[-1]) + 1


def _build_row(row: Row, prompt_T: Tensor, said: list[int], aux: list[Tensor], hidden: list[Tensor]) -> Row:
    """The last token was never read: nobody asks for its features, which stand as zeros."""
    ids_T = torch.cat((prompt_T.cpu(), torch.tensor(said)))
    mask_T = torch.arange(len(ids_T)) >= len(prompt_T)
    aux_TL = torch.cat((*aux, torch.zeros_like(aux[0][:1])))
    return Row(row.id, row.task, ids_T, mask_T, aux_TL, torch.stack(hidden))
