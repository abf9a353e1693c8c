"""The test models by name, with the arguments to export each."""

import dataclasses
import importlib.util
from typing import Callable

import models


@dataclasses.dataclass(frozen=True)
class Entry:
    """`build` returns the model; the caller sets the seed. `inputs` are texts in the format of --input. `needs` is the
    package that the model needs. `options`: further fields of the exporter's Request. `microbatches` is 1 where
    parameters have several holders: stages first add each holder's gradients over the microbatches, autograd first
    adds those of the holders. `rounds`: compare with a record of two microbatches only to within rounding, because
    another entry covers this kind of model bit for bit."""

    build: Callable
    inputs: tuple
    loss: object = "cross_entropy"
    needs: str | None = None
    options: dict = dataclasses.field(default_factory=dict)
    samples: int = 2
    microbatches: int = 2
    learning_rate: float = 0.1
    rounds: bool = False

    def is_installed(self):
        return self.needs is None or importlib.util.find_spec(self.needs) is not None


def _torchvision(name, **arguments):
    def build():
        import torchvision

        return torchvision.models.get_model(name, **arguments)

    return build


def _small_vgg16():
    """VGG-16's convolutions with classifier layers of width 64 instead of 4096, so that records are small."""
    import torchvision
    from torch import nn

    model = torchvision.models.vgg16(num_classes=10)
    model.avgpool = nn.AdaptiveAvgPool2d(1)
    model.classifier[0], model.classifier[3], model.classifier[6] = nn.Linear(512, 64), nn.Linear(64, 64), nn.Linear(64, 10)
    return model


def _small_vit():
    """ViT-B/16 with 3 encoder layers of width 64 instead of 12 of width 768."""
    import torchvision

    return torchvision.models.VisionTransformer(32, 16, 3, 4, 64, 128, dropout=0.1, num_classes=10)


def _transformers(kind, **fields):
    def build():
        from exporter.models import find_model

        return find_model(f"transformers:{kind}", fields, False).model

    return build


def _untied_t5():
    """Stages would add the gradients of three holders of one parameter in a different order than autograd, and so
    would three readers of the encoder's output: hence one decoder layer and untied embeddings."""
    import copy

    model = _transformers("t5", num_layers=2, num_decoder_layers=1, d_model=16, d_ff=24, d_kv=8, num_heads=2, vocab_size=40,
                          decoder_start_token_id=0)()
    model.decoder.embed_tokens, model.lm_head.weight = copy.deepcopy(model.shared), copy.deepcopy(model.lm_head.weight)
    return model


IMAGE = ("image=float32[3,32,32]",)
TOKENS = ("tokens=int64[12]:range=0..40",)
WITHOUT_CACHE = {"constants": {"use_cache": False, "return_dict": False}}

VECTOR = ("x=float32[8]",)
LABELS = ("labels=int64[7]:range=0..30",)
TOKENS_OF_BOTH = ("input_ids=int64[12]:range=0..40", "labels=int64[9]:range=0..40")

MODELS = {
    "mlp": Entry(models.Mlp, VECTOR),
    "resnet18": Entry(_torchvision("resnet18", num_classes=10), IMAGE, needs="torchvision", learning_rate=0.01),
    "vgg16": Entry(_small_vgg16, IMAGE, needs="torchvision", learning_rate=0.01),
    "mobilenet_v3_small": Entry(_torchvision("mobilenet_v3_small", num_classes=10), ("image=float32[3,64,64]",),
                                needs="torchvision", learning_rate=0.01),
    "vit_b_16": Entry(_small_vit, IMAGE, needs="torchvision", learning_rate=0.01),
    "gpt2": Entry(_transformers("gpt2", n_layer=4, n_embd=64, n_head=4, n_positions=64, vocab_size=211),
                  ("input_ids=int64[24]:range=0..211",), "next_token", "transformers", WITHOUT_CACHE, microbatches=1),
    "bert": Entry(_transformers("bert", num_hidden_layers=3, hidden_size=64, num_attention_heads=4, intermediate_size=128,
                                vocab_size=211, max_position_embeddings=64),
                  ("input_ids=int64[24]:range=0..211", "attention_mask=int64[24]:range=0..2"), needs="transformers",
                  options=WITHOUT_CACHE, microbatches=1),
    "lstm_lm": Entry(models.LstmLanguageModel, ("tokens=int64[12]:range=0..50",), "next_token"),
    "lstm_dropout": Entry(lambda: models.LstmLanguageModel(dropout=0.2), ("tokens=int64[12]:range=0..50",), "next_token"),
    "transformer": Entry(lambda: models.DecoderTransformer(50, 16, 4, 4, 32), ("tokens=int64[12]:range=0..50",), "next_token"),
    "encoder_decoder": Entry(
        models.EncoderDecoder, ("words=int64[7]:batch_axis=1:range=0..40", "translation=int64[9]:batch_axis=1:range=0..40")),
    "tied_dropout": Entry(models.TiedDropout, TOKENS, "next_token", learning_rate=0.01, microbatches=1),
    "several_names": Entry(models.SeveralNames, VECTOR),
    "long_residual": Entry(models.LongResidual, VECTOR),
    "two_heads": Entry(models.TwoHeads, VECTOR + ("kind=int64[]:range=0..4", "place=float32[2]"), models.two_losses),
    "shared_batch_norm": Entry(models.SharedBatchNorm, ("image=float32[3,8,8]",)),
    "called_twice": Entry(models.CalledTwice, VECTOR, microbatches=1),
    "views_across_blocks": Entry(models.ViewsAcrossBlocks, VECTOR),
    "no_grad_block": Entry(models.NoGradBlock, VECTOR),
    "masks_from_inputs": Entry(models.MasksFromInputs, TOKENS + ("keep=bool[12]",)),
    "parent_operators": Entry(models.ParentOperators, VECTOR),
    "mixed_inputs": Entry(models.MixedInputs, ("words=int64[6]:range=0..7", "valid=bool[]", "measured=float32[5]",
                                               "offset=float32[8]:batch_axis=none")),
    "running_mean": Entry(models.RunningMean, VECTOR, "mse"),
    "partly_frozen": Entry(models.PartlyFrozen, ("image=float32[3,8,8]",)),
    "ema_teacher": Entry(models.EmaTeacher, VECTOR),
    "vmapped": Entry(models.Vmapped, VECTOR),
    "gradient_inside": Entry(models.GradientInside, VECTOR),
    "root_operators": Entry(models.RootOperators, VECTOR),
    "in_place_activations": Entry(models.InPlaceActivations, ("image=float32[3,8,8]",)),
    "fixed_batch": Entry(models.FixedBatch, VECTOR, options={"static": 2}),
    "transposed_norm": Entry(models.TransposedNorm, ("x=float32[6,8]",)),
    "autocast_block": Entry(models.AutocastBlock, VECTOR, "bce"),
    "numbers_of_the_batch": Entry(models.NumbersOfTheBatch, VECTOR + ("target=int64[]:range=0..4",), "in-model",
                                  options={"loss_output": 1, "loss_of_microbatches": True}),
    "lstm_states": Entry(models.LstmStates, TOKENS),
    "old_norms": Entry(models.OldNorms, VECTOR, microbatches=1),
    "nested_batch": Entry(models.NestedBatch, ("batch.image=float32[8]", "batch.pair.0=float32[8]", "batch.pair.1=float32[8]",
                                               "batch.weights.hidden=float32[8]:batch_axis=none", "target=int64[]:range=0..4"),
                          models.nested_loss),
    "whole_autocast": Entry(models.WholeAutocast, VECTOR),
    "whole_no_grad": Entry(models.WholeNoGrad, VECTOR),
    "sampled_latent": Entry(models.SampledLatent, VECTOR, "in-model"),
    "causal_encoder": Entry(models.CausalEncoder, TOKENS, "next_token"),
    "bert_classifier": Entry(_transformers("bert", num_hidden_layers=2, hidden_size=32, num_attention_heads=4, intermediate_size=64,
                                           vocab_size=211, max_position_embeddings=32, num_labels=3),
                             ("input_ids=int64[12]:range=0..211",), needs="transformers", options=WITHOUT_CACHE, microbatches=1),
    "albert": Entry(_transformers("albert", num_hidden_layers=3, hidden_size=32, embedding_size=16, num_attention_heads=4,
                                  intermediate_size=64, vocab_size=211, max_position_embeddings=32, num_labels=3),
                    ("input_ids=int64[12]:range=0..211",), needs="transformers", options=WITHOUT_CACHE, rounds=True),
    "electra": Entry(_transformers("electra", num_hidden_layers=2, hidden_size=32, embedding_size=16, num_attention_heads=4,
                                   intermediate_size=64, vocab_size=211, max_position_embeddings=32, num_labels=3),
                     ("input_ids=int64[12]:range=0..211",), needs="transformers", options=WITHOUT_CACHE, rounds=True),
    "distilbert": Entry(_transformers("distilbert", n_layers=2, dim=32, n_heads=4, hidden_dim=64, vocab_size=211,
                                      max_position_embeddings=32, num_labels=3),
                        ("input_ids=int64[12]:range=0..211",), needs="transformers", options=WITHOUT_CACHE, rounds=True),
    "opt": Entry(_transformers("opt", num_hidden_layers=2, hidden_size=32, num_attention_heads=4, ffn_dim=64, vocab_size=211,
                               max_position_embeddings=32, word_embed_proj_dim=32),
                 ("input_ids=int64[12]:range=0..211",), "next_token", "transformers", WITHOUT_CACHE, rounds=True),
    "densenet121": Entry(_torchvision("densenet121", num_classes=10), IMAGE, needs="torchvision", learning_rate=0.01, rounds=True),
    "mixtral": Entry(_transformers("mixtral", num_hidden_layers=2, hidden_size=32, num_attention_heads=4, num_key_value_heads=2,
                                   intermediate_size=48, num_local_experts=4, vocab_size=99, max_position_embeddings=32),
                     ("input_ids=int64[12]:range=0..99",), "next_token", "transformers", WITHOUT_CACHE),
    "weighted_labels": Entry(models.WeightedLabels, ("x=float32[5,8]", "labels=int64[5]:range=-100..4"), "in-model", microbatches=3),
    "summed_squares": Entry(lambda: models.WeightedLabels(True), ("x=float32[5,8]", "labels=int64[5]:range=-100..4"), "in-model"),
    "shifted_labels": Entry(models.ShiftedLabels, LABELS, "in-model"),
    "shifted_labels_twice": Entry(lambda: models.ShiftedLabels(readers=2), LABELS, "in-model"),
    "changing_mask": Entry(models.ChangingMask, VECTOR),
    "cached_autocast": Entry(models.CachedAutocast, VECTOR, microbatches=1, options={"loss_of_microbatches": True}),
    "nested_modes": Entry(models.NestedModes, VECTOR, options={"loss_of_microbatches": True}),
    "unread_dropout": Entry(models.UnreadDropout, VECTOR, options={"loss_of_microbatches": True}),
    "t5": Entry(_untied_t5, TOKENS_OF_BOTH, "in-model", "transformers", WITHOUT_CACHE, microbatches=1),
    "bart": Entry(_transformers("bart", encoder_layers=2, decoder_layers=1, d_model=16, encoder_ffn_dim=24, decoder_ffn_dim=24,
                                encoder_attention_heads=2, decoder_attention_heads=2, vocab_size=40, max_position_embeddings=16,
                                tie_word_embeddings=False),
                  TOKENS_OF_BOTH, "in-model", "transformers", WITHOUT_CACHE, microbatches=1),
    "whisper": Entry(_transformers("whisper", encoder_layers=2, decoder_layers=2, d_model=16, encoder_ffn_dim=24, decoder_ffn_dim=24,
                                   encoder_attention_heads=2, decoder_attention_heads=2, vocab_size=40, max_source_positions=8,
                                   max_target_positions=16, num_mel_bins=4, pad_token_id=1, bos_token_id=2, eos_token_id=2,
                                   decoder_start_token_id=3),
                     ("input_features=float32[4,16]", "labels=int64[9]:range=0..40"), "in-model", "transformers", WITHOUT_CACHE,
                     microbatches=1),
}
