"""The test models by name, with what exporting each takes."""

import dataclasses
import importlib.util
from typing import Callable

import models


@dataclasses.dataclass(frozen=True)
class Entry:
    """`build` gives the model, seeded by the caller. `inputs` are texts as --input takes them. `needs` is the package that
    the model comes from. `options`: further fields of the exporter's Request."""

    build: Callable
    inputs: tuple
    loss: object = "cross_entropy"
    needs: str | None = None
    options: dict = dataclasses.field(default_factory=dict)
    samples: int = 2
    learning_rate: float = 0.1

    def is_installed(self):
        return self.needs is None or importlib.util.find_spec(self.needs) is not None


def _torchvision(name, **arguments):
    def build():
        import torchvision

        return torchvision.models.get_model(name, **arguments)

    return build


def _transformers(kind, **fields):
    def build():
        from exporter.models import find_model

        return find_model(f"transformers:{kind}", fields, False).model

    return build


IMAGE = ("image=float32[3,32,32]",)
TOKENS = ("tokens=int64[12]:range=0..40",)
WITHOUT_CACHE = {"constants": {"use_cache": False, "return_dict": False}}

MODELS = {
    "mlp": Entry(models.Mlp, ("x=float32[8]",)),
    "resnet18": Entry(_torchvision("resnet18", num_classes=10), IMAGE, needs="torchvision", learning_rate=0.01),
    "lstm_lm": Entry(models.LstmLanguageModel, ("tokens=int64[12]:range=0..50",), "next_token"),
    "gpt2": Entry(_transformers("gpt2", n_layer=4, n_embd=64, n_head=4, n_positions=64, vocab_size=211),
                  ("input_ids=int64[24]:range=0..211",), "next_token", "transformers", WITHOUT_CACHE),
    "tied_dropout": Entry(models.TiedDropout, TOKENS, "next_token"),
}
