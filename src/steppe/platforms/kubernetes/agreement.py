"""The constants that the client and the Pods of an experiment share: paths, keys, exit codes."""

from __future__ import annotations

RESULTS, SPEC, MODULES, TOKENS = "/steppe/results", "/steppe/spec", "/steppe/modules", "/steppe/tokens"
"""The folders of containers with the results, the experiment, the user's modules and the tokens."""
CARRIED = "/steppe/carried"
"""The folder with the pieces of large files that the experiment names."""
SPEC_KEY = "experiment.json"
STATUS_TOKEN, RAY_TOKEN, LEARNER_TOKEN = TOKEN_KEYS = ("door", "ray", "learner")
"""The keys of the Secret, and the names of the files in TOKENS."""
POOL_TOKENS = {"distributed": RAY_TOKEN, "async": LEARNER_TOKEN}
"""Run mode -> the only token of the Pods that work for a driver; with it they ask its status server at /crew."""
PREFIX = "STEPPE_POD_"
"""The prefix of the variables that configure a Pod."""
TOKEN_HEADER = "X-Steppe-Token"
"""The header with the status server's token; the API server does not pass "Authorization" on."""
FAILED_FOR_GOOD = 3
"""The exit code of a driver that would fail again."""
REPLACED = 4
"""The exit code of a driver whose training another Pod must resume; not 1, which any failing program returns."""
ELSEWHERE = 75
"""The exit code of a training that has not begun, since another Pod still has the experiment (EX_TEMPFAIL)."""
NOTE_FILE = ".pod.json"
"""In a run folder: the start that its Pods work on, and the exit code of one that is over."""
TERMINATION_LOG = "/dev/termination-log"
LONGEST_LAST_WORDS = 4000
"""Kubernetes keeps 4,096 bytes of the file that a container leaves there."""
