"""Command lines of `ctl` in this process, with what they print."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from controlplane.cli.main import run


@dataclass(frozen=True)
class Told:
    """What a command line printed."""

    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class Ctl:
    """Runs command lines."""

    capsys: pytest.CaptureFixture[str]

    def __call__(self, *line: str, code: int = 0) -> Told:
        """Run the words of these texts, which must end with this exit code."""
        self.capsys.readouterr()
        ended = run([word for text in line for word in text.split()])
        told = Told(*self.capsys.readouterr())
        assert ended == code, told
        return told
