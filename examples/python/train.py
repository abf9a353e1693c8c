"""Trains a small classifier in two pipeline stages and loads the trained weights back. Run: python examples/python/train.py"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stagecraft

torch.manual_seed(0)
features = torch.randn(2048, 64)
target = (features @ torch.randn(64, 10)).argmax(1)
batches = DataLoader(TensorDataset(features, target), batch_size=64, shuffle=True)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))

# What does each layer cost? Microbatches of 16 samples, four of them in a step of 64.
graph = stagecraft.profile(model, batches, loss="cross_entropy", microbatch=16, optimizer="adam", max_seconds=5,
                           accept_untrusted=True)
print(graph)

# Two devices, joined by 5 GB/s.
topology = stagecraft.Topology.of([2], [5e9])
plan = stagecraft.plan(graph, topology, strategy="profile", stages=2, microbatches=4, accept_untrusted=True)
prediction = stagecraft.predict(graph, topology, plan, accept_untrusted=True)
print(plan)
print(prediction)
print(prediction.gantt())

# Train: one process per rank. Every batch of the DataLoader is a step.
run = stagecraft.run(plan, model, batches, epochs=3, loss="cross_entropy", optimizer="adam", learning_rate=1e-3,
                     prediction=prediction)
print(run.comparison)
print(f"loss {run.metrics[0]['loss']:.3f} to {run.metrics[-1]['loss']:.3f} in {len(run.metrics)} steps")

model.load_state_dict(run.state_dict, strict=True)
print(stagecraft.evaluate(model, batches, loss="cross_entropy"))
stagecraft.report(graph, topology, plan, prediction, run.measurement).save("report.html")
