"""One small Ray of our own, for tests: nobody else's is joined, and nothing is left behind."""

from __future__ import annotations

import logging
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Before Ray is imported: no token files, no shared address file, no usage report.
ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    # A busy machine needs longer than Serve's 5 s to start a proxy, and whoever waits for a killed one fails.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}
os.environ.update(ENVIRONMENT)


def start_ray() -> None:
    import ray

    ray.init(
        address="local",
        num_cpus=8,
        include_dashboard=False,
        object_store_memory=400 << 20,
        _temp_dir="/tmp/sl",
        log_to_driver=bool(os.environ.get("SIGHTLINE_TEST_LOGS")),
        logging_level=logging.WARNING,
        runtime_env={"env_vars": ENVIRONMENT | {"PYTHONPATH": str(ROOT)}},
    )
