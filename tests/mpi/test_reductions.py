"""N ranks equal one process to 1e-5 after 20 steps in float32, over real MPI and on real graphs."""

import dataclasses
import functools
import os

import numpy as np
import pytest

from tests.mpi.conftest import need_horovod
from tests.support.graphs import random_graph
from toolkit import config as configs
from toolkit.graph import registry
from toolkit.graph.part import build_parts
from toolkit.graph.partition import assign
from toolkit.train.trainer import make_transport
from toolkit.verify import compare, follow, single_process

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]
STEPS = 20
WEIGHTS = np.ones(2)


@functools.cache
def graph_of(name, directed):
    if name.startswith("random"):
        width = int(name.removeprefix("random"))
        return random_graph(90, width, mean_degree=2.5, directed=directed, train_share=0.06)
    if name != "digits" and not os.path.isdir(os.path.join(os.environ.get("BITRING_DATA", ""), name)):
        pytest.skip(f"{name} is not there; point BITRING_DATA at a folder that holds it")
    return registry.load(configs.Config(data=configs.Data(name=name, symmetrise=not directed, feature_norm="row")))


def check(world, graph, kind, partition, optimizer="adam", reduction="auto", **method):
    """Compare on every rank; the reference is computed by rank 0 alone.

    Adam turns a gradient entry that is all rounding into a step of a whole learning rate, so a
    network of 1433 x 16 weights on six training nodes is compared under SGD.
    """
    config = configs.Config(
        model=configs.Model(kind=kind, layers=3, hidden=16, heads=2, dropout=0.5, input_dropout=0.2, norm="layer"),
        method=configs.Method(**method),
        partition=configs.Partition(method=partition, tries=2),
        train=configs.Train(threads=1, optimizer=optimizer, reduction=reduction),
    )
    parts = assign(graph, world.size, config.partition, WEIGHTS).parts
    owned = list(build_parts(graph, parts, world.size))
    transport = make_transport(world, config.method)
    ours = follow(owned[world.rank], config, world, transport, STEPS)
    transport.close()
    reference = world.broadcast(single_process(graph, config, STEPS) if world.rank == 0 else None)
    found = compare(ours, reference, config, owned[0], STEPS)
    assert found.largest <= 1e-5, found
    return found


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
@pytest.mark.parametrize("partition", ["metis", "random"])
@pytest.mark.parametrize("directed", [False, True], ids=["undirected", "directed"])
@pytest.mark.parametrize("name", ["digits", "random1", "random1433"])
def test_graphs(world, kind, partition, directed, name):
    check(world, graph_of(name, directed), kind, partition, "sgd" if name == "random1433" else "adam")


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
@pytest.mark.parametrize("name", ["cora", "citeseer"])
def test_real_graphs(world, kind, name):
    check(world, graph_of(name, False), kind, "metis")


@pytest.mark.parametrize("ring", ["posted", "rendezvous", "barrier"])
@pytest.mark.parametrize("plan", ["exact", "paper"])
def test_rings_and_plans(world, ring, plan):
    check(world, graph_of("digits", False), "gcn", "metis", ring=ring, plan=plan)


@pytest.mark.parametrize("kind", ["gcn", "gat"])
@pytest.mark.parametrize("transport", ["ring", "horovod"])
@pytest.mark.parametrize("reduction", ["mpi", "horovod"])
def test_horovod_beside_mpi4py(world, kind, transport, reduction):
    """Horovod's thread and the ring's own, in every combination."""
    need_horovod()
    check(world, graph_of("digits", False), kind, "metis", transport=transport, reduction=reduction)


def test_the_oracle_sees_a_wrong_exchange(world):
    """Rounded rows must not pass at 1e-5: else this file proves nothing."""
    if world.size == 1:
        pytest.skip("one rank exchanges nothing")
    with pytest.raises(AssertionError):
        check(world, graph_of("digits", False), "gcn", "random", codec="bfloat16")


def test_float64_tells_rounding_from_error(world):
    graph = graph_of("digits", False)
    config = configs.Config(
        model=configs.Model(layers=3, hidden=16, norm="layer"), train=configs.Train(dtype="float64", threads=1)
    )
    parts = assign(graph, world.size, dataclasses.replace(config.partition, method="random"), WEIGHTS).parts
    owned = list(build_parts(graph, parts, world.size))
    transport = make_transport(world, config.method)
    ours = follow(owned[world.rank], config, world, transport, STEPS)
    transport.close()
    assert compare(ours, single_process(graph, config, STEPS), config, owned[0], STEPS).largest < 1e-10
