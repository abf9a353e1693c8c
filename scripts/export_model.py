#!/usr/bin/env python3
"""stagecraft export-model: writes a PyTorch model, with its loss, as an archive that stagecraft trains without Python."""

import argparse
import contextlib
import math
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from exporter.errors import INPUTS_UNKNOWN, UNEXPECTED, ExportError, MissingOptionError, MissingPackageError, fail, first_line, notice  # noqa: E402

DESCRIPTION = """\
Exports a PyTorch model with its loss by torch.export, in training mode (or with --evaluation in evaluation mode) and for any
number of samples, proves on two batches that the result trains like the model, bit for bit, and writes it.

MODEL is one of
  module:callable          a function or class in the current folder or on sys.path that returns an nn.Module
  folder/file.py:callable  the same in a file
  torchvision:NAME         such as torchvision:resnet18, or only resnet18
  transformers:TYPE        such as transformers:gpt2 or bert, with random weights; --model-args sets its configuration
  transformers:FILE.json   a configuration file

A file's imports are looked up in its own folder first, as Python does for a script.

Inputs and outputs may be nested: --input batch.image=float32[3,32,32] is the item or field "image" of forward's argument batch,
--input pair.0=float32[8] the first of a list or tuple. The archive and your data call them batch_image and pair_0.
"""

LOSSES = """\
losses:
  cross_entropy    class scores against the input "target", which holds class indices. Classes are axis 1 of outputs with two axes
                   or four and more, and the last axis of outputs with three (sequences); a target given by --input decides
  mse, bce         mse_loss and binary_cross_entropy_with_logits against the input "target" of the output's shape
  next_token       cross entropy of the scores at each token against the token after it; no target
  in-model         the model returns its loss: with the key "loss", or as its only number, or as --loss-output says
  KEY              the model returns its loss with this key, such as losses.total
  none             no loss
  module:callable  called with what the model returns; its further parameters are names of inputs

Example:
  stagecraft export-model torchvision:resnet18 -o resnet18.pt2
"""


# The version of all of stagecraft; CMake reads it here.
VERSION = "0.1.0"


class Parser(argparse.ArgumentParser):
    """Ends like the other verbs: the message with its code, then where the options are."""

    CODES = (("unrecognized arguments", "SC1002"), ("are required", "SC1003"), ("mutually exclusive", "SC1004"),
             ("goes with", "SC1004"), ("must be equal", "SC1004"))

    def error(self, message):
        fail(message, next((code for part, code in self.CODES if part in message), "SC1005"))
        print(f"see {self.prog} --help", file=sys.stderr)
        sys.exit(2)


def parse(arguments):
    parser = Parser(prog="stagecraft export-model", description=DESCRIPTION, epilog=LOSSES,
                    formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("-o", "--output", metavar="FILE.pt2", required=True, help="the archive to write")
    parser.add_argument("--model-args", nargs="+", default=[], metavar="KEY=VALUE", action="extend",
                        help="arguments of the callable, or fields of a transformers configuration")
    parser.add_argument("--input", action="append", default=[], metavar="NAME=TYPE[SHAPE]",
                        help="an input: the shape of one sample, optionally followed by :batch_axis=N|none and :range=LOW..HIGH, "
                             "as in tokens=int64[128]:range=0..50257 (HIGH is excluded; an embedding or a loss over classes "
                             "determines the range too). Names are forward's parameters; if no name is a parameter, inputs are "
                             "passed by position")
    parser.add_argument("--inputs", metavar="MODULE:CALLABLE",
                        help="a callable that returns a dict of forward's arguments instead: example tensors, or dicts, lists, "
                             "tuples and dataclasses of them")
    parser.add_argument("--batch-axis", action="append", default=[], metavar="NAME=N|none",
                        help="the batch axis of a tensor of --inputs, if it is not 0")
    parser.add_argument("--range", action="append", default=[], metavar="NAME=LOW..HIGH",
                        help="the range of an integer tensor of --inputs (HIGH is excluded), unless an embedding or a loss over "
                             "classes determines it")
    parser.add_argument("--head", metavar="HEAD", help="the head of a model of transformers: sequence-classification for "
                                                       "AutoModelForSequenceClassification, token-classification, masked-lm, "
                                                       "causal-lm, seq2seq-lm, ...; none: the model without a head")
    parser.add_argument("--loss", metavar="LOSS", help="see below; torchvision's classifiers and most heads of transformers have a "
                                                       "default")
    parser.add_argument("--loss-output", type=int, metavar="INDEX",
                        help="which of the tensors that the model returns the loss takes (default: that called loss or logits, the only one that fits, or the first of a list)")
    parser.add_argument("--pretrained", action="store_true", help="weights that torchvision or transformers download")
    parser.add_argument("--weights", metavar="FILE", help="a state dict: of torch.save, or FILE.safetensors, or an index (.index.json) or folder "
                                                            "of transformers")
    parser.add_argument("--static", type=int, metavar="N", help="export for exactly N samples")
    parser.add_argument("--evaluation", action="store_true",
                        help="export the model as it is after model.eval(). Needed to evaluate (plan --schedule forward) a model "
                             "that draws random numbers in training other than by dropout, or computes differently in evaluation; "
                             "other archives can be evaluated too, with dropout off and running statistics in use")
    parser.add_argument("--structure", action="store_true",
                        help="export shapes and operators, but no weights: the model may be larger than this machine's memory. "
                             "For profile --structure, which counts its work, and estimate")
    parser.add_argument("--allow-rounding", action="store_true",
                        help="accept a program that differs from the model by rounding; some libraries compute differently when "
                             "traced")
    parser.add_argument("--loss-of-microbatches", action="store_true",
                        help="take the mean over microbatches of a loss that is not a mean over samples, although that is not the loss of "
                             "the whole batch")
    parser.add_argument("--max-samples", type=int, default=65536, metavar="N", help="the most samples (default: 65536)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of random weights and of the record (default: 0)")
    record = parser.add_argument_group("a record of training in Python, to compare with")
    record.add_argument("--record", metavar="FILE.safetensors", help="train the exported program by SGD and write inputs, losses, "
                                                                     "gradients, parameters and buffers")
    record.add_argument("--steps", type=int, default=3, metavar="N", help="optimizer steps (default: 3)")
    record.add_argument("--microbatches", type=int, default=2, metavar="N", help="microbatches per step (default: 2)")
    record.add_argument("--samples", type=int, metavar="N", help="samples per microbatch (default: 2, or N of --static)")
    record.add_argument("--learning-rate", type=float, default=0.1, metavar="X", help="(default: 0.1)")
    parser.add_argument("--force", action="store_true",
                        help="replace files that are also inputs, or that are not outputs of export-model")
    parser.add_argument("--debug", action="store_true", help="show where in Python an error arose")
    parser.add_argument("--version", action="version", version=f"stagecraft-export-model {VERSION}")
    options = parser.parse_args(arguments)
    for name, least in (("static", 1), ("max_samples", 2), ("steps", 1), ("microbatches", 1), ("samples", 1), ("loss_output", 0)):
        value = getattr(options, name)
        if value is not None and value < least:
            parser.error(f"--{name.replace('_', '-')} is {value}, must be {least} or more")
    if not 0 <= options.learning_rate < math.inf:
        parser.error(f"--learning-rate is {options.learning_rate}, must be a number of 0 or more")
    if not 0 <= options.seed < 2**64:
        parser.error(f"--seed is {options.seed}, must be a number from 0 to {2**64 - 1}")
    if not options.output.endswith(".pt2"):
        parser.error(f"--output is {options.output}, must end in .pt2")
    if options.record and not options.record.endswith(".safetensors"):
        parser.error(f"--record is {options.record}, must end in .safetensors")
    if options.inputs and options.input:
        parser.error("--input and --inputs are mutually exclusive")
    if options.batch_axis and not options.inputs:
        parser.error("--batch-axis goes with --inputs; --input has :batch_axis=N")
    if options.range and not options.inputs:
        parser.error("--range goes with --inputs; --input has :range=LOW..HIGH")
    for name in ("record", "weights", "pretrained"):
        if options.structure and getattr(options, name):
            parser.error(f"--structure and --{name} are mutually exclusive: a structure has no weights")
    if options.record and options.static and options.samples not in (None, options.static):
        parser.error(f"--samples {options.samples} and --static {options.static}: they must be equal")
    if options.samples is None:
        options.samples = options.static or 2
    return options


def request_of(options):
    """The request of the command line."""
    import torch

    from exporter.inputs import parse_examples, parse_input
    from exporter.losses import LOSSES
    from exporter.models import find_model, load_callable, load_weights, parse_arguments
    from exporter.program import SAMPLES, Request

    torch.manual_seed(options.seed)
    with torch.device("meta") if options.structure else contextlib.nullcontext():
        found = find_model(options.model, parse_arguments(options.model_args), options.pretrained, options.head, options.loss)
    if options.weights:
        load_weights(found.model, options.weights)
    inputs, templates = tuple(parse_input(text) for text in options.input) or found.inputs, None
    if options.inputs:
        inputs, templates = parse_examples(load_callable(options.inputs, "--inputs")(), options.batch_axis, options.range)
    loss = options.loss or found.loss
    if loss is None:
        raise MissingOptionError(f"the loss of {options.model} is not known; give --loss {', '.join(LOSSES)} or module:callable")
    if ":" in loss:
        loss = load_callable(loss, "--loss")
    fixed = options.samples if options.record else SAMPLES
    return Request(found.model, options.model, inputs, loss, options.loss_output, found.constants, options.static, fixed,
                   options.max_samples, options.seed, options.allow_rounding, templates, options.evaluation,
                   options.structure, options.loss_of_microbatches)


def files_read(options):
    """The files named on the command line."""
    for text in (options.model, options.inputs, options.loss):
        for part in (text or "").split(":"):
            if part.endswith((".py", ".json")):
                yield part
    if options.weights:
        yield options.weights


def main(arguments):
    options = parse(arguments)
    from exporter import outputs

    written = [(options.output, outputs.ARCHIVE)] + ([(options.record, outputs.RECORD)] if options.record else [])
    try:
        outputs.check(list(files_read(options)), written, options.force)
    except ExportError as error:
        fail(error, error.code)
        return error.status
    # Only the models of libraries have inputs of their own; importing torch and building the model take a while.
    of_library = ":" not in options.model or options.model.startswith(("torchvision:", "transformers:"))
    if not (of_library or options.input or options.inputs):
        fail(INPUTS_UNKNOWN, MissingOptionError.code)
        return 2
    try:
        import torch
    except ImportError:
        fail("Python has no torch, run scripts/setup, or set STAGECRAFT_PYTHON to a Python that has torch 2.11",
             MissingPackageError.code)
        return 1
    from exporter import program, record

    if torch.__version__.split(".")[:2] != ["2", "11"]:
        notice(f"torch is {torch.__version__}, stagecraft reads archives of 2.11 and may refuse this one")
    try:
        done = program.export(request_of(options))
        training = record.Training(options.steps, options.microbatches, options.samples, options.learning_rate, options.seed)
        tensors = record.make_record(done, training) if options.record else None
        program.save(done, options.output)
        if options.record:
            record.save_record(options.record, tensors, training)
    except ExportError as error:
        if options.debug:
            raise
        fail(error, error.code)
        return error.status
    except Exception as error:
        if options.debug:
            raise
        fail(f"{first_line(error)} (use --debug for the location)", UNEXPECTED)
        return 1
    batch = f"{done.least} samples" if done.symbol is None else f"{done.least} to {done.most} samples"
    nodes = sum(node.op == "call_function" for node in done.exported.graph.nodes)
    print(f"{options.output}: {options.model}, {nodes} nodes, {batch}, inputs {', '.join(entry.name for entry in done.inputs)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
