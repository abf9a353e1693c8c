"""What the loss trains."""

import warnings

import torch

from .errors import InputError, notice


def check_gradients(model, tensors, seed, name):
    """Throws InputError if the loss of `model`, a copy that this may run, has no gradient although a parameter is trainable. Names
    trainable parameters that get none."""
    trainable = {key: each for key, each in model.named_parameters() if each.requires_grad}
    if not trainable:
        return
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        try:
            loss = model(*tensors)[0]
            if loss.requires_grad and not loss.is_meta:
                loss.backward()
        except Exception:
            return  # comparing the program with the model runs it again, and says where it fails
    if not loss.requires_grad:
        raise InputError(f"--loss: the loss of {name} has no gradient, so that no parameter would be trained; it must follow from "
                         f"the parameters by differentiable operators, without detach, torch.no_grad or argmax")
    missing = [] if loss.is_meta else [key for key, each in trainable.items() if each.grad is None]
    if missing:
        listed = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        one = len(missing) == 1
        notice(f"{listed} {'gets' if one else 'get'} no gradient from the loss, so training leaves {'it' if one else 'them'} unchanged")
