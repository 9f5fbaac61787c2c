"""Tests memory on pages of 2 MiB: content, alignment, lifetime."""

import torch

from eyas.kernels.huge_pages import ALIGNMENT, PAGE, HugePages, zeros_on_huge_pages


def test_zeros_have_shape_and_dtype_and_can_be_written():
    made = zeros_on_huge_pages((3, 2, 5), torch.bfloat16, torch.device("cpu"))
    assert (made.shape, made.dtype, made.is_contiguous()) == ((3, 2, 5), torch.bfloat16, True)
    assert made.data_ptr() % PAGE == 0
    assert not made.any()
    made[1] = 7
    assert made.float().sum() == 70


def test_zeros_of_another_device_are_those_of_torch():
    assert zeros_on_huge_pages((4,), torch.float32, torch.device("meta")).device.type == "meta"


def test_parts_of_one_memory_are_aligned_and_do_not_overlap():
    memory = HugePages(1000)
    first, second = memory.take(3).fill_(1), memory.copy(torch.full((2, 5), 9.0))
    assert second.data_ptr() - first.data_ptr() == ALIGNMENT
    assert first.tolist() == [1, 1, 1]
    assert second.tolist() == [[9.0] * 5] * 2


def test_the_memory_outlives_the_object_that_made_it():
    kept = HugePages(PAGE).copy(torch.arange(1000))
    assert kept.sum() == 499500
