"""Fetch what Beam's job server for Flink or Spark needs, by Maven, and make one jar that starts it.

    python scripts/fetch_job_server.py flink      # or spark; `make runners` does both

scripts/job_servers/<name>/pom.xml says what is fetched; build/job_servers/<name>.jar starts it, and refers to
the files in the folder beside it. Beam takes it as --flink_job_server_jar or --spark_job_server_jar.
"""

import argparse
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "build" / "job_servers"
MAIN = {
    "flink": "org.apache.beam.runners.flink.FlinkJobServerDriver",
    "spark": "org.apache.beam.runners.spark.SparkJobServerDriver",
}
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
JAVA = 17
# A line of a jar's manifest holds at most 72 bytes; what is longer goes on behind a space.
_LINE = 70


def require_tools() -> None:
    """Stop with a sentence when there is no Java of the right age, or no Maven."""
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            sys.exit(f"Beam's job servers need Java {JAVA} and Maven; there is no {tool!r} on the path.")
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found[1]) < JAVA:
        sys.exit(f"Beam's job servers need Java {JAVA}; 'java -version' says: {said.strip()}")


def fetch(name: str) -> Path:
    """The files that one pom names, afresh, in a folder of their own."""
    folder = TARGET / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [
        "mvn",
        "--quiet",
        "--batch-mode",
        "--file",
        str(ROOT / "scripts" / "job_servers" / name / "pom.xml"),
    ]
    done = subprocess.run(
        [*command, COPY, "-DincludeScope=runtime", f"-DoutputDirectory={folder}"], check=False
    )
    if done.returncode:
        sys.exit(f"Maven could not fetch what {name}'s job server needs: see above, and try again.")
    return folder


def starter(name: str, folder: Path) -> Path:
    """A jar of nothing but a manifest: the class to start, and where its files are."""
    files = " ".join(f"{folder.name}/{jar.name}" for jar in sorted(folder.glob("*.jar")))
    lines = ["Manifest-Version: 1.0", f"Main-Class: {MAIN[name]}", f"Class-Path: {files}"]
    folded = [
        "\r\n ".join(line[i : i + _LINE] for i in range(0, len(line), _LINE)) + "\r\n" for line in lines
    ]
    path = TARGET / f"{name}.jar"
    with zipfile.ZipFile(path, "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", "".join(folded) + "\r\n")
    return path


def main() -> None:
    """Fetch one job server."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=sorted(MAIN))
    name = parser.parse_args().name
    require_tools()
    print(starter(name, fetch(name)))


if __name__ == "__main__":
    main()
