"""The blocks of the README."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"(?:^    .*\n|^\n(?=    ))+", re.MULTILINE)


def blocks() -> list[str]:
    """Return the indented blocks, without their indentation."""
    found = (block.group().strip("\n") for block in _BLOCK.finditer((ROOT / "README.md").read_text()))
    return ["\n".join(line[4:] for line in block.splitlines()) for block in found]


def kind(block: str) -> str:
    """Return what a block is: commands, a spec or what `ctl plan` prints."""
    if re.match(r"make |\.venv/bin/ctl ", block):
        return "commands"
    if block.startswith("schema_version:"):
        return "spec"
    return "plan"


def commands() -> list[str]:
    """Return the lines of the blocks of commands, without their comments."""
    lines = (line for block in blocks() if kind(block) == "commands" for line in block.splitlines())
    return [line.partition("#")[0].strip() for line in lines]
