import csv
import itertools
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from truebatch import accounting
from truebatch.errors import InvalidArgument, MissingExtra
from truebatch.experiments import FIGURES, draw_figure, sigma_figures
from truebatch.experiments.sigma_figures import draw_points
from truebatch.experiments.sigma_grids import Point, Question, amplification, sigma_grid
from truebatch.experiments.sigma_points import Answer
from truebatch.experiments.sigma_runs import COLUMNS, solve_all
from truebatch.specs import SAMPLERS

SMALL = {"num_examples": 4000, "delta": 1e-5}
GRIDS = {
    "sigma-by-batch-size": sigma_grid(batch_sizes=(250, 500), epochs=(1, 5), **SMALL),
    "sigma-by-epsilon": sigma_grid(batch_sizes=(500,), epsilons=(1.0, 4.0), epochs=(1, 5), **SMALL),
    "sigma-by-epochs": sigma_grid(batch_sizes=(500,), epochs=(1, 2, 3), **SMALL),
    "shuffle-amplification": amplification(num_examples=1 << 22, batch_sizes=(1024, 4096)),
}


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def draw(cache_dir):
    """Draws a small version of a figure into a directory."""

    def files(name, out_dir):
        answers = solve_all(GRIDS[name], cache_dir=cache_dir, workers=1)
        return draw_points(name, points=GRIDS[name], answers=answers, out_dir=out_dir)

    return files


@pytest.fixture(scope="module", params=GRIDS)
def drawn(request, draw, tmp_path_factory):
    """Each figure, drawn once: its name and its files."""
    return request.param, draw(request.param, tmp_path_factory.mktemp("figures") / "new")


def _rows(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_figure_of_the_accounting_is_there():
    assert set(FIGURES) == set(GRIDS)


def test_a_figure_becomes_a_picture_twice_and_its_numbers(drawn):
    name, paths = drawn
    assert [path.name for path in paths] == [f"{name}.png", f"{name}.svg", f"{name}.csv"]
    png, svg, numbers = paths
    assert png.read_bytes().startswith(b"\x89PNG")
    assert png.stat().st_size > 20_000
    assert ET.parse(svg).getroot().tag.endswith("svg")
    assert svg.stat().st_size > 20_000
    assert len(_rows(numbers)) == len(GRIDS[name])
    assert len(list(numbers.parent.iterdir())) == 3


def test_the_numbers_are_the_accountants_and_in_order(drawn):
    name, paths = drawn
    rows = _rows(paths[2])
    assert tuple(rows[0]) == COLUMNS
    for row, point in zip(rows, GRIDS[name], strict=True):
        if row["sigma_lower"] and row["sigma_upper"]:
            assert float(row["sigma_lower"]) <= float(row["sigma_upper"])
        assert row["figure"] == name
        assert row["adjacency"] == "zero-out"
        if point.question is not Question.SIGMA:
            continue
        kind = SAMPLERS[row["sampler"]]
        names = ["num_examples", "batch_size", "num_steps"]
        names += ["max_batch_size"] if row["max_batch_size"] else []
        spec = kind(**{field: int(row[field]) for field in names})
        assert spec == point.spec
        ends = accounting.sigma(
            spec, epsilon=float(row["epsilon"]), delta=float(row["delta"]), dear=point.dear
        )
        assert row["sigma_lower"] == ("" if ends.lower.value is None else repr(ends.lower.value))
        assert row["sigma_upper"] == ("" if ends.upper.value is None else repr(ends.upper.value))
        assert (row["source_lower"], row["source_upper"]) == (ends.lower.source, ends.upper.source)


def test_the_same_numbers_give_the_same_bytes(draw, tmp_path):
    first, second = (draw("sigma-by-epochs", tmp_path / name) for name in ("a", "b"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_a_curve_of_which_nothing_is_known_is_left_out_and_said_so():
    from truebatch.experiments import sigma_captions, sigma_panels

    grid = [p for p in GRIDS["sigma-by-epochs"] if p.curve == "balls_and_bins"]
    unknown = Answer(lower=None, upper=2.0, source_lower="not asked for", source_upper="no amplification")
    pairs = [(point, unknown) for point in grid]
    assert sigma_panels._tracks(FIGURES["sigma-by-epochs"].layout.axis, pairs) == []
    assert "(B&B): 3 of 3 points are left out" in sigma_captions.note(pairs)


def test_draw_figure_computes_draws_and_is_fast_the_second_time(tmp_path, monkeypatch):
    figure = FIGURES["sigma-by-epochs"]
    small = type(figure)(
        title=figure.title,
        paper=figure.paper,
        points=lambda *, dear: GRIDS["sigma-by-epochs"],
        layout=figure.layout,
    )
    monkeypatch.setitem(sigma_figures.FIGURES, "sigma-by-epochs", small)
    first, second = [], []
    for calls, workers in ((first, 2), (second, 1)):
        paths = draw_figure(
            "sigma-by-epochs",
            out_dir=tmp_path / "out",
            cache_dir=tmp_path / "cache",
            workers=workers,
            progress=lambda done, total, label, calls=calls: calls.append((done, total)),
        )
        assert all(path.stat().st_size for path in paths)
    total = len(GRIDS["sigma-by-epochs"])
    assert first == [(done, total) for done in range(total + 1)]
    assert second == [(total, total)]


def test_an_unknown_figure_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(InvalidArgument, match="shuffle-amplification; got 'sigma'"):
        draw_figure("sigma", out_dir=tmp_path)


def test_a_missing_matplotlib_is_told_before_anything_is_computed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "truebatch.experiments.sigma_panels", None)
    monkeypatch.setattr(sigma_figures, "solve_all", lambda *_, **__: pytest.fail("computed first"))
    with pytest.raises(MissingExtra, match="truebatch\\[figures\\]"):
        draw_figure("sigma-by-epsilon", out_dir=tmp_path)


def test_an_output_directory_that_cannot_be_is_refused(draw, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgument, match="output directory"):
        draw("sigma-by-epochs", tmp_path / "file")


def test_grids_and_the_names_of_figures_load_no_matplotlib():
    code = "import sys, truebatch.experiments; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_labels_are_moved_apart_and_stay_in_order():
    from truebatch.experiments.sigma_panels import _spread

    heights = _spread([0.0, 0.01, 0.02, 0.5, 0.9, 0.93], 0.05)
    assert all(b - a >= 0.05 - 1e-12 for a, b in itertools.pairwise(heights))
    assert heights[3] == 0.5


def test_a_worker_that_dies_is_told(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text(
        "from pathlib import Path\n"
        "from truebatch.experiments import sigma_grid, solve_all\n"
        "from truebatch.errors import TruebatchError\n"
        "points = sigma_grid(num_examples=4000, batch_sizes=(256,), delta=1e-5)\n"
        "try:\n"
        f"    solve_all(points, cache_dir=Path({str(tmp_path / 'cache')!r}), workers=2)\n"
        "except TruebatchError as error:\n"
        "    print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=60
    )
    assert "if __name__ == '__main__':" in run.stdout


@pytest.mark.parametrize("workers", [0, -1])
def test_a_pool_needs_a_worker(workers, tmp_path):
    point = Point(spec=GRIDS["sigma-by-epochs"][0].spec, epsilon=1.0, delta=1e-5)
    with pytest.raises(InvalidArgument, match="workers must be 1 or more"):
        solve_all([point], cache_dir=tmp_path, workers=workers)
