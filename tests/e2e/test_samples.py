"""A model that refuses generated inputs, served with a sample of its own, on real Tritons."""

from pathlib import Path

import numpy as np
import tritonclient.http as triton_http
from ctl_fleet import Ctl, partition, plan
from model_files import write_text_sample, write_texts


def test_a_model_that_refuses_generated_inputs_is_proved_with_its_own_sample(tmp_path: Path) -> None:
    with Ctl(tmp_path, "sample") as host:
        write_texts(host.repository, "fussy", b"{", "a JSON object")
        # Two workloads share the queue, so the second endpoint is an alias.
        shared = partition("a", 40, model="fussy", shadow=False)
        shared["workloads"].append({**shared["workloads"][0], "name": "b", "endpoint": "b"})

        refused = host.apply(plan(shared), exit_code=4)
        assert "wants a JSON object" in refused.stderr
        assert "`model_warmup` in the model's config.pbtxt" in refused.stderr

        write_text_sample(host.repository, "fussy", b"{}")
        host.apply(plan(shared))
        with triton_http.InferenceServerClient(f"127.0.0.1:{host.http}") as client:
            for endpoint in ("a", "b"):
                text = triton_http.InferInput("T", [1, 1], "BYTES")
                text.set_data_from_numpy(np.array([[b'{"a": 1}']], dtype=np.object_))
                assert client.infer(endpoint, [text]).as_numpy("N").item() == b"{"
