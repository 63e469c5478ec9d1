#!/bin/sh
# Make the virtual environment and install what the named extras of pyproject.toml need.
# usage: setup.sh VENV [EXTRA[?] ...]   Does nothing when it has been done for this pyproject.toml.
# EXTRA?: not every platform has a build of it; where it cannot be installed, its tests are skipped.
set -eu
venv=$1
shift
python=${PYTHON3:-python3}

if ! command -v "$python" >/dev/null 2>&1; then
    echo "setup: Python is missing. Install it with:  sudo apt install python3 python3-venv" >&2
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "setup: Python 3.11 or newer is needed; $python is $("$python" -V)." >&2
    echo "setup: Install one (sudo apt install python3.12 python3.12-venv), then:  PYTHON3=python3.12 make ..." >&2
    exit 1
fi
if [ ! -x "$venv/bin/python" ]; then
    if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
        version=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        echo "setup: the venv module is missing. Install it with:  sudo apt install $version" >&2
        exit 1
    fi
    echo "setup: making the virtual environment $venv"
    rm -rf "$venv"
    "$python" -m venv "$venv"
fi

want=$(cksum < pyproject.toml)
missing=
extras=
for extra in base "$@"; do
    name=${extra%\?}
    stamp="$venv/.installed-$name"
    if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$want" ]; then
        missing="$missing $extra"
    fi
    case $extra in
        base | *\?) ;;
        *) extras="${extras:+$extras,}$extra" ;;
    esac
done
[ -n "$missing" ] || exit 0

log="$venv/setup.log"
install() {
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable ".${1:+[$1]}" >"$log" 2>&1
}
echo "setup: installing Python packages into $venv (extras: ${extras:-none})"
if ! install "$extras"; then
    cat "$log" >&2
    echo "setup: pip could not install the packages; see above (is the package index reachable?)" >&2
    exit 1
fi
for extra in $missing; do
    name=${extra%\?}
    if [ "$name" != "$extra" ] && ! install "$name"; then
        echo "setup: the extra $name cannot be installed here ($log says why); its tests are skipped" >&2
    fi
done
for extra in base "$@"; do
    echo "$want" > "$venv/.installed-${extra%\?}"
done
