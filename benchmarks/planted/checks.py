"""Computes check digits by their public rules, and draws characters by a pattern. All generators use it."""

from collections.abc import Sequence
from random import Random

DIGITS = "0123456789"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def draw(rng: Random, pattern: str) -> str:
    """Draws a text: # becomes a digit, @ a capital letter, * a digit or a capital letter, other characters stay."""
    choices = {"#": DIGITS, "@": LETTERS, "*": DIGITS + LETTERS}
    return "".join(rng.choice(choices.get(char, char)) for char in pattern)


def grouped(text: str, sizes: Sequence[int], separator: str = " ") -> str:
    """Splits a text into groups of these sizes. The last size repeats."""
    groups, place, number = list[str](), 0, 0
    while place < len(text):
        size = sizes[min(number, len(sizes) - 1)]
        groups.append(text[place : place + size])
        place, number = place + size, number + 1
    return separator.join(groups)


def weighted_sum(digits: str, weights: Sequence[int]) -> int:
    """Returns the sum of the digits, each times its weight."""
    return sum(int(digit) * weight for digit, weight in zip(digits, weights, strict=True))


def luhn_digit(number: str) -> str:
    """Returns the check digit of ISO/IEC 7812 (Luhn) for a number without it."""
    doubled = (int(digit) * (2 if place % 2 == 0 else 1) for place, digit in enumerate(reversed(number)))
    return str(-sum(value // 10 + value % 10 for value in doubled) % 10)


def mod_97(text: str) -> int:
    """Returns a text of digits and letters (A is 10, Z is 35) modulo 97, as ISO/IEC 7064 does."""
    return int("".join(str(int(char, 36)) for char in text)) % 97


def mod_11_10_digit(number: str) -> str:
    """Returns the check digit of ISO/IEC 7064 MOD 11,10."""
    product = 10
    for digit in number:
        total = (int(digit) + product) % 10 or 10
        product = total * 2 % 11
    return str((11 - product) % 10)


def mod_11_2_digit(number: str) -> str:
    """Returns the check character of ISO/IEC 7064 MOD 11-2, which may be X."""
    total = 0
    for digit in number:
        total = (total + int(digit)) * 2 % 11
    return "0123456789X"[(12 - total) % 11]


def icao_digit(text: str) -> str:
    """Returns the check digit of ICAO Doc 9303: weights 7, 3, 1; A is 10."""
    return str(sum(int(char, 36) * (7, 3, 1)[place % 3] for place, char in enumerate(text)) % 10)


def verhoeff_digit(number: str) -> str:
    """Returns the check digit of Verhoeff (1969), from the dihedral group of order ten."""

    def multiply(left: int, right: int) -> int:
        if left < 5:
            return (left + right) % 5 + (5 if right >= 5 else 0)
        return (left - right) % 5 + (5 if right < 5 else 0)

    permutation = (1, 5, 7, 6, 2, 8, 3, 0, 9, 4)
    check = 0
    for place, digit in enumerate(reversed(number), start=1):
        value = int(digit)
        for _ in range(place % 8):
            value = permutation[value]
        check = multiply(check, value)
    inverse = (0, 4, 3, 2, 1, 5, 6, 7, 8, 9)
    return str(inverse[check])


def birth(rng: Random) -> tuple[int, int, int]:
    """Draws a date of birth as year, month and day."""
    return rng.randint(1938, 2011), rng.randint(1, 12), rng.randint(1, 28)
