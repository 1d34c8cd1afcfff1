"""Networks over sound and text that are no transformers. Import this file only where torch is installed."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Dilated(nn.Module):
    """One layer of a WaveNet: tanh times sigmoid of two causal convolutions of two samples, `dilation` apart; of that
    one 1x1 convolution is added to the input and another one goes to the end.
    """

    def __init__(self, channels: int, skip: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.filter = nn.Conv1d(channels, channels, 2, dilation=dilation)
        self.gate = nn.Conv1d(channels, channels, 2, dilation=dilation)
        self.residual = nn.Conv1d(channels, channels, 1)
        self.skip = nn.Conv1d(channels, skip, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        past = functional.pad(x, (self.dilation, 0))
        y = torch.tanh(self.filter(past)) * torch.sigmoid(self.gate(past))
        return x + self.residual(y), self.skip(y)


class WaveNet(nn.Module):
    """WaveNet (van den Oord et al., "WaveNet: a generative model for raw audio", 2016), all samples at once as in
    training: logits [b, levels, n] of the next sample's level for each sample of sound [b, 1, n].

    `stacks` times dilations of 1, 2, 4, ... in `depth` layers; what they give to the end is summed, then ReLU, 1x1,
    ReLU, 1x1. Samples come as numbers, not as one-hot levels.
    """

    def __init__(self, stacks: int, depth: int, channels: int, skip: int, levels: int) -> None:
        super().__init__()
        self.start = nn.Conv1d(1, channels, 2)
        self.layers = nn.ModuleList(Dilated(channels, skip, 1 << i) for _ in range(stacks) for i in range(depth))
        self.hidden = nn.Conv1d(skip, skip, 1)
        self.logits = nn.Conv1d(skip, levels, 1)

    def forward(self, sound: Tensor) -> Tensor:
        x = self.start(functional.pad(sound, (1, 0)))
        total: Tensor | None = None
        for layer in self.layers:
            x, skipped = layer(x)
            total = skipped if total is None else total + skipped
        assert total is not None
        return self.logits(torch.relu(self.hidden(torch.relu(total))))


class LstmClassifier(nn.Module):
    """A text classifier: embeddings, `layers` bidirectional LSTMs (Hochreiter and Schmidhuber 1997, Graves and
    Schmidhuber 2005), each feature's maximum over all tokens (Conneau et al., "Supervised learning of universal
    sentence representations", 2017), and a linear layer; logits [b, labels] of token numbers [b, n].
    """

    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int, labels: int) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True, bidirectional=True)
        self.classifier = nn.Linear(2 * hidden, labels)

    def forward(self, input_ids: Tensor) -> Tensor:
        states, _ = self.lstm(self.embeddings(input_ids))
        return self.classifier(states.amax(1))
