"""What a run is asked for on the command line and in its file: options, columns, split."""

import argparse
from pathlib import Path
from typing import Any

from truebatch.cli.train import CONFIG
from truebatch.data import Features, Source
from truebatch.errors import InvalidArgument
from truebatch.records import Split, SplitBy, read_config

_SHARES, _EDGES = ("train_share", "valid_share"), ("valid_from", "test_from")
DATA = (
    "label", "positive", "numeric", "categorical", "leave_out", "buckets", *_SHARES, "split_by", *_EDGES,
)  # fmt: skip
# Options of which only one side can hold: what the command line states overrules the other side in a file.
_EITHER = ((("epochs",), ("steps",)), (("epsilon",), ("sigma",)), (_SHARES, ("split_by", *_EDGES)))


def values_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Options over the config file's."""
    given = vars(arguments)
    values = {name: given[name] for name in (*CONFIG, *DATA) if given.get(name) is not None}
    if arguments.config is None:
        return _complete(values)
    stated = read_config(Path(arguments.config))
    for some, others in _EITHER:
        for given_here, overruled in ((some, others), (others, some)):
            if values.keys() & set(given_here):
                for name in overruled:
                    stated.pop(name, None)
    return _complete({**stated, **values})


def _complete(values: dict[str, Any]) -> dict[str, Any]:
    if "batch_size" not in values:
        raise InvalidArgument("a run needs a batch size; got none.", hint="give --batch-size, as in 1024.")
    return values


def features_of(values: dict[str, Any], source: Source) -> Features:
    """The columns that were named, or what the schema lets one infer."""
    label = values.get("label", "label")
    more = {name: values[name] for name in ("buckets", "positive") if name in values}
    if "numeric" not in values and "categorical" not in values:
        left_out = [*values.get("leave_out", ())]
        if values.get("split_by") in source.schema.names:  # what parts rows is no feature unless it is named
            left_out.append(values["split_by"])
        try:
            return Features.infer(source.schema, label=label, leave_out=left_out, **more)
        except InvalidArgument as error:
            if error.hint is None or "leave_out=" not in error.hint:
                raise
            raise InvalidArgument(
                error.message,
                hint="name the columns by --numeric and --categorical, or --leave-out that one.",
            ) from None
    numeric, categorical = tuple(values.get("numeric", ())), tuple(values.get("categorical", ()))
    features = Features(label=label, numeric=numeric, categorical=categorical, **more)
    features.require(source.schema)
    return features


def split_of(values: dict[str, Any]) -> Split | SplitBy:
    """By shares of the rows, or by a column."""
    shares = {name: values[name] for name in _SHARES if name in values}
    edges = {name: str(values[name]) for name in _EDGES if name in values}
    if "split_by" not in values:
        if edges:
            raise InvalidArgument(
                f"{' and '.join(edges)} need the column that they are values of; got no split_by.",
                hint="give --split-by COLUMN.",
            )
        return Split(**{name.removesuffix("_share"): value for name, value in shares.items()})
    if shares:
        raise InvalidArgument(f"a split is by shares or by a column; got {', '.join(shares)} and split_by.")
    return SplitBy(column=values["split_by"], **edges)
