"""Hugging Face datasets: positions after select and shuffle, and what is no split."""

import pickle
import subprocess
import sys

import pyarrow as pa
import pytest

from truebatch.data import ArrowSource, HuggingFaceSource, open_source
from truebatch.errors import InvalidData

datasets = pytest.importorskip("datasets")


def made(k=1000):
    features = datasets.Features(
        {
            "label": datasets.ClassLabel(names=["no", "yes"]),
            "s": datasets.Value("string"),
            "v": datasets.Sequence(datasets.Value("float32"), length=2),
        }
    )
    columns = {"label": [i % 2 for i in range(k)], "s": [f"s{i}" for i in range(k)]}
    columns["v"] = [[i, -i] for i in range(k)]
    return datasets.Dataset.from_dict(columns, features=features)


def rows(source, start=0, stop=None):
    batches = list(source.read(start, source.num_rows if stop is None else stop))
    assert all(b.num_rows and b.schema == source.schema for b in batches)
    return pa.Table.from_batches(batches, source.schema)


def test_any_range_is_that_slice_in_the_datasets_own_order():
    plain = made()
    for dataset in (
        plain,
        plain.shuffle(seed=3),
        plain.select([5, 5, 2, 999]),
        plain.filter(lambda row: row["label"] == 1),
        datasets.concatenate_datasets([plain, plain.select(range(10))]),
        plain.with_format("numpy"),
    ):
        source = open_source(dataset)
        assert type(source) is HuggingFaceSource
        want = dataset.with_format(None)[:]["s"]
        assert rows(source)["s"].to_pylist() == list(want)
        assert rows(source, 1, 3)["s"].to_pylist() == list(want[1:3])
        assert rows(source).schema.field("label").type == pa.int64()


def test_identity_is_of_the_values_and_a_pickled_source_keeps_it():
    source = open_source(made())
    assert pickle.loads(pickle.dumps(source)).identity() == source.identity()
    assert open_source(made()).identity() == source.identity()
    assert open_source(made().shuffle(seed=1)).identity() != source.identity()
    assert open_source(made(999)).identity() != source.identity()


def test_a_dataset_saved_to_disk_is_arrow_streams(tmp_path):
    made().save_to_disk(tmp_path / "d", num_shards=3)
    source = open_source(tmp_path / "d")
    assert type(source) is ArrowSource
    assert rows(source)["s"].to_pylist() == [f"s{i}" for i in range(1000)]


def test_what_is_no_split_is_refused():
    with pytest.raises(InvalidData, match=r"all of 'train', 'test'(.|\n)*dataset\['train'\]"):
        open_source(datasets.DatasetDict({"train": made(3), "test": made(3)}))
    with pytest.raises(InvalidData, match=r"IterableDataset(.|\n)*streaming"):
        open_source(made(3).to_iterable_dataset())


def test_without_the_package_the_error_says_how_to_get_it():
    code = (
        "import sys; sys.modules['datasets'] = None\n"
        "from truebatch.data import HuggingFaceSource\n"
        "from truebatch.errors import MissingExtra\n"
        "try:\n    HuggingFaceSource(None)\nexcept MissingExtra as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'truebatch[huggingface]'" in done.stdout
