"""The most memory that a command had resident."""

import subprocess
import sys

# The system counts with a program what its parent had when it started it, so the parent is a small one.
MEASURED = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""


def peak_kib(*command, stdout=subprocess.DEVNULL, check=True):
    """Runs it to its end; `check`: an exit code but 0 is an error."""
    measured = [sys.executable, "-c", MEASURED, *map(str, command)]
    ran = subprocess.run(measured, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)
    assert ran.returncode == 0 or not check, ran.stderr
    return int(ran.stderr.split()[-1])
