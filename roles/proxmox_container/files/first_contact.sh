#!/bin/sh
# Runs inside the container, as root, by way of its node: what Ansible needs to come in by SSH. Says in lines of "changed: ..." what it did,
# and in lines of "hostkey: ..." who will answer.
# usage: first_contact.sh PACKAGES KEY ...      PACKAGES: names with blanks between; KEY: a line of authorized_keys
set -eu
packages=$1
shift

missing=
for package in $packages; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) || state=
    [ "$state" = installed ] || missing="$missing $package"
done
if [ -n "$missing" ]; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update >&2
    # shellcheck disable=SC2086 # names, with blanks between
    apt-get -qq -y --no-install-recommends install $missing >&2
    echo "changed: installed$missing"
fi

umask 077
mkdir -p /root/.ssh
keys=/root/.ssh/authorized_keys
for key; do
    if ! grep -qxF -e "$key" "$keys" 2>/dev/null; then
        [ ! -s "$keys" ] || [ -z "$(tail -c 1 "$keys")" ] || echo >>"$keys"
        printf '%s\n' "$key" >>"$keys"
        echo "changed: added an SSH key"
    fi
done

for file in /etc/ssh/ssh_host_*_key.pub; do
    [ ! -e "$file" ] || echo "hostkey: $(cut -d ' ' -f 1,2 "$file")"
done
