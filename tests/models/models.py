"""Small models as people write them, each with what is hard for an exporter or a splitter in it."""

import math

import torch
from torch import nn
from torch.nn import functional


class Mlp(nn.Module):
    def __init__(self, width=16, classes=4):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, x):
        return self.layers(x)


class LstmLanguageModel(nn.Module):
    def __init__(self, vocabulary=50, width=16, layers=2, dropout=0.0):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, dropout=dropout)
        self.output = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        hidden, _ = self.lstm(self.embedding(tokens))
        return self.output(hidden)


class TiedDropout(nn.Module):
    """The output layer's weight is the embedding's; dropout before and between."""

    def __init__(self, vocabulary=40, width=16):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.drop = nn.Dropout(0.1)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.2)) for _ in range(3)])
        self.output = nn.Linear(width, vocabulary, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens):
        hidden = self.drop(self.embedding(tokens))
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.output(hidden)
