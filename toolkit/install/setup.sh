#!/usr/bin/env bash
# From a bare Debian or Ubuntu to a working bitring: system packages, virtual environment,
# pinned requirements, Horovod. Every step is skipped when it is already done.
#
#   usage: setup.sh [VENV]            VENV defaults to .venv
#   PYTHON                  interpreter for the virtual environment (default python3, >= 3.11)
#   BITRING_CACHE           where the Horovod wheel is kept (default ~/.cache/bitring)
#   BITRING_HOROVOD         1 (default): install, and go on under mpirun if that fails;
#                           require: fail if it can't be built; 0: leave it out
#   BITRING_DEV             1 (default): also what `make test` needs; 0: run time only
set -euo pipefail

PROJECT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
VENV=${1:-$PROJECT/.venv}
PYTHON=${PYTHON:-python3}
CACHE=${BITRING_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/bitring}
HOROVOD_MODE=${BITRING_HOROVOD:-1}
DEV=${BITRING_DEV:-1}
HOROVOD_VERSION=0.28.1
HOROVOD_SHA256=92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0

say() { printf '[setup] %s\n' "$*"; }
die() { printf '[setup] %s\n' "$*" >&2; exit 1; }

python_is_new_enough() {
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
        die "$PYTHON is missing or older than 3.11; install Python >= 3.11, or name one: PYTHON=python3.12 make setup"
}

install_system_packages() {
    local missing=()
    command -v g++ >/dev/null || missing+=(g++)
    command -v make >/dev/null || missing+=(make)
    command -v cmake >/dev/null || missing+=(cmake)
    command -v mpirun >/dev/null || missing+=(openmpi-bin)
    command -v mpicxx >/dev/null || missing+=(libopenmpi-dev)
    "$PYTHON" -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
    "$PYTHON" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' || missing+=(python3-dev)
    ((${#missing[@]} == 0)) && return
    say "system packages: ${missing[*]}"
    command -v apt-get >/dev/null ||
        die "no apt-get here; install the equivalents of: ${missing[*]}, then call again"
    local sudo=()
    [ "$(id -u)" = 0 ] || sudo=(sudo -n)
    { "${sudo[@]}" apt-get -o DPkg::Lock::Timeout=300 update -qq &&
        "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 \
            install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; } ||
        die "could not install them; as an administrator: apt-get install ${missing[*]}"
}

install_requirements() {
    local list=requirements-dev.txt
    [ "$DEV" = 1 ] || list=requirements.txt
    [ -x "$VENV/bin/python" ] || { say "virtual environment $VENV"; "$PYTHON" -m venv "$VENV"; }
    say "requirements ($list); torch is the large one, some minutes on a first call"
    # setuptools .. packaging: what Horovod's setup.py imports, there being no build isolation
    "$VENV/bin/python" -m pip install -qq --disable-pip-version-check -r "$PROJECT/$list" \
        'setuptools<81' wheel cffi cloudpickle psutil pyyaml packaging
    "$VENV/bin/python" -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e "$PROJECT"
}

# The wheel is built once per (horovod, torch, Python, MPI, architecture) and kept.
#   * The sdist asks for C++14 and torch needs C++17; CXXFLAGS can't override it, a compiler
#     wrapper that appends the flag can (gcc takes the last -std=). -g0: 1 MB, not 21 MB.
#   * CMAKE_POLICY_VERSION_MINIMUM: the bundled gloo asks for a policy that CMake 4 dropped.
install_horovod() {
    local torch_tag mpi_tag key wheels build
    torch_tag=$("$VENV/bin/python" -c 'import torch, sys; print("torch" + torch.__version__ + "-cp%d%d" % sys.version_info[:2])')
    mpi_tag=$(mpirun --version | sed -n 's/^mpirun (Open MPI) /ompi/p')
    key="horovod$HOROVOD_VERSION-$torch_tag-${mpi_tag:-othermpi}-$(uname -m)"
    wheels="$CACHE/wheels/$key"
    mkdir -p "$CACHE/wheels"
    exec 9>"$CACHE/wheels/.lock"
    flock 9
    if ! ls "$wheels"/horovod-*.whl >/dev/null 2>&1; then
        say "building Horovod $HOROVOD_VERSION against torch (3 to 9 minutes, once); log: $CACHE/wheels/$key.log"
        build=$(mktemp -d "$CACHE/wheels/.build.XXXXXX")
        printf '#!/bin/sh\nexec g++ "$@" -std=c++17 -g0\n' >"$build/cxx17"
        chmod +x "$build/cxx17"
        echo "horovod==$HOROVOD_VERSION --hash=sha256:$HOROVOD_SHA256" >"$build/requirements.txt"
        if ! env PATH="$VENV/bin:$PATH" CXX="$build/cxx17" MAKEFLAGS="-j$(nproc)" CMAKE_POLICY_VERSION_MINIMUM=3.5 \
            HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_MPI=1 HOROVOD_WITH_GLOO=1 \
            HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_CPU_OPERATIONS=MPI \
            HOROVOD_BUILD_ARCH_FLAGS="${HOROVOD_BUILD_ARCH_FLAGS-$(default_arch_flags)}" \
            "$VENV/bin/python" -m pip wheel -v --no-deps --no-build-isolation --no-cache-dir \
            -w "$build/wheel" -r "$build/requirements.txt" >"$CACHE/wheels/$key.log" 2>&1; then
            rm -rf "$build"
            tail -20 "$CACHE/wheels/$key.log" >&2
            return 1
        fi
        rm -rf "$wheels"
        mv "$build/wheel" "$wheels"
        rm -rf "$build"
    fi
    "$VENV/bin/python" -m pip install -qq --disable-pip-version-check --no-deps --no-index --force-reinstall \
        "$wheels"/horovod-*.whl
    flock -u 9
}

default_arch_flags() { [ "$(uname -m)" != x86_64 ] || echo "-mf16c -mavx -mfma"; }

stamp_of_inputs() {
    (cd "$PROJECT" && cat requirements.txt requirements-dev.txt pyproject.toml toolkit/install/setup.sh
     echo "$PROJECT $1 $HOROVOD_MODE $("$PYTHON" --version)") | sha256sum | cut -d' ' -f1
}

# What development needs contains what training needs, so its stamp serves for both.
is_done() {
    local had
    had=$(cat "$VENV/.bitring-setup" 2>/dev/null) || return 1
    [ "$had" = "$(stamp_of_inputs 1)" ] || { [ "$DEV" != 1 ] && [ "$had" = "$(stamp_of_inputs 0)" ]; }
}

python_is_new_enough
install_system_packages
build_kernels() { # plain torch serves where they can't be built
    make -s -C "$PROJECT/cuda" kernels || say "the kernels could not be built: plain torch is used instead, slower"
}

build_kernels
if is_done; then
    [ ! -e "$VENV/.horovod-failed" ] || say "no Horovod here, its build failed; BITRING_HOROVOD=require make setup tries again"
    exit 0
fi
install_requirements
rm -f "$VENV/.horovod-failed"
if [ "$HOROVOD_MODE" != 0 ] && ! install_horovod; then
    [ "$HOROVOD_MODE" != require ] || die "Horovod could not be built, and BITRING_HOROVOD=require asks for it"
    say "Horovod could not be built: training runs under mpirun with mpi4py reductions instead (bitring doctor)"
    touch "$VENV/.horovod-failed"
fi
stamp_of_inputs "$DEV" >"$VENV/.bitring-setup"
say "ready: $VENV"
