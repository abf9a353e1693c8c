#include "costmodel/interchange/convert/layer_kinds.h"

namespace stagecraft::interchange {

std::string layers_text() {
  return R"python("""GNMT's own layers. Sequences are (time, batch, features); lengths are (batch,), integers."""
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class EmuBidirLSTM(torch.nn.Module):
    """A bidirectional LSTM over sequences of unequal lengths; zeros after the end of a sequence."""

    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.bidir = torch.nn.LSTM(input_size, hidden_size, bidirectional=True)

    def forward(self, inputs, lengths):
        packed = pack_padded_sequence(inputs, lengths.cpu(), enforce_sorted=False)
        return pad_packed_sequence(self.bidir(packed)[0], total_length=inputs.size(0))[0]


class BahdanauAttention(torch.nn.Module):
    """Scores linear_att . tanh(linear_q(query) + linear_k(key)), and the keys' mean weighted by their softmax."""

    def __init__(self, query_size, key_size, units, dropout=0):
        super().__init__()
        self.linear_q = torch.nn.Linear(query_size, units, bias=False)
        self.linear_k = torch.nn.Linear(key_size, units, bias=False)
        self.linear_att = torch.nn.Parameter(torch.empty(units).uniform_(-(units ** -0.5), units ** -0.5))
        self.dropout = torch.nn.Dropout(p=dropout)

    def forward(self, query, keys, key_lengths):
        query = self.linear_q(query.transpose(0, 1))
        keys = keys.transpose(0, 1)
        scores = torch.tanh(query.unsqueeze(2) + self.linear_k(keys).unsqueeze(1)).matmul(self.linear_att)
        behind = torch.arange(keys.size(1), device=keys.device) >= key_lengths.to(keys.device).unsqueeze(1)
        scores = scores.masked_fill(behind.unsqueeze(1), torch.finfo(scores.dtype).min)
        scores = self.dropout(torch.softmax(scores, dim=-1))
        return torch.bmm(scores, keys).transpose(0, 1), scores.transpose(0, 1)


class RecurrentAttention(torch.nn.Module):
    """An LSTM whose outputs attend to `context`. Returns outputs, state, attended context and scores."""

    def __init__(self, input_size, hidden_size, context_size, units, dropout=0, attention_dropout=0):
        super().__init__()
        self.rnn = torch.nn.LSTM(input_size, hidden_size)
        self.attn = BahdanauAttention(hidden_size, context_size, units, attention_dropout)
        self.dropout = torch.nn.Dropout(p=dropout)

    def forward(self, inputs, hidden, context, context_lengths):
        outputs, hidden = self.rnn(inputs, hidden)
        attended, scores = self.attn(outputs, context, context_lengths)
        return self.dropout(outputs), hidden, attended, scores


class Classifier(torch.nn.Module):
    """Maps features to scores of the vocabulary's words."""

    def __init__(self, in_features, out_features, bias=True):
        super().__init__()
        self.classifier = torch.nn.Linear(in_features, out_features, bias=bias)

    def forward(self, features):
        return self.classifier(features)
)python";
}

}  // namespace stagecraft::interchange
