"""Runs torch.optim and torch.optim.lr_scheduler for optimizer_against_torch_test.cpp.

python torch_optim.py OUT.safetensors < cases

A line of the input is "optimizer|CLASS|ARGUMENTS", with "|groups" for one group per parameter, "|parameters" for float32
masters of parameters in bfloat16, "|moments" for masters, gradients in bfloat16 and a state that is rounded to bfloat16
after each step; "schedule|CLASS|ARGUMENTS|STEPS", or "plateau|ARGUMENTS|LOSSES", ARGUMENTS as Python keywords.
Line I gives, of an optimizer, the parameters (or masters) before ("I/before.P") and after ("I/after.P") five steps with the
gradients "I/gradient.STEP.P", and moving averages ("I/average.P"); parameter 1 has no gradient in step 0. Of a schedule, "I/rates" for a rate of 0.5.
"""

import sys
import warnings

try:
    import torch
    from safetensors.torch import save_file
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
except ImportError as error:
    print(error)
    sys.exit(77)

STEPS = 5
SHAPES = [(7,), (3, 5)]


def keywords(text):
    return eval(f"dict({text})")  # from the test beside this file


def optimized(number, kind, arguments, how, out):
    grouped = how == ["groups"]
    rounded = how in (["parameters"], ["moments"])
    generator = torch.Generator().manual_seed(number)
    parameters = []
    for p, shape in enumerate(SHAPES):
        values = torch.randn(shape, generator=generator)
        out[f"{number}/before.{p}"] = values.bfloat16().float() if rounded else values
        parameters.append(out[f"{number}/before.{p}"].clone().requires_grad_())
    # Parameter 1 is a group of its own, without decay and with another rate.
    rate = keywords(arguments)["lr"]
    groups = [{"params": [parameters[0]]}, {"params": [parameters[1]], "weight_decay": 0, "lr": rate * 0.5}]
    optimizer = getattr(torch.optim, kind)(groups if grouped else parameters, **keywords(arguments))
    average = AveragedModel(torch.nn.ParameterList(parameters), multi_avg_fn=get_ema_multi_avg_fn(0.75))
    for step in range(STEPS):
        for p, parameter in enumerate(parameters):
            if step == 0 and p == 1:
                continue
            parameter.grad = torch.randn(SHAPES[p], generator=generator)
            if how == ["moments"]:
                parameter.grad = parameter.grad.bfloat16().float()
            out[f"{number}/gradient.{step}.{p}"] = parameter.grad.clone()
        optimizer.step()
        for state in optimizer.state.values() if how == ["moments"] else []:
            for value in state.values():
                if torch.is_tensor(value) and value.dim() > 0:
                    value.copy_(value.bfloat16())
        average.update_parameters(torch.nn.ParameterList(parameters))
    for p, parameter in enumerate(parameters):
        out[f"{number}/after.{p}"] = parameter.detach()
        out[f"{number}/average.{p}"] = average.module[p].detach()


def scheduled(number, kind, arguments, steps, out):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.5)
    schedule = getattr(torch.optim.lr_scheduler, kind)(optimizer, **keywords(arguments))
    rates = []
    for _ in range(steps):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        if len(rates) < steps:
            schedule.step()
    out[f"{number}/rates"] = torch.tensor(rates, dtype=torch.float64)


def plateaued(number, arguments, losses, out):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.5)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **keywords(arguments))
    rates = []
    for loss in losses.split(","):
        schedule.step(float(loss))
        rates.append(optimizer.param_groups[0]["lr"])
    out[f"{number}/rates"] = torch.tensor(rates, dtype=torch.float64)


def main():
    warnings.simplefilter("ignore")
    out = {}
    for number, line in enumerate(sys.stdin):
        what, kind, arguments, *steps = line.rstrip("\n").split("|")
        if what == "optimizer":
            optimized(number, kind, arguments, steps, out)
        elif what == "plateau":
            plateaued(number, kind, arguments, out)
        else:
            scheduled(number, kind, arguments, int(steps[0]), out)
    save_file(out, sys.argv[1])


main()
