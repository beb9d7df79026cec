"""Numbers as the grammar library spells them: common multiples, and spans and steps of fewer decimals."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction

MAX_DECIMALS = 4  # digits after the point up to which shorter spellings are told apart


def spellings(multiple: float) -> list[float]:
    """`multiple`, and its multiples of fewer decimals: the library sees that 0.50 is one of 0.25, not 0.5."""
    exact = Fraction(Decimal(repr(multiple)))
    places = decimals(multiple)
    out = [multiple]
    for count in range(places - 1, 0, -1):
        step = Fraction(1, 10**count)
        coarse = Fraction(
            math.lcm(exact.numerator * step.denominator, step.numerator * exact.denominator),
            exact.denominator * step.denominator,
        )
        value = float(coarse)
        if value not in out:
            out.append(value)
    return out


def rounded(span: tuple) -> list[tuple]:
    """The span, and what of it has fewer decimals: the library reads 2.2 as above 2.25, 2.20 as below."""
    low, _, high, _ = span
    places = max(0 if bound is None else decimals(bound) for bound in (low, high))
    out = [span]
    for count in range(places - 1, 0, -1):
        unit = Decimal(10) ** -count
        inner = list(span)
        for at, bound, rounding in ((0, low, ROUND_CEILING), (2, high, ROUND_FLOOR)):
            if bound is not None and decimals(bound) > count:
                inner[at], inner[at + 1] = float(Decimal(repr(bound)).quantize(unit, rounding)), False
        if tuple(inner) not in out:
            out.append(tuple(inner))
    return out


def decimals(value: float) -> int:
    """Digits after the point, 0 where there are too many to tell spellings apart."""
    exponent = Decimal(repr(value)).normalize().as_tuple().exponent
    return -exponent if isinstance(exponent, int) and -MAX_DECIMALS <= exponent < 0 else 0


def holds_multiple(span: tuple, multiples: tuple[float, ...]) -> bool:
    """Whether a number between the bounds is a multiple of all of them."""
    low, low_open, high, high_open = span
    if not multiples or low is None or high is None:
        return True
    step, first, last = _least(multiples), Fraction(Decimal(repr(low))), Fraction(Decimal(repr(high)))
    found = math.ceil(first / step) * step
    if low_open and found == first:
        found += step
    return found < last or (found == last and not high_open)


def _least(values: tuple[float, ...]) -> Fraction:
    """The least common multiple."""
    exact = [Fraction(Decimal(repr(value))) for value in values]
    common = exact[0]
    for value in exact[1:]:
        common = Fraction(
            math.lcm(common.numerator * value.denominator, value.numerator * common.denominator),
            common.denominator * value.denominator,
        )
    return common


def common_multiple(values: tuple[float, ...]) -> float | None:
    """The least common multiple, None where the library would take too long or loses digits."""
    common = _least(values)
    text = Decimal(common.numerator) / Decimal(common.denominator)
    _, digits, exponent = text.normalize().as_tuple()
    number = int("".join(map(str, digits)))
    if Fraction(text) != common or not isinstance(exponent, int) or not -9 <= exponent <= 4:
        return None
    if number * 10 ** max(exponent, 0) > 9999:  # the library keeps a state for each remainder
        return None
    return int(common) if common.denominator == 1 else float(text)
