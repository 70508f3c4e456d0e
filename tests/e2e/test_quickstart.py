"""The quick start on a GPU host, block by block, on a core in the GPU's place."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import triton_image
from ctl_fleet import CTL, ROOT, Ctl

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]

PAGE = (ROOT / "docs" / "quickstart-gpu.md").read_text()
IMAGE, FLEET = (
    [line.partition("   #")[0].strip() for line in re.findall(r"^    (.+)$", block, re.MULTILINE)]
    for block in re.findall(r"(?:^    .+\n)+", PAGE, re.MULTILINE)
    if "triton_image.py" in block or "ctl apply" in block
)


def without_a_gpu(line: str) -> str:
    """A core in the GPU's place, on which other tests' fleets may run; and a watch would not end."""
    line = line.replace("--device v100", "--device cpu --budget 5").replace(" --watch", "")
    return line.replace("apply plan.json", "apply plan.json --allow overcommit")


def test_the_blocks_make_an_image_and_bring_models_to_a_fleet(tmp_path: Path) -> None:
    with triton_image.empty_engine() as engine, Ctl(tmp_path, "quick") as host:
        host.repository = host.repository.rename(tmp_path / "model_repository")
        host.environment |= {"DOCKER_HOST": engine.address, "TRISECT_FLEET": host.fleet}
        make, variables = IMAGE
        made = make.replace(".venv/bin/python", sys.executable).replace(
            "unix:///var/run/docker.sock", engine.address
        )
        subprocess.run(made.split(), cwd=ROOT, env=host.environment, check=True, timeout=300)
        host.environment |= dict(re.findall(r"(\w+)=(\S+)", variables))

        shown = {}
        for line in map(without_a_gpu, FLEET):
            command = line.split()
            assert command[0] == "ctl"
            done = subprocess.run(
                [str(CTL), *command[1:]],
                cwd=tmp_path,
                env=host.environment,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            assert done.returncode == 0, f"{line}: {done.stderr}"
            shown[line] = done.stdout + done.stderr
            if command[1] == "init":
                spec = tmp_path / "spec.yaml"
                text = re.sub(r"slo_ms: [\d.]+", "slo_ms: 2000", spec.read_text())
                listen = ", ".join(f"{name}: {port}" for name, port in host.listen.items())
                spec.write_text(f"{text}\nserve: {{listen: {{{listen}}}}}\n")
        assert any("docker run" in text for line, text in shown.items() if "--dry-run" in line)
        host.infer("echo")
