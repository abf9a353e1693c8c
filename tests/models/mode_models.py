"""Models that compute differently in training and in evaluation mode."""

import torch
from torch import nn
from torch.nn import functional


class Modes(nn.Module):
    """Modules of torch.nn that depend on the training mode."""

    def __init__(self, width=8):
        super().__init__()
        self.stem = nn.Linear(8, width)
        self.norm = nn.BatchNorm1d(width, momentum=0.3)
        self.statistics_of_batch = nn.BatchNorm1d(width, track_running_stats=False)
        self.drop = nn.Sequential(nn.Dropout(0.2), nn.AlphaDropout(0.2), nn.RReLU())
        self.images = nn.Sequential(nn.InstanceNorm1d(4, track_running_stats=True), nn.Dropout1d(0.2), nn.FeatureAlphaDropout(0.2))
        self.lstm = nn.LSTM(2, 4, 2, batch_first=True, dropout=0.3)
        self.gru = nn.GRU(4, width, 2, batch_first=True, dropout=0.3)
        self.encoder = nn.TransformerEncoderLayer(width, 2, 16, 0.2, batch_first=True)
        self.attention = nn.MultiheadAttention(width, 2, 0.2, batch_first=True)
        self.teacher = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Dropout(0.2))
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        hidden = self.drop(self.statistics_of_batch(self.norm(self.stem(x))))
        hidden = self.images(hidden.view(-1, 4, 2))
        hidden, _ = self.lstm(hidden)
        hidden, _ = self.gru(hidden)
        hidden = self.encoder(hidden)
        hidden = hidden + self.attention(hidden, hidden, hidden)[0]
        hidden = functional.dropout(hidden[:, -1], 0.1, self.training, inplace=True)
        with torch.no_grad():
            wanted = self.teacher(hidden)
        return self.head(hidden - wanted)


class NormAndDropout(nn.Module):
    """The part of Modes that torch.jit supports."""

    def __init__(self, width=8):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8 if i == 0 else width, width), nn.BatchNorm1d(width), nn.ReLU(inplace=True),
                                                   nn.Dropout(0.3)) for i in range(3)])
        self.norm = nn.BatchNorm1d(width, track_running_stats=False)
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class BranchesOnMode(nn.Module):
    """Scales, drops and normalises in its own branches on the mode."""

    def __init__(self, width=8):
        super().__init__()
        self.stem = nn.Linear(8, width)
        self.middle = nn.Linear(width, width)
        self.head = nn.Linear(width, 4)
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x):
        hidden = torch.tanh(self.stem(x))
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * hidden.detach().mean(0))
            hidden = hidden - hidden.mean(0) + 0.3 * torch.randn_like(hidden)
        else:
            hidden = hidden - self.mean
        return self.head(torch.tanh(self.middle(hidden)))


class NoiseInTraining(nn.Module):
    """Adds noise in training."""

    def __init__(self, width=8):
        super().__init__()
        self.stem = nn.Linear(8, width)
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        hidden = torch.tanh(self.stem(x))
        if self.training:
            hidden = hidden + 0.3 * torch.randn_like(hidden)
        return self.head(hidden)


class StatisticsInTraining(nn.Module):
    """Updates a mean in training, and subtracts it in both modes."""

    def __init__(self, width=8):
        super().__init__()
        self.stem = nn.Linear(8, width)
        self.head = nn.Linear(width, 4)
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x):
        hidden = torch.tanh(self.stem(x))
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * hidden.detach().mean(0))
        return self.head(hidden - self.mean)


class AlwaysDrops(nn.Module):
    """functional.dropout drops after eval() too, unless it is told the mode."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.head(functional.dropout(self.body(x), 0.5))


class Doubles(AlwaysDrops):
    """Doubles in training."""

    def forward(self, x):
        return self.head(self.body(x) * (2 if self.training else 1))
