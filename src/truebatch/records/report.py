"""report.html: a run for people, in one file that needs nothing else."""

import csv
import html
import math
from importlib.resources import files
from pathlib import Path
from string import Template

from truebatch.batching.journal import write_aside
from truebatch.records.drawing import intervals, learning_curve
from truebatch.records.record import CURVES, Fields, Record
from truebatch.training.claim import ONE_NUMBER, shown

REPORT = "report.html"

NAMES = {
    "deterministic": "deterministic order",
    "poisson": "Poisson",
    "truncated_poisson": "truncated Poisson",
    "persistent_shuffle": "persistent shuffle",
    "dynamic_shuffle": "dynamic shuffle",
    "balls_and_bins": "balls-and-bins",
    "fixed_size": "fixed size",
}

_COVERED = (
    "The parameters after every step, and everything computed from them without the training data.",
    "Every way of combining the above, by anybody, with any other knowledge, for ever.",
)
_NOT_COVERED = (
    "Validation and test rows: metrics on them are exact, and not private.",
    "The number of training rows, the batch size, the number of steps and all settings: they are public.",
    "The prepared rows, batches and key in the run's directory: whoever reads them reads the data.",
    "Rounding inside the 32-bit sum of gradients, the time that steps take, and an attack on AES-256.",
)


def _covered(claim: Fields) -> tuple[str, ...]:
    if not claim["private"]:
        return ("Nothing: this run makes no claim.",)
    if claim["num_runs"] == 1:
        return _COVERED
    return (
        f"{claim['num_runs']:,} runs on the same training rows that state this sampler, goal and number of "
        "runs, of models no larger than this one, with a key each or one for all; and the choice of the best "
        "by validation rows. Learning rate, optimizer, schedule and initial parameters may differ.",
        *_COVERED,
    )


def _not_covered(claim: Fields) -> tuple[str, ...]:
    if claim["num_runs"] == 1:
        runs = (
            "Choosing the best of several runs on the same data: each run costs what it claims, and the "
            "choice what all of them cost together."
        )
    else:
        runs = (
            f"More runs than {claim['num_runs']:,} on the same data, or other ones than are covered: how "
            "many were made cannot be seen from one of them."
        )
    return (*_NOT_COVERED[:2], runs, *_NOT_COVERED[2:])


def write_report(record: Record, directory: Path) -> Path:
    """Write the page beside the record."""
    path = directory / REPORT
    write_aside(path, page(record.fields, _curve(directory / CURVES)), 0o644)
    return path


def page(record: Fields, curve: list[dict[str, float]]) -> str:
    """The whole page."""
    template = Template(files("truebatch.records").joinpath("report.html").read_text())
    return template.substitute(
        title=html.escape(_title(record)),
        verdict_class="good" if record["claim"]["private"] else "bad",
        sentence=_sentence(record),
        figures=_figures(record),
        facts=_table(_facts(record)),
        covered=_list(_covered(record["claim"])),
        not_covered=_list(_not_covered(record["claim"])),
        curve=learning_curve(curve),
        samplers=intervals(_intervals(record)),
        samplers_note=_samplers_note(record),
        verify=_verify(record),
        versions=html.escape(", ".join(f"{k} {v}" for k, v in record["versions"].items())),
    )


def _title(record: Fields) -> str:
    claim = record["claim"]
    if claim["private"]:
        return f"A model with epsilon = {_upper(claim['epsilon'])} at delta = {_number(claim['delta'])}"
    return "A model without a privacy guarantee"


def _sentence(record: Fields) -> str:
    """The guarantee, so that it can be quoted."""
    claim, spec = record["claim"], record["claim"]["spec"]
    if claim["sigma"] is None:
        return "This model was trained without privacy. Nothing may be claimed for it."
    if not claim["private"]:
        return (
            f"The noise of this model was calibrated for {NAMES[claim['accounted_as']]} batches, and its "
            f"batches were drawn by {NAMES[spec['sampler']]}. The epsilon that such a run is commonly said "
            f"to have, {_upper(claim['epsilon'])}, <strong>is not proven for it</strong>.{_interval(record)} "
            "This is a baseline for study."
        )
    eps, delta, runs = claim["epsilon"], _number(claim["delta"]), claim["num_runs"]
    model = "this model" if runs == 1 else f"this model and those of {runs - 1:,} other runs like it together"
    which = "The model is" if runs == 1 else f"The {runs:,} models, and the choice of this one, are"
    factor = f"about {math.exp(eps):,.3g}" if eps < 20 else "a very large number"
    return (
        f"For every one of the {spec['num_examples']:,} training examples: whatever anybody may conclude "
        f"from {model}, had that example contributed nothing, they would have concluded it with a "
        f"probability that differs by a factor of at most e<sup>{_upper(eps)}</sup> ({factor}), and by "
        f"{delta} on top. {which} ({_upper(eps)}, {delta})-differentially private under "
        f"{_adjacency(claim['adjacency'])}.{_interval(record)}"
    )


def _interval(record: Fields) -> str:
    """Both ends where the sampler has no exact bound: the truth is between, and the upper may be claimed."""
    own = _own_bounds(record)
    if own is None:
        return ""
    on, lower, upper = f"With this noise on {NAMES[own['sampler']]} batches", own["lower"], own["upper"]
    if upper is None:
        return "" if lower is None else f" {on} epsilon is at least {_lower(lower)}."
    may = f"{_upper(upper)} may be claimed."
    if lower is None:
        return f" {on} epsilon is at most {_upper(upper)}; how far below is not known: {may}"
    if lower < upper * (1 - ONE_NUMBER):
        both = f"at least {_lower(lower)} and at most {_upper(upper)}, both proven"
        return f" {on} epsilon is {both}: {may}"
    return "" if record["claim"]["private"] else f" {on} {may}"


def _own_bounds(record: Fields) -> Fields | None:
    """Both ends for the sampler that drew the batches."""
    sampler = record["claim"]["spec"]["sampler"]
    return next((row for row in record["bounds"] if row["sampler"] == sampler), None)


def _adjacency(name: str) -> str:
    return {
        "zero-out": "zeroing-out adjacency",
        "add-remove": "add-or-remove adjacency",
        "replace-one": "replace-one adjacency",
    }.get(name, name)


def _figures(record: Fields) -> str:
    """The few numbers that people look for first."""
    claim, metrics = record["claim"], record["metrics"]
    shown = []
    if claim["epsilon"] is not None:
        shown.append(
            ("epsilon", _upper(claim["epsilon"]), "upper bound" if claim["private"] else "not proven")
        )
        shown.append(("delta", _number(claim["delta"]), claim["adjacency"]))
    for name, label in (
        ("test_auc", "test AUC"),
        ("test_loss", "test log loss"),
        ("valid_auc", "validation AUC"),
    ):
        if name in metrics:
            shown.append((label, f"{metrics[name]:.4f}", "on rows never trained on"))
    cells = [
        f"<div class='figure'><div class='name'>{html.escape(n)}</div>"
        f"<div class='value'>{html.escape(v)}</div><div class='under'>{html.escape(u)}</div></div>"
        for n, v, u in shown
    ]
    return "".join(cells)


def _facts(record: Fields) -> list[tuple[str, str]]:
    """What an expert checks."""
    claim, spec, config = record["claim"], record["claim"]["spec"], record["config"]
    own = _own_bounds(record)
    rows = [
        ("Sampler", NAMES[spec["sampler"]]),
        ("Training examples n", f"{spec['num_examples']:,}"),
        ("Expected batch size b", f"{spec['batch_size']:,}"),
    ]
    if "max_batch_size" in spec:
        rows.append(("Largest batch B", f"{spec['max_batch_size']:,}"))
    rows += [
        ("Steps T", f"{spec['num_steps']:,}"),
        ("Epochs b T / n", _number(spec["batch_size"] * spec["num_steps"] / spec["num_examples"])),
        ("Sampling probability", record["schedule"]["sampling_prob"]),
        ("Noise multiplier sigma", "none" if claim["sigma"] is None else f"{claim['sigma']:.8g}"),
        ("Clip norm C", "none" if claim["clip_norm"] is None else _number(claim["clip_norm"])),
        ("Adjacency", claim["adjacency"] or "none"),
        ("Epsilon", _epsilon_fact(claim)),
    ]
    if claim["num_runs"] > 1:
        rows.append(("Runs that share this epsilon", f"{claim['num_runs']:,}"))
    if own is not None and own.get("source"):
        rows.append(("The upper bound rests on", own["source"]["upper"]))
        if own["lower"] is not None:
            rows.append(("Proven against these batches", f"epsilon at least {_lower(own['lower'])}"))
            rows.append(("The lower bound rests on", own["source"]["lower"]))
        rows.append(("May be claimed for these batches", f"epsilon = {_upper(own['upper'])}"))
    rows += [
        (
            "Distance of what is drawn to the ideal",
            f"{record['schedule']['statistical_distance']:.2g}, in delta",
        ),
        ("Schedule", f"{record['schedule']['scheme']}, {record['schedule']['fingerprint'][:16]}..."),
        ("Key", "PUBLIC: anyone can rebuild it" if record["key"]["public"] else "secret, 32 bytes"),
        ("Model", f"{config['model']}, {claim['num_parameters']:,} parameters"),
        (
            "Optimizer",
            f"{config['optimizer']}, rate {_number(config['learning_rate'])}, {config['schedule']}",
        ),
    ]
    return rows


def _epsilon_fact(claim: Fields) -> str:
    if claim["epsilon"] is None:
        return "none"
    if claim["private"]:
        return f"at most {shown(claim['epsilon'])} at delta = {_number(claim['delta'])} (upper bound)"
    return f"{shown(claim['epsilon'])} for {NAMES[claim['accounted_as']]}, which was not run"


def _intervals(record: Fields) -> list[tuple[str, float | None, float | None, bool]]:
    own = record["claim"]["spec"]["sampler"]
    return [(NAMES[r["sampler"]], r["lower"], r["upper"], r["sampler"] == own) for r in record["bounds"]]


def _samplers_note(record: Fields) -> str:
    if not record["bounds"]:
        return "Without noise there is nothing to compare."
    return (
        "The same noise, had the batches been drawn in another way: epsilon is proven to be at least the "
        "left end, and the right end may be claimed."
    )


def _verify(record: Fields) -> str:
    public = record["key"]["public"]
    return html.escape(
        "truebatch verify RUN --public-test-seed N"
        if public
        else "truebatch verify RUN --key RUN.key --data SOURCE"
    )


def _table(rows: list[tuple[str, str]]) -> str:
    return "".join(f"<tr><th>{html.escape(a)}</th><td>{html.escape(b)}</td></tr>" for a, b in rows)


def _list(items: tuple[str, ...]) -> str:
    return "".join(f"<li>{html.escape(item)}</li>" for item in items)


def _number(value: float) -> str:
    return f"{value:.4g}"


def _upper(value: float | None) -> str:
    return shown(value, digits=4)


def _lower(value: float) -> str:
    return shown(value, digits=4, up=False)


def _curve(path: Path) -> list[dict[str, float]]:
    """The rows of the curves that can be drawn."""
    if not path.exists():
        return []
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(lines)]
