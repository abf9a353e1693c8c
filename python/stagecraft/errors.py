"""The exceptions of stagecraft."""

from __future__ import annotations

import re


class Error(Exception):
    """Base of all exceptions of stagecraft.

    `code` is the error's code, such as "SC2102", or "" if it has none; `stagecraft errors SC2102` explains it.
    """

    code: str = ""


class InputError(Error, ValueError):
    """A document, an argument or a model is wrong. The text says where, what was found and what would be right."""

    code = "SC2001"  # unless the cost model gives a more exact one


class NoPlanError(Error):
    """There is no answer: no plan fits, or a plan cannot end. The text says why and, if known, what would fit."""

    code = "SC2101"


class MissingProgramError(Error):
    """A program of stagecraft was not found. The text says where stagecraft looked for it and what to do."""

    code = "SC4005"


class ProgramError(Error):
    """A program ended with an error; the exception's text is the program's message.

    `program` is its name, `status` its exit status (see docs/run.md) and `log` all that it wrote to standard error.
    """

    def __init__(self, message: str, program: str, status: int, log: str) -> None:
        super().__init__(message)
        self.program = program
        self.status = status
        self.log = log
        codes = re.findall(r"\[(SC\d{4})\]", message)
        if codes:
            self.code = codes[-1]

    def __reduce__(self) -> tuple[type[ProgramError], tuple[str, str, int, str]]:
        return type(self), (str(self), self.program, self.status, self.log)
