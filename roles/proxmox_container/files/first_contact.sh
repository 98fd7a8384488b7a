#!/bin/sh
# Runs inside the container, as root, by way of its node: what Ansible needs to come in by SSH. Says in lines of "changed: ..." what it did,
# and in lines of "hostkey: ..." who will answer.
# usage: first_contact.sh do|say PACKAGES KEY ...
#     say: changes nothing. PACKAGES: names with blanks between; KEY: a line of authorized_keys
set -eu
mode=$1 packages=$2
shift 2
export DEBIAN_FRONTEND=noninteractive

# apt-get, once nobody else holds its locks: a new system fetches lists by itself, and what a run that was cut off has begun goes on.
# Nothing may read the standard input, where the rest of this text comes from.
get() {
    tries=90
    until told=$(apt-get -qq -o DPkg::Lock::Timeout=120 "$@" 2>&1 </dev/null); do
        tries=$((tries - 1))
        case $told in
            *"Could not get lock"*) sleep 2 ;;
            *"dpkg was interrupted"*) dpkg --configure -a >&2 </dev/null || tries=0 ;;
            *) tries=0 ;;
        esac
        [ "$tries" -gt 0 ] || { echo "$told" >&2 && return 1; }
    done
}

missing=
for package in $packages; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) || state=
    [ "$state" = installed ] || missing="$missing $package"
done
if [ -n "$missing" ]; then
    if [ "$mode" = do ]; then
        get update
        # shellcheck disable=SC2086 # names, with blanks between
        get install -y --no-install-recommends $missing
    fi
    echo "changed: installed$missing"
fi

umask 077
keys=/root/.ssh/authorized_keys
[ "$mode" = say ] || mkdir -p /root/.ssh
for key; do
    grep -qxF -e "$key" "$keys" 2>/dev/null && continue
    echo "changed: added an SSH key"
    [ "$mode" = do ] || continue
    # Whole or not at all, also on a full disk; sed ends a last line that has no end.
    { [ ! -s "$keys" ] || sed '$a\' "$keys"; printf '%s\n' "$key"; } | cat >"$keys.new" || { rm -f "$keys.new" && exit 1; }
    mv "$keys.new" "$keys"
done

for file in /etc/ssh/ssh_host_*_key.pub; do
    [ ! -e "$file" ] || echo "hostkey: $(cut -d ' ' -f 1,2 "$file")"
done
