import dataclasses
import io
import sys

import pytest
from small_runs import SPEC

from truebatch.specs import Poisson
from truebatch.training.claim import Claim
from truebatch.training.privacy import NoPrivacy, Privacy
from truebatch.training.progress import said_epsilon, show_progress
from truebatch.training.train import Progress

PRIVATE = Privacy(spec=SPEC, clip_norm=0.5, delta=1e-5, sigma=0.8)


def progress(privacy: Privacy | NoPrivacy, step: int = 40) -> Progress:
    claim = Claim.of(privacy, SPEC, num_parameters=10)
    return Progress(step=step, num_steps=40, examples_per_s=1234.5, metrics={"loss": 0.5}, claim=claim)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_shows_speed_metrics_and_epsilon_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "200")
    with show_progress() as watch:
        watch(progress(PRIVATE))
    assert "40/40" in screen.getvalue()
    assert "1,234 examples/s" in screen.getvalue()
    assert "epsilon " in screen.getvalue()
    assert "loss 0.5000" in screen.getvalue()


def test_nothing_is_shown_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    with show_progress() as watch:
        watch(progress(PRIVATE))
    assert pipe.getvalue() == ""


def test_epsilon_is_said_as_a_promise_only_where_it_is_one() -> None:
    assert said_epsilon(progress(PRIVATE)).startswith("epsilon ")
    assert said_epsilon(progress(NoPrivacy())) == "not private"
    other = Poisson(num_examples=900, batch_size=30, num_steps=40)
    assert "not guaranteed" in said_epsilon(progress(dataclasses.replace(PRIVATE, spec=other)))
