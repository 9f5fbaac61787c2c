"""Brings the copies of a round to the device, and merges them into its draft trees. Called by ModelRunner.

B requests, X tokens of a copy on the host, K tokens that a round drafts at most.

The host may propose a copy before it has read the newest rounds. The device knows the true text. It drops a copy whose
first tokens differ from the text, and skips tokens that the text already has:

    copy, proposed for column 7     c0 c1 c2 c3 c4 ...
    text on the device              c0 c1                  two tokens more than the host knew
    draft                                 c2 c3 c4 ...
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from eyas.memory.future_map import FutureMap
from eyas.speculation.copy_index import MAX_COPY, Copy
from eyas.staging import Staging
from eyas.tree.merge import merge_chain
from eyas.tree.node_scale import NodeScale
from eyas.tree.tree import Tree


@dataclass(frozen=True)
class CopyRows:
    """The copies of a round.

    Attributes:
        copies: The copy of each request; None for a request without one.
        num_unread: The number of tokens that launched rounds may have added to a text, at most.
        is_alone: True if the round drafts copies only, without a forward of a head.
    """

    copies: tuple[Copy | None, ...]
    num_unread: int
    is_alone: bool

    def num_rows_beyond(self, num_nodes: int) -> int:
        """Returns the rows for all copies, beside trees of `num_nodes` nodes below the root.

        A copy takes the rows of the least likely nodes of its tree. Only a longer one needs more rows.
        """
        return sum(max(self.num_rows_of(request) - num_nodes, 0) for request in range(len(self.copies)))

    def num_rows_of(self, request: int) -> int:
        """Returns the number of tokens to verify of a request, by its index in the batch."""
        copy = self.copies[request]
        return 0 if copy is None else min(len(copy.tokens), MAX_COPY)

    def merge_into(
        self,
        tree: Tree,
        staging: Staging,
        future_map: FutureMap,
        req_slots_B: Tensor,
        lengths_B: Tensor,
        scale: NodeScale | None,
    ) -> tuple[Tree, Tensor, Tensor | None]:
        """Returns the trees with the copies merged in, the sources of their nodes, and the shares for `calibrate`.

        Args:
            tree: the trees that a head has drafted, or roots only.
            staging: copies to the device.
            future_map: the texts of the requests on the device.
            req_slots_B: the request slots.
            lengths_B: the numbers of committed tokens.
            scale: the scale of the shares; None to return none.
        """
        shape = len(self.copies), MAX_COPY + self.num_unread
        tokens_BX, log_probs_BX, counts_B2 = np.zeros(shape, np.int64), np.zeros(shape, np.float32), [[0, 0]] * shape[0]
        for request, copy in enumerate(self.copies):
            if copy is not None:
                count = len(copy.tokens)
                counts_B2[request] = [count, copy.begin]
                tokens_BX[request, :count] = copy.tokens
                log_probs_BX[request, :count] = np.log(copy.probabilities)
        shares = () if scale is None else (scale.log_shares_SDN,)
        tokens_BX, log_probs_BX, counts_B2, *shares = staging.copy(
            tokens_BX, log_probs_BX, np.array(counts_B2), *shares
        )
        counts_B, begins_B = counts_B2.unbind(1)
        first_B1 = (lengths_B + 1 - begins_B)[:, None]
        columns_BK = first_B1 + torch.arange(MAX_COPY, device=first_B1.device)
        valid_BK = columns_BK < counts_B[:, None]
        if self.num_unread:
            ahead_U = torch.arange(self.num_unread, device=first_B1.device)
            text_BU = future_map.tokens_RC[req_slots_B[:, None], begins_B[:, None] + ahead_U]
            valid_BK &= ((text_BU == tokens_BX[:, : self.num_unread]) | (ahead_U >= first_B1)).all(1, keepdim=True)
        columns_BK = columns_BK.clamp_(max=tokens_BX.shape[1] - 1)
        known_B1 = log_probs_BX.gather(1, (first_B1 - 1).clamp(0, tokens_BX.shape[1] - 1)) * (first_B1 > 0)
        log_probs_BK = log_probs_BX.gather(1, columns_BK) - known_B1
        merged = merge_chain(tree, tokens_BX.gather(1, columns_BK), log_probs_BK, valid_BK)
        return *merged, shares[0] if shares else None
