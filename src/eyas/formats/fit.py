"""Whether a head and a target fit, in words. D hidden, W target vocabulary."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from eyas.base.errors import Finding, raise_misfits
from eyas.formats.aux_layers import default_layers_as_outputs
from eyas.formats.head_dir import StoredHead
from eyas.model.layer_ids import default_aux_layers
from eyas.model.target_info import TargetInfo

FIX_USE_MATCHING_HEAD = "use the head that was trained for this target"


def check_fit(
    stored: StoredHead,
    info: TargetInfo,
    target_digest: str | None = None,
    text_digests: Mapping[str, str | None] | None = None,
) -> list[Finding]:
    """Everything in which this head and this target do not fit, misfits first; empty if they do.

    words: the target's digests of its "tokenizer" and "chat template", where they are to be compared.
    """
    config, found = stored.config, []

    def compare(weight: Literal["misfit", "warning"], name: str, ours: object, theirs: object) -> None:
        if ours != theirs:
            have = f"{theirs}, as target {info.name} has"
            found.append(
                Finding(
                    weight, f"a head for {name} {ours}", have, FIX_USE_MATCHING_HEAD if weight == "misfit" else None
                )
            )

    compare("misfit", "hidden size", config.target_hidden_size, info.hidden_size)
    compare("misfit", "a vocabulary of", config.vocab_size, info.vocab_size)
    found += _check_layers(stored, info)
    found += _check_positions(stored, info)
    if config.max_position_embeddings < info.max_positions:
        compare("warning", "max_position_embeddings", config.max_position_embeddings, info.max_positions)
    recorded = {"target": stored.metadata.target_digest, "tokenizer": stored.metadata.tokenizer_digest}
    recorded["chat template"] = stored.metadata.template_digest
    has = {"target": target_digest, **(text_digests or {})}
    for name, digest in recorded.items():
        if digest is not None and has.get(name) is not None:
            compare("warning", f"the {name} with digest", digest, has[name])
    return sorted(found, key=lambda finding: finding.weight != "misfit")


def require_fit(
    stored: StoredHead,
    info: TargetInfo,
    target_digest: str | None = None,
    text_digests: Mapping[str, str | None] | None = None,
) -> list[Finding]:
    """The warnings of `check_fit`; `InputError` naming every misfit if there is one."""
    findings = check_fit(stored, info, target_digest, text_digests)
    raise_misfits(findings, FIX_USE_MATCHING_HEAD)
    return findings


def check_embedding(stored: StoredHead, rows_WD: Tensor) -> list[Finding]:
    """Whether an embedding that the head's file holds is the target's: SGLang and eyas take the target's.

    rows_WD: the target's, wherever they are.
    """
    own_WD = stored.embedding_WD
    if own_WD is None:
        return []
    if own_WD.shape != rows_WD.shape:
        return [Finding("misfit", f"an embedding of shape {list(own_WD.shape)}", f"shape {list(rows_WD.shape)}")]
    # Both were rounded once or twice on their way to a file: two roundings of bfloat16 are 2^-7 at most.
    own_WD, rows_WD = own_WD.float(), rows_WD.to("cpu", torch.float32)
    far = (own_WD - rows_WD).abs() > 2**-7 * rows_WD.abs() + 1e-6
    if not far.any():
        return [Finding("ok", "an embedding in the head's file", "the target's own rows")]
    share = far.any(1).float().mean().item()
    found = f"an embedding in the head's file that differs from the target's in {share:.0%} of its rows"
    return [Finding("warning", found, "the target's rows, for the head is run with those", FIX_USE_MATCHING_HEAD)]


def check_weights(stored: StoredHead) -> list[Finding]:
    """What the weights themselves show, without a target."""
    found: list[Finding] = []
    norm_D = stored.head.midlayer.input_layernorm.weight.detach()
    if stored.layout == "ModelOpt" and not torch.allclose(norm_D, norm_D[0], rtol=1e-2):
        # Facts B.4: trained on hidden_norm(input_layernorm(h)); harmless while input_layernorm is constant.
        known = "a constant one: some of its versions train with that norm before hidden_norm, no engine has it there"
        found.append(Finding("warning", "a head of ModelOpt whose input_layernorm is not constant", known))
    if stored.head.lm_head.weight.dtype == torch.float16:
        found.append(Finding("warning", "weights in float16", "bfloat16: engines run a head in the target's precision"))
    return found


def _check_layers(stored: StoredHead, info: TargetInfo) -> list[Finding]:
    ids, num_layers = list(map(int, stored.config.aux_layer_ids)), info.num_layers
    if any(i > num_layers for i in ids):
        have = f"ids up to {num_layers}, the layers of target {info.name}"
        return [Finding("misfit", f"a head that reads layers {ids}", have, FIX_USE_MATCHING_HEAD)]
    found: list[Finding] = []
    if stored.layout != "eyas" and num_layers in ids:
        have = "layers before the last state, which other engines hand over before the final norm and eyas after it"
        found.append(Finding("misfit", f"a head that reads layers {ids}", have))
    if num_layers < 7:
        return found
    usual = list(map(int, default_aux_layers(num_layers)))
    if ids == default_layers_as_outputs(num_layers):
        have = f"{usual}: these are the same three, counted as outputs of layers"
        do = "ask who trained it; where they were, write the expected ids into its config.json"
        found.append(Finding("warning", f"a head that reads layers {ids}", have, do))
    elif ids != usual:
        found.append(Finding("warning", f"a head that reads layers {ids}", f"{usual}, the usual ones of this target"))
    return found


def _check_positions(stored: StoredHead, info: TargetInfo) -> list[Finding]:
    config, found = stored.config, []
    if config.rope_theta != info.rope_theta:
        # The base alone: a head turns plainly, also where the target scales its positions (`HeadConfig.for_target`).
        base = "no rotary positions" if info.rope_theta is None else info.rope_theta
        scaled = "" if info.rope_type in (None, "default") else f" before scaling of type {info.rope_type}"
        have = f"{base}, as target {info.name} has{scaled}"
        found.append(Finding("warning", f"a head for rope_theta {config.rope_theta}", have))
    if config.rope_scaling is not None and config.rope_scaling["rope_type"] != info.rope_type:
        kind = config.rope_scaling["rope_type"]
        have = f"{info.rope_type or 'none'}, as target {info.name} has, or none (ModelOpt writes yarn unasked)"
        found.append(Finding("warning", f"a head whose positions are scaled, type {kind}", have))
    return found
