"""Numbers that stand in print: arXiv 2411.04205, Appendix B and section 4."""

import pytest

from truebatch.accounting import max_batch_size_by_rule

N = 36_672_493
CAPS_BY_BATCH_SIZE = [1328, 2469, 4681, 9007, 17520, 34355, 67754, 134172, 266475]
CAPS_BY_EPSILON = [67642, 67667, 67725, 67841, 68059, 68449, 69106, 70156, 71760]


def cap(b: int, epsilon: float) -> int:
    return max_batch_size_by_rule(
        num_examples=N, batch_size=b, num_steps=round(N / b), epsilon=epsilon, delta=2.7e-8
    )


@pytest.mark.parametrize(("power", "printed"), list(enumerate(CAPS_BY_BATCH_SIZE[:-1], start=10)))
def test_caps_by_batch_size(power: int, printed: int) -> None:
    assert cap(2**power, 5.0) == printed


def test_the_last_cap_is_one_below_print() -> None:
    assert cap(2**18, 5.0) == CAPS_BY_BATCH_SIZE[-1] - 1


@pytest.mark.parametrize(("power", "printed"), list(enumerate(CAPS_BY_EPSILON)))
def test_caps_by_epsilon(power: int, printed: int) -> None:
    assert cap(65536, float(2**power)) == printed
