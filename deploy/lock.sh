#!/usr/bin/env bash
# Makes the four lists of exact versions anew, each with the hashes of all files of each version, for every platform and
# Python 3.11 and newer (on 3.10 pyproject.toml's ranges decide). What a list has is kept where pyproject.toml still allows
# it; `deploy/lock.sh --upgrade` takes the newest. Needs uv, which is in no list: `pip install uv`; UV=/path/to/uv.
#   requirements-build.lock  what packages are built with that come as source: everflow itself (hatchling), pyspark (setuptools)
#   requirements.lock        what ./run installs: everflow's needs, and the tests' and the demo's
#   requirements-spark-4.2.lock  the same with the older Spark that is supported: SPARK=4.2 ./run
#   requirements-image.lock  everflow's needs alone, for the image
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

lock() {
    "${UV:-uv}" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
        --custom-compile-command "deploy/lock.sh" "$@" >/dev/null
}

printf '%s\n' "hatchling>=1.25" "editables" "setuptools>=77" "wheel" | lock - --output-file requirements-build.lock "$@"
lock pyproject.toml --extra test --extra demo --constraints requirements-build.lock --output-file requirements.lock "$@"
cp requirements.lock requirements-spark-4.2.lock  # the other versions are the same
printf 'pyspark==4.2.*\n' | lock pyproject.toml - --extra test --extra demo --constraints requirements-build.lock \
    --output-file requirements-spark-4.2.lock --upgrade-package pyspark "$@"
lock pyproject.toml --constraints requirements.lock --output-file requirements-image.lock "$@"
