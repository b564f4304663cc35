"""One bit of what a stopped run goes on from: noticed before a step is taken with it."""

import pytest
from small_jobs import write_rows

from truebatch import Key
from truebatch.data import Features, open_source
from truebatch.errors import DamagedBatches, InvalidData
from truebatch.records import RunConfig, RunPlan, Split, Watch, run

KEY = Key.for_tests(3)
CONFIG = RunConfig(batch_size=100, steps=80, epsilon=5.0, delta=1e-5, model="linear")


class Stopped(BaseException):
    pass


def stop(now) -> None:
    if now.step == 30:
        raise Stopped


@pytest.fixture(params=["gather", "scatter"])
def stopped(request, tmp_path):
    """A run that was stopped at step 30: its plan and directory."""
    rows = write_rows(tmp_path / "rows.parquet", 1000)
    source = open_source(rows)
    plan = RunPlan.of(source, Features.infer(source.schema), CONFIG, Split())
    object.__setattr__(plan, "gathers", request.param == "gather")
    with pytest.raises(Stopped):
        run(plan, tmp_path / "run", KEY, watch=Watch(steps=stop))
    return plan, tmp_path / "run"


def flip(path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.unlink()
    path.write_bytes(data)


def test_a_flipped_bit_in_rows_or_batches_is_noticed_when_the_run_goes_on(stopped) -> None:
    plan, directory = stopped
    (path,) = [*directory.glob("rows/train.rows"), *directory.glob("batches/part-*.arrow")]
    place = 5000 if plan.gathers else path.stat().st_size // 2
    flip(path, place)
    with pytest.raises((InvalidData, DamagedBatches), match=r"as (they|it) (was|were) written"):
        run(plan, directory, KEY)
    assert not (directory / "run.json").exists()
    flip(path, place)
    assert run(plan, directory, KEY).is_sealed_by(KEY)


def test_a_flipped_bit_in_the_last_checkpoint_costs_steps_and_not_the_result(stopped, tmp_path) -> None:
    plan, directory = stopped
    whole = run(plan, tmp_path / "whole", KEY).fields
    *_, last = sorted(directory.glob("checkpoints/*"))
    flip(last, 700)
    with pytest.warns(RuntimeWarning, match="passed over a checkpoint"):
        found = run(plan, directory, KEY).fields
    assert found["checkpoint"] == whole["checkpoint"]
    assert found["metrics"] == whole["metrics"]
