"""Which Java Spark will use, and whether it can. Nothing of Spark is loaded: ``headrace doctor`` looks here, too."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

from headrace.errors import UsageError

__all__ = ["JAVA_HINT", "find_java", "java_version", "wrong_version"]

JAVA_TIMEOUT_S = 60
JAVA_HINT = "install Java 17 or 21 (on Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME"


def find_java() -> tuple[Path, tuple[int, ...]]:
    """The Java that Spark will use and its version, or one clear line about what is wrong with it."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None or not Path(found).exists():
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is no java on the PATH"
        raise UsageError(f"Spark needs Java and {where}", JAVA_HINT)
    version = java_version(_what_java_prints(found))
    problem = wrong_version(version)
    if problem:
        raise UsageError(
            f"{found} is Java {'.'.join(map(str, version)) or 'of an unknown version'}: {problem}", JAVA_HINT
        )
    return Path(found), version


@functools.cache
def _what_java_prints(java: str) -> str:
    """Asked once: a JVM takes a while to say even this, and a run looks at it more than once."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"Spark needs Java and {java} does not run: {error}", JAVA_HINT) from error
    return done.stderr + done.stdout


def java_version(text: str) -> tuple[int, ...]:
    """From what ``java -version`` prints: ``openjdk version "17.0.12" 2024-07-16``; 1.8 is 8."""
    quoted = re.search(r'version "([\d.]+)', text)
    if quoted is None:
        return ()
    numbers = tuple(int(part) for part in quoted[1].strip(".").split("."))
    return numbers[1:] if numbers[0] == 1 and len(numbers) > 1 else numbers


def wrong_version(version: tuple[int, ...]) -> str:
    """Why Spark 4.3 should not run on it, or nothing."""
    if not version or version[0] < 17:
        return "Spark 4.3 needs 17 or newer"
    if version[0] == 25 and version < (25, 0, 3):
        return "25.0.0 to 25.0.2 compile some of Spark's loops wrongly and corrupt data"
    return ""
