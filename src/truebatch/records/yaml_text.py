"""YAML as its version 1.2 reads it, as far as options need it: names, texts, numbers, truth values, lists."""

import re
from typing import Any, ClassVar

import yaml

_PLAIN = {
    "tag:yaml.org,2002:bool": re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"),
    "tag:yaml.org,2002:null": re.compile(r"(?:~|null|Null|NULL|)$"),
    "tag:yaml.org,2002:int": re.compile(r"[-+]?(?:0|[1-9][0-9]*)$"),
    "tag:yaml.org,2002:float": re.compile(
        r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$"
    ),
}


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """A safe loader without aliases, tags, or one name stated twice."""

    # PyYAML's own are those of version 1.1, in which 1e-6 is text, no is false, and 010 is eight.
    yaml_implicit_resolvers: ClassVar[dict[Any, Any]] = {}
    yaml_constructors: ClassVar[dict[Any, Any]] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "found an alias", event.start_mark)
        if getattr(event, "tag", None) is not None:
            raise yaml.composer.ComposerError(None, None, f"found the tag {event.tag!r}", event.start_mark)
        return super().compose_node(parent, index)

    def construct_names(self, node: Any) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key, value in node.value:
            name = self.construct_object(key, deep=True)
            if not isinstance(name, str):
                raise yaml.constructor.ConstructorError(None, None, "a name must be text", key.start_mark)
            if name in found:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{name!r} is stated twice", key.start_mark
                )
            found[name] = self.construct_object(value, deep=True)
        return found

    def construct_list(self, node: Any) -> list[Any]:
        return [self.construct_object(item, deep=True) for item in node.value]

    def construct_number(self, node: Any) -> float:
        return float(node.value)

    def construct_whole(self, node: Any) -> int:
        return int(node.value)


for _tag, _pattern in _PLAIN.items():
    _Loader.add_implicit_resolver(_tag, _pattern, None)
for _name, _construct in (
    ("map", _Loader.construct_names),
    ("seq", _Loader.construct_list),
    ("str", _Loader.construct_yaml_str),
    ("bool", _Loader.construct_yaml_bool),
    ("null", _Loader.construct_yaml_null),
    ("int", _Loader.construct_whole),
    ("float", _Loader.construct_number),
):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_name}", _construct)


def parsed(text: str) -> Any:
    """The one document of a text; a ValueError says in a line what is wrong with it."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = "" if mark is None else f" (at line {mark.line + 1}, column {mark.column + 1})"
        raise ValueError(f"{error.problem}{where}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error).replace("\n", " ")) from None
