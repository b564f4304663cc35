"""How much the buffer shuffle of data pipes leaks, by the size of its buffer: audits, and their figure."""

import csv
import io
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from truebatch.accounting import Interval
from truebatch.audit import Audit, BufferShuffle, audit, proven
from truebatch.errors import InvalidArgument, MissingExtra
from truebatch.experiments.sigma_points import write_whole
from truebatch.specs import DynamicShuffle, Poisson, Sampler

NAME, TITLE = "audit-buffer-shuffle", "What a shuffle buffer of K rows hides"
SIGMA, DELTA, TRIALS = 1.0, 0.05, 1500
_N, _B = 128, 8
BUFFERS = (1, 8, 16, 32, 64, 128)
_COLUMNS = (
    "sampler", "buffer_size", "num_examples", "batch_size", "num_steps", "sigma", "delta", "trials",
    "lower", "estimate", "event_upper", "proven_lower", "proven_upper",
)  # fmt: skip

Watch = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True)
class Audited:
    """An audit of one buffer size: what it proved, saw, and may reach; and what is proven on paper."""

    buffer_size: int
    lower: float
    estimate: float
    event_upper: float
    proven_lower: float
    proven_upper: float


@dataclass(frozen=True, kw_only=True)
class Buffers:
    """An audit for each size of the buffer, and what is proven of the samplers beside it, from both sides."""

    audits: tuple[Audited, ...]
    beside: dict[str, tuple[float, float]]
    trials: int


def spec_of(buffer_size: int) -> BufferShuffle:
    """One epoch of small batches through a buffer of this size."""
    return BufferShuffle(num_examples=_N, batch_size=_B, num_steps=_N // _B, buffer_size=buffer_size)


def audit_buffers(*, trials: int = TRIALS, watch: Watch = lambda *_: None) -> Buffers:
    """Every size of the buffer, with the last row as the canary: it is held back by the buffer alone."""
    audits = []
    for position, K in enumerate(BUFFERS):
        name = f"buffer of {K}"
        found = audit(
            None,
            spec_of(K),
            sigma=SIGMA,
            delta=DELTA,
            trials=trials,
            seed=K,
            watch=lambda p, done=position, name=name: watch(  # type: ignore[misc]
                done * p.total + p.done, len(BUFFERS) * p.total, name
            ),
        )
        audits.append(_audited(K, found))
    shape = {"num_examples": _N, "batch_size": _B, "num_steps": _N // _B}
    specs: tuple[Sampler, ...] = (spec_of(1).fixed_order, DynamicShuffle(**shape), Poisson(**shape))
    beside = {spec.name: _ends(proven(spec, sigma=SIGMA, delta=DELTA)) for spec in specs}
    return Buffers(audits=tuple(audits), beside=beside, trials=trials)


def _audited(buffer_size: int, found: Audit) -> Audited:
    lower, upper = _ends(found.proven)
    j = found.best.judgement
    return Audited(
        buffer_size=buffer_size,
        lower=j.epsilon,
        estimate=j.estimate,
        event_upper=j.epsilon_of_event_upper,
        proven_lower=lower,
        proven_upper=upper,
    )


def _ends(ends: Interval | None) -> tuple[float, float]:
    assert ends is not None
    assert ends.lower.value is not None
    assert ends.upper.value is not None
    return float(ends.lower.value), float(ends.upper.value)


def write_buffers(found: Buffers, directory: Path) -> tuple[Path, ...]:
    """CSV, PNG and SVG."""
    contents = {"csv": table(found).encode(), **_draw_images()(found)}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        paths = tuple(directory / f"{NAME}.{kind}" for kind in contents)
        for path, content in zip(paths, contents.values(), strict=True):
            write_whole(path, content)
    except OSError as error:
        raise InvalidArgument(
            f"the output directory must be one that can be written to; got {directory} ({error.strerror})."
        ) from error
    return paths


def require_figures() -> None:
    """A missing matplotlib is told before the minutes are spent."""
    _draw_images()


def table(found: Buffers) -> str:
    """One row an audit, then one for each sampler beside; what does not apply is left empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=_COLUMNS, lineterminator="\n")
    writer.writeheader()
    same = {"num_examples": _N, "batch_size": _B, "num_steps": _N // _B, "sigma": SIGMA, "delta": DELTA}
    for one in found.audits:
        writer.writerow({"sampler": BufferShuffle.name, **same, "trials": found.trials, **asdict(one)})
    for name, (lower, upper) in found.beside.items():
        writer.writerow({"sampler": name, **same, "proven_lower": lower, "proven_upper": upper})
    return text.getvalue()


def _draw_images() -> Callable[[Buffers], dict[str, bytes]]:
    try:
        # An extra, loaded where it is used.
        from truebatch.experiments.buffer_panels import images  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtra("figures need matplotlib.", hint="pip install 'truebatch[figures]'") from error
    return images
