import dataclasses
import json

import numpy as np
import pytest

from toolkit import config as configs
from toolkit.errors import UserError
from toolkit.graph import cache, registry
from toolkit.graph.messages import FAR


def configuration(tmp_path, **sections):
    return configs.from_tables({"partition": {"cache": str(tmp_path), "tries": 1, "numbering": "identity"}} | sections)


def test_a_second_call_does_not_load_the_graph(tmp_path, monkeypatch):
    config = configuration(tmp_path)
    first = cache.ensure(config, 3)
    monkeypatch.setattr(registry, "load", lambda config: pytest.fail("loaded again"))
    again = cache.ensure(config, 3)
    assert again.folder == first.folder
    assert (again.channels == first.channels).all()
    assert [again.load(rank).rank for rank in range(3)] == [0, 1, 2]


def test_channels_equal_the_parts(tmp_path):
    partition = cache.ensure(configuration(tmp_path), 3)
    assert partition.channels.shape == (3, 3, FAR + 1)
    for rank in range(3):
        part = partition.load(rank)
        assert partition.channels[rank].sum(1).tolist() == part.send_counts.tolist()
        assert partition.channels[:, rank].sum(1).tolist() == part.halo_counts.tolist()
        assert partition.channels[:, rank].sum(0).tolist() == np.bincount(part.halo_reach, minlength=FAR + 1).tolist()


@pytest.mark.parametrize(
    "change",
    [
        {"data": {"knn": 9}},
        {"data": {"split_seed": 1}},
        {"partition": {"seed": 1}},
        {"partition": {"method": "random"}},
    ],
)
def test_other_settings_are_another_partition(tmp_path, change):
    base = configuration(tmp_path)
    section, values = next(iter(change.items()))
    other = dataclasses.replace(base, **{section: dataclasses.replace(getattr(base, section), **values)})
    assert cache.ensure(base, 2).folder != cache.ensure(other, 2).folder


def test_the_model_matters_only_where_it_judges(tmp_path):
    base, deep = configuration(tmp_path), configuration(tmp_path, model={"layers": 4})
    assert cache.ensure(base, 2).folder == cache.ensure(deep, 2).folder
    judged = [dataclasses.replace(c, partition=dataclasses.replace(c.partition, tries=2)) for c in (base, deep)]
    assert cache.ensure(judged[0], 2).folder != cache.ensure(judged[1], 2).folder


def test_damage_is_refused_with_the_remedy(tmp_path):
    config = configuration(tmp_path)
    folder = cache.ensure(config, 2).folder
    meta = folder / "META.json"
    text = meta.read_text()
    for damaged in ("{", "{}", text.replace(f'"format": {cache.CACHE_FORMAT}', '"format": 99', 1)):
        meta.write_text(damaged)
        with pytest.raises(UserError, match="delete the folder"):
            cache.ensure(config, 2)
    meta.write_text(text.replace('"graph": {', '"grph": {', 1))
    with pytest.raises(UserError, match="lacks graph; delete the folder"):
        cache.ensure(config, 2)
    meta.unlink()
    with pytest.raises(UserError, match="is in the way and is no cached partition; delete it"):
        cache.ensure(config, 2)
    meta.write_text(text)
    (folder / "rank0001.npz").unlink()
    with pytest.raises(UserError, match="misses"):
        cache.ensure(config, 2).load(1)
    (folder / "channels.npz").write_bytes(b"x")
    with pytest.raises(UserError, match="damaged"):
        cache.ensure(config, 2)


def test_nothing_half_written_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(
        cache.parts_io, "save", lambda part, path: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(UserError, match="No space left on device; free space"):
        cache.ensure(configuration(tmp_path), 2)
    assert list(tmp_path.iterdir()) == []


def test_the_report_adds_up(tmp_path):
    meta = cache.ensure(configuration(tmp_path), 4).meta
    assert sum(rank["inner"] for rank in meta["rank"]) == meta["graph"]["nodes"] == 1797
    assert sum(rank["edges"] for rank in meta["rank"]) == meta["graph"]["directed_edges"]
    assert sum(rank["halo"] for rank in meta["rank"]) == sum(rank["rows_sent"] for rank in meta["rank"])
    assert 0 < meta["cut_directed_edges"] < meta["graph"]["directed_edges"]
    json.dumps(meta)


def test_an_unwritable_cache_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"set partition\.cache"):
        cache.ensure(configuration(tmp_path / "file" / "cache"), 2)
