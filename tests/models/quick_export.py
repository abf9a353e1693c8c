"""Makes torch.export quicker in tests; its results stay the same. Import it before torch."""

import gc
import os
import typing

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # torch's threads sleep while they wait for work, instead of spinning


def remember_type_hints():
    """torch.export.load asks for the types of the same few classes thousands of times, a third of its time."""
    ask, known = typing.get_type_hints, {}

    def answer(of, *arguments, **options):
        if getattr(of, "__module__", "") != "torch._export.serde.schema":
            return ask(of, *arguments, **options)
        if of not in known:
            known[of] = ask(of, *arguments, **options)
        return known[of]

    typing.get_type_hints = answer


def prepare():
    """Call it after the imports: torch.export makes so many objects that Python looks through those of torch all the time."""
    remember_type_hints()
    gc.collect()
    gc.freeze()
