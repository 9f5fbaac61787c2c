"""Coins: the numbers of an independent SplitMix64, uniform, and unrelated between positions and between seeds.

A chi-square statistic X of d degrees of freedom obeys P(X >= d + 2 sqrt(d x) + 2 x) <= exp(-x) (Laurent and Massart
2000, lemma 1). With x = ln(1e6) one choice of constants in a million would raise a false alarm; nothing here is random.

Legend: R any rows, P positions.
"""

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from eyas.tree.sampling import position_uniforms

WORD = 2**64
SEEDS = [0, 1, 2, 3, 41, 42, 2**31, -1, 2**63 - 1, -(2**63)]


def finaliser(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB % WORD
    return z ^ z >> 31


def splitmix64(state: int, num: int) -> list[int]:
    """The generator as published: add the constant, then finalise."""
    out = []
    for _ in range(num):
        state = (state + 0x9E3779B97F4A7C15) % WORD
        out.append(finaliser(state))
    return out


def test_the_reference_is_splitmix64() -> None:
    """The first numbers of seed 1234567, as published with several implementations (Rosetta Code among them)."""
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert splitmix64(1234567, 4) == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_known_answers(seed: int) -> None:
    start = splitmix64(seed % WORD, 1)[0]
    expected = [Fraction(2 * (number >> 12) + 1, 2**53) for number in splitmix64(start, 200)]
    ours_P = position_uniforms(torch.tensor(seed), torch.arange(200))
    assert ours_P.dtype == torch.float64
    assert [Fraction(coin) for coin in ours_P.tolist()] == expected
    one_by_one = [
        float(position_uniforms(torch.tensor([seed]), torch.tensor([p], dtype=torch.int32))) for p in (0, 7, 199)
    ]
    assert one_by_one == ours_P[[0, 7, 199]].tolist(), "neither batch nor dtype matters"


def undo_finaliser(z: int) -> int:
    def undo_shift(z: int, num_bits: int) -> int:
        out = z
        for _ in range(64 // num_bits):
            out = z ^ out >> num_bits
        return out

    z = undo_shift(z, 31) * pow(0x94D049BB133111EB, -1, WORD) % WORD
    z = undo_shift(z, 27) * pow(0xBF58476D1CE4E5B9, -1, WORD) % WORD
    return undo_shift(z, 30)


@pytest.mark.parametrize(("hashed", "coin"), [(0, 2.0**-53), (WORD - 1, 1 - 2.0**-53)])
def test_the_ends_are_never_reached(hashed: int, coin: float) -> None:
    """The seeds whose first number has no bit set, and every bit."""
    golden = 0x9E3779B97F4A7C15
    seed = (undo_finaliser((undo_finaliser(hashed) - golden) % WORD) - golden) % WORD
    assert splitmix64(splitmix64(seed, 1)[0], 1) == [hashed]
    signed = seed - WORD if seed >= WORD // 2 else seed
    assert position_uniforms(torch.tensor([signed]), torch.tensor([0])).tolist() == [coin]
    assert 0 < coin < 1


def limit(degrees: int) -> float:
    x = math.log(1e6)
    return degrees + 2 * math.sqrt(degrees * x) + 2 * x


def chi_square(cells: Tensor, num_cells: int) -> float:
    counts = torch.bincount(cells.flatten(), minlength=num_cells).double()
    expected = cells.numel() / num_cells
    return float(((counts - expected) ** 2).sum() / expected)


def assert_unrelated(a: Tensor, b: Tensor) -> None:
    """Pairs fill a 32 x 32 board evenly, and their correlation is that of independent numbers (5 sigma)."""
    cells = (a * 32).long() * 32 + (b * 32).long()
    assert chi_square(cells, 1024) < limit(1023)
    correlation = float(((a - 0.5) * (b - 0.5)).mean() * 12)
    assert abs(correlation) < 5 / math.sqrt(a.numel())


BOARD = (torch.arange(300)[:, None], torch.arange(1000)[None])  # seeds 0, 1, 2, ... and positions


def test_uniform_over_positions_and_over_seeds() -> None:
    coins_RP = position_uniforms(*BOARD)
    assert chi_square((coins_RP * 1000).long(), 1000) < limit(999)
    for seed in range(5):
        assert chi_square((position_uniforms(torch.tensor(seed), torch.arange(100_000)) * 256).long(), 256) < limit(255)
    for position in range(5):
        assert chi_square((position_uniforms(torch.arange(100_000), torch.tensor(position)) * 256).long(), 256) < limit(
            255
        )


def test_the_last_bits_are_as_good_as_the_first() -> None:
    low = (position_uniforms(*BOARD) * 2.0**52).long() % 256
    assert chi_square(low, 256) < limit(255)


@pytest.mark.parametrize("apart", [1, 2, 7])
def test_positions_and_neighbouring_seeds_are_unrelated(apart: int) -> None:
    coins_RP = position_uniforms(*BOARD)
    assert_unrelated(coins_RP[:, apart:], coins_RP[:, :-apart])
    assert_unrelated(coins_RP[apart:], coins_RP[:-apart])
    assert_unrelated(coins_RP[apart:, :-apart], coins_RP[:-apart, apart:])
    assert_unrelated(coins_RP[apart:, apart:], coins_RP[:-apart, :-apart])


def test_nothing_is_read_on_the_host() -> None:
    """Meta tensors hold no data: what reads or branches on it fails."""
    rows = torch.zeros(6, dtype=torch.int64, device="meta")
    assert position_uniforms(rows, rows).shape == (6,)
