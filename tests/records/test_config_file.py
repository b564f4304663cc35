"""Options in a file: what is read, alike from both formats, and what is refused in the same words."""

import json

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from truebatch.cli import main
from truebatch.cli.asked import DATA
from truebatch.cli.train import CONFIG
from truebatch.errors import InvalidArgument, InvalidData, TruebatchError
from truebatch.records import RunConfig, read_config
from truebatch.records.config_file import OPTIONS

TOML = """\
label = "clicked"
numeric = ["age", "price"]
epsilon = 5
delta = 1e-6
batch_size = 4096
private = true
hidden = [20, 10]
positive = "no"
valid_from = 2013-10-19
"""
YAML = """\
label: clicked
numeric: [age, "price"]   # a comment
epsilon: 5
delta: 1e-6
batch_size: 4096
private: true
hidden:
  - 20
  - 10
positive: no
valid_from: 2013-10-19
"""
VALUES = {
    "label": "clicked", "numeric": ("age", "price"), "epsilon": 5, "delta": 1e-6, "batch_size": 4096,
    "private": True, "hidden": (20, 10), "positive": "no", "valid_from": "2013-10-19",
}  # fmt: skip


def written(tmp_path, name: str, text: str | bytes):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_every_option_has_a_kind_and_every_field_of_a_run_is_an_option() -> None:
    assert OPTIONS.keys() == {*CONFIG, *DATA}
    assert OPTIONS.keys() >= RunConfig.__dataclass_fields__.keys()


@pytest.mark.parametrize(("name", "text"), [("a.toml", TOML), ("a.yaml", YAML), ("a.YML", YAML)])
def test_both_formats_state_the_same(name, text, tmp_path) -> None:
    found = read_config(written(tmp_path, name, text))
    assert found == VALUES
    assert [type(value) for value in found.values()] == [type(value) for value in VALUES.values()]


def test_yaml_is_of_version_1_2_where_1_1_would_surprise(tmp_path) -> None:
    """The twin that reads version 1.1 takes 1e-6 for text, and `no` for false."""
    assert yaml.safe_load("a: 1e-6\nb: no") == {"a": "1e-6", "b": False}
    found = read_config(written(tmp_path, "a.yaml", "delta: 1e-6\ncategorical: [no, on, 010, 1_0]"))
    assert found == {"delta": 1e-6, "categorical": ("no", "on", "010", "1_0")}


@pytest.mark.parametrize("text", ["", "# nothing\n"])
def test_an_empty_file_states_nothing(text, tmp_path) -> None:
    assert (
        read_config(written(tmp_path, "a.toml", text)) == read_config(written(tmp_path, "a.yaml", text)) == {}
    )


WRONG = [
    ("batch_size", '"many"', "batch_size must be a whole number; got batch_size='many'"),
    ("batch_size", "10.5", "batch_size must be a whole number; got batch_size=10.5"),
    ("epsilon", '"5"', "epsilon must be a number; got epsilon='5'"),
    ("epsilon", "true", "epsilon must be a number; got epsilon=True"),
    ("label", "5", "label must be text; got label=5"),
    ("numeric", '"age"', "numeric must be a list of names; got numeric='age'"),
    ("numeric", "[1]", "numeric must be a list of names"),
    ("hidden", "[1.5]", "hidden must be a list of whole numbers"),
    ("private", '"yes"', "private must be true or false; got private='yes'"),
    ("seed", "[0]", "seed must be a whole number"),
    ("epsilom", "5", "names of options only; got 'epsilom'"),
]


@pytest.mark.parametrize(("name", "value", "says"), WRONG)
def test_a_value_of_another_kind_is_refused_in_the_same_words(name, value, says, tmp_path) -> None:
    messages = []
    for suffix, text in (("toml", f"{name} = {value}"), ("yaml", f"{name}: {value}")):
        with pytest.raises(InvalidArgument) as error:
            read_config(written(tmp_path, f"a.{suffix}", text))
        messages.append(error.value.message.replace(f"a.{suffix}", "FILE"))
    assert messages[0] == messages[1]
    assert says in messages[0]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.toml", "seed = 1\nseed = 2", "overwrite a value"),
        ("a.yaml", "seed: 1\nseed: 2", r"'seed' is stated twice \(at line 2"),
        ("a.yaml", "{seed: 1, seed: 2}", "stated twice"),
        ("a.yaml", "seed: &a 1\nbatch_size: *a", "found an alias"),
        ("a.yaml", "seed: !!python/object/apply:os.getcwd []", "found the tag"),
        ("a.yaml", "seed: !!int 5", "found the tag"),
        ("a.yaml", "- seed", "names and their values"),
        ("a.yaml", "1: 2", "a name must be text"),
        ("a.yaml", "seed: [", "must be YAML"),
        ("a.yaml", "seed: 1\n---\nseed: 2", "another document"),
        ("a.yaml", "seed: " + "[" * 50_000, "must be YAML"),
        ("a.toml", "seed = " + "[" * 50_000, "must be TOML"),
        ("a.toml", "seed", "must be TOML"),
        ("a.toml", b"\xff", "UTF-8"),
        ("a.yaml", b"\xff", "UTF-8"),
        ("a.yaml", "#" * 2**20 + "#", "at most"),
    ],
)
def test_what_is_no_config_is_refused_with_its_place(name, text, says, tmp_path) -> None:
    with pytest.raises(InvalidData, match=says):
        read_config(written(tmp_path, name, text))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(st.sampled_from("ab:[]{}-,&*!|>'\"#%@`\n\t 019.e~?=<")) | st.text(),
    suffix=st.sampled_from(["toml", "yaml"]),
)
def test_hostile_text_gives_options_or_an_error_of_ours(text, suffix, tmp_path) -> None:
    try:
        found = read_config(written(tmp_path, f"a.{suffix}", text.encode("utf-8", "surrogatepass")))
    except TruebatchError:
        return
    assert found.keys() <= OPTIONS.keys()


def test_a_split_by_a_column_on_the_command_line_overrules_shares_in_the_file(tmp_path, capsys) -> None:
    rows = written(tmp_path, "rows.csv", "label,x,part\n" + "0,1,train\n1,2,train\n" * 50 + "1,3,test\n")
    config = written(
        tmp_path,
        "run.yaml",
        "train_share: 0.5\nepsilon: 5\ndelta: 1e-5\nbatch_size: 10\nepochs: 1\nmodel: linear",
    )
    line = ["train", str(rows), "--config", str(config), "--out", str(tmp_path / "r"), "--dry-run", "--json"]
    assert main([*line, "--leave-out", "part"]) == 0
    assert json.loads(capsys.readouterr().out)["split"] == {"train": 0.5, "valid": 0.1}
    assert main([*line, "--split-by", "part"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["split"]["column"] == "part"
    assert planned["features"]["numeric"] == ["x"]
    assert planned["data"]["test"]["rows"] == [100, 101]
