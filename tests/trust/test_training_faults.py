"""The quick ones of training's faults, in one process: `make trust` runs all of them, each in its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trust.fault import Check, Fault
from trust.faults.training import FAULTS, check_noise, check_sums, tiny
from trust.suite import Outcome, forgotten, side

QUICK = (check_sums.AT_MOST_C, check_sums.MOVES_AT_MOST_C, check_noise.MEASURED, check_noise.SUPPORT)
# Of each family the first one whose check is quick.
BROKEN = {fault.number: fault for fault in reversed(FAULTS) if fault.check in QUICK}


@pytest.mark.parametrize("check", [*QUICK, check_sums.FOLLOWS], ids=lambda check: check.name)
def test_the_code_as_it_is_passes(check: Check) -> None:
    with forgotten():
        check.run()


@pytest.mark.parametrize("fault", list(BROKEN.values()), ids=lambda fault: fault.name)
def test_broken_code_does_not(fault: Fault) -> None:
    with forgotten():
        found = side(fault, broken=True)
    assert found.outcome is Outcome.RAISED, found.said


def test_every_family_of_training_has_members_and_each_says_how_often_it_errs() -> None:
    assert {fault.number for fault in FAULTS} >= {3, 7, 8, 9, 10, 11, 12, 14, 16, 17}
    for fault in FAULTS:
        assert fault.check.false_alarm <= 1e-6
        assert fault.check.power > 0.999


def test_gradients_written_out_by_hand_are_those_of_differentiation() -> None:
    params, columns = tiny.params(), tiny.rows(5)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: jnp.asarray(np.asarray(x), jnp.float64), params)
        for row in range(5):
            example = {name: jnp.asarray(column[row]) for name, column in columns.items()}
            right = check_sums.flat(jax.grad(tiny.loss)(wide, example))
            found = tiny.gradient(jax.tree.leaves(params), columns, row)
            assert np.abs(found - right).max() < 1e-12 * np.abs(right).max()
