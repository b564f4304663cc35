"""The paper's sigma figures: what each one shows, and the files it becomes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from truebatch.errors import InvalidArgument, MissingExtra
from truebatch.experiments.sigma_grids import Point, amplification, by_batch_size, by_epochs, by_epsilon
from truebatch.experiments.sigma_inks import BATCH_SIZE, EPOCHS, EPSILON, Layout
from truebatch.experiments.sigma_points import Answer, write_whole
from truebatch.experiments.sigma_runs import Progress, no_progress, solve_all, table


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of the paper: its title, the calibrations it is made of, and the layout that draws them."""

    title: str
    paper: str
    points: Callable[..., tuple[Point, ...]]
    layout: Layout


FIGURES: dict[str, Figure] = {
    "sigma-by-batch-size": Figure(
        title="Noise multiplier by batch size",
        paper="Figure 3, middle",
        points=by_batch_size,
        layout=Layout(axis=BATCH_SIZE, panels=(1, 5)),
    ),
    "sigma-by-epsilon": Figure(
        title="Noise multiplier by epsilon",
        paper="Figure 4, right",
        points=by_epsilon,
        layout=Layout(axis=EPSILON, panels=(1, 5), log_sigma=True),
    ),
    "sigma-by-epochs": Figure(
        title="Noise multiplier by number of epochs",
        paper="Appendix D",
        points=by_epochs,
        layout=Layout(axis=EPOCHS, panels=(None,), log_sigma=True),
    ),
    "shuffle-amplification": Figure(
        title="Amplification by shuffling, read optimistically",
        paper="Appendix C",
        points=amplification,
        layout=Layout(axis=BATCH_SIZE, panels=(1,), vacuous_above="deterministic"),
    ),
}


def draw_figure(
    name: str,
    *,
    out_dir: Path,
    cache_dir: Path | None = None,
    workers: int | None = None,
    progress: Progress = no_progress,
    dear: bool = False,
) -> tuple[Path, ...]:
    """Compute a figure's grid and write NAME.png, NAME.svg and NAME.csv; their paths, in this order.

    `dear` asks for the bounds that take long, such as balls-and-bins over several epochs; see `solve_all`
    for the rest.

    Guarantees:
      - The same numbers give the same bytes, with the same version of matplotlib.
      - A file is replaced only by a whole one.
    """
    if name not in FIGURES:
        raise InvalidArgument(f"a figure must be one of {', '.join(FIGURES)}; got {name!r}.")
    _draw_images()  # a missing matplotlib is told before the minutes are spent, not after
    points = FIGURES[name].points(dear=dear)
    return draw_points(
        name,
        points=points,
        answers=solve_all(points, cache_dir=cache_dir, workers=workers, progress=progress),
        out_dir=out_dir,
    )


def draw_points(
    name: str, *, points: Sequence[Point], answers: Sequence[Answer], out_dir: Path
) -> tuple[Path, ...]:
    """Write a figure's three files from answers that are already there."""
    figure = FIGURES[name]
    images = _draw_images()(title=figure.title, layout=figure.layout, points=points, answers=answers)
    contents = {**images, "csv": table(name, points, answers).encode()}
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        paths = tuple(out_dir / f"{name}.{kind}" for kind in contents)
        for path, content in zip(paths, contents.values(), strict=True):
            write_whole(path, content)
    except OSError as error:
        raise InvalidArgument(
            f"the output directory must be one that can be written to; got {out_dir} ({error.strerror})."
        ) from error
    return paths


def _draw_images() -> Callable[..., dict[str, bytes]]:
    try:
        from truebatch.experiments.sigma_panels import images  # noqa: PLC0415 - an extra, loaded where it is used
    except ModuleNotFoundError as error:
        raise MissingExtra("figures need matplotlib.", hint="pip install 'truebatch[figures]'") from error
    return images
