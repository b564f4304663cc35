"""A run's options in a file, TOML or YAML: names and kinds are checked alike, whatever the format."""

import datetime
import reprlib
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from truebatch.errors import InvalidArgument, InvalidData, MissingExtra

YAML_SUFFIXES = (".yaml", ".yml")
# Far above any file of options: what is larger is another file.
_MOST_BYTES = 2**20


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return _is_number(value) and (isinstance(value, int) or value.is_integer())


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list_of(kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(kind(item) for item in value)


@dataclass(frozen=True)
class _Kind:
    """What a value must be: the words for it, how it is told, and what it becomes."""

    words: str
    holds: Callable[[Any], bool]
    made: Callable[[Any], Any] = lambda value: value


_TEXT = _Kind("text", _is_text)
_NUMBER = _Kind("a number", _is_number)
_WHOLE = _Kind("a whole number", _is_whole, int)
_NAMES = _Kind("a list of names", _is_list_of(_is_text), tuple)
_WHOLES = _Kind(
    "a list of whole numbers", _is_list_of(_is_whole), lambda value: tuple(int(item) for item in value)
)
_TRUTH = _Kind("true or false", lambda value: isinstance(value, bool))
_VALUE = _Kind("text, a number, true or false", lambda value: isinstance(value, str | int | float))
_MOMENT = _Kind(
    "text, a number or a time",
    lambda value: isinstance(value, str | int | float | datetime.date) and not isinstance(value, bool),
    str,
)

# The options that a file may state, by their names on the command line with underscores.
OPTIONS: dict[str, _Kind] = {
    **dict.fromkeys(
        ("label", "sampler", "accounted_as", "model", "optimizer", "schedule", "split_by"), _TEXT
    ),
    **dict.fromkeys(
        ("epochs", "epsilon", "delta", "sigma", "clip_norm", "learning_rate", "train_share", "valid_share"),
        _NUMBER,
    ),
    **dict.fromkeys(
        ("batch_size", "steps", "max_batch_size", "dimension", "buckets", "tuning_runs", "seed"), _WHOLE
    ),
    **dict.fromkeys(("numeric", "categorical", "leave_out"), _NAMES),
    **dict.fromkeys(("valid_from", "test_from"), _MOMENT),
    "hidden": _WHOLES,
    "private": _TRUTH,
    "positive": _VALUE,
}


def read_config(path: Path) -> dict[str, Any]:
    """The options that a file states: TOML, or YAML where its name ends in .yaml or .yml.

    A name that is stated twice, that is no option, or whose value is of another kind is refused in the same
    words for both. YAML is read as version 1.2 does: 1e-6 is a number, and no and 2013-10-19 are text.
    """
    is_yaml = path.suffix.lower() in YAML_SUFFIXES
    values = (_yaml if is_yaml else _toml)(path, _text(path))
    for name, value in values.items():
        if name not in OPTIONS:
            raise InvalidArgument(
                f"a config must have names of options only; got {reprlib.repr(name)} in {str(path)!r}.",
                hint=f"there are: {', '.join(sorted(OPTIONS))}.",
            )
        if not OPTIONS[name].holds(value):
            raise InvalidArgument(
                f"{name} must be {OPTIONS[name].words}; got {name}={reprlib.repr(value)} in {str(path)!r}."
            )
    return {name: OPTIONS[name].made(value) for name, value in values.items()}


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise InvalidData(f"a config must have at most {_MOST_BYTES:,} bytes; {str(path)!r} has more.")
        return data.decode()
    except OSError as error:
        raise InvalidData(f"a config must be a readable file; got {str(path)!r}: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise InvalidData(f"a config must be text in UTF-8; got {str(path)!r}: {error}.") from None


def _toml(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidData(f"a config must be TOML; got {str(path)!r}: {error}.") from None


def _yaml(path: Path, text: str) -> dict[str, Any]:
    try:
        # An extra, loaded where it is used.
        from truebatch.records.yaml_text import parsed  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingExtra("a config in YAML needs PyYAML.", hint="pip install 'truebatch[train]'") from error
    try:
        values = parsed(text)
    except ValueError as error:
        raise InvalidData(f"a config must be YAML; got {str(path)!r}: {error}.") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise InvalidData(
            f"a config must be names and their values; {str(path)!r} is a {type(values).__name__}."
        )
    return values
