"""What the client and the Pods of an experiment agree on."""

from __future__ import annotations

RESULTS, SPEC, MODULES, TOKENS = "/steppe/results", "/steppe/spec", "/steppe/modules", "/steppe/tokens"
"""Where containers find the results, the experiment, the user's modules and the tokens."""
CARRIED = "/steppe/carried"
"""Where they find large files that the experiment names, in pieces."""
SPEC_KEY = "experiment.json"
DOOR_TOKEN, RAY_TOKEN, LEARNER_TOKEN = TOKEN_KEYS = ("door", "ray", "learner")
"""The keys of the Secret, and the names of the files in TOKENS."""
CREW_TOKENS = {"distributed": RAY_TOKEN, "async": LEARNER_TOKEN}
"""Run mode -> the only token that those have who work for a driver; the door tells them what they must know for it."""
PREFIX = "STEPPE_POD_"
"""Variables that tell a Pod what it is begin so."""
TOKEN_HEADER = "X-Steppe-Token"
"""Shows the door's token; not "Authorization", which the API server keeps for itself."""
FAILED_FOR_GOOD = 3
"""The exit code of a driver that would fail again."""
REPLACED = 4
"""The exit code of a driver whose training another Pod is to go on with; not 1, which any program may end with."""
ELSEWHERE = 75
"""The exit code of a training that has not begun, since another Pod still has the experiment; as in sysexits.h."""
NOTE_FILE = ".pod.json"
"""In a run folder: which start its Pods work on, and the exit code of one that is over."""
TERMINATION_LOG = "/dev/termination-log"
LONGEST_LAST_WORDS = 4000
"""Kubernetes keeps 4,096 bytes of what a container leaves there."""
