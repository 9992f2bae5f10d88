"""Load on an OpenAI-compatible endpoint: `sightline bench` without an installation.

    python benchmarks/http_load.py --profile 8k -c 16 --duration 20 --sightline --json figures.json

docs/load_generator.md explains profiles and figures.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from app.load.command import main

if __name__ == "__main__":
    sys.exit(main())
