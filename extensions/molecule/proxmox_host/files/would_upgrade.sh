#!/bin/sh
# What unattended-upgrades would take: with all that the role did, with its blacklist alone, and without any of it.
set -eu
place=$(mktemp -d)
look() {
    unattended-upgrade --dry-run -v >"$place/said" 2>&1
    sed -n 's/^Packages that will be upgraded: //p' "$place/said"
}
echo "all: $(look)"
apt-mark showhold >"$place/held"
xargs -r apt-mark unhold <"$place/held" >/dev/null
mkdir "$place/pins" "$place/lists"
mv /etc/apt/preferences.d/00-ringmaster-* "$place/pins"
echo "blacklist: $(look)"
mv /etc/apt/apt.conf.d/52ringmaster-* "$place/lists"
echo "none: $(look)"
mv "$place"/lists/* /etc/apt/apt.conf.d
mv "$place"/pins/* /etc/apt/preferences.d
xargs -r apt-mark hold <"$place/held" >/dev/null
rm -r "$place"
