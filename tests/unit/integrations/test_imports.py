from __future__ import annotations

import subprocess
import sys


def test_importing_ownpace_imports_no_framework():
    script = (
        "import sys, ownpace, ownpace.integrations; print({'lightning', 'transformers', 'accelerate'} & {*sys.modules})"
    )
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "set()\n"
    )
