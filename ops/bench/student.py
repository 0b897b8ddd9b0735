"""Student's t distribution in plain Python, so that the gate needs no numerical library on the operator's machine.

Source: W. H. Press et al., Numerical Recipes, 6.4 (incomplete beta function by Lentz's continued fraction);
compared with SciPy in tests/unit/test_stats.py.
"""

import math
from functools import cache
from statistics import NormalDist

_TINY = 1e-300
_PRECISION = 1e-13


def t_cdf(t: float, df: float) -> float:
    """Return P(T <= t) for Student's t with `df` degrees of freedom (any real number above 0)."""
    tail = 0.5 * _incomplete_beta(df / 2, 0.5, df / (df + t * t))
    return tail if t < 0 else 1 - tail


@cache
def t_quantile(p: float, df: float) -> float:
    """Return the value that T exceeds with probability 1 - `p`.

    Raises: ValueError unless 0 < p < 1 and df > 0.
    """
    if not 0 < p < 1 or df <= 0:
        raise ValueError(f"no t quantile for p={p}, df={df}")
    if p < 0.5:
        return -t_quantile(1 - p, df)
    low, high = 0.0, max(1.0, NormalDist().inv_cdf(p))
    while t_cdf(high, df) < p:
        low, high = high, high * 2
    # Regula falsi would be faster; bisection cannot fail, and a gate asks for few quantiles.
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, df) < p else (low, middle)
    return (low + high) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    if x < (a + 1) / (a + b + 2):
        return math.exp(log_front) * _continued_fraction(a, b, x) / a
    return 1 - math.exp(log_front) * _continued_fraction(b, a, 1 - x) / b


def _continued_fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    result = d
    for m in range(1, 500):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _away_from_zero(1 + numerator * d)
            c = _away_from_zero(1 + numerator / c)
            result *= c * d
        if abs(c * d - 1) < _PRECISION:
            return result
    raise ArithmeticError(f"incomplete beta did not converge: a={a}, b={b}, x={x}")


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
