"""Python processes of Spark take PySpark from where it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark

from headrace.spark.run.session import WORKER_SITE
from headrace.spark.run.worker_site.sitecustomize import without_packed

HOME = Path(pyspark.__file__).parent
PACKED = [
    *sorted((HOME / "python" / "lib").glob("*.zip")),
    *sorted((HOME / "jars").glob("spark-core_*.jar")),
]


def test_the_zip_files_of_an_installed_pyspark_leave_the_path_and_nothing_else_does(tmp_path: Path) -> None:
    packed = [str(each) for each in PACKED]
    assert len(packed) == 3
    mine = str(tmp_path / "mine.zip")
    site = str(HOME.parent)
    assert without_packed([*packed, mine, "", site]) == [mine, "", site]
    assert without_packed([*packed, mine]) == [*packed, mine], "without the installed PySpark the zip is the only one"
    elsewhere = str(tmp_path / "spark" / "python" / "lib" / "pyspark.zip")
    assert without_packed([elsewhere, site]) == [elsewhere, site], "the zip of another Spark is another PySpark"


def test_a_process_that_spark_starts_imports_compiled_modules_and_runs_the_users_sitecustomize_too(
    tmp_path: Path,
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.ran_the_users = __name__\n")
    path = os.pathsep.join(map(str, [*PACKED, WORKER_SITE, tmp_path]))
    program = "import pyspark, sitecustomize, builtins; print(pyspark.__file__, ran_the_users, sitecustomize.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    assert done.stdout.split() == [str(HOME / "__init__.py"), "sitecustomize", str(tmp_path / "sitecustomize.py")]
