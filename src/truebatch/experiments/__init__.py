"""The paper's study: grids of calibrations, and the figures drawn from them."""

from truebatch.experiments.sigma_figures import FIGURES, Figure, draw_figure
from truebatch.experiments.sigma_grids import Point, sigma_grid
from truebatch.experiments.sigma_points import Answer
from truebatch.experiments.sigma_runs import solve_all

__all__ = ["FIGURES", "Answer", "Figure", "Point", "draw_figure", "sigma_grid", "solve_all"]
