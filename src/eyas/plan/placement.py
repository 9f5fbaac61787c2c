"""Chooses the devices that hold the target in `eyas capture`, and computes the rate of all devices for `eyas plan`.

    torchrun, 4 processes, 8 devices    rank 0     rank 1     rank 2     rank 3
    the target fits on one device       cuda:0     cuda:1     cuda:2     cuda:3       data parallel
    it does not                         cuda:0,4   cuda:1,5   cuda:2,6   cuda:3,7     by layers

Both use `capture_memory`.
"""

import dataclasses
import sys

import torch

from eyas.base.environment import read_int_variable, read_rank
from eyas.base.errors import InputError
from eyas.costs.cost_model import Rates
from eyas.model.devices import AUTO, DTYPES, check_device
from eyas.model.target_info import TargetInfo, read_model_shape
from eyas.recipe import Recipe


def capture_memory(recipe: Recipe, info: TargetInfo) -> tuple[float, str]:
    """Returns the GB that the target and one batch of a capture take on one device, and the formula in words.

    A batch counts two values of a token for each output of a layer's matrices; there are about weights / layers /
    hidden size outputs. So it also holds where transformers computes every token in all experts (Llama 4).
    """
    weights, tokens = info.num_parameters * DTYPES[recipe.target.dtype].itemsize / 1e9, recipe.capture.batch_tokens
    needed = weights * (1 + 2 * tokens / info.num_layers / info.hidden_size)
    formula = f"1 + 2 x {tokens:,} tokens / {info.num_layers} layers / {info.hidden_size:,} values"
    return needed, f"{needed:.1f} GB for target and batch = {weights:.1f} GB of weights x ({formula})"


def choose_device(recipe: Recipe, name: str) -> str:
    """Returns the device for `Target.load` in this process of `eyas capture`.

    For "cuda" it is the device of this rank. For "auto", too, if the target and a batch fit on this device, else it
    stays "auto". The function prints the memory that decides. Other names do not change.

    Raises:
        InputError: The target or the package accelerate is missing.
        UsageError: The rank of this process is missing or wrong.
    """
    num_devices = torch.cuda.device_count()
    if name not in ("cuda", AUTO) or not num_devices:
        return name
    own = f"cuda:{read_int_variable('LOCAL_RANK', read_rank('capture.world', recipe.capture.world)) % num_devices}"
    if name == AUTO:
        check_device(name)
        needed, formula = capture_memory(recipe, read_model_shape(recipe.target.model, None).info)
        free = torch.cuda.mem_get_info(own)[0] / 1e9
        way, name = ("is too small, so the layers are spread", AUTO) if needed > free else ("holds the target", own)
        print(f"eyas: note: {own} {way}: {formula}, and {free:.1f} GB are free.", file=sys.stderr)
    return AUTO if name == AUTO else own


def divide_capture(recipe: Recipe, info: TargetInfo, rates: Rates, has_jobs: bool) -> Rates:
    """Returns the rates with that of `eyas capture` on all devices: those of this machine, or `plan.devices`.

    Args:
        recipe: The recipe.
        info: The sizes of the target.
        rates: The rates. `read` is that of one device.
        has_jobs: True if each process runs as a job on its own machine.

    Raises:
        InputError: The target does not fit on the devices of one process.
    """
    devices = torch.cuda.device_count() if recipe.plan.is_here else recipe.plan.devices
    if devices <= 1 or rates.read is None:
        return dataclasses.replace(rates, capture=rates.read)
    count = 1 if has_jobs else min(recipe.capture.world, devices)
    (needed, formula), size = capture_memory(recipe, info), devices // count
    gb = recipe.plan.device_memory_gb or torch.cuda.mem_get_info(0)[1] / 1e9
    if needed > size * gb:
        problem = f"{size} devices of {gb:g} GB are too small: {formula}"
        raise InputError(problem, "Lower capture.world or capture.batch_tokens, or raise plan.devices")
    way, factors = f"{count} of {devices} devices hold the whole target (data parallel)", f"{count}"
    assumed = "The processes do not wait for disk, network or CPUs"
    if needed > gb:
        way, factors = f"{count} processes spread its layers over {size} devices each", f"{count} x 1"
        assumed = f"The devices of a process take turns. With {size} batches in flight the last factor can reach {size}"
        assumed += ", which is not measured. Features on the fly need a device that holds the whole target"
    text = f"Capture, capture.world={recipe.capture.world}: {formula}; a device has {gb:g} GB, so {way}."
    text += f" {rates.read:,.0f} tokens/s x {factors} = {rates.read * count:,.0f} tokens/s. Assumed: {assumed}."
    return dataclasses.replace(rates, capture=rates.read * count, capture_formula=text)
