"""Computes shares with their confidence intervals, and rows of them."""

from math import sqrt

from result_rows import Row

Z_95 = 1.959964  # quantile of the normal distribution for an interval of 95 %


def wilson_interval(right: int, total: int) -> tuple[float, float]:
    """Returns the Wilson score interval (95 %) of a share."""
    assert 0 <= right <= total, f"{right} of {total}"
    if not total:
        return 0.0, 1.0
    share, square = right / total, Z_95**2
    center = share + square / (2 * total)
    spread = Z_95 * sqrt(share * (1 - share) / total + square / (4 * total**2))
    scale = 1 + square / total
    return max(0.0, (center - spread) / scale), min(1.0, (center + spread) / scale)


def share_row(name: str, right: int, total: int, minimum: float | None = None) -> Row:
    """Returns the row of a share, with its interval. Without a minimum the figure is only told.

    Args:
        name: The name of the row; ", of TOTAL" is added.
        right: The number of right cases.
        total: The number of cases. Without cases the row has no figure.
        minimum: The smallest share that meets the target.
    """
    target = "told" if minimum is None else f"at least {minimum:g}"
    name = f"{name}, of {total}"
    if not total:
        return Row(name, None, target, minimum is None)
    low, high = wilson_interval(right, total)
    figure = int(right / total * 10_000) / 10_000  # rounds down, so that 0.99996 is not printed as 1
    is_met = minimum is None or right / total >= minimum
    return Row(name, figure, target, is_met, (round(low, 4), round(high, 4)))
