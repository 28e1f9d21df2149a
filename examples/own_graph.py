"""Write a graph of your own as a .npz, then train GAT on it.

python examples/own_graph.py /tmp/karate.npz
"""

import subprocess
import sys

import networkx as nx
import numpy as np

path = sys.argv[1]
club = nx.karate_club_graph()
labels = np.array([club.nodes[v]["club"] == "Officer" for v in club], dtype=np.int64)
np.savez(
    path,
    edge_index=np.array(list(club.edges)).T,  # one direction is enough: data.symmetrise adds the other
    features=np.eye(len(club), dtype=np.float32),
    labels=labels,
)
config = path.replace(".npz", ".toml")
with open(config, "w", encoding="utf-8") as file:
    file.write(f"""
[run]
name = "karate"
out = "{path}-runs"
[data]
name = "file"
path = "{path}"
train_per_class = 2
val_per_class = 4
[model]
kind = "gat"
hidden = 16
heads = 4
[train]
epochs = 60
""")
sys.exit(subprocess.run([sys.executable, "-m", "toolkit.cli", "train", config, "-np", "2"], check=False).returncode)
